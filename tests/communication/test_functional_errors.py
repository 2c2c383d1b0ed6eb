"""What goes wrong in the functional forms is raised on every rank, and the group goes on."""

from __future__ import annotations

import re

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


def _on_all(call, error, message):
    """Assert that a call raises on every rank, with the same text, and that the group can be used."""
    with pytest.raises(error) as raised:
        call()
    assert re.search(message, str(raised.value)), raised.value
    texts = corral.all_gather(str(raised.value))
    assert len(set(texts)) == 1, texts


class Unreadable:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise RuntimeError("it will not")


def _unsendable(rank, size):
    masked = np.ma.array([1, 2], mask=[True, False])
    endless: list = []
    endless.append(endless)
    for bad, message in (
        (masked, r"rank 1: TypeError: 'a' has masked"),
        ({"x": endless}, "rank 1: ValueError: .*itself"),
    ):
        tree = {"a": bad if rank == 1 else np.zeros(2)}
        parts = [np.zeros(1), tree, np.zeros(3)]
        _on_all(lambda t=tree: corral.all_gather(t), dist.MismatchError, f"^corral.all_gather: {message}")
        _on_all(lambda t=tree: corral.gather(t, 2), dist.MismatchError, f"^corral.gather: {message}")
        _on_all(lambda t=tree: corral.broadcast(t, 1), dist.MismatchError, f"^corral.broadcast: {message}")
        _on_all(lambda p=parts: corral.all_to_all(p), dist.MismatchError, f"^corral.all_to_all: {message}")
        _on_all(
            lambda p=parts: corral.scatter(p if rank == 1 else None, 1),
            dist.MismatchError,
            f"^corral.scatter: {message}",
        )


def test_what_cannot_be_sent(fleet):
    fleet(_unsendable)


def _unreceivable(rank, size):
    like = "torch" if rank == 2 else None
    tree = {"a": np.zeros(2, "M8[s]")}
    message = r"rank 2: TypeError: 'a' \(datetime64\[s\]\) cannot become an array of torch"
    _on_all(lambda: corral.all_gather(tree, like=like), dist.MismatchError, message)
    _on_all(lambda: corral.all_gather(tree, cat=True, like=like), dist.MismatchError, message)
    _on_all(lambda: corral.broadcast(tree, 1, like=like), dist.MismatchError, message)
    _on_all(lambda: corral.broadcast(tree, 2, like=like), dist.MismatchError, message)
    _on_all(lambda: corral.all_to_all([tree] * size, like=like), dist.MismatchError, message)
    _on_all(lambda: corral.scatter([tree] * size if rank == 1 else None, 1, like=like), dist.MismatchError, message)

    message = "could not be unpickled here: it will not"
    _on_all(lambda: corral.all_gather(Unreadable() if rank == 0 else 1), PickleError, f"rank 0: .*{message}")
    _on_all(lambda: corral.broadcast([Unreadable()], 1), PickleError, f"rank 0: .*{message}")
    parts = [Unreadable() if rank == 0 and i == 2 else i for i in range(size)]
    _on_all(lambda: corral.all_to_all(parts), PickleError, f"rank 2: .*{message}")
    _on_all(lambda: corral.scatter(parts if rank == 0 else None, 0), PickleError, f"rank 2: .*{message}")


def test_what_cannot_be_received(fleet):
    fleet(_unreceivable)


def _arguments(rank, size):
    calls = [
        (lambda **k: corral.all_gather(1, **k), {"like": "tensorflow"}, "like must be"),
        (lambda **k: corral.broadcast(1, **{"src": 0, **k}), {"like": 3}, "like must be"),
        (lambda **k: corral.broadcast(1, **{"src": 0, **k}), {"src": None}, "src or group_src"),
        (lambda **k: corral.broadcast(1, **{"src": 0, **k}), {"group_src": 0}, "both group_src and src"),
        (lambda **k: corral.broadcast(1, **{"src": 0, **k}), {"src": 7}, "rank 7"),
        (
            lambda trees=None: corral.scatter(trees or ([1] * size if rank == 0 else None)),
            {"trees": [1]},
            "trees|NOT be",
        ),
        (lambda trees=(1, 2, 3): corral.all_to_all(trees), {"trees": [1, 2]}, "one tree for each of the 3 ranks"),
        (lambda trees=(1, 2, 3): corral.all_to_all(trees), {"trees": np.zeros(3)}, "must be a list"),
        (lambda **k: corral.reduce(1, **k), {"group_dst": 5}, "rank 5"),
        (lambda **k: corral.gather(1, **k), {"group_dst": 5}, "rank 5"),
    ]
    for odd in range(size):
        for call, arguments, message in calls:
            if rank == odd:
                with pytest.raises((ValueError, TypeError), match=message):
                    call(**arguments)
            else:
                with pytest.raises(dist.MismatchError, match=rf"rank {odd} called .* refused"):
                    call()
            dist.barrier()


def test_arguments(fleet):
    fleet(_arguments)


def _different_calls(rank, size):
    with pytest.raises(dist.MismatchError, match="the ranks called different operations"):
        corral.all_gather(1) if rank == 0 else corral.broadcast(1, 1)
    dist.barrier()
    first = 0 if rank == 0 else 1
    message = r": src is rank 1 on rank 1, but rank 0 on rank 0"
    _on_all(lambda: corral.broadcast(1, first), dist.MismatchError, message)
    _on_all(lambda: corral.scatter([1] * size if rank == first else None, first), dist.MismatchError, message)
    message = r": dst is rank 1 on rank 1, but rank 0 on rank 0"
    _on_all(lambda: corral.gather(1, first), dist.MismatchError, message)
    _on_all(lambda: corral.reduce(1, dst=first), dist.MismatchError, message)


def test_different_calls(fleet):
    fleet(_different_calls)


def _outside(rank, size):
    group = dist.new_group([2, 0])
    calls = [corral.all_gather, corral.all_reduce]
    if rank != 1:
        assert corral.all_gather(rank, group) == [0, 2]
        return
    for call in calls:
        with pytest.warns(UserWarning, match=f"Running corral.{call.__name__} on global rank 1"):
            assert call(np.zeros(1), group=group) is None
    with pytest.warns(UserWarning, match="corral.recv"):
        assert corral.recv(group=group) is None


def test_ranks_outside(fleet):
    fleet(_outside)


def _without_pickle(rank, size):
    import fractions

    half = fractions.Fraction(1, 2)
    message = r"rank 0: .*Fraction"
    _on_all(lambda: corral.all_gather([half if rank == 0 else 1]), PickleError, message)
    _on_all(lambda: corral.broadcast([half], 0), PickleError, message)
    if rank == 0:
        with pytest.raises(PickleError, match="Fraction"):
            corral.send(half, 1)
    elif rank == 1:
        with pytest.raises(PickleError, match="Fraction"):
            corral.recv(0)


def test_pickles_are_refused():
    ranks = Fleet(2, allow_pickle=False)
    ranks(_without_pickle)
    ranks.close()
