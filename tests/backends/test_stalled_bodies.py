"""A peer that stalls in the middle of a body: once an operation has failed, its memory is the caller's again."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from engines import VARIABLE
from ranks import run

import corral.distributed as dist
from corral.backends.messages import Transport
from corral.distributed import groups

BYTES = 64 << 20  # more than lies between two ranks while one of them does nothing


@pytest.fixture(autouse=True)
def on_sockets(backend, monkeypatch):
    monkeypatch.setenv(VARIABLE, "sockets")


def _stall(method):
    """Have this rank stop when its transport has begun, by `method`, to move a body that takes its time."""
    transport = groups.world.backend.job.transport
    move = getattr(transport, method)

    def moves(*arguments):
        transfer = move(*arguments)
        if sum(map(len, arguments[-1])) >= BYTES:
            setattr(transport, method, move)
            assert not transfer.done()
            os.kill(os.getpid(), signal.SIGSTOP)
        return transfer

    setattr(transport, method, moves)


def _wait_until_stopped(pid):
    while True:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "T":
                return
        time.sleep(0.01)


def _pids(size):
    pids = [None] * size
    dist.all_gather_object(pids, os.getpid())
    return pids


def _receives(rank, size, how):
    """Rank 1 stops with a body half sent; rank 0 gives up, uses its memory for something else, and lets it go on."""
    pids = _pids(size)
    if rank == 1:
        _stall("send")
        mine = np.ones(BYTES, np.uint8)
        if how == "recv":
            dist.send(mine, 0)
        else:
            with pytest.raises(dist.DistTimeoutError, match="rank 0 gave up"):
                dist.gather(mine)
        dist.send(np.full(3, 5.0), 0, tag=1)
        return
    into = np.zeros(BYTES, np.uint8)
    if how == "recv":
        work = dist.irecv(into, 1)
    else:
        work = dist.gather(np.zeros(BYTES, np.uint8), [np.zeros(BYTES, np.uint8), into], async_op=True)
    _wait_until_stopped(pids[1])
    with pytest.raises(dist.DistTimeoutError) as caught:
        work.wait(2.0)
    assert "still on their way" not in str(caught.value)
    assert 0 < into.sum(dtype=np.int64) < BYTES  # it was in the middle
    into[:] = 7
    os.kill(pids[1], signal.SIGCONT)
    last = np.zeros(3)
    dist.recv(last, 1, tag=1)  # behind the rest of the body
    assert (last == 5).all()
    assert (into == 7).all()


@pytest.mark.parametrize("how", ["recv", "gather"])
def test_what_comes_late_is_not_written_where_an_operation_has_failed(how):
    run(_receives, 2, how)


def _sends(rank, size):
    """Rank 1 stops with a body half received; rank 0 gives up, changes its array, and lets it go on."""
    pids = _pids(size)
    if rank == 1:
        _stall("receive")
        into = np.zeros(BYTES, np.uint8)
        dist.recv(into, 0)
        assert (into == 1).all()  # as it was when it was sent
        return
    mine = np.ones(BYTES, np.uint8)
    work = dist.isend(mine, 1)
    _wait_until_stopped(pids[1])
    with pytest.raises(dist.DistTimeoutError):
        work.wait(2.0)
    mine[:] = 7
    os.kill(pids[1], signal.SIGCONT)


def test_what_leaves_late_is_what_was_sent():
    run(_sends, 2)


def _kept(rank, size):
    """As above, with an engine that cannot let a body go elsewhere: its memory is refused until the body is there."""
    type(groups.world.backend.job.transport).divert = Transport.divert
    pids = _pids(size)
    if rank == 1:
        _stall("send")
        dist.send(np.ones(BYTES, np.uint8), 0)
        dist.send(np.full(3, 5.0), 0, tag=1)
        with pytest.raises(dist.MismatchError, match="rank 0 called all_reduce with arguments that it refused"):
            dist.all_reduce(np.zeros(100, np.uint8))
        dist.recv(np.zeros(BYTES, np.uint8), 0)
        return
    into = np.zeros(BYTES, np.uint8)
    work = dist.irecv(into, 1)
    _wait_until_stopped(pids[1])
    with pytest.raises(dist.DistTimeoutError, match="still on their way into, or out of, its memory"):
        work.wait(2.0)
    for call in (
        lambda: dist.send(into[5:], 1),
        lambda: dist.recv(into[-1:], 1),
        lambda: dist.all_reduce(into[1000:1100]),
    ):
        with pytest.raises(dist.DistBackendError, match="use other memory"):
            call()
    os.kill(pids[1], signal.SIGCONT)
    dist.recv(np.zeros(3), 1, tag=1)
    dist.send(into, 1)  # all is there


def test_memory_that_bytes_still_come_into_is_refused():
    run(_kept, 2)
