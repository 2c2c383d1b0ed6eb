"""The examples run as their readers would run them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


EXAMPLE_NAMES = ["gather_and_stack", "point_to_point", "objects", "object_lists", "uneven", "functional", "tensordicts"]


def _run(*command, timeout=120):
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=timeout, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name", ["gather_and_stack", "point_to_point", "objects", "object_lists", "uneven", "functional", "tensordicts"]
)
def test_by_itself(name):
    assert _run(EXAMPLES / f"{name}.py")


@pytest.mark.parametrize(
    "name", ["gather_and_stack", "point_to_point", "objects", "object_lists", "uneven", "functional", "tensordicts"]
)
def test_under_corral_run(name):
    out = _run("-m", "corral", "run", "-n", "3", EXAMPLES / f"{name}.py")
    assert {line[:3] for line in out.splitlines()} == ({"[0]", "[1]", "[2]"} if name == "point_to_point" else {"[0]"})


def test_ddp_over_corral():
    out = _run(EXAMPLES / "torch_backend.py")
    assert out.startswith("2 ranks over corral: ")
    assert _run("-m", "corral", "run", "-n", "3", EXAMPLES / "torch_backend.py").startswith("[0] 3 ranks over corral: ")


@pytest.mark.timeout(520)
@pytest.mark.skipif(importlib.util.find_spec("torchrl") is None, reason="TorchRL is not installed: see the Makefile")
def test_torchrl_collects_over_corral_what_it_collects_over_gloo():
    batches, last = {}, {}
    for backend in ("corral", "gloo"):
        *batches[backend], last[backend] = _run(EXAMPLES / "torchrl_collector.py", backend, timeout=250).splitlines()
    assert len(batches["corral"]) == 6
    assert batches["corral"] == batches["gloo"]
    assert last["corral"].startswith("2 workers over corral: 384 frames")


def test_gather_and_stack_gives_the_documented_rows():
    for arguments in ([], ["--torch"]):
        out = _run(EXAMPLES / "gather_and_stack.py", *arguments)
        digits = [float(part) for part in out.replace("tensor", "").translate(str.maketrans("[](),", "     ")).split()]
        assert digits == [1.0] * 3 + [2.0] * 3 + [3.0] * 3


def test_rollouts_equal_one_process():
    out = _run(EXAMPLES / "rollouts.py", "--steps", "32", "--envs", "4", "--pixel-envs", "2")
    assert "equal, bit for bit" in " ".join(out.split())
