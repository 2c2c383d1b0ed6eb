"""What mpirun starts for each rank of a test: ``mpi_rank.py ADDRESS [lend]``.

The process itself does not use MPI: it forks the rank, and tells the test how that ends; or else it lends its
environment, by which MPI knows the rank, to one that the test has forked itself. So mpirun sees all of its processes
end well, whatever becomes of the ranks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def main(address: str, lends: bool) -> None:
    if lends:
        _die_with(None)
        test = _connected("watch", address)
        test.send(dict(os.environ))
        try:
            test.recv()
        except (EOFError, OSError):  # the rank has ended, or the test is gone
            pass
        return
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _die_with(parent)
        _rank(address)
        return
    _die_with(None)
    test = _connected("watch", address)
    threading.Thread(target=_obey, args=(test, pid), daemon=True).start()
    _, status = os.waitpid(pid, 0)
    try:
        test.send(os.waitstatus_to_exitcode(status))
    except OSError:  # the test is gone
        pass


def _rank(address: str) -> None:
    end = _connected("rank", address)
    sys.path[:] = end.recv()
    target, arguments = end.recv()
    target(end, *arguments)


def _obey(test: Connection, pid: int) -> None:
    """Kill the rank when the test says so, or is gone."""
    try:
        test.recv()
    except (EOFError, OSError):
        pass
    os.kill(pid, signal.SIGKILL)


def _connected(what: str, address: str) -> Connection:
    with socket.socket(socket.AF_UNIX) as connecting:
        connecting.connect(address)
        connection = Connection(connecting.detach())
    connection.send((what, int(os.environ["OMPI_COMM_WORLD_RANK"])))
    return connection


def _die_with(parent: int | None) -> None:
    """As `corral.processes.die_with_parent`, without importing so much."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], "lend" in sys.argv[2:])
