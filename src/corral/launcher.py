"""`launch`: call a function on every rank of a new group of processes, and return what it returned."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

from corral.processes import GRACE, Job, describe_exit, die_with_parent

__all__ = ["LaunchError", "launch"]

_spawn = multiprocessing.get_context("spawn")


class LaunchError(RuntimeError):
    """A rank that `launch` started has failed. Its exception, where it had one, is the cause of this one.

    Attributes
    ----------
    rank : int
        The rank that failed first.
    exitcode : int
        Its exit code; negative if a signal of that number killed it.
    traceback : str
        The traceback of its exception; empty if it ended without one.
    """

    def __init__(self, message: str, rank: int, exitcode: int, traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.exitcode = exitcode
        self.traceback = traceback

    def __reduce__(self) -> tuple[type[LaunchError], tuple[str, int, int, str]]:
        return type(self), (str(self), self.rank, self.exitcode, self.traceback)


def launch(
    fn: Callable[..., Any],
    nprocs: int,
    args: Sequence[Any] = (),
    backend: str | None = None,
    timeout: timedelta | float | None = None,
) -> list[Any]:
    """Start processes on this host, make a group of them, call a function in each, and return the results.

    Each process is a fresh Python. It calls `corral.distributed.init_process_group`, then
    ``fn(rank, world_size, *args)``, then `corral.distributed.destroy_process_group`. When a rank fails, the
    others are ended. No process outlives the call, nor this process, even if that is killed.

    Parameters
    ----------
    fn
        A function that can be imported by name: defined at the top level of a module, or of a script whose
        own call of `launch` is under ``if __name__ == "__main__":``.
    nprocs
        Number of ranks.
    args
        What `fn` gets after its rank and the number of ranks. They are pickled, as are the results.
    backend
        As for `corral.distributed.init_process_group`.
    timeout
        The group's timeout, for its making and for each operation; no limit for `fn`. Five minutes when
        ``None``.

    Returns
    -------
    list
        What `fn` returned, in rank order.

    Raises
    ------
    LaunchError
        If a rank raises, is killed, or exits with an error; it says which one, and shows its traceback.

    Examples
    --------
    >>> import corral, operator
    >>> corral.launch(operator.sub, 3)  # operator.sub(rank, world_size)
    [-3, -2, -1]
    """
    if isinstance(nprocs, bool) or not isinstance(nprocs, int):
        raise TypeError(f"launch: nprocs must be an integer, got {type(nprocs).__qualname__}")
    if nprocs < 1:
        raise ValueError(f"launch: nprocs must be positive, got {nprocs}")
    if not callable(fn):
        raise TypeError(f"launch: fn must be callable, got {type(fn).__qualname__}")
    _check_importable(fn)
    job = Job.create(nprocs)
    team = _Team()
    try:
        for rank in range(nprocs):
            team.start(rank, job, (fn, tuple(args), backend, timeout))
        return team.results()
    finally:
        team.end()


def _check_importable(fn: Callable[..., Any]) -> None:
    if getattr(fn, "__module__", None) != "__main__":
        return
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is None and (file is None or not os.path.exists(file)):
        name = getattr(fn, "__qualname__", repr(fn))
        raise ValueError(
            f"launch: other processes cannot import {name}, which was defined interactively; put it into a "
            "module, and import it from there"
        )


class _Failure(NamedTuple):
    """What a rank says of the exception that ended it."""

    exitcode: int
    summary: str
    traceback: str
    exception: bytes | None  # pickled, if it can be
    lost: tuple[int, ...] | None  # for a PeerLostError: whom it missed


class _Team:
    """The processes of one call of `launch`, seen from their parent."""

    def __init__(self) -> None:
        self.processes: list[SpawnProcess] = []
        self.ends: dict[Connection, int] = {}  # of ranks that may still say something
        self.alive: dict[int, int] = {}  # ranks by a descriptor that is ready when the process has ended
        self.values: dict[int, Any] = {}
        self.failures: dict[int, _Failure] = {}  # in the order in which they became known

    def start(self, rank: int, job: Job, work: tuple[Any, ...]) -> None:
        ours, theirs = _spawn.Pipe(duplex=False)
        self.ends[ours] = rank
        process = _spawn.Process(target=_rank_main, args=(theirs, os.getpid(), rank, job, *work), name=f"rank {rank}")
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            name = getattr(work[0], "__qualname__", repr(work[0]))
            raise ValueError(
                f"launch: {name} and its arguments must be picklable, for other processes to get them; a "
                f"function must be defined at the top level of a module ({error})"
            ) from error
        finally:
            theirs.close()
        self.processes.append(process)
        assert process.pid is not None
        self.alive[os.pidfd_open(process.pid)] = rank

    def results(self) -> list[Any]:
        """Wait for all ranks; raise the error of the one that failed first."""
        while self.alive and not self.failures:
            self._hear(None)
        if self.failures:
            raise self._error(self._first_failure())
        return [self.values[rank] for rank in range(len(self.processes))]

    def _hear(self, patience: float | None) -> bool:
        """Take in everything that has come, or the next to come; false if nothing did in time."""
        ready = wait([*self.ends, *self.alive], patience)
        for end in ready:
            if isinstance(end, Connection):
                self._listen(end)
        for descriptor in ready:
            if isinstance(descriptor, int):
                self._ended(descriptor)
        return bool(ready)

    def _listen(self, end: Connection) -> None:
        rank = self.ends.pop(end)
        with contextlib.closing(end):
            try:
                said = end.recv_bytes()
            except (EOFError, OSError):  # it ends without a word, or in the middle of one
                return
        try:
            good, value = pickle.loads(said)  # what this user's own function made
        except Exception as error:
            what = f"returned what cannot be unpickled here: {type(error).__qualname__}: {error}"
            good, value = False, _Failure(1, what, traceback.format_exc(), None, None)
        if good:
            self.values[rank] = value
        else:
            self.failures[rank] = value

    def _ended(self, descriptor: int) -> None:
        rank = self.alive.pop(descriptor)
        os.close(descriptor)
        for end in [end for end, speaker in self.ends.items() if speaker == rank and end.poll()]:
            self._listen(end)
        self.processes[rank].join()
        code = self.processes[rank].exitcode or 0
        if rank in self.failures or (code == 0 and rank in self.values):
            return
        how = describe_exit(code)
        if rank in self.values:
            how += " after its function had returned"
        elif code == 0:
            how += " before its function had returned"
        self.failures[rank] = _Failure(code, how, "", None, None)

    def _first_failure(self) -> int:
        """Find the rank whose failure is not the consequence of another's."""
        deadline = time.monotonic() + GRACE
        while True:
            for rank, failure in self.failures.items():
                if failure.lost is None:
                    return rank
            # All of them lost a peer. How that ended may not have been heard yet.
            missed = {peer for failure in self.failures.values() for peer in failure.lost or ()}
            unheard = missed & set(self.alive.values())
            left = deadline - time.monotonic()
            if (missed and not unheard) or left <= 0 or not self.alive or not self._hear(left):
                return next(iter(self.failures))

    def _error(self, rank: int) -> LaunchError:
        failure = self.failures[rank]
        message = f"rank {rank} {failure.summary}"
        if failure.traceback:
            message = f"{message}\n\nOn rank {rank}:\n\n{failure.traceback.rstrip()}"
        error = LaunchError(message, rank, failure.exitcode, failure.traceback)
        if failure.exception is not None:
            with contextlib.suppress(Exception):  # its class may not be one that can be rebuilt
                error.__cause__ = pickle.loads(failure.exception)
        return error

    def end(self) -> None:
        """Leave no process: ask those that still run to end, and make them after a while."""
        try:
            for process in self.processes:
                if process.is_alive():
                    process.terminate()
            deadline = time.monotonic() + GRACE
            for process in self.processes:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:  # also when interrupted while waiting
            for process in self.processes:
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()
            for end in self.ends:
                end.close()
            for descriptor in self.alive:
                os.close(descriptor)


def _rank_main(
    end: Connection,
    parent: int,
    rank: int,
    job: Job,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    backend: str | None,
    timeout: timedelta | float | None,
) -> None:
    """Be a rank: runs in the new process."""
    die_with_parent(parent)
    me = os.getpid()
    environment = job.environment(rank, os.environ)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    try:
        result = _call(rank, job.size, fn, args, backend, timeout)
        if os.getpid() != me:
            os._exit(0)  # a child that the function has forked: it is not the rank, and has nothing to say
        try:
            said = pickle.dumps((True, result), protocol=5)
        except Exception as error:
            kind = type(result).__qualname__
            raise TypeError(f"the result, of type {kind}, cannot be pickled: {error}") from error
        end.send_bytes(said)
    except KeyboardInterrupt:  # the parent has been interrupted as well, and says so
        os._exit(128 + signal.SIGINT)
    except BaseException as error:
        failure = _describe(error)
        if os.getpid() != me:
            if not isinstance(error, SystemExit):
                traceback.print_exc()
            os._exit(failure.exitcode)
        # Before this process ends, so that it is known before anyone can miss it.
        end.send_bytes(pickle.dumps((False, failure)))
        sys.stdout.flush()
        sys.stderr.flush()
        # What atexit would do, such as ending the group in good order, is for ranks that end well.
        os._exit(failure.exitcode)


def _call(
    rank: int,
    size: int,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    backend: str | None,
    timeout: timedelta | float | None,
) -> Any:
    import corral.distributed as dist

    dist.init_process_group(backend, init_method="env://", rank=rank, world_size=size, timeout=timeout)
    try:
        result = fn(rank, size, *args)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
        result = None
    if dist.is_initialized():  # unless the function has ended it
        dist.destroy_process_group()
    return result


def _describe(error: BaseException) -> _Failure:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next  # the user's own part of it
    text = "".join(traceback.format_exception(type(error), error, trace))
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    pickled = None
    with contextlib.suppress(Exception):
        pickled = pickle.dumps(error)
    code = 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        summary = f"exited with code {code}"
    else:
        summary = f"failed: {summary}"
    from corral.distributed.errors import PeerLostError

    lost = error.ranks if isinstance(error, PeerLostError) else None
    return _Failure(code & 0xFF or 1, summary, text, pickled, lost)
