"""What importing corral costs, and that what it offers is there."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import corral


def _modules_after(statement):
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    ["import corral", "import corral; corral.distributed.init_process_group; corral.TensorDict; corral.gather"],
)
def test_no_array_library_is_imported(statement):
    loaded = _modules_after(statement)
    assert "corral" in loaded
    assert not loaded & {"torch", "jax", "cupy", "typer", "rich", "optree", "tensordict", "mpi4py"}


def test_what_takes_much_memory_is_imported_where_it_is_used():
    """OpenSSL, for one, which comes with hashlib, is a third of what a worker takes for corral."""
    statement = "import numpy; import corral; corral.distributed.init_process_group; corral.TensorDict; corral.gather"
    loaded = _modules_after(statement) - _modules_after("import numpy")
    assert not loaded & {"hashlib", "hmac", "secrets", "tempfile", "shutil", "logging", "asyncio", "concurrent.futures"}


@pytest.mark.parametrize("name", corral.__all__)
def test_every_public_name_is_there(name):
    assert getattr(corral, name) is not None
    assert name in dir(corral)


def test_every_public_name_of_distributed_is_there():
    for name in corral.distributed.__all__:
        assert getattr(corral.distributed, name) is not None


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = corral.nonsense


MODULES = [
    info.name
    for info in pkgutil.walk_packages(corral.__path__, "corral.")
    if info.name not in ("corral.__main__", "corral._core")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    if name == "corral.backends.mpi":
        pytest.importorskip("mpi4py")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert failed == 0
