"""Meetings in a store, as ranks of several hosts have them; here all on one. See `tests.hosts` for hosts of our own."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import corral.distributed as dist
from corral.distributed.rendezvous import meet

COMES = "import sys; from corral.distributed.rendezvous import meet; meet(sys.argv[1], 1, 3, b'', 60)"


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=20)


@pytest.fixture
def address(store):
    return f"store://127.0.0.1:{store.port}#job"


def outcome(*arguments):
    try:
        return meet(*arguments)
    except dist.DistError as error:
        return error


def test_all_get_what_each_brought_at_every_meeting(store, address):
    large = bytes(range(256)) * 4096
    with ThreadPoolExecutor(40) as pool:
        for turn in range(3):
            said = [b"%d %d" % (rank, turn) if rank else large for rank in range(40)]
            got = [pool.submit(meet, address, rank, 40, said[rank], 30) for rank in range(40)]
            assert all(each.result() == said for each in got)
    assert not [key for key in store.list_keys() if store.get(key) == large]  # what was brought is not kept


def test_two_jobs_do_not_meet(store):
    with ThreadPoolExecutor(4) as pool:
        said = {
            (job, rank): pool.submit(meet, f"store://127.0.0.1:{store.port}#{job}", rank, 2, job.encode(), 30)
            for job in "ab"
            for rank in range(2)
        }
    assert all(got.result() == [job.encode()] * 2 for (job, _), got in said.items())


def test_who_never_comes_is_named_on_all(address):
    with ThreadPoolExecutor(2) as pool:
        got = [pool.submit(outcome, address, rank, 5, b"", limit).result for rank, limit in ((0, 60), (3, 2))]
    for error in (each() for each in got):
        assert isinstance(error, dist.DistTimeoutError)
        assert "timed out after 2 s, the timeout of rank 3: ranks 1, 2, 4 of 5 never came" in str(error)


def test_another_world_size_is_told_to_all(address):
    with ThreadPoolExecutor(3) as pool:
        got = [pool.submit(outcome, address, rank, size, b"", 60).result for rank, size in ((0, 3), (1, 4), (2, 3))]
    for error in (each() for each in got):
        assert isinstance(error, dist.MismatchError)
        assert "rank 1 has world_size=4" in str(error)
        assert "has world_size=3" in str(error)


def test_a_rank_that_comes_twice_is_refused_and_the_others_meet(store, address):
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(outcome, address, 1, 2, b"first", 60)
        store.wait(["ranksjob.1/come"])
        error = outcome(address, 1, 2, b"second", 60)
        assert isinstance(error, dist.MismatchError)
        assert "rank 1 has already come" in str(error)
        assert outcome(address, 0, 2, b"", 60) == [b"", b"first"]
        assert first.result() == [b"", b"first"]


def test_a_rank_that_dies_before_all_have_come_is_named(store, address):
    with ThreadPoolExecutor(1) as pool, subprocess.Popen([sys.executable, "-c", COMES, address]) as other:
        waiting = pool.submit(outcome, address, 0, 3, b"", 60)
        store.wait(["ranksjob.1/1"])
        other.kill()
        error = waiting.result()
    assert isinstance(error, dist.PeerLostError)
    assert error.ranks == (1,)
    assert "rank 1 came, and was gone before all had come" in str(error)


def test_a_store_that_is_gone_is_said_to_be(store, address):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(outcome, address, 0, 2, b"", 60)
        store.wait(["ranksjob.1/0"])
        store.close()
        error = waiting.result()
    assert isinstance(error, dist.DistNetworkError)
    assert "the server is gone" in str(error)


def test_a_verdict_that_makes_no_sense_is_an_error(store, address):
    """What is set as the verdict by something else than a rank is not believed."""
    store.set("ranksjob.1/verdict", b"nonsense")
    with pytest.raises(dist.DistNetworkError, match="does not speak as"):
        meet(address, 0, 2, b"", 10)
