"""How a rank waits: it can be interrupted, costs nothing while a peer sleeps, and goes on when the peer does."""

import os
import signal
import time

import numpy as np
import pytest
from engines import next_sequence, through_with, waited
from ranks import run

import corral.distributed as dist


def _until_asleep(rank, seconds=0.0):
    """Return when a rank has been waiting, asleep, for some time."""
    deadline = time.monotonic() + 30
    while True:
        asleep = waited(rank)
        if asleep is not None and asleep >= seconds:
            return
        assert time.monotonic() < deadline, f"rank {rank} never fell asleep"
        time.sleep(0.02)  # some engines' ranks answer themselves, which is no part of their waiting


def _interrupted(rank, size, operation):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    values = np.zeros(3)
    pids = [None] * size if rank == 1 else None
    dist.gather_object(os.getpid(), pids, dst=1)
    if rank == 1:
        _until_asleep(0)
        os.kill(pids[0], signal.SIGINT)
        dist.send(np.arange(3.0), 0, tag=1)
        return True
    try:
        if operation == "recv":
            dist.recv(values, 1)
        else:
            dist.irecv(values, 1).wait()
    except KeyboardInterrupt:
        dist.recv(values, 1, tag=1)  # the group is usable
        return values.tolist() == [0.0, 1.0, 2.0]
    return False


@pytest.mark.also("sockets")
def test_ctrl_c_ends_a_wait():
    for operation in ("recv", "irecv"):
        assert run(_interrupted, 2, operation) == [True, True]


class _Limit(Exception):
    pass


def _raise(*_):
    raise _Limit


def _received_after_a_signal(rank, size):
    """A receive that a signal's handler ends is no longer there when its message comes."""
    signal.signal(signal.SIGALRM, _raise)
    pids = [None] * size if rank == 1 else None
    dist.gather_object(os.getpid(), pids, dst=1)
    for count in (3, 100_000):
        if rank == 1:
            _until_asleep(0, 0.2)  # and so not in what came before, which is over by now
            os.kill(pids[0], signal.SIGALRM)
            dist.recv(np.zeros(1), 0, tag=1)
            dist.send(np.full(count, 7.0), 0)
            dist.recv(np.zeros(1), 0, tag=2)
            continue
        abandoned, values = np.zeros(count), np.zeros(count)
        with pytest.raises(_Limit):
            dist.recv(abandoned, 1)
        dist.send(np.zeros(1), 1, tag=1)
        dist.recv(values, 1)
        assert (values == 7.0).all()
        assert not abandoned.any()
        dist.send(np.zeros(1), 1, tag=2)
    return True


@pytest.mark.everywhere
def test_a_receive_ends_when_a_handler_raises():
    assert run(_received_after_a_signal, 2) == [True, True]


def _interrupted_collective(rank, size, number=signal.SIGINT):
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _raise)
    pids = [None] * size if rank == 2 else None
    dist.gather_object(os.getpid(), pids, dst=2)
    if rank == 2:
        _until_asleep(0)
        _until_asleep(1)
        os.kill(pids[0], number)
    try:
        if rank != 2:
            dist.barrier()
        else:
            _until_gave_up(0, next_sequence())
            dist.barrier()
    except (KeyboardInterrupt, _Limit):
        outcome = "interrupted"
    except dist.DistBackendError as error:
        outcome = str(error)
    dist.barrier()
    return outcome


def _until_gave_up(rank, sequence):
    """Return when a rank is through with a collective, even if it is in the next one by then."""
    deadline = time.monotonic() + 30
    while not through_with(rank, sequence):
        assert time.monotonic() < deadline, f"rank {rank} never gave up"
        os.sched_yield()


@pytest.mark.everywhere
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_a_signal_in_a_collective_is_told_to_the_others(number):
    first, *others = run(_interrupted_collective, 3, number)
    assert first == "interrupted"
    for text in others:
        assert "rank 0 gave up" in text
        assert "interrupted" in text


def _stopped(rank, size):
    values = np.zeros(4)
    pids = [None] * size if rank == 2 else None
    dist.gather_object(os.getpid(), pids, dst=2)
    if rank == 0:
        cpu, wall = time.process_time(), time.monotonic()
        dist.recv(values, 1)
        return time.process_time() - cpu, time.monotonic() - wall, values.tolist()
    if rank == 1:
        dist.recv(values, 2)
        dist.send(values, 0)
    else:
        _until_asleep(1)
        os.kill(pids[1], signal.SIGSTOP)
        dist.send(np.arange(4.0), 1)
        _until_asleep(0, 0.5)
        os.kill(pids[1], signal.SIGCONT)
    return None


def test_a_stopped_peer_costs_nothing_and_all_goes_on_when_it_resumes():
    cpu, wall, values = run(_stopped, 3)[0]
    assert values == [0.0, 1.0, 2.0, 3.0]
    assert cpu < wall / 10
