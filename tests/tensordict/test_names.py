"""Names of dimensions: where they go is compared with tensordict."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensordict
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corral import TensorDict
from tests.tensordict.comparing import outcome
from tests.tensordict.test_same_calls import indices


def named(kind: Any, leaf: Any = torch.from_numpy) -> Any:
    inner = kind({"b": leaf(np.zeros((2, 3, 1, 5)))}, [2, 3, 1], names=["x", "y", "z"])
    return kind({"a": leaf(np.arange(24).reshape(2, 3, 4)), "n": inner}, [2, 3], names=["x", "y"])


def shown(value: Any) -> Any:
    """Return the names of a result and of its parts."""
    if isinstance(value, (TensorDict, tensordict.TensorDictBase)):
        return [
            list(value.names),
            *(shown(entry) for _, entry in sorted(value.items()) if hasattr(entry, "batch_size")),
        ]
    return [shown(part) for part in value] if isinstance(value, (list, tuple)) else None


def compare_names(function: Callable[[Any], Any]) -> None:
    theirs_td = named(tensordict.TensorDict)
    theirs, expected = outcome(function, theirs_td)
    for leaf in (torch.from_numpy, np.asarray):
        td = named(TensorDict, leaf)
        mine, error = outcome(function, td)
        assert (error is None) == (expected is None), f"corral: {error!r}; tensordict: {expected!r}"
        assert error is None or type(error) is type(expected)
        assert shown(mine) == shown(theirs)
        assert shown(td) == shown(theirs_td), "argument"


MASK = torch.tensor([True, False])


def renamed(td: Any, names: Any) -> Any:
    td.names = names
    return td


def resized(td: Any, size: Any) -> Any:
    td.batch_size = size
    return td


def with_entry(td: Any, key: Any, size: Any, names: Any) -> Any:
    entry = type(td)({}, size, names=names)
    td[key] = entry
    return [td, entry]


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "flatten": lambda td: td.flatten(0, 1),
    "unflatten": lambda td: td.unflatten(1, (3, 1)),
    "reshape": lambda td: td.reshape(6),
    "reshape to the same": lambda td: td.reshape(2, 3),
    "view": lambda td: td.view(6),
    "permute": lambda td: td.permute(1, 0),
    "transpose": lambda td: td.transpose(0, 1),
    "squeeze": lambda td: td[:1].squeeze(0),
    "unsqueeze": lambda td: [td.unsqueeze(0), td.unsqueeze(-1)],
    "expand": lambda td: td.expand(4, 2, 3),
    "split": lambda td: td.split(1),
    "chunk": lambda td: td.chunk(2, 1),
    "unbind": lambda td: [*td.unbind(1), *td],
    "clone": lambda td: [td.clone(), td.copy(), td.to_tensordict()],
    "apply": lambda td: [td.apply(lambda x: x + 1), td.apply(lambda x: x.sum(), batch_size=[])],
    "add": lambda td: [td + 1, td + td, -td],
    "sum": lambda td: [td.sum(0), td.sum(1, keepdim=True)],
    "reductions of everything": lambda td: [
        getattr(td.float(), name)(keepdim=True)
        for name in ("sum", "nansum", "mean", "nanmean", "prod", "std", "var", "logsumexp")
    ],
    "quantile of everything": lambda td: td.float().quantile(0.5, keepdim=True),
    "select": lambda td: [td.select("n"), td.exclude("a")],
    "empty": lambda td: [td.empty(), td.empty(recurse=True), td.empty(batch_size=[2])],
    "flatten keys": lambda td: [td.flatten_keys(), td.flatten_keys().unflatten_keys()],
    "to": lambda td: [td.to(torch.float64), td.to("cpu"), td.detach(), td.contiguous()],
    "consolidate": lambda td: td.consolidate(),
    "stack": lambda td: [torch.stack([td, td], 1), torch.stack([td, td.rename("x", "q")]), torch.stack([td])],
    "cat": lambda td: torch.cat([td, td], 1),
    "like": lambda td: torch.zeros_like(td),
    "rename key": lambda td: td.rename_key_("a", "c"),
    "new": lambda td: [td.new_zeros(4, 2, 3), td.new_zeros(4), td.new_zeros(4, 5)],
    "repeat": lambda td: [td.repeat(2, 1), td.repeat_interleave(2, dim=0), td.tile((2,))],
    "move": lambda td: [td.roll(1, 0), td.roll(1), td.flip(0), td.rot90(), td.rot90(2), td.movedim(0, 1)],
    "parts": lambda td: [td.narrow(0, 0, 1), *td.tensor_split(2)],
    "broadcast": lambda td: [td.broadcast_to((4, 2, 3)), td.atleast_3d()],
    "gather": lambda td: td.gather(0, torch.zeros(1, 3, dtype=torch.int64)),
    "masked select": lambda td: [td.masked_select(MASK), td.exclude("n").masked_select(MASK)],
    "masked select in place": lambda td: td.masked_select(MASK, inplace=True).names,
    "pad": lambda td: td.pad([1, 1, 0, 0]),
    "keys": lambda td: [*td.split_keys(["a"]), td.replace(c=td["a"])],
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "set names": lambda td: renamed(td, ["q", None]),
    "set no names": lambda td: renamed(td, None),
    "set only None": lambda td: renamed(td, [None, None]),
    "set too few": lambda td: renamed(td, ["x"]),
    "set too many": lambda td: renamed(td, ["x", "q", "r"]),
    "set twice the same": lambda td: renamed(td, ["x", "x"]),
    "set one that a nested one has": lambda td: renamed(td, ["z", "x"]),
    "rename": lambda td: [td.rename("r", "s"), td.rename(x="q"), td.rename(None)],
    "rename nothing": lambda td: td.rename(),
    "rename both ways": lambda td: td.rename("a", x="b"),
    "rename unknown": lambda td: td.rename(k="b"),
    "rename_": lambda td: td.rename_("r", "s"),
    "rename_ one": lambda td: td.rename_(y="q"),
    "rename_ none": lambda td: td.rename_(None),
    "rename_ unknown": lambda td: td.rename_(k="b"),
    "rename_ locked": lambda td: td.lock_().rename_("r", "s"),
    "refine": lambda td: td.refine_names("x", "y"),
    "refine ...": lambda td: td.refine_names(..., "y"),
    "refine wrongly": lambda td: td.refine_names("q", "y"),
    "refine unnamed": lambda td: td.rename(None).refine_names("q", None),
    "refine unnamed ...": lambda td: td.rename(None).refine_names(..., "q"),
    "refine with None": lambda td: td.refine_names(None, None),
    "refine too few": lambda td: td.refine_names("x"),
    "shorter batch": lambda td: resized(td, [2]),
    "auto batch size": lambda td: td.auto_batch_size_(),
    "auto batch size 1": lambda td: td.auto_batch_size_(1),
    "entry": lambda td: with_entry(td, "k", [2, 3, 1], ["x", "y", "e"]),
    "entry without": lambda td: with_entry(td, "k", [2, 3, 1], None),
    "entry of others": lambda td: with_entry(td, "k", [2, 3], ["x", "q"]),
    "entry of a shorter batch": lambda td: with_entry(td, "k", [2], ["x"]),
    "entry that names": lambda td: with_entry(td.rename(None), "k", [2, 3], ["r", "s"]),
    "nested key": lambda td: td.set(("q", "r"), td["a"]),
    "dict": lambda td: td.set("q", {"r": td["a"]}),
    "update": lambda td: td.update(td.clone().rename_("r", "s").exclude("n")),
    "get_at": lambda td: td.get_at("n", 0),
    **{
        f"{name} of {what}": (
            lambda td, name=name, other=other: getattr(operator, name)(td, td if other is None else other)
        )
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "mul")
        for what, other in (("each other", None), ("a number", 1), ("an array", torch.ones(2, 3)))
    },
    "|": lambda td: td.bool() | td.bool(),
    "^": lambda td: td.bool() ^ True,
    "&": lambda td: td.bool() & td.bool(),
    "~": lambda td: ~td.bool(),
    **{
        f"{name} {dim}": (lambda td, name=name, dim=dim: getattr(td.double(), name)(dim=dim))
        for name in ("sum", "mean", "prod", "std", "logsumexp", "min", "max", "cummin", "cummax", "softmax")
        for dim in (0, 1, -1)
    },
    **{
        f"{name} {dim} kept": (lambda td, name=name, dim=dim: getattr(td.double(), name)(dim=dim, keepdim=True))
        for name in ("sum", "logsumexp", "min", "max")
        for dim in (0, 1)
    },
    **{
        f"{name} of features": (lambda td, name=name: getattr(td.double(), name)(dim="feature"))
        for name in ("sum", "mean", "var", "prod")
    },
    **{
        f"{name} {dim}": (lambda td, name=name, dim=dim: getattr(td.bool(), name)(dim))
        for name in ("all", "any")
        for dim in (0, 1, -1)
    },
    "quantiles": lambda td: td.double().quantile(torch.tensor([0.1, 0.9], dtype=torch.float64), dim=1),
}


@pytest.mark.parametrize("function", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_operations(function: Callable[[Any], Any]) -> None:
    compare_names(function)


@settings(max_examples=200, deadline=None)
@given(indices((2, 3)))
def test_indices(index: Any) -> None:
    compare_names(lambda td: td[index])


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_index_arrays_together(data: Any) -> None:
    parts = st.sampled_from([slice(None), None, 0, [0, 1], [[0], [1]], torch.zeros(1, 2, dtype=torch.int64), [0]])
    index = tuple(data.draw(st.lists(parts, max_size=3)))
    compare_names(lambda td: td[index])


@pytest.mark.parametrize("names", [["x"], [None], None, ["x", "y"], "x", []])
def test_constructor(names: Any) -> None:
    def make(kind: Any) -> Any:
        return outcome(lambda _: [kind({}, [3], names=names), kind({"n": {}}, batch_size=[3], names=names)], None)

    mine, error = make(TensorDict)
    theirs, expected = make(tensordict.TensorDict)
    assert type(error) is type(expected)
    assert shown(mine) == shown(theirs)


def test_failed_names_change_nothing() -> None:
    td = named(TensorDict)
    with pytest.raises(ValueError, match="non-unique"):
        td.names = ["z", "x"]
    assert td.names == ["x", "y"]
    assert td["n"].names == ["x", "y", "z"]
    td.names.append("more")
    assert td.names == ["x", "y"]


@pytest.mark.parametrize("leaf", [torch.from_numpy, np.asarray])
def test_names_travel_with_messages(leaf: Any) -> None:
    from corral.wire import codec

    td = named(TensorDict, leaf)
    result = codec.decode(*codec.encode(td))
    assert shown(result) == shown(td)
    assert result["n"].names == ["x", "y", "z"]


def test_an_index_of_everything_gives_the_same_tensordict() -> None:
    for kind in (TensorDict, tensordict.TensorDict):
        td = named(kind)
        assert all(td[index] is td for index in (slice(None), ..., (), (slice(None), slice(None)), (..., slice(None))))
        assert td[0:] is not td


@pytest.mark.parametrize("name", ["min", "max", "amin", "amax", "cummin", "cummax", "sum", "all"])
def test_reductions_leave_no_more_names_than_dimensions(name: str) -> None:
    result = getattr(named(TensorDict), name)(1)
    for td in result if isinstance(result, tuple) else [result]:
        assert len(td.names) == len(td.batch_size)
        assert len(td["n"].names) == len(td["n"].batch_size)
        assert td.names[0] == td["n"].names[0] == "x"


@pytest.mark.parametrize("name", ["amin", "amax"])
def test_extremes_of_everything_keep_names(name: str) -> None:
    mine, theirs = (getattr(named(kind), name)(keepdim=True) for kind in (TensorDict, tensordict.TensorDict))
    assert mine.names == theirs.names == ["x", "y"]
    assert mine["n"].names == ["x", "y"]  # which tensordict's loses


def test_comparisons_leave_the_names_of_their_operands() -> None:
    td = named(TensorDict)
    td["note"] = "some"
    assert (td == td).names == [None, None]
    assert (td.names, td["n"].names) == (["x", "y"], ["x", "y", "z"])
