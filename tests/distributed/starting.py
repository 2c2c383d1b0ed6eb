"""Starts the ranks of a test: as processes of its own or, on MPI, by mpirun."""

from __future__ import annotations

import atexit
import functools
import inspect
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engines import on_mpi, on_torch

from corral.processes import die_with_parent

__all__ = ["Ranks", "end_group", "mpirun", "uses_torch"]

_spawn = multiprocessing.get_context("spawn")
_forked = multiprocessing.get_context("forkserver")  # where importing torch would cost more than most tests
_forked.set_forkserver_preload(
    ["torch.distributed", "corral.distributed", "corral.backends.torch", "pytest", "hypothesis"]
)
_USES_TORCH = re.compile(
    r"^ *(import torch|from torch|import tensordict|from tensordict)|importorskip\(.torch", re.MULTILINE
)
# Of tests about how processes begin and end, which have ranks that are started as users' are.
_ABOUT_PROCESSES = re.compile(r"kill|SIG[A-Z]{3}|exits=|_exit|sys\.exit|\.modules|fork|getpid|/proc|atexit|except_hook")
_MANY = 16  # ranks that are forked in any case: importing the same in each would take longer than most tests, too
_START = 60.0  # seconds for mpirun to start the ranks
_END = 10.0  # seconds for mpirun to end once they have


class Ranks:
    """A process for each rank, which calls ``target(end, *arguments[rank])``.

    Attributes
    ----------
    ends : list of Connection
        The other ends of the connections that the ranks get.
    processes : list
        With the attribute ``exitcode`` and the methods ``join``, ``is_alive`` and ``kill`` of
        `multiprocessing.Process`.
    with_torch : bool
        Whether the ranks import torch in any case; they are forked from a process that has, then.
    """

    def __init__(
        self, target: Callable[..., None], arguments: Sequence[tuple[Any, ...]], with_torch: bool = False
    ) -> None:
        self._forks = with_torch or on_torch() or len(arguments) >= _MANY
        self.ends: list[Connection] = []
        self.processes: list[Any] = []
        self._mpirun: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lenders: list[Connection] = []
        try:
            if on_mpi():
                self._start_by_mpirun(target, arguments)
            else:
                self._start(target, arguments)
        except BaseException:
            self.close()
            raise

    def _start(self, target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        for each in arguments:
            if self._forks:
                self._start_one(_forked, _forked_rank, dict(os.environ), target, each)
            else:
                self._start_one(_spawn, _rank, os.getpid(), target, each)

    def _start_one(self, context: Any, run: Callable[..., None], *arguments: Any) -> None:
        ours, theirs = _spawn.Pipe()
        self.ends.append(ours)
        process = context.Process(target=run, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        self.processes.append(process)

    def _start_by_mpirun(self, target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        size = len(arguments)
        command = [*mpirun(), "--runtime-options", "continuous", "-n", str(size)]
        command += [sys.executable, str(Path(__file__).with_name("mpi_rank.py"))]
        # What killed ranks leave of the memory that MPI shares goes with the folder.
        self._folder = tempfile.TemporaryDirectory()
        environ = {**os.environ, "OMPI_MCA_btl_sm_backing_directory": self._folder.name}
        with socket.socket(socket.AF_UNIX) as listener:
            address = f"{self._folder.name}/ranks"
            listener.bind(address)
            listener.listen(2 * size)
            listener.settimeout(1.0)
            lend = ["lend"] if self._forks else []
            self._mpirun = subprocess.Popen(
                [*command, address, *lend],
                env=environ,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            connections: dict[tuple[str, int], Connection] = {}
            deadline = time.monotonic() + _START
            while len(connections) < (size if self._forks else 2 * size):
                try:
                    connection = Connection(listener.accept()[0].detach())
                except TimeoutError:
                    assert self._mpirun.poll() is None, f"mpirun ended with {self._mpirun.returncode}"
                    assert time.monotonic() < deadline, f"of {size} ranks there are {sorted(connections)}"
                else:
                    connections[connection.recv()] = connection
        for rank, each in enumerate(arguments):
            if self._forks:
                self._lenders.append(connections["watch", rank])
                self._start_one(_forked, _forked_rank, self._lenders[-1].recv(), target, each)
                continue
            end = connections["rank", rank]
            end.send(sys.path)
            end.send((target, each))
            self.ends.append(end)
            self.processes.append(_Watched(connections["watch", rank]))

    def close(self) -> None:
        """End what has not ended."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        for end in [*self.ends, *self._lenders]:
            end.close()
        if self._mpirun is not None:
            try:
                self._mpirun.wait(_END)
            except subprocess.TimeoutExpired:
                end_group(self._mpirun)
        if self._folder is not None:
            self._folder.cleanup()


class _Watched:
    """A rank that mpirun has started, whose parent tells of it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.exitcode: int | None = None

    def join(self, timeout: float | None = None) -> None:
        if self.exitcode is None and self._connection.poll(_END if timeout is None else timeout):
            try:
                self.exitcode = self._connection.recv()
            except (EOFError, OSError):  # its parent is gone, and it with that
                self.exitcode = -signal.SIGKILL
            self._connection.close()

    def is_alive(self) -> bool:
        self.join(0.0)
        return self.exitcode is None

    def kill(self) -> None:
        try:
            self._connection.send("kill")
        except OSError:
            pass


def _rank(end: Connection, parent: int, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    die_with_parent(parent)  # a test run that is killed kills none of its ranks, and some wait for ever
    target(end, *arguments)


@functools.cache
def uses_torch(module: str) -> bool:
    """Whether the ranks of a module's tests import torch, and it is about anything but processes."""
    source = inspect.getsource(sys.modules[module])
    return bool(_USES_TORCH.search(source)) and not _ABOUT_PROCESSES.search(source)


def _forked_rank(
    end: Connection, environ: dict[str, str], target: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environ)
    # It would keep the fork server, with which it ends, beyond the test run.
    os.close(forkserver._forkserver._forkserver_alive_fd)
    try:
        _rank(end, os.getppid(), target, arguments)
    finally:
        atexit._run_exitfuncs()  # which forked children leave out
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()  # as it does itself when the interpreter ends


def mpirun() -> list[str]:
    """Return the command that starts ranks of MPI, or skip the test."""
    import pytest  # not where ranks import this module

    pytest.importorskip("mpi4py")
    command = Path(sysconfig.get_path("scripts")) / "mpirun"
    if not command.exists():
        pytest.skip("Open MPI is not installed in this environment")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [str(command), *as_root, "--oversubscribe"]


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process that was started in a session of its own, with all that it has left in its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
