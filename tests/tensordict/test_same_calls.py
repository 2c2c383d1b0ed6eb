"""The same calls on corral's TensorDict and on tensordict's, over structures whose parts have batches of their own.

What is compared is in `comparing.compare`: errors, results, what became of the argument, and which memory is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.tensordict.comparing import KEYS, batches, build, compare, made_of, specs

NUMBERS = ("float32", "int64", "float64", "int16")
paths = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3).map(lambda p: p[0] if len(p) == 1 else tuple(p))
dims = st.integers(-4, 4)


def negate(x: Any) -> Any:
    """Return values other than those given, of the same dtype."""
    return ~x if str(x.dtype).endswith("bool") else 3 - x


def negated(td: Any) -> Any:
    return td.apply(negate, filter_empty=False)


def sibling(td: Any, spec: Any, batch: Any) -> Any:
    """Return a TensorDict of the same kind, with leaves of the same library, of another structure."""
    return build(spec, batch, type(td), made_of[-1])


def table(functions: dict[str, Callable[..., Any]]) -> Any:
    return pytest.mark.parametrize("function", functions.values(), ids=functions.keys())


@st.composite
def indices(draw: Any, batch: tuple[int, ...]) -> Any:
    """An index that mostly fits the batch."""
    parts: list[Any] = []
    for length in batch[: draw(st.integers(0, len(batch)))]:
        kind = draw(st.sampled_from("isnalme"))
        if kind == "n":
            parts.append(None)
        if kind == "e" and ... not in [p for p in parts if p is ...]:
            parts.append(...)
            break
        if kind == "i":
            parts.append(draw(st.integers(-length, length)))
        elif kind == "m":
            mask = draw(st.lists(st.booleans(), min_size=length, max_size=length))
            parts.append(torch.tensor(mask, dtype=torch.bool))
        elif kind in "al" and length:
            rows = draw(st.lists(st.integers(-length, length - 1), min_size=1, max_size=3))
            parts.append(rows if kind == "l" else torch.tensor(rows))
        else:
            bound = st.none() | st.integers(-5, 5)
            parts.append(slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2]))))
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@settings(max_examples=150, deadline=None)
@given(specs(), batches(), st.data())
def test_index(spec: Any, batch: Any, data: Any) -> None:
    index = data.draw(indices(batch))

    def assign(td: Any) -> None:
        td[index] = negated(td[index].clone())

    compare(lambda td: td[index], spec, batch)
    compare(assign, spec, batch)


@settings(max_examples=60, deadline=None)
@given(specs(min_size=1), batches(min_dims=1), st.data())
def test_mask_of_several_dimensions(spec: Any, batch: Any, data: Any) -> None:
    count = data.draw(st.integers(1, len(batch)))
    seed = data.draw(st.integers(0, 99))
    mask = torch.from_numpy(np.random.default_rng(seed).random(batch[:count]) < 0.5)

    def assign(td: Any) -> None:
        td[mask] = negated(td)[mask]

    compare(lambda td: td[mask], spec, batch)
    compare(assign, spec, batch)


SHAPES = {
    "reshape": lambda td, i, j, n: td.reshape(*n),
    "reshape list": lambda td, i, j, n: td.reshape(n),
    "reshape flat": lambda td, i, j, n: td.reshape(-1),
    "view": lambda td, i, j, n: td.view(*n),
    "view flat": lambda td, i, j, n: td.view(-1),
    "unsqueeze": lambda td, i, j, n: td.unsqueeze(i),
    "squeeze": lambda td, i, j, n: td.squeeze(),
    "squeeze dim": lambda td, i, j, n: td.squeeze(i),
    "transpose": lambda td, i, j, n: td.transpose(i, j),
    "flatten": lambda td, i, j, n: td.flatten(i, j),
    "flatten all": lambda td, i, j, n: td.flatten(),
    "unflatten": lambda td, i, j, n: td.unflatten(i, n or [-1]),
    "unbind": lambda td, i, j, n: td.unbind(i),
    "permute": lambda td, i, j, n: td.permute(*(n if len(n) == td.ndim else range(td.ndim))),
    "permute back": lambda td, i, j, n: td.permute(*range(td.ndim - 1, -1, -1)),
    "split": lambda td, i, j, n: td.split(j, i),
    "split sizes": lambda td, i, j, n: td.split(n, i),
    "chunk": lambda td, i, j, n: td.chunk(j, i),
    "expand": lambda td, i, j, n: td.expand(*n),
    "expand more": lambda td, i, j, n: td.expand(*n, *td.batch_size),
    "gather rows": lambda td, i, j, n: list(td),
}


@table(SHAPES)
@settings(max_examples=40, deadline=None)
@given(specs(), batches(), st.data())
def test_shapes(function: Any, spec: Any, batch: Any, data: Any) -> None:
    some = st.integers(-len(batch), max(0, len(batch) - 1)) | dims
    i, j = data.draw(some), data.draw(some)
    sizes = data.draw(st.permutations(batch) | st.lists(st.integers(-1, 4), max_size=3))
    if function is SHAPES["squeeze"] and set(batch) == {1}:  # where tensordict fails
        batch = (1, 2)
    if function is SHAPES["flatten"]:  # where tensordict takes dimensions that do not exist
        i, j = (0, 0) if not batch else (i % len(batch), j % len(batch))
    if "expand" in function.__code__.co_names and 0 in (*sizes, *batch):  # where torch makes dimensions of -1
        sizes = [max(0, size) for size in sizes]
    compare(lambda td: function(td, i, j, sizes), spec, batch)


JOINS = {
    "torch.stack": lambda tds, dim: torch.stack(tds, dim),
    "torch.cat": lambda tds, dim: torch.cat(tds, dim),
    "stack": lambda tds, dim: type(tds[0]).stack(tds, dim),
    "cat": lambda tds, dim: type(tds[0]).cat(tds, dim),
    "stack out": lambda tds, dim: torch.stack(tds, dim, out=negated(torch.stack(tds, dim))),
    "cat out": lambda tds, dim: torch.cat(tds, dim, out=negated(torch.cat(tds, dim))),
}


@table(JOINS)
@settings(max_examples=40, deadline=None)
@given(specs(), batches(min_dims=1), st.integers(0, 5), st.integers(1, 3), st.booleans())
def test_join(function: Any, spec: Any, batch: Any, dim: int, count: int, negative: bool) -> None:
    dim %= len(batch)  # others are deprecated in tensordict, and errors here
    dim -= len(batch) if negative else 0
    compare(lambda td: function([td, *[negated(td)] * (count - 1)], dim), spec, batch)


@settings(max_examples=60, deadline=None)
@given(specs(min_size=1), specs(min_size=1), batches(), batches())
def test_join_of_others(one: Any, two: Any, batch: Any, other: Any) -> None:
    assume(0 not in (*batch, *other))  # torch joins an empty vector with anything
    if one:
        compare(lambda td: type(td).cat([td, sibling(td, one, other)], 0), one, batch)
    compare(lambda td: type(td).cat([td, sibling(td, two, batch)], 0), one, batch)


BY_KEY = {
    "getitem": lambda td, k, q: td[k],
    "get": lambda td, k, q: td.get(k),
    "get default": lambda td, k, q: td.get(k, 5),
    "in keys": lambda td, k, q: k in td.keys(True),
    "pop": lambda td, k, q: td.pop(k),
    "pop default": lambda td, k, q: td.pop(k, 3),
    "del": lambda td, k, q: td.del_(k),
    "select": lambda td, k, q: td.select(k, q),
    "select loosely": lambda td, k, q: td.select(k, strict=False),
    "select in place": lambda td, k, q: td.select(k, inplace=True),
    "exclude": lambda td, k, q: td.exclude(k, q),
    "exclude in place": lambda td, k, q: td.exclude(k, q, inplace=True),
    "rename": lambda td, k, q: td.rename_key_(k, q),
    "rename safely": lambda td, k, q: td.rename_key_(k, q, safe=True),
    "set": lambda td, k, q: td.set(k, td[q]),
    "setitem": lambda td, k, q: td.__setitem__(k, td[q]),
    "set number": lambda td, k, q: len(td.set(k, 1).keys()),
    "set in place": lambda td, k, q: td.set(k, td[q], inplace=True),
    "set_": lambda td, k, q: td.set_(k, td[q]) if k in td.keys(True) else None,  # else tensordict may add it
    "set_ negated": lambda td, k, q: td.set_(k, negated(td)[k]),
    "setdefault": lambda td, k, q: td.setdefault(k, td[q]),
    "locked set": lambda td, k, q: td.lock_().set(k, td[q]),
    "locked set_": lambda td, k, q: td.lock_().set_(k, negated(td)[k]),
    "locked del": lambda td, k, q: td.lock_().del_(k),
    "locked rename": lambda td, k, q: td.lock_().rename_key_(k, q),
}


@table(BY_KEY)
@settings(max_examples=40, deadline=None)
@given(specs(min_size=1), batches(max_dims=2), paths, paths)
def test_by_key(function: Any, spec: Any, batch: Any, one: Any, two: Any) -> None:
    if "rename_key_" in function.__code__.co_names and isinstance(two, tuple):
        two = two[-1]  # tensordict does not check that the entry fits the batch of where it goes
    if not related(one, two) or function in (BY_KEY["getitem"], BY_KEY["exclude"]):
        compare(lambda td: function(td, one, two), spec, batch)


def related(one: Any, two: Any) -> bool:
    """Whether one key leads to the other, so that an entry would be put into itself."""
    first, second = (key if isinstance(key, tuple) else (key,) for key in (one, two))
    return one != two and (first[: len(second)] == second or second[: len(first)] == first)


WHOLE = {
    "keys": lambda td: list(td.keys()),
    "nested keys": lambda td: list(td.keys(True)),
    "nested leaves": lambda td: list(td.keys(True, True)),
    "leaves": lambda td: list(td.keys(False, True)),
    "sorted": lambda td: list(td.keys(True, True, sort=True)),
    "items": lambda td: list(td.items(True)),
    "values": lambda td: list(td.values(True)),
    "lengths": lambda td: (
        len(td.keys()),
        len(td.keys(True)),
        len(td),
        td.numel(),
        td.ndim,
        td.dim(),
        tuple(td.shape),
    ),
    "flatten keys": lambda td: td.flatten_keys(),
    "flatten keys a": lambda td: td.flatten_keys("a"),
    "flatten keys in place": lambda td: td.flatten_keys(".", inplace=True),
    "unflatten keys": lambda td: td.flatten_keys("_").unflatten_keys("_"),
    "is empty": lambda td: td.is_empty(),
    "empty": lambda td: td.empty(),
    "empty recurse": lambda td: td.empty(recurse=True),
    "auto batch size": lambda td: td.auto_batch_size_(),
    "auto batch size 1": lambda td: td.auto_batch_size_(batch_dims=1),
    "bytes": lambda td: td.bytes(),
    "to dict": lambda td: td.to_dict(),
    "clone": lambda td: td.clone(),
    "shallow": lambda td: td.clone(False),
    "copy": lambda td: td.copy(),
    "locked clone": lambda td: td.lock_().clone(),
    "locked copy": lambda td: td.lock_().copy(),
    "locked row": lambda td: td.lock_()[0],
    "locked negated": lambda td: td.lock_().apply(negate),
    "unlocked": lambda td: td.lock_().unlock_(),
    "apply": lambda td: td.apply(negate),
    "apply two": lambda td: td.apply(lambda x, y: y, negated(td)),
    "apply in place": lambda td: td.apply(negate, inplace=True),
    "apply nothing": lambda td: td.apply(lambda x: None),
    "apply nothing, filtered": lambda td: td.apply(lambda x: None, filter_empty=True),
    "apply nothing, kept": lambda td: td.apply(lambda x: None, filter_empty=False),
    "apply on nested": lambda td: td.apply(lambda x: x, call_on_nested=True),
    "apply batch size": lambda td: td.apply(lambda x: x.sum(), batch_size=[]),
    "named apply": lambda td: td.named_apply(lambda k, x: None if k == "a" else x),
    "nested named apply": lambda td: td.named_apply(lambda k, x: x if len(k) == 2 else None, nested_keys=True),
    "contiguous": lambda td: td.contiguous(),
    "consolidate": lambda td: negated(td).consolidate().clone(),
    "detach": lambda td: td.detach(),
    "to cpu": lambda td: td.to("cpu"),
    "double": lambda td: td.double(),
    "int": lambda td: td.int(),
    "update with itself": lambda td: td.update(td),
    "update negated": lambda td: td.update(negated(td)),
    "update in place": lambda td: td.update(negated(td), inplace=True),
    "update_": lambda td: td.update_(negated(td)),
    "locked update_": lambda td: td.lock_().update_(negated(td)),
    "locked update in place": lambda td: td.lock_().update(negated(td), inplace=True),
    "locked update": lambda td: td.lock_().update(negated(td)),
    "zeros like": lambda td: torch.zeros_like(td),
    "ones like": lambda td: torch.ones_like(td),
    "full like": lambda td: torch.full_like(td, 7),
    "zero_": lambda td: td.zero_(),
    "torch.unbind": lambda td: torch.unbind(td, 0),
    "torch.split": lambda td: torch.split(td, 2, 0),
    "torch.clone": lambda td: torch.clone(td),
    "torch.unsqueeze": lambda td: torch.unsqueeze(td, 0),
    "torch.permute": lambda td: torch.permute(td, tuple(range(td.ndim))),
    "torch.flatten": lambda td: torch.flatten(td, 0, -1),
}


@table(WHOLE)
@settings(max_examples=30, deadline=None)
@given(specs(dtypes=NUMBERS), specs(dtypes=NUMBERS, min_size=1), batches())
def test_whole(function: Any, spec: Any, full: Any, batch: Any) -> None:
    if "auto_batch_size_" in function.__code__.co_names:
        spec = full
    compare(function, spec, batch)


OPERATORS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
    "pow": lambda a, b: a ** (b * 0 + 2),
    "reflected add": lambda a, b: b + a,
    "reflected sub": lambda a, b: b - a,
    "reflected mul": lambda a, b: b * a,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "and": lambda a, b: (a > b) & (a < b + 5),
    "or": lambda a, b: (a > b) | (a < b + 5),
    "xor": lambda a, b: (a > b) ^ (a < b + 5),
    "invert": lambda a, b: ~(a > b),
    "neg": lambda a, b: -a,
    "abs": lambda a, b: abs(a - b),
    "iadd": lambda a, b: a.__iadd__(b),
    "isub": lambda a, b: a.__isub__(b),
    "imul": lambda a, b: a.__imul__(b),
    "itruediv": lambda a, b: a.__itruediv__(b),
    "all": lambda a, b: (a == a + b).all(),
    "any": lambda a, b: (a == b).any(),
    "all 0": lambda a, b: (a > b).all(dim=0),
    "any -1": lambda a, b: (a > b).any(dim=-1),
    "sum": lambda a, b: a.sum(dim=0),
    "mean": lambda a, b: a.mean(dim=0),
}


@table(OPERATORS)
@settings(max_examples=25, deadline=None)
@given(specs(dtypes=("float64",), min_size=1), batches())
def test_operators(function: Any, spec: Any, batch: Any) -> None:
    compare(lambda td: function(td, 2), spec, batch)
    compare(lambda td: function(td, td.clone() + 1), spec, batch)
    compare(lambda td: function(td, torch.tensor(3.0, dtype=torch.float64)), spec, batch)


UPDATES = {
    "update": lambda td, other: td.update(other),
    "update clone": lambda td, other: td.update(other, clone=True),
    "update in place": lambda td, other: td.update(other, inplace=True),
    "update dict": lambda td, other: td.update(other.to_dict()),
    "update_": lambda td, other: td.update_(other) if list(td.keys(True)) == list(other.keys(True)) else None,
    "locked update in place": lambda td, other: td.lock_().update(other, inplace=True),
    "set nested": lambda td, other: td.set("z", other),
    "set nested dict": lambda td, other: td.set("z", other.to_dict()),
    "set nested deep": lambda td, other: td.set(("z", "y"), other),
}


@table(UPDATES)
@settings(max_examples=60, deadline=None)
@given(specs(min_size=1), specs(min_size=1), batches(max_dims=2), st.data())
def test_update(function: Any, one: Any, two: Any, batch: Any, data: Any) -> None:
    same = data.draw(st.booleans())
    # `update_` of tensordict takes other batch sizes, and repeats rows.
    other = batch if function is UPDATES["update_"] or data.draw(st.integers(0, 3)) else data.draw(batches(max_dims=2))
    compare(lambda td: function(td, sibling(td, one if same else two, other)), one, batch)


@settings(max_examples=100, deadline=None)
@given(specs(min_size=1), batches(), batches())
def test_set_batch_size(spec: Any, batch: Any, other: Any) -> None:
    def resize(td: Any, size: Any) -> Any:
        td.batch_size = list(size)
        return td

    compare(lambda td: resize(td, other), spec, batch)
    compare(lambda td: resize(td, batch[:1]), spec, batch)
    compare(lambda td: type(td).from_dict(td.to_dict(), batch_size=other), spec, batch)
    compare(lambda td: type(td).from_dict(td.to_dict(), auto_batch_size=True), spec, batch)
