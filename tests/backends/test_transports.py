"""Each transport by itself, without the engine over it."""

from __future__ import annotations

import os
import signal

import pytest

from tests.backends import exchanges
from tests.backends.jobs import NAMES, run

every = pytest.mark.parametrize("name", NAMES)


@every
def test_heads_come_in_order(name):
    run(name, exchanges.heads, 3, 200)


@every
def test_bodies_come_whole_however_memory_is_cut(name):
    run(name, exchanges.bodies, 3)


@pytest.mark.parametrize("name", ["gloo", "mpi", "mpi-ulfm"])
def test_a_killed_rank_is_named_and_the_others_go_on(name):
    known = [signal.SIGKILL.name, "is gone", "has failed", "cannot be reached any more"]  # by the kernel, or an engine
    for how in run(name, exchanges.lose_one, 3, dies=[2])[:2]:
        assert any(word in how for word in known)


@every
def test_close_delivers(name):
    run(name, exchanges.say_and_leave, 2, 500)


@every
def test_a_rank_that_ends_early_is_noticed(name):
    lost = run(name, exchanges.exit_without_a_word, 3)[0]  # of hybrids, one on this host, and one on another
    assert sorted(lost) == [1, 2]
    for how in lost.values():
        assert any(word in how for word in ["exited with code 0", "is gone", "is ending", "cannot be reached any more"])


@every
def test_another_thread_ends_a_wait(name):
    run(name, exchanges.wake, 2)


@every
def test_ranks_of_one_host_know_it(name):
    told = run(name, exchanges.no_hosts_differ, 2)
    assert told[0] == told[1]
    assert len(set(told[0])) == 1


@every
@pytest.mark.skipif("CORRAL_TEST_HUGE" not in os.environ, reason="takes 5 GiB of memory: CORRAL_TEST_HUGE=1 runs it")
def test_bodies_beyond_two_gibibytes(name):
    run(name, exchanges.huge, 2, (1 << 31) + 12345, timeout=170.0)
