"""Starts the ranks of a job as processes, and sees to it that they end together."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from corral.cli.hosts import End, Hosts
from corral.cli.output import LineWriter, Prefixes
from corral.processes import Job, adopt_orphans, describe_exit, die_with_parent

__all__ = ["Supervisor"]

_TO_GROUP = (signal.SIGINT, signal.SIGHUP)  # as a terminal does: the ranks' own children get them too
_FORWARDED = (*_TO_GROUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_PATIENCE_WITH_SIGNALS = 5.0  # seconds for the others to end by a signal that has ended one rank
_IMPATIENT = 3  # signals after which nobody is asked any more


class _Rank:
    """One process, the leader of a session and process group of its own, so that its children end with it."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self.process = process
        self.pidfd = os.pidfd_open(process.pid)
        self.writers: list[LineWriter] = []
        self.code: int | None = None  # negative: the signal that killed it

    def peek(self) -> None:
        """Learn how the process ended, and leave it in the process table: its number stays its own."""
        info = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        assert info is not None
        self.code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def send(self, number: int, to_group: bool) -> None:
        """Send a signal to the process, or to its group."""
        if self.process.returncode is not None or (self.code is not None and not to_group):
            return
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if to_group else os.kill)(self.process.pid, number)

    def group_is_empty(self) -> bool:
        """Whether the process, already reaped, has left no other of its group."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


class Supervisor:
    """Runs a command once for each rank.

    Parameters
    ----------
    command
        The program and its arguments.
    job
        The job, of which the ranks of this host are started.
    prefixes
        What to put before each line of output; ``None`` to leave the output alone.
    grace
        Seconds that a rank has between being asked to end and being made to.
    hosts
        The launchers of the job on all hosts, if there are several.
    """

    def __init__(
        self, command: Sequence[str], job: Job, prefixes: Prefixes | None, grace: float, hosts: Hosts | None = None
    ) -> None:
        self.command = list(command)
        self.job = job
        self.prefixes = prefixes
        self.grace = grace
        self.hosts = hosts
        self.ranks: list[_Rank] = []
        self.selector = selectors.DefaultSelector()
        self.received: list[int] = []  # the signals that ask to end
        self.first: _Rank | None = None  # of the ranks that failed
        self.blamed: int | None = None  # the signal that made it, if one did
        self.deadline = math.inf  # for the ranks to end by a signal

    def run(self) -> int:
        """Start the ranks, wait until all have ended, and return the exit code for this process."""
        adopt_orphans()
        with self._forwarding():
            try:
                try:
                    for rank in self.job.ranks:
                        self._start(rank)
                    self._supervise()
                    if self.hosts is not None:
                        self._tell_hosts(self.hosts)
                finally:
                    self._end()
                self._finish_output()
            except BrokenPipeError:  # whoever read the output has gone
                with contextlib.suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                if self.hosts is not None:
                    self.hosts.tell(End(128 + signal.SIGPIPE, f"nobody reads the output of {self.hosts.name}"))
                return 128 + signal.SIGPIPE
            end = self._verdict() if self.hosts is None else self._verdict_of_all(self.hosts)
        if end.why:
            print(f"corral run: {end.why}", file=sys.stderr)
        return end.code

    def _start(self, rank: int) -> None:
        parent = os.getpid()
        # Loaded before the fork: the child must not need a lock that another thread had.
        ctypes.CDLL(None)
        pipe = None if self.prefixes is None else subprocess.PIPE
        process = subprocess.Popen(
            self.command,
            env=self.job.environment(rank, os.environ) | {"PYTHONUNBUFFERED": "1"},
            stdin=None if rank == self.job.ranks.start else subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),
        )
        started = _Rank(rank, process)
        self.ranks.append(started)
        for number in self.received:  # which it may have missed
            started.send(number, number in _TO_GROUP)
        self.selector.register(started.pidfd, selectors.EVENT_READ, started)
        if self.prefixes is not None:
            for descriptor, stream, target in (
                (1, process.stdout, sys.stdout.buffer),
                (2, process.stderr, sys.stderr.buffer),
            ):
                assert stream is not None
                writer = LineWriter(os.dup(stream.fileno()), target, self.prefixes.of(rank, descriptor))
                stream.close()
                started.writers.append(writer)
                self.selector.register(writer, selectors.EVENT_READ, writer)

    def _supervise(self) -> None:
        """Return when all ranks have ended, or when those that have not must be ended."""
        while any(rank.code is None for rank in self.ranks):
            if self.hosts is not None and self.hosts.end is not None:
                return
            if self.received and self.deadline == math.inf:
                self.deadline = time.monotonic() + self.grace
            left = self.deadline - time.monotonic()
            if left <= 0:
                self.blamed = self.received[0]
                return
            failed = self._turn(left)
            if failed and self.first is None:
                # One that was killed did not fail because of the others.
                self.first = min(failed, key=lambda rank: (rank.code or 0) > 0)
                if not self.received:
                    return
                self.blamed = self.received[0]
                self.deadline = min(self.deadline, time.monotonic() + _PATIENCE_WITH_SIGNALS)

    def _turn(self, patience: float) -> list[_Rank]:
        """Wait for something to happen and deal with it; return the ranks that turned out to have failed."""
        failed = []
        for key, _ in self.selector.select(None if patience == math.inf else patience):
            if key.data is None:  # a signal, which has been handled
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 1024)
                continue
            if key.data is self.hosts:  # the end of the job is known
                self.selector.unregister(key.fileobj)
                continue
            if isinstance(key.data, LineWriter):
                if not key.data.copy():
                    self.selector.unregister(key.fileobj)
                continue
            rank: _Rank = key.data
            rank.peek()
            self.selector.unregister(rank.pidfd)
            os.close(rank.pidfd)
            if rank.code:
                failed.append(rank)
        return failed

    def _end(self) -> None:
        """Leave no process, of a rank's children neither: ask first, then make them."""
        try:
            for rank in self.ranks:
                rank.send(signal.SIGTERM, to_group=True)
            deadline = min(time.monotonic() + self.grace, self.deadline)
            while any(rank.code is None for rank in self.ranks):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._turn(left)
        finally:
            for rank in self.ranks:
                if rank.code is None:
                    rank.send(signal.SIGKILL, to_group=True)
            for rank in self.ranks:
                rank.process.wait()
            self._end_left_behind()

    def _end_left_behind(self) -> None:
        """End what the ranks, all of which have ended, started and left behind."""
        pause, deadline = 0.001, min(time.monotonic() + self.grace, self.deadline)
        while True:
            _reap_orphans()
            left = [rank for rank in self.ranks if not rank.group_is_empty()]
            if not left:
                return
            if time.monotonic() > deadline:
                for rank in left:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(rank.process.pid, signal.SIGKILL)
                deadline = math.inf
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _finish_output(self) -> None:
        for rank in self.ranks:
            for writer in rank.writers:
                writer.finish()

    def _verdict(self) -> End:
        """Return how the ranks of this host ended."""
        where = "" if self.hosts is None else f" on {self.hosts.name}"
        if self.blamed is not None:
            return End(128 + self.blamed, f"ended by {signal.Signals(self.blamed).name}{where}")
        if self.first is None or self.first.code is None:
            return End(0, "")
        code = self.first.code
        who = f"rank {self.first.rank} (process {self.first.process.pid}){where}"
        return End(code if code > 0 else 128 - code, f"{who} {describe_exit(code)}")

    def _tell_hosts(self, hosts: Hosts) -> None:
        """Tell the other launchers how the ranks of this host ended, before those that are left are ended."""
        end = self._verdict()
        if end.code:
            hosts.tell(end)
        elif hosts.end is None:
            hosts.through()

    def _verdict_of_all(self, hosts: Hosts) -> End:
        """Wait until it is known how the job ended on all hosts."""
        while hosts.end is None:
            if self.received:
                self.blamed = self.received[0]
                hosts.tell(self._verdict())
            self._turn(math.inf)
        return hosts.end

    @contextlib.contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Pass signals on to the ranks instead of ending by them."""
        before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
        ready, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.selector.register(ready, selectors.EVENT_READ)
        if self.hosts is not None:
            self.selector.register(self.hosts, selectors.EVENT_READ, self.hosts)
        wake_before = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        try:
            for number in _FORWARDED:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    before[number] = signal.signal(number, self._forward)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wake_before)
            self.selector.close()
            os.close(ready)
            os.close(woken)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if number in _ENDING:
            self.received.append(number)
        impatient = len(self.received) >= _IMPATIENT
        for rank in self.ranks:
            if rank.code is None:
                rank.send(signal.SIGKILL if impatient else number, impatient or number in _TO_GROUP)


def _reap_orphans() -> None:
    """Take what has ended of the ranks' descendants out of the process table."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
