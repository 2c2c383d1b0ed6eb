"""Runs a function on transports of every kind, each rank in a process of its own."""

from __future__ import annotations

import base64
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ranks import _collect
from starting import end_group, mpirun

from corral.processes import die_with_parent

_spawn = multiprocessing.get_context("spawn")
_ROOT = Path(__file__).parents[2]
_LOOK = 0.05  # seconds between looks for what ranks have said
_END = 10.0  # seconds for mpirun to end once they have

NAMES = ["gloo", "mpi", "hybrid", "hybrid-mpi"]


def run(
    name: str, function: Callable[..., Any], size: int, *args: Any, dies: Sequence[int] = (), timeout: float = 60.0
) -> list[Any]:
    """Call ``function(transport, *args)`` on `size` ranks and return what each returned.

    Fails if one raises, if one of `dies` is not killed by SIGKILL, or another one does not end well.
    """
    if "mpi" in name:
        return _run_mpi(name, function, size, args, dies, timeout)
    pytest.importorskip("torch")
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meet"
        return _run(_rank, size, (name, function, size, meeting, args), dict.fromkeys(dies, -signal.SIGKILL), timeout)


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    exits: Mapping[int, int] | None = None,
    timeout: float = 120.0,
) -> list[Any]:
    """Call ``function(rank, size, *args)`` in `size` processes without any group; else as `ranks.run`."""
    pytest.importorskip("torch")
    return _run(_bare_rank, size, (function, size, args), exits or {}, timeout)


def run_under_mpirun(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """Call ``function(rank, size, *args)`` in `size` processes that mpirun starts."""
    return _run_mpi("", function, size, args, (), 120.0)


def _run(
    target: Callable[..., None], size: int, args: tuple[Any, ...], exits: Mapping[int, int], timeout: float
) -> list[Any]:
    ends, processes = [], []
    try:
        for rank in range(size):
            ours, theirs = _spawn.Pipe(duplex=False)
            process = _spawn.Process(target=target, args=(theirs, rank, *args), daemon=True)
            process.start()
            theirs.close()
            ends.append(ours)
            processes.append(process)
        return _collect(ends, processes, timeout, exits)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def _bare_rank(end: Any, rank: int, function: Callable[..., Any], size: int, args: tuple[Any, ...]) -> None:
    try:
        end.send((True, function(rank, size, *args)))
    except BaseException:
        end.send((False, traceback.format_exc()))
        raise SystemExit(1) from None


def _rank(
    end: Any, rank: int, name: str, function: Callable[..., Any], size: int, meeting: str, args: tuple[Any, ...]
) -> None:
    try:
        from corral.distributed import rendezvous

        def meet(payload: bytes) -> list[bytes]:
            return rendezvous.meet(meeting, rank, size, payload, 20.0)

        end.send((True, function(make(name, rank, size, meet), *args)))
    except BaseException:
        end.send((False, traceback.format_exc()))
        raise SystemExit(1) from None


def make(name: str, rank: int, size: int, meet: Callable[[bytes], list[bytes]] | None) -> Any:
    """Make this rank's transport of a kind."""
    if "mpi" in name:
        from corral.backends.mpi import MpiTransport as Engine
    else:
        from corral.backends.torch import TorchTransport as Engine
    if not name.startswith("hybrid"):
        return Engine.create(rank, size, meet, 20.0)
    from corral.backends.hybrid import HybridTransport

    # Ranks 0 and 1 are on one host, the others on another.
    os.environ["CORRAL_HOST_ID"] = f"host {rank // 2}"
    return HybridTransport.create(rank, size, meet, 20.0, Engine.create)


# What mpirun does when a rank dies: nothing, so that the others can go on; or tell them, if they would know.
_OPTIONS = {
    "": [],
    "mpi": ["--runtime-options", "continuous"],
    "mpi-ulfm": ["--with-ft", "ulfm"],
    "hybrid-mpi": ["--runtime-options", "continuous"],
}


def _run_mpi(
    name: str, function: Callable[..., Any], size: int, args: tuple[Any, ...], dies: Sequence[int], timeout: float
) -> list[Any]:
    command = mpirun()
    call = base64.b64encode(pickle.dumps((name, function, args))).decode()
    environ = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, sys.path)])
    # What killed ranks leave of the memory that MPI shares goes with the folder.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as said:
        environ["OMPI_MCA_btl_sm_backing_directory"] = folder
        process = subprocess.Popen(
            [*command, *_OPTIONS[name], "-n", str(size), sys.executable, "-m", "tests.backends.jobs", folder, call],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=_ROOT,
        )
        files = {rank: Path(folder) / str(rank) for rank in range(size)}
        survivors = [file for rank, file in files.items() if rank not in dies]
        deadline = time.monotonic() + timeout
        try:
            while process.poll() is None and time.monotonic() < deadline and not all(map(Path.exists, survivors)):
                time.sleep(_LOOK)
            try:  # where a rank was killed, it does not always come to an end
                process.wait(_END if dies else max(_END, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        finally:
            end_group(process)
        said.seek(0)
        output = said.read()
        results: list[Any] = []
        for rank, file in files.items():
            good, value = pickle.loads(file.read_bytes()) if file.exists() else (rank in dies, "nothing")
            assert good, f"rank {rank} raised:\n{value}\n{output}"
            results.append(None if rank in dies else value)
        assert dies or process.returncode == 0, output
        return results


def _mpi_rank(folder: str, call: str) -> None:
    die_with_parent(os.getppid())
    name, function, args = pickle.loads(base64.b64decode(call))
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    try:
        if name:
            outcome = (True, function(make(name, world.rank, world.size, world.allgather), *args))
        else:
            outcome = (True, function(world.rank, world.size, *args))
    except BaseException:
        outcome = (False, traceback.format_exc())
    part = Path(folder) / f"{world.rank} in part"
    part.write_bytes(pickle.dumps(outcome))
    part.rename(Path(folder) / str(world.rank))
    if not outcome[0]:
        os._exit(1)  # without waiting for the others, as MPI would


def until(transport: Any, ready: Callable[[], Any], seconds: float = 50.0) -> Any:
    """Let a transport work until ``ready()`` returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        left = deadline - time.monotonic()
        assert left > 0, f"rank {transport.rank} waited in vain; lost: {transport.lost()}"
        transport.wait(min(left, 1.0))
    return found


def take(transport: Any, count: int) -> list[Any]:
    """Return the next frames that arrive at a transport."""
    arrived: list[Any] = []

    def enough() -> bool:
        arrived.extend(transport.arrivals())
        return len(arrived) >= count

    until(transport, enough)
    return arrived


def finish(transport: Any, transfers: Sequence[Any]) -> None:
    """Wait for transfers to end well."""
    until(transport, lambda: all(transfer.done() for transfer in transfers))
    for transfer in transfers:
        assert transfer.error() is None, transfer.error()


if __name__ == "__main__":
    _mpi_rank(*sys.argv[1:])
