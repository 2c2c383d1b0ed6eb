"""Tensorclasses are sent, gathered and reduced as TensorDicts are, and arrive as their class."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from ranks import run

import corral
from corral import TensorClass, TensorDict
from corral.wire.layout import Branch, Layout


class Inner(TensorClass):
    """One that is nested."""

    q: np.ndarray


class Numbers(TensorClass):
    """Arrays, a nested tensorclass, a name, and a default."""

    numbers: np.ndarray
    nested: Inner | None = None
    name: str = "none"
    steps: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2))

    def middle(self) -> float:
        return float(self.numbers.mean())


def rows(rank: int, count: int = 4, named: bool = False) -> Numbers:
    name = {"name": f"rank {rank}"} if named else {"name": None}
    nested = Inner(q=np.full((count, 2), float(rank)), batch_size=[count])
    steps = np.arange(count) + rank
    return Numbers(numbers=np.arange(count) * 1.0 + 10 * rank, nested=nested, steps=steps, batch_size=[count], **name)


def _stack(rank: int, size: int, named: bool) -> Any:
    mine = rows(rank, named=named)
    if rank:
        assert mine.gather_and_stack(0) is None
        return None
    buffer = corral.stack([mine] * (size - 1)).clone()
    before = buffer.numbers
    assert buffer.gather_and_stack(0) is buffer
    assert type(buffer) is Numbers
    assert type(buffer.nested) is Inner
    assert buffer.numbers is before
    return buffer.numbers.tolist(), buffer.nested.q.tolist(), buffer.steps.tolist(), buffer[1].name, buffer.middle()


@pytest.mark.parametrize("named", [False, True], ids=["arrays", "with names"])
def test_gather_and_stack(named: bool) -> None:
    found = run(_stack, 3, named)[0]
    senders = [rows(rank) for rank in (1, 2)]
    assert found[0] == [each.numbers.tolist() for each in senders]
    assert found[1] == [each.nested.q.tolist() for each in senders]
    assert found[2] == [each.steps.tolist() for each in senders]
    assert found[3] == (["rank 2"] * 4 if named else None)
    assert found[4] == np.mean([each.numbers for each in senders])


def _new_stack(rank: int, size: int) -> Any:
    result = corral.gather_and_stack(rows(rank) if rank else None, 0)
    if rank:
        return None
    assert type(result) is Numbers
    assert type(result.nested) is Inner
    return result.numbers.tolist()


def test_a_stack_that_is_made() -> None:
    assert run(_new_stack, 3)[0] == [rows(rank).numbers.tolist() for rank in (1, 2)]


def _methods(rank: int, size: int) -> None:
    mine = rows(rank, named=True)
    if rank == 0:
        mine.send(1)
        mine.init_remote(1)
        mine.init_remote(1)
    else:
        target = rows(5, named=True)
        kept = target.numbers
        target.recv(0)
        assert target.numbers is kept
        assert target.numbers.tolist() == rows(0).numbers.tolist()
        assert target.name == "rank 0"
        whole = TensorDict.from_remote_init(0)
        assert type(whole) is Numbers
        assert type(whole.nested) is Inner
        assert (whole.name, whole.middle()) == ("rank 0", 1.5)
        assert type(Numbers.from_remote_init(0)) is Numbers
    every = mine.all_gather()
    assert [type(each) for each in every] == [Numbers] * size
    assert [each.name for each in every] == ["rank 0", "rank 1"]
    gathered = mine.gather(0)
    assert (gathered is None) == (rank != 0)
    received = mine.broadcast(1)
    assert type(received) is Numbers
    assert received.name == "rank 1"
    part = mine.scatter(0, [rows(7), rows(8)] if rank == 0 else None)
    assert type(part) is Numbers
    assert part.numbers.tolist() == rows(7 + rank).numbers.tolist()
    total = rows(rank)
    total.all_reduce()
    assert type(total.nested) is Inner
    assert total.numbers.tolist() == (rows(0).numbers + rows(1).numbers).tolist()
    tree = corral.all_gather({"a": [mine, (mine.nested,)]})
    assert type(tree[1]["a"][0]) is Numbers
    assert type(tree[1]["a"][1][0]) is Inner
    lazy = corral.all_gather(corral.lazy_stack([rows(rank, 2), rows(rank, 3)]))[1 - rank]
    assert isinstance(lazy, Numbers)
    assert isinstance(lazy, corral.LazyStackedTensorDict)
    assert lazy[1].numbers.tolist() == rows(1 - rank, 3).numbers.tolist()


def test_every_method() -> None:
    run(_methods, 2)


def _unknown(rank: int, size: int) -> None:
    if rank == 0:

        class Local(TensorClass):
            a: np.ndarray

        corral.send(Local(a=np.arange(2)), 1)
        Local(a=np.arange(2)).init_remote(1)
        Local(a=np.arange(2)).init_remote(1)
        return
    received = corral.recv(0)
    assert type(received) is TensorDict
    assert received["a"].tolist() == [0, 1]

    class Other(TensorClass):
        a: np.ndarray

    class Different(TensorClass):
        b: np.ndarray

    assert type(Other.from_remote_init(0)) is Other
    with pytest.raises(corral.MismatchError, match=r"'a'.* no fields of Different"):
        Different.from_remote_init(0)


def test_a_class_that_the_receiver_has_not_defined() -> None:
    run(_unknown, 2)


def _mixed(rank: int, size: int) -> Any:
    """Senders of a tensorclass, a destination of a plain TensorDict; and the other way round."""
    mine = rows(rank)
    plain = mine.to_tensordict()
    first = plain.expand(size - 1, 4).clone() if rank == 0 else mine
    first.gather_and_stack(0)
    second = mine.expand(size - 1, 4).clone() if rank == 0 else plain
    second.gather_and_stack(0)
    return (type(first).__name__, type(second).__name__, first["numbers"].tolist(), second["numbers"].tolist())


def test_tensorclasses_and_tensordicts_go_together() -> None:
    expected = [rows(rank).numbers.tolist() for rank in (1, 2)]
    assert run(_mixed, 3)[0] == ("TensorDict", "Numbers", expected, expected)


def test_a_name_from_elsewhere_is_not_imported() -> None:
    layout, leaves = Layout.of(Inner(q=np.zeros(2)))
    data = layout.to_bytes()
    root = layout.root
    assert isinstance(root, Branch)
    assert root.name == f"{__name__}.Inner"
    for other in (f"{__name__}.Numbers", "os.system", "corral.TensorDict"):
        forged = Layout(Branch(root.kind, other, root.batch_size, root.keys, root.children))
        assert type(forged.rebuild(leaves)) is TensorDict
    assert type(Layout.from_bytes(data).rebuild(leaves)) is Inner
