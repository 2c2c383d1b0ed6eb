"""What only shows when frames come at a certain time: withdrawals, credit, contributions of the lost."""

from __future__ import annotations

import time

import numpy as np
import pytest
from wires import run

import corral.distributed as dist
from corral.backends.base import Operation
from corral.backends.messages.frames import BODY, FALL, TAKE

BIG = 100_000


def _receive_given_up(backend, net):
    """A receive that gives up when the bytes are on their way leaves them to the next one."""
    if backend.rank == 0:
        backend.send([np.arange(float(BIG))], 1)
        backend.send([np.ones(3)], 1)
        return
    net.holds = lambda source, target, frame: frame.kind == BODY
    first = np.zeros(BIG)
    with pytest.raises(dist.DistTimeoutError, match="recv on rank 1"):
        backend.recv([first], 0, timeout=0.2)
    net.release()
    second, third = np.zeros(BIG), np.zeros(3)
    assert backend.recv([second], 0) == 0
    backend.recv([third], 0)
    assert not first.any()
    assert (second == np.arange(BIG)).all()
    assert third.all()


def test_a_receive_that_gives_up():
    run(_receive_given_up, ["a", "a"])


def _body_before_the_next(backend, net):
    if backend.rank == 0:
        backend.send([np.arange(float(BIG))], 1)
        backend.send([np.ones(3)], 1, tag=1)
        return
    net.holds = lambda source, target, frame: frame.kind == BODY
    with pytest.raises(dist.DistTimeoutError):
        backend.recv([np.zeros(BIG)], 0, timeout=0.2)
    net.release()
    backend.recv([np.zeros(3)], 0, tag=1)  # the bytes are here by now
    assert bytes(backend.recv_bytes(0)[1]) == np.arange(float(BIG)).tobytes()


def test_bytes_that_nobody_wants_for_a_while():
    run(_body_before_the_next, ["a", "a"])


def _send_given_up(backend, net):
    """A send that gives up just when it is wanted leaves the receive to what follows."""
    if backend.rank == 0:
        net.holds = lambda source, target, frame: frame.kind == TAKE
        with pytest.raises(dist.DistTimeoutError, match="send on rank 0"):
            backend.send([np.zeros(BIG)], 1, timeout=0.2)
        net.release()
        backend.send([np.ones(BIG)], 1)
        return
    got = np.zeros(BIG)
    backend.recv([got], None)
    assert got.all()


def test_a_send_that_gives_up():
    run(_send_given_up, ["a", "a"])


def _offer_withdrawn(backend, net):
    """An offer that was withdrawn before anyone wanted it is not there any more."""
    if backend.rank == 0:
        with pytest.raises(dist.DistTimeoutError):
            backend.send([np.zeros(BIG)], 1, timeout=0.1)
        backend.barrier()
        backend.send([np.ones(BIG)], 1)
        return
    backend.barrier()
    got = np.zeros(BIG)
    backend.recv([got], 0)
    assert got.all()


def test_an_offer_that_was_withdrawn():
    run(_offer_withdrawn, ["a", "a"])


def _flood(backend, net):
    """Who is not listened to offers what it sends after a while, instead of filling the other's memory."""
    count, size = 1000, 2000
    if backend.rank == 0:
        requests = backend.batch([Operation("send", [np.full(size, float(i))], 1) for i in range(count)])
        backend.send([np.zeros(0)], 1, tag=1)
        for request in requests:
            request.wait()
        return None
    backend.recv([np.zeros(0)], 0, tag=1)
    held = sum(message.size for message in backend.job.post.box(backend.context).arrived if message.payload is not None)
    got = np.zeros(size)
    for i in range(count):
        backend.recv([got], 0)
        assert (got == i).all()
    return held


def test_a_flood_is_held_back():
    _, held = run(_flood, ["a", "a"])
    assert held <= 4 << 20


def _lost_in_doubt(backend, net, comes):
    """A rank is lost, having contributed, while the verdict is on its way to another."""
    if backend.rank == 0:
        net.holds = lambda source, target, frame: frame.kind == FALL and target == 2
        backend.barrier()
        net.lose(1, "was lost in the test")
        backend.recv([np.zeros(1)], 2)
    elif backend.rank == 1:
        backend.barrier()
        while 1 not in net.lost:
            time.sleep(0.001)
    else:
        request = backend.ibarrier()
        while 1 not in backend.job.lost:
            assert not request.is_completed()
        if comes:
            net.release()
            request.wait()
        else:
            with pytest.raises(dist.PeerLostError, match=r"rank 1 is gone: it was lost in the test") as caught:
                request.wait()
            assert caught.value.ranks == (1,)
            net.release()
        backend.send([np.zeros(1)], 0)


@pytest.mark.parametrize("comes", [True, False])
def test_a_rank_that_is_lost_after_it_has_contributed(comes):
    run(lambda backend, net: _lost_in_doubt(backend, net, comes), ["a", "a", "a"])


def _refused_early(backend, net):
    """What a rank's own memory cannot be used for fails on all, at once, and leaves the group in step."""
    for number in range(2):
        if backend.rank == 0:
            with pytest.raises(ValueError, match=r"overlap|read-only"):
                backend.broadcast([np.broadcast_to(np.zeros(1), (3,))], 1)
        else:
            with pytest.raises(
                dist.MismatchError, match=rf"broadcast #{2 * number + 1} .*rank 0 called broadcast with"
            ):
                backend.broadcast([np.zeros(3)], 1)
        backend.barrier()


def test_a_call_that_the_engine_refuses():
    run(_refused_early, ["a", "a", "b"])
