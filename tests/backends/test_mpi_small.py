"""Calls over MPI that the core does at once, and how they go on where it cannot."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import corral
import corral.distributed as dist
from corral.backends.base import Reduction
from corral.backends.shm_names import LABELS
from tests.backends.jobs import run_under_mpirun
from tests.backends.uses import mine


def _together(rank, size):
    dist.init_process_group("mpi", timeout=20.0)
    backend = dist.group.WORLD.backend
    late = rank == size - 1

    def every_kind(root):
        dist.barrier()
        total = mine(rank, 3, np.int32)
        dist.all_reduce(total)
        assert np.array_equal(total, sum(mine(other, 3, np.int32) for other in range(size)))
        mean = np.full(2, rank, np.float16)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        assert mean.tolist() == [(size - 1) / 2] * 2
        told = mine(rank) if rank == root else np.zeros(5)
        dist.broadcast(told, root)
        assert np.array_equal(told, mine(root))
        rows = np.zeros((size, 5))
        dist.all_gather_into_tensor(rows, mine(rank))
        assert np.array_equal(rows, [mine(other) for other in range(size)])
        parts = [np.zeros(5) if other % 2 else np.zeros((5, 2))[:, 1] for other in range(size)]
        dist.all_gather(parts, mine(rank))
        assert np.array_equal(parts, rows)
        parts = [np.zeros(5) if other % 2 else np.zeros((5, 2))[:, 1] for other in range(size)]
        dist.gather(mine(rank), parts if rank == root else None, root)
        assert np.array_equal(parts, rows) if rank == root else not np.any(parts)
        strided = np.zeros((4, 2))
        strided[:, 1] = rank
        dist.all_reduce(strided[:, 1])
        assert strided[:, 1].tolist() == [sum(range(size))] * 4
        assert not strided[:, 0].any()

    for turn in range(6):
        if late and turn % 2:
            time.sleep(0.01)  # long enough for the others to go on in Python
        before = backend._port.next
        every_kind(turn % size)
        assert backend._port.next == before + 8
        number, state, call = backend.job.rounds.last_call(backend.context)
        assert (number, state, call.label) == (before + 8, 2, LABELS["all_reduce"])
    big = mine(rank, 10_000)  # of a call that goes on like any other
    dist.all_reduce(big)
    assert np.array_equal(big, sum(mine(other, 10_000) for other in range(size)))
    works = [dist.all_reduce(np.ones(2), async_op=True) for _ in range(3)]
    every_kind(0)  # in front of which those have their places
    for work in works:
        work.wait()
        assert work.result()[0].tolist() == [size, size]
    group = dist.new_group(range(1, size))
    if rank:
        value = np.ones(1)
        dist.all_reduce(value, group=group)
        assert value == size - 1
    every_kind(1)
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3])
def test_small_collectives(size):
    run_under_mpirun(_together, size)


def _messages(rank, size):
    dist.init_process_group("mpi", timeout=20.0)
    peer = 1 - rank
    got, large = np.zeros(4), np.zeros(50_000)
    for turn in range(3000):  # more than the credit that the core is lent at first
        if rank == 0:
            dist.send(np.full(4, turn, np.float64), peer)
        else:
            dist.recv(got, peer)
            assert got.tolist() == [turn] * 4
    dist.barrier()
    if rank == 0:  # in order, whichever way they go
        for turn in range(4):
            dist.send(np.full(4, turn, np.float64), peer)
            dist.send(np.full(4, -turn, np.float64), peer, tag=5)
            dist.send(np.full(50_000, turn, np.float64), peer)
            dist.send(np.full(4, turn + 1, np.float64), peer)
        with pytest.raises(TypeError):
            dist.send("nothing that has memory", peer)
    else:
        for turn in range(4):
            dist.recv(got, peer, tag=5)  # which the others came before
            assert got.tolist() == [-turn] * 4
            dist.recv(got, peer)
            assert got.tolist() == [turn] * 4
            dist.recv(large, peer)
            assert (large == turn).all()
            dist.recv(got, peer)
            assert got.tolist() == [turn + 1] * 4
        with pytest.raises(dist.DistTimeoutError):
            dist.group.WORLD.backend.recv((got,), peer, 0, 0.2)
    dist.barrier()
    if rank == 0:
        dist.send(np.ones(3, np.float32), peer)
        dist.send(np.ones(4), peer)
    else:
        with pytest.raises(corral.MismatchError):
            dist.recv(got, peer)
        dist.recv(got, peer)
        assert got.tolist() == [1] * 4
    dist.destroy_process_group()


def test_small_messages():
    run_under_mpirun(_messages, 2)


def _different(rank, size):
    dist.init_process_group("mpi", timeout=20.0)
    last = rank == size - 1
    for _ in range(3):
        with pytest.raises(corral.MismatchError, match=f"rank {size - 1} called barrier"):
            dist.barrier() if last else dist.all_reduce(np.ones(2))
        with pytest.raises(corral.MismatchError):
            dist.all_reduce(np.ones(2, np.float32 if last else np.float64))
        with pytest.raises(corral.MismatchError):  # the one in the core, the other not
            dist.all_reduce(np.ones(3000 if last else 2))
        rows = [np.zeros(2) for _ in range(size)]
        with pytest.raises(corral.MismatchError):  # nor does the root expect what comes
            dist.gather(np.ones(2), [np.zeros(3) for _ in range(size)] if rank == 0 else None)
        with pytest.raises(corral.MismatchError):
            dist.gather(np.ones(2, np.float32 if last else np.float64), None if rank else rows)
        with pytest.raises(corral.MismatchError):  # two who take themselves for the root
            dist.gather(np.ones(2), rows if last or rank == 0 else None, rank if last else 0)
        assert not np.any(rows)
        sizes = [np.zeros(2 + other) for other in range(size)]  # which fit, although they differ
        dist.gather(np.ones(2 + rank), None if rank else sizes)
        assert rank or [part.tolist() for part in sizes] == [[1] * (2 + other) for other in range(size)]
        with pytest.raises((corral.MismatchError, TypeError)):
            dist.broadcast("nothing that has memory" if last else np.ones(2), 0)
        value = np.ones(2)
        dist.all_reduce(value)
        assert value.tolist() == [size, size]
    dist.destroy_process_group()


def test_what_differs_is_told_to_all():
    run_under_mpirun(_different, 3)


def _given_up(rank, size):
    dist.init_process_group("mpi", timeout=20.0)
    backend = dist.group.WORLD.backend
    dist.barrier()
    if rank == 0:
        with pytest.raises(dist.DistTimeoutError, match=f"rank {size - 1} is in recv with rank 0"):
            backend.barrier(0.3)
        dist.send(np.ones(1), size - 1, tag=1)
    elif rank == size - 1:
        dist.recv(np.ones(1), 0, tag=1)  # by then rank 0 has given up
        with pytest.raises(dist.DistError, match="rank 0"):
            dist.barrier()
    else:
        with pytest.raises(dist.DistError):
            dist.barrier()
    value = np.ones(2)
    dist.all_reduce(value)
    assert value.tolist() == [size, size]
    dist.destroy_process_group()


def test_a_late_rank_learns_that_a_small_call_was_given_up():
    run_under_mpirun(_given_up, 3)


def _late(rank, size, folder):
    dist.init_process_group("mpi", timeout=20.0)
    backend = dist.group.WORLD.backend
    value, rows = np.ones(3), np.zeros(6)
    calls = {
        "barrier": lambda timeout: backend.barrier(timeout),
        "broadcast": lambda timeout: backend.broadcast((value,), 0, timeout),
        "all_reduce": lambda timeout: backend.all_reduce((value,), Reduction("sum"), timeout),
        "all_gather": lambda timeout: backend.all_gather((value,), rows, timeout),
        "gather": lambda timeout: backend.gather((value,), [[row] for row in rows.reshape(2, 3)], 0, timeout),
    }
    for name, call in calls.items():
        dist.barrier()
        told = Path(folder, name)
        if rank == 0:
            with pytest.raises(dist.DistTimeoutError, match=name):
                call(0.2)
            told.touch()
        else:
            deadline = time.monotonic() + 20.0
            while not told.exists():  # without corral, which would hear of it
                assert time.monotonic() < deadline
            with pytest.raises(dist.DistError, match="rank 0 gave up"):
                call(20.0)
        assert value.tolist() == [1, 1, 1]
    dist.barrier()
    dist.destroy_process_group()


def test_a_late_rank_hears_first_that_a_small_call_was_given_up(tmp_path):
    run_under_mpirun(_late, 2, str(tmp_path))


class _Limit(Exception):
    pass


def _raise(*_):
    raise _Limit


class _Signalled:
    """A port on whose calls a signal comes."""

    def __init__(self, port):
        self._port = port

    def __getattr__(self, name):
        return getattr(self._port, name)

    def all_reduce(self, *args):
        number = self._port.all_reduce(*args)
        signal.raise_signal(signal.SIGUSR1)
        return number


def _signalled(rank, size):
    dist.init_process_group("mpi", timeout=20.0)
    backend = dist.group.WORLD.backend
    value = np.ones(2)
    if rank == 0:
        signal.signal(signal.SIGUSR1, _raise)
        backend._port = _Signalled(backend.job.transport.port)
        with pytest.raises(_Limit):
            dist.all_reduce(value)
        backend._port = backend.job.transport.port
        dist.send(np.ones(1), 1, tag=1)
    else:
        dist.recv(np.ones(1), 0, tag=1)
        with pytest.raises(dist.DistError, match="rank 0 gave up"):
            dist.all_reduce(value)
    assert value.tolist() == [1, 1]
    dist.all_reduce(value)
    assert value.tolist() == [size, size]
    dist.destroy_process_group()


def test_what_a_signal_ends_before_the_engine_has_it_is_told_to_the_others():
    run_under_mpirun(_signalled, 2)


def _in_threads(rank, size):
    dist.init_process_group("mpi", timeout=20.0)
    groups = [dist.new_group() for _ in range(2)]
    wrong = []

    def work(number):
        for turn in range(40):
            value = np.array([turn + rank])
            dist.all_reduce(value, group=groups[number])
            if value != size * turn + sum(range(size)):
                wrong.append((number, turn, value))
            got = np.zeros(1, np.int64)
            sent = dist.isend(np.array([turn]), (rank + 1) % size, tag=number + 1)
            dist.recv(got, (rank - 1) % size, tag=number + 1)
            sent.wait()
            if got != turn:
                wrong.append((number, turn, got))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(40):  # while they are at it
        value = np.ones(1)
        dist.all_reduce(value)
        if value != size:
            wrong.append(value)
    for thread in threads:
        thread.join()
    assert not wrong
    dist.destroy_process_group()


def test_threads_share_what_does_small_calls():
    run_under_mpirun(_in_threads, 2)
