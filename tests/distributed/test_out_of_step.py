"""Calls that do not fit together: every rank is told, and the group goes on in step."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist
from corral.backends.base import Reduction


def _refused(rank, size):
    backend = dist.group.WORLD.backend
    a = np.zeros(3)
    if rank == 1:
        backend.refuse("all_reduce")
    else:
        with pytest.raises(dist.MismatchError, match=r"rank 1 called all_reduce with arguments that it refused itself"):
            backend.all_reduce([a], Reduction("sum"))
    a[:] = rank
    backend.all_reduce([a], Reduction("sum"))
    assert (a == sum(range(size))).all()


@pytest.mark.also("sockets")
@pytest.mark.parametrize("size", [2, 3])
def test_a_refused_call_keeps_its_place(size):
    if size == 2:
        run(_refused_by_one_of_two, 2)
    else:
        run(_refused, 3)


def _refused_by_the_engine(rank, size):
    backend = dist.group.WORLD.backend
    a = np.zeros(3)
    if rank == 1:
        backend.broadcast([a], 1)
        dist.send(a, 0)  # so rank 0 refuses when this rank is through
        dist.recv(a, 0)  # and has told so
        with pytest.raises(dist.MismatchError, match=r"an earlier call, #1, did not fit.*rank 0 called broadcast with"):
            backend.barrier()
    else:
        dist.recv(a, 1)
        with pytest.raises(ValueError, match=r"read-only|overlap"):
            backend.broadcast([np.broadcast_to(np.zeros(1), (3,))], 1)
        dist.send(a, 1)
        with pytest.raises(dist.MismatchError, match=r"rank 1 gave up .* had learned that call #1 had not fitted"):
            backend.barrier()
    a[:] = rank
    backend.broadcast([a], size - 1)
    assert (a == size - 1).all()


@pytest.mark.only("shm")  # elsewhere no call is over before all ranks have made it
def test_a_call_that_the_engine_refuses_keeps_its_place():
    run(_refused_by_the_engine, 2)


def _refused_by_one_of_two(rank, size):
    backend = dist.group.WORLD.backend
    a = np.zeros(1000_000)
    for _ in range(3):
        if rank == 1:
            backend.refuse("scatter")
        else:
            with pytest.raises(dist.MismatchError, match=r"rank 1 called scatter with arguments"):
                backend.scatter([[a], [a]], [a], 0)
    backend.barrier()


def _different_roots(rank, size):
    backend = dist.group.WORLD.backend
    a = np.full(3, float(rank))

    def broadcast():
        if rank == 0:  # it has sent to all, and is through
            backend.broadcast([a], 0)
            dist.send(a, 1)
        else:
            dist.recv(a, 0)
            with pytest.raises(dist.MismatchError, match=r"rank 1 called broadcast.root=1"):
                backend.broadcast([a], 1)
            dist.send(a, 0)

    broadcast()
    if rank == 0:
        dist.recv(a, 1)
    what = r"an earlier call, #1, .*rank 0 called broadcast\(root=0.*rank 1 called broadcast\(root=1"
    with pytest.raises(dist.MismatchError, match=what if rank == 0 else "rank 0 gave up .* call #1 had not fitted"):
        backend.barrier()
    backend.barrier()
    # With nothing after it, the end of the group tells.
    broadcast()
    if rank == 0:
        dist.recv(a, 1)
        with pytest.raises(dist.MismatchError, match=r"destroy_process_group.*an earlier call, #4"):
            dist.destroy_process_group()
        assert not dist.is_initialized()


@pytest.mark.only("shm")  # as above
def test_a_call_that_was_over_when_it_showed_not_to_fit():
    run(_different_roots, 2)


def _different_reductions(rank, size):
    backend = dist.group.WORLD.backend
    with pytest.raises(dist.MismatchError) as caught:
        backend.all_reduce([np.zeros(2)], Reduction("max" if rank == 2 else "sum"))
    # A rank that had not called it yet when the others differed may not be told of.
    assert re.search(r"(rank 0|rank 1|ranks 0, 1) called all_reduce\(float64, 16 bytes, SUM\)", str(caught.value))
    assert "rank 2 called all_reduce(float64, 16 bytes, MAX)" in str(caught.value)
    with pytest.raises(dist.MismatchError, match=r"rank 0 called all_reduce.float32, 16 bytes"):
        backend.all_reduce([np.zeros(4, "f4") if rank == 0 else np.zeros(2)], Reduction("sum"))
    # Rank 0 sends three to all; the others expect two from it.
    parts = [[np.zeros(3 if rank == 0 and r else 2)] for r in range(size)]
    told = []
    calls = [lambda: backend.all_to_all(parts, [[np.zeros(2)] for _ in range(size)]), backend.barrier, backend.barrier]
    for call in calls:
        try:
            call()
        except dist.MismatchError as error:
            told.append(str(error))
    # What rank 0 expects may all have come before it is told: then a later call tells it, and the others.
    what = r"rank 0 contributes 24 bytes where rank [12] expects 16 bytes"
    assert re.search(what if rank else f"{what}|an earlier call", told[0])
    backend.barrier()


@pytest.mark.everywhere
def test_different_arguments_are_told_to_all():
    run(_different_reductions, 3)


def _child_ends(rank, size):
    """A forked child ends in good order while rank 0 is at work, which changes nothing for anybody."""
    a = np.zeros(3)
    dist.barrier()
    if rank == 0:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                atexit._run_exitfuncs()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.barrier()
    if rank:
        work = dist.irecv(a, 0)
        with pytest.raises(dist.DistTimeoutError):  # and not the loss of rank 0
            work.wait(0.5)
    dist.barrier()
    if rank:
        dist.recv(a, 0)
        assert (a == rank).all()
    else:
        for other in range(1, size):
            dist.send(np.full(3, float(other)), other)
    dist.barrier()


@pytest.mark.also("sockets", "gloo", "mpi", "hybrid")
def test_a_forked_child_that_ends_is_not_the_rank():
    run(_child_ends, 3)


def _forked(rank, size):
    a = np.full(3, float(rank))
    dist.barrier()
    if rank == 0:
        pending = dist.irecv(a, 1, tag=9)
        child = os.fork()
        if child == 0:
            code = 0
            try:
                for call in (lambda: dist.send(a, 1), dist.barrier, pending.wait, lambda: dist.recv(a, 1)):
                    try:
                        call()
                    except dist.DistBackendError as error:
                        if "was forked from rank 0" not in str(error) or "spawn" not in str(error):
                            code = 2
                    else:
                        code = 3
                dist.destroy_process_group()
            except BaseException:
                code = 4
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0, code
        dist.send(a, 1)
        pending.wait()
        assert (a == 7).all()
    else:
        dist.recv(a, 0)
        assert (a == 0).all()
        dist.send(np.full(3, 7.0), 0, tag=9)
    dist.barrier()


@pytest.mark.also("sockets")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_speak_for_its_parent():
    run(_forked, 2)


def _consequences(rank, size):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    needed = 1 if rank == 0 else 0  # rank 0 ends because of the loss
    with pytest.raises(dist.PeerLostError) as caught:
        dist.recv(np.zeros(1), needed)
    assert 1 in caught.value.ranks
    assert "rank 1 was killed by SIGKILL" in str(caught.value)


def test_a_rank_that_left_because_another_was_killed_is_not_blamed_alone():
    run(_consequences, 3, exits={1: -signal.SIGKILL})


def _uncaught(rank, size):
    dist.barrier()
    if rank == 1:
        # As the interpreter does for an exception that nobody catches.
        sys.last_value = ValueError("nobody catches this")
        sys.last_type = ValueError
        return
    with pytest.raises(dist.PeerLostError, match=r"rank 1 (exited with code|is gone)"):
        dist.recv(np.zeros(1), 1)


def test_a_rank_that_ends_by_an_exception_has_not_left_the_job():
    run(_uncaught, 2)
