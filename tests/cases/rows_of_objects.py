"""Operations on objects, and on trees that nobody has prepared anything for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from calls import Call
from rows import Started, checks, row

import corral
import corral.distributed as dist

# Of each rank another size arrives.


def _object(c: Call, rank: int, part: int = 0) -> Any:
    return {
        "strided": c.held(c.values(rank, part), c.number + part).array,
        "more": [c.held(c.values(rank, part, (rank + 1, 3)), c.number + part + 1).array, ("of rank", rank, part)],
    }


def _check_object(c: Call, actual: Any, rank: int, part: int = 0) -> None:
    assert list(actual) == ["strided", "more"], f"got {actual!r}"
    c.check(actual["strided"], c.values(rank, part))
    c.check(actual["more"][0], c.values(rank, part, (rank + 1, 3)))
    assert actual["more"][1] == ("of rank", rank, part), f"got {actual['more'][1]!r}"


def _check_objects(c: Call, found: list[tuple[Any, int, int]]) -> Callable[[], None]:
    """Check objects that are of a rank and a part each."""

    def check() -> None:
        for actual, rank, part in found:
            _check_object(c, actual, rank, part)

    return check


@row("send_object_list", "recv_object_list", needs="pairs")
def _object_lists(c: Call) -> Started:
    got = {}
    for i in [] if c.is_root else [c.root]:
        dist.send_object_list([_object(c, c.me, i), i], group=c.group, **c.at("dst", i))
    for i in c.others if c.is_root else [c.root]:
        got[i] = [None, None]
        assert dist.recv_object_list(got[i], group=c.group, **c.at("src", i)) == c.ranks[i]
    for i in c.others if c.is_root else []:
        dist.send_object_list([_object(c, c.me, i), i], group=c.group, **c.at("dst", i))

    def check() -> None:
        for i, (first, second) in got.items():
            _check_object(c, first, i, c.me)
            assert second == c.me

    return [], check


@row("corral.send", "corral.recv", needs="pairs")
def _tree_send(c: Call) -> Started:
    got = {}
    for i in [] if c.is_root else [c.root]:
        corral.send(_object(c, c.me, i), group=c.group, tag=4, **c.at("dst", i))
    for i in c.others if c.is_root else [c.root]:
        got[i] = corral.recv(group=c.group, tag=4, **c.at("src", i))
    for i in c.others if c.is_root else []:
        corral.send(_object(c, c.me, i), group=c.group, tag=4, **c.at("dst", i))
    return [], _check_objects(c, [(got[i], i, c.me) for i in got])


@row("gather_object", needs="members")
def _gather_object(c: Call) -> Started:
    out = [None] * c.size if c.is_root else None
    dist.gather_object(_object(c, c.me), out, group=c.group, **c.at("dst"))
    return [], _check_objects(c, [(each, i, 0) for i, each in enumerate(out or [])])


@row("all_gather_object", needs="all")
def _all_gather_object(c: Call) -> Started:
    out = [None] * c.size
    dist.all_gather_object(out, _object(c, c.me), c.group)
    return [], _check_objects(c, [(each, i, 0) for i, each in enumerate(out)])


@row("broadcast_object_list", needs="root")
def _broadcast_object_list(c: Call) -> Started:
    both = [_object(c, c.root), _object(c, c.root, 1)] if c.is_root else [None, None]
    dist.broadcast_object_list(both, group=c.group, **c.at("src"))
    return [], _check_objects(c, [(each, c.root, part) for part, each in enumerate(both)])


@row("scatter_object_list", needs="root")
def _scatter_object_list(c: Call) -> Started:
    out = [None]
    given = [_object(c, c.root, i) for i in range(c.size)] if c.is_root else None
    dist.scatter_object_list(out, given, group=c.group, **c.at("src"))
    return [], lambda: _check_object(c, out[0], c.root, c.me)


@row("corral.broadcast", needs="root")
def _tree_broadcast(c: Call) -> Started:
    result = corral.broadcast(_object(c, c.root) if c.is_root else None, group=c.group, **c.at("src"))
    return [], lambda: _check_object(c, result, c.root)


@row("corral.gather", needs="members")
def _tree_gather(c: Call) -> Started:
    result = corral.gather(_object(c, c.me), group=c.group, **c.at("dst"))
    assert (result is None) is not c.is_root
    return [], _check_objects(c, [(each, i, 0) for i, each in enumerate(result or [])])


@row("corral.all_gather", needs="all")
def _tree_all_gather(c: Call) -> Started:
    result = corral.all_gather(_object(c, c.me), c.group)
    return [], _check_objects(c, [(each, i, 0) for i, each in enumerate(result)])


@row("corral.all_gather", needs="all", name="corral.all_gather(cat=True)")
def _tree_joined(c: Call) -> Started:
    def rows(rank: int) -> np.ndarray:
        return c.values(rank, 0, (rank + 1, *c.shape))

    result = corral.all_gather({"rows": c.held(rows(c.me), c.number).array}, c.group, cat=True)
    return [], lambda: c.check(result["rows"], np.concatenate([rows(i) for i in range(c.size)]))


@row("corral.scatter", needs="root")
def _tree_scatter(c: Call) -> Started:
    trees = [_object(c, c.root, i) for i in range(c.size)] if c.is_root else None
    result = corral.scatter(trees, group=c.group, **c.at("src"))
    return [], lambda: _check_object(c, result, c.root, c.me)


@row("corral.all_to_all", needs="all")
def _tree_all_to_all(c: Call) -> Started:
    result = corral.all_to_all([_object(c, c.me, i) for i in range(c.size)], c.group)
    return [], _check_objects(c, [(each, i, c.me) for i, each in enumerate(result)])


@row("corral.gather_and_stack", needs="members")
def _stack(c: Call) -> Started:
    """Into arrays that the destination has, or that are made."""
    senders = [i for i in range(c.size) if i != c.root]
    expected = [np.stack([c.values(i, part) for i in senders]) for part in (0, 1)]
    if not c.is_root:
        tree = {"a": c.given().array, "b": {"c": c.given(1).array}}
        if c.number % 3 == 0:
            tree = corral.TensorDict(tree)
        assert corral.gather_and_stack(tree, group=c.group, **c.at("dst")) is None
        return [], lambda: None
    if c.number % 3 == 1:
        made = corral.gather_and_stack(None, group=c.group, **c.at("dst"))

        def check() -> None:
            c.check(made["a"], expected[0])
            c.check(made["b"]["c"], expected[1])

        return [], check
    rows = [c.blank(part, shape=expected[part].shape) for part in (0, 1)]
    tree = {"a": rows[0].array, "b": {"c": rows[1].array}}
    if c.number % 3 == 0:
        tree = corral.TensorDict(tree, batch_size=[c.size - 1])
        assert tree.gather_and_stack(group=c.group, **c.at("dst")) is tree
    else:
        assert corral.gather_and_stack(tree, group=c.group, **c.at("dst")) is tree
    return [], checks(list(zip(rows, expected, strict=True)))


@row("corral.all_reduce", needs="all", reduces=True)
def _tree_all_reduce(c: Call) -> Started:
    tree = {"a": c.given().array, "b": [c.given(1).array]}
    result = corral.all_reduce(tree, c.tree_op, c.group)
    return [], lambda: _check_total(c, result)


def _check_total(c: Call, result: Any) -> None:
    c.check(result["a"], c.total())
    c.check(result["b"][0], c.total(1))


@row("corral.reduce", needs="members", reduces=True)
def _tree_reduce(c: Call) -> Started:
    tree = {"a": c.given().array, "b": [c.given(1).array]}
    result = corral.reduce(tree, c.tree_op, group=c.group, **c.at("dst"))

    def check() -> None:
        if c.is_root:
            _check_total(c, result)
        else:
            assert result is None

    return [], check
