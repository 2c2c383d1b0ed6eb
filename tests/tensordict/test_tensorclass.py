"""Tensorclasses do what tensordict's do, and stay what they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corral
from corral import LazyStackedTensorDict, TensorDict, is_tensorclass
from tests.tensordict.comparing import aliases, assert_same, assert_same_values, outcome, tensordict
from tests.tensordict.tensorclasses import Inner, Outer, TheirInner, TheirOuter, outer

CLASSES = {Outer: TheirOuter, Inner: TheirInner}


def library(tc: Any) -> Any:
    return corral if isinstance(tc, TensorDict) else tensordict


def stack(tcs: list[Any], dim: int = 0) -> Any:
    return library(tcs[0]).stack(tcs, dim) if isinstance(tcs[0], TensorDict) else torch.stack(tcs, dim)


def cat(tcs: list[Any], dim: int = 0) -> Any:
    return corral.cat(tcs, dim) if isinstance(tcs[0], TensorDict) else torch.cat(tcs, dim)


def lazily(tcs: list[Any], dim: int = 0) -> Any:
    return library(tcs[0]).lazy_stack(tcs, dim)


def assigned(tc: Any, name: str, value: Any) -> Any:
    setattr(tc, name, value)
    return tc


def written(tc: Any, index: Any, value: Any) -> Any:
    tc[index] = value
    return tc


def deleted(tc: Any, name: str) -> Any:
    delattr(tc, name)
    return tc


def sized(tc: Any, size: Any) -> Any:
    tc.batch_size = size
    return tc


CALLS: dict[str, Callable[[Any], Any]] = {
    "fields": lambda tc: (tc.x, tc.y, tc.inner, tc.more, tc.extra),
    "a method": lambda tc: tc.total(),
    "a property": lambda tc: tc.double,
    "get": lambda tc: (tc.get("x"), tc.get("extra"), tc.get("extra", 3), tc.get("q"), tc.get("q", 3)),
    "get nested": lambda tc: tc.get(("inner", "q")),
    "keys": lambda tc: sorted(tc.keys()),
    "all keys": lambda tc: sorted(map(str, tc.keys(True, True))),
    "first row": lambda tc: tc[0],
    "last rows": lambda tc: tc[-2:],
    "every other": lambda tc: tc[..., ::2],
    "rows by number": lambda tc: tc[[0, -1]],
    "a new dimension": lambda tc: tc[None],
    "mask": lambda tc: tc[tc.y > 51],
    "iterate": lambda tc: list(tc),
    "length": lambda tc: len(tc),
    "set": lambda tc: tc.set("x", tc.x + 1),
    "assign": lambda tc: assigned(tc, "y", tc.y - 1),
    "assign None": lambda tc: assigned(tc, "inner", None),
    "assign what does not fit": lambda tc: assigned(tc, "x", torch.zeros(7, 9)),
    "assign what is no field": lambda tc: assigned(tc, "other", 3),
    "assign to itself": lambda tc: assigned(tc, "extra", tc),
    "delete": lambda tc: deleted(tc, "y"),
    "set what is no field": lambda tc: tc.set("other", 3),
    "set nested": lambda tc: tc.set(("inner", "q"), tc.inner.q * 2),
    "set_": lambda tc: tc.set_("x", tc.x + 1),
    "update": lambda tc: tc.update({"x": tc.x * 3}),
    "update with None": lambda tc: tc.update({"more": None}),
    "update with another": lambda tc: tc.update(tc.clone() + 1),
    "update what is no field": lambda tc: tc.update({"other": tc.x}),
    "update in place": lambda tc: tc.update_({"x": tc.x * 3}),
    "write a row": lambda tc: written(tc, 0, tc[-1].clone()),
    "write a number": lambda tc: written(tc, 0, 7),
    "write another class": lambda tc: written(tc, slice(None), tc.inner),
    "write a string": lambda tc: written(tc, 0, "seven"),
    "pop": lambda tc: (tc.pop("y"), tc),
    "rename": lambda tc: tc.rename_key_("y", "extra"),
    "select": lambda tc: tc.select("x"),
    "select a TensorDict": lambda tc: tc.select("x", as_tensordict=True),
    "exclude": lambda tc: tc.exclude("x", "inner"),
    "flatten_keys": lambda tc: tc.flatten_keys(),
    "unflatten_keys": lambda tc: tc.unflatten_keys(),
    "clone": lambda tc: tc.clone(),
    "shallow clone": lambda tc: tc.clone(False),
    "copy": lambda tc: (copy.copy(tc), copy.deepcopy(tc)),
    "pickle": lambda tc: pickle.loads(pickle.dumps(tc)),
    "lock": lambda tc: assigned(tc.lock_(), "x", tc.x),
    "locked in place": lambda tc: tc.lock_().update({"x": tc.x + 1}, inplace=True),
    "empty": lambda tc: tc.empty(),
    "reshape": lambda tc: tc.reshape(-1),
    "view": lambda tc: tc.view(-1, 1),
    "unsqueeze": lambda tc: tc.unsqueeze(-1),
    "squeeze": lambda tc: tc.unsqueeze(0).squeeze(0),
    "expand": lambda tc: tc.expand(2, *tc.batch_size),
    "permute": lambda tc: tc.unsqueeze(0).permute(-1, *range(tc.ndim)),
    "transpose": lambda tc: tc.unsqueeze(0).transpose(0, -1),
    "flip": lambda tc: tc.flip(0),
    "repeat": lambda tc: tc.repeat(*(2,) * tc.ndim),
    "split": lambda tc: tc.split(1),
    "chunk": lambda tc: tc.chunk(2),
    "unbind": lambda tc: tc.unbind(0),
    "stack": lambda tc: stack([tc, tc + 1]),
    "stack last": lambda tc: stack([tc, tc + 1], -1),
    "stack other fields": lambda tc: stack([tc, tc.select("x")]),
    "cat": lambda tc: cat([tc, tc + 1]),
    "torch.stack": lambda tc: torch.stack([tc, tc]),
    "torch.cat": lambda tc: torch.cat([tc, tc], 0),
    "torch.unbind": lambda tc: torch.unbind(tc, 0),
    "torch.zeros_like": lambda tc: torch.zeros_like(tc),
    "torch.split": lambda tc: torch.split(tc, 1),
    "add": lambda tc: tc + 1,
    "add itself": lambda tc: tc + tc,
    "radd": lambda tc: 2 - tc,
    "add in place": lambda tc: tc.add_(1),
    "negate": lambda tc: -tc,
    "abs": lambda tc: (-tc).abs(),
    "equal": lambda tc: tc == tc.clone(),
    "unequal": lambda tc: tc != tc + 1,
    "equal to a TensorDict": lambda tc: tc == tc.to_tensordict(),
    "equal to a string": lambda tc: tc == "another",
    "less": lambda tc: tc < 10,
    "all": lambda tc: (tc == tc).all(),
    "any": lambda tc: (tc > 3).any(),
    "sum": lambda tc: tc.sum(),
    "sum of a dimension": lambda tc: tc.sum(0),
    "mean": lambda tc: tc.mean(dim=0),
    "apply": lambda tc: tc.apply(lambda x: x * 2),
    "named_apply": lambda tc: tc.named_apply(lambda name, x: x * len(name)),
    "dtype": lambda tc: tc.to(torch.float64),
    "double()": lambda tc: tc.double if callable(tc.double) else tc.float(),
    "zero_": lambda tc: tc.zero_(),
    "where": lambda tc: tc.where(tc.y > 51, tc + 1),
    "masked_fill": lambda tc: tc.masked_fill(tc.y > 51, 0),
    "gather": lambda tc: tc.gather(0, torch.zeros_like(tc.y, dtype=torch.int64)),
    "contiguous": lambda tc: tc.contiguous(),
    "to_tensordict": lambda tc: tc.to_tensordict(),
    "to_tensordict with None": lambda tc: sorted(tc.to_tensordict(retain_none=True).keys()),
    "to_dict": lambda tc: tc.to_dict(),
    "to_dict without None": lambda tc: tc.to_dict(retain_none=False),
    "from_tensordict": lambda tc: type(tc).from_tensordict(tc.to_tensordict()),
    "from_tensordict with more": lambda tc: (
        type(tc).from_tensordict(tc.to_tensordict().select("x"), {"extra": "a"}).extra
    ),
    "from_tensordict with both": lambda tc: type(tc).from_tensordict(tc.to_tensordict(), {"x": "a"}),
    "from_tensordict of other keys": lambda tc: type(tc).from_tensordict(tc.inner.to_tensordict()),
    "from_tensordict of no TensorDict": lambda tc: type(tc).from_tensordict({"x": tc.x}),
    "from_dict": lambda tc: type(tc).from_dict(tc.to_dict(), auto_batch_size=True, batch_dims=1),
    "batch size": lambda tc: sized(tc, tc.batch_size[:1]),
    "batch size that does not fit": lambda tc: sized(tc, [77]),
    "shape": lambda tc: (tuple(tc.shape), tc.ndim, tc.numel(), tc.batch_dims, tc.device),
    "names": lambda tc: type(tc)(x=tc.x, y=tc.y, batch_size=[len(tc)], names=["time"]).names,
    "device": lambda tc: type(tc)(x=tc.x, y=tc.y, device="cpu"),
    "locked": lambda tc: type(tc)(x=tc.x, y=tc.y, lock=True),
    "positions": lambda tc: type(tc)(tc.x, tc.y, batch_size=tc.batch_size),
    "too few": lambda tc: type(tc)(x=tc.x),
    "too many": lambda tc: type(tc)(x=tc.x, y=tc.y, z=tc.x),
    "required ones None": lambda tc: type(tc)(x=None, y=tc.y, batch_size=[len(tc)]),
    "isinstance": lambda tc: (isinstance(tc[0], type(tc)), len(tc.fields()), callable(tc.total)),
    "lazy stack": lambda tc: lazily([tc, tc + 1]),
    "lazy stack, field": lambda tc: lazily([tc, tc + 1]).x,
    "lazy stack, nested field": lambda tc: lazily([tc, tc + 1]).inner,
    "lazy stack, row": lambda tc: lazily([tc, tc + 1])[1],
    "lazy stack, column": lambda tc: lazily([tc, tc + 1])[:, 0],
    "lazy stack, assign": lambda tc: assigned(lazily([tc, tc.clone()]), "y", stack([tc.y, tc.y + 1])),
    "lazy stack, dense": lambda tc: lazily([tc, tc + 1]).contiguous(),
    "lazy stack, TensorDict": lambda tc: lazily([tc, tc + 1]).to_tensordict(),
    "lazy stack, clone": lambda tc: lazily([tc, tc + 1], 1).clone(),
    "lazy stack, method": lambda tc: lazily([tc, tc + 1]).total(),
    "lazy stack, add": lambda tc: lazily([tc, tc + 1]) + 1,
    "lazy stack, pickle": lambda tc: pickle.loads(pickle.dumps(lazily([tc, tc + 1]))),
    "lazy stack, ragged": lambda tc: [len(each.x) for each in lazily([tc, tc[:1]]).unbind(0)],
}


def assert_same_classes(mine: Any, theirs: Any, where: str = "result") -> None:
    """Assert that what is a tensorclass in one library is the same one in the other."""
    if isinstance(mine, (list, tuple)) and not isinstance(mine, corral.tensordict.Size):
        for i, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            assert_same_classes(one, other, f"{where}[{i}]")
    if not isinstance(mine, TensorDict):
        return
    for kind, their_kind in CLASSES.items():
        assert isinstance(mine, kind) == isinstance(theirs, their_kind), f"{where}: {type(mine)}, {type(theirs)}"
    for key in mine.keys():  # noqa: SIM118
        assert_same_classes(mine.get(key), theirs.get(key), f"{where}[{key!r}]")


@pytest.mark.parametrize("function", CALLS.values(), ids=CALLS.keys())
@given(batch=st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple), full=st.booleans())
def test_same(function: Callable[[Any], Any], batch: tuple[int, ...], full: bool) -> None:
    mine, theirs = outer(batch, full), outer(batch, full, theirs=True)
    result, error = outcome(function, mine)
    their_result, their_error = outcome(function, theirs)
    assert (error is None) == (their_error is None), f"corral: {error!r}; tensordict: {their_error!r}"
    if error is not None:
        kinds = (type(their_error), RuntimeError, AttributeError)  # that a name is no field is always the last
        assert isinstance(error, kinds) or "unexpected keyword" in str(error), (
            f"corral: {error!r}; tensordict: {their_error!r}"
        )
        return
    assert_same(result, their_result)
    assert_same(mine, theirs, "argument")
    assert_same_classes(result, their_result)
    assert_same_classes(mine, theirs, "argument")
    assert aliases(result, mine) == aliases(their_result, theirs), "memory is shared in one of the two only"


ARITHMETIC = ["add", "stack", "cat", "sum", "where", "reshape", "mask", "equal", "apply", "to_dict", "pickle"]


@pytest.mark.parametrize("name", ARITHMETIC)
def test_numpy_gives_what_torch_gives(name: str) -> None:
    results = [outcome(CALLS[name], outer((3,), make=make)) for make in (np.asarray, torch.from_numpy)]
    assert results[0][1] is None
    assert_same_values(results[0][0], results[1][0])


def test_what_is_a_tensorclass() -> None:
    tc = outer((2,))
    assert is_tensorclass(tc)
    assert is_tensorclass(Outer)
    assert not is_tensorclass(tc.more)
    assert isinstance(tc, TensorDict)
    lazy = corral.lazy_stack([tc, tc])
    assert isinstance(lazy, Outer)
    assert isinstance(lazy, LazyStackedTensorDict)
    assert isinstance(lazy.inner, Inner)
    assert type(lazy[0]) is Outer
    assert type(lazy.contiguous()) is Outer
    assert type(lazy.to_tensordict()) is TensorDict
    assert type(corral.stack(lazy.tensordicts)) is Outer


def test_text() -> None:
    tc = outer((2,), make=np.asarray)
    assert repr(tc) == (
        "Outer(batch_size=[2], library=numpy, fields={x: f32[3], y: f32[], inner: Inner{q: f32[2]}, "
        "more: {z: f32[1]}, extra: None})"
    )


def test_entries_of_a_tensordict() -> None:
    td = TensorDict(a=outer((2,)), batch_size=[2])
    assert type(td[0]["a"]) is Outer
    assert type((td + 1)["a"].inner) is Inner
    assert type(td.to_tensordict()["a"]) is TensorDict
    assert type(corral.stack([td, td])["a"]) is Outer
    assert type(corral.lazy_stack([td, td])[1]["a"]) is Outer
    assert isinstance(corral.lazy_stack([td, td])["a"], Outer)
    td["a", "x"] = torch.ones(2, 3)
    assert td["a"].x.sum() == 6
    with pytest.raises(AttributeError, match="no such field"):
        td["a", "other"] = torch.ones(2)


def test_pytrees() -> None:
    import jax
    import optree

    tc = outer((2,), make=np.asarray)
    for tree_map in (optree.tree_map, torch.utils._pytree.tree_map, jax.tree.map):
        result = tree_map(lambda x: x * 2, tc)
        assert type(result) is Outer
        assert type(result.inner) is Inner
        assert result.extra is None
        np.testing.assert_array_equal(result.x, tc.x * 2)
    jitted = jax.jit(lambda tc: tc.apply(lambda x: x + 1))(tc)
    assert type(jitted) is Outer
    np.testing.assert_array_equal(jitted.inner.q, tc.inner.q + 1)
