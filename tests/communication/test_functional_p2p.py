"""`corral.send` and `corral.recv`: trees from one rank to another."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fleet import Fleet

import corral
import corral.distributed as dist
from corral.wire.errors import PickleError

SIZE = 3


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(SIZE)
    yield ranks
    ranks.close()


def _from_anyone(rank, size):
    if rank:
        for number in range(20):
            corral.send({"from": rank, "number": number, "rows": np.full((number, 1000 * rank), rank)}, 0)
        return
    seen = {1: 0, 2: 0}
    for _ in range(40):
        tree = corral.recv()
        assert tree["number"] == seen[tree["from"]]  # in order
        seen[tree["from"]] += 1
        assert tree["rows"].shape == (tree["number"], 1000 * tree["from"])
        assert (tree["rows"] == tree["from"]).all()
    assert seen == {1: 20, 2: 20}


def test_from_anyone(fleet):
    fleet(_from_anyone)


def _threads(rank, size):
    """Several threads on both sides use one tag: no layout may come apart from its arrays."""
    failures = []

    def work():
        try:
            for number in range(10):
                if rank == 1:
                    corral.send({"n": np.full(5000 + number, number), "k": number}, 0, tag=3)
                else:
                    tree = corral.recv(tag=3)
                    assert tree["n"].shape == (5000 + tree["k"],)
                    assert (tree["n"] == tree["k"]).all()
        except BaseException as error:
            failures.append(error)

    if rank < 2:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_threads(fleet):
    fleet(_threads)


def _refuse():
    raise RuntimeError("it will not")


class Unreadable:
    def __reduce__(self):
        return _refuse, ()


def _refusals(rank, size):
    masked = np.ma.array([1, 2], mask=[True, False])
    if rank == 0:
        with pytest.raises(dist.MismatchError, match=r"corral.send: rank 0: TypeError: 'a' has masked"):
            corral.send({"a": masked}, 1)
        corral.send({"a": np.zeros(20000, "M8[s]")}, 1)  # completes, though it cannot be received
        for tree in (Unreadable(), [Unreadable(), np.zeros(3)]):  # without arrays behind it, and with some
            corral.send(tree, 1)
        dist.send(np.arange(4), 1)
        corral.send("after", 1)
    elif rank == 1:
        with pytest.raises(dist.MismatchError, match=r"corral.recv: rank 0: TypeError: 'a' has masked"):
            corral.recv(0)
        with pytest.raises(
            dist.MismatchError, match=r"from rank 0 .*'a' \(datetime64\[s\]\) cannot become an array of"
        ):
            corral.recv(0, like="torch")
        for _ in range(2):
            with pytest.raises(PickleError, match=r"the tree from rank 0 cannot be received: .* it will not"):
                corral.recv(0)
        with pytest.raises(dist.MismatchError, match=r"the message from rank 0 \(tag 0\) is no tree"):
            corral.recv(0)
        assert corral.recv() == "after"
    for call in (lambda **k: corral.send(1, **k), corral.recv):
        side = "src" if call is corral.recv else "dst"
        for arguments, message in (
            ({side: rank}, "this rank itself"),
            ({side: 9}, "rank 9"),
            ({side: 0, f"group_{side}": 0}, "both"),
            ({side: (rank + 1) % size, "tag": -1}, "tag must be"),
        ):
            with pytest.raises(ValueError, match=message):
                call(**arguments)
    with pytest.raises(ValueError, match="dst or group_dst"):
        corral.send(1)
    with pytest.raises(ValueError, match="like must be"):
        corral.recv(like="tensorflow")


def test_errors(fleet):
    fleet(_refusals)


def _big(rank, size):
    array = np.arange(3_000_000.0).reshape(1000, 3000)
    if rank == 2:
        corral.send([array.T, "big"], group_dst=0, tag=9)
    elif rank == 0:
        found, name = corral.recv(2, tag=9)
        assert name == "big"
        assert np.array_equal(found, array.T)


def test_big_and_strided(fleet):
    fleet(_big)
