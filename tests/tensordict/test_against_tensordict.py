"""corral.TensorDict with torch leaves and with NumPy leaves against tensordict, operation by operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensordict
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import corral
from tests.tensordict.trees import batch_sizes, forms, outcome, plain, same, sources

fast = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def cases(draw: Any, min_dims: int = 0, max_dims: int = 3, **kwargs: Any) -> Any:
    size = draw(batch_sizes(min_dims, max_dims))
    return size, forms(draw(sources(size, **kwargs)), size)


@st.composite
def indices(draw: Any, size: tuple[int, ...]) -> Any:
    """An index of any kind for a batch: mostly right, sometimes out of range or too long."""
    parts: list[Any] = []
    dims = list(size)
    while dims or draw(st.integers(0, 5)) == 0:
        length = dims.pop(0) if dims else 1
        kind = draw(st.sampled_from(["int", "slice", "slice", "array", "mask", "none", "list", "end"]))
        if kind == "int":
            parts.append(draw(st.integers(-length - 1, length)))
        elif kind == "slice":
            ends = st.none() | st.integers(-5, 5)
            parts.append(slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2]))))
        elif kind in ("array", "list"):
            if length == 0:
                parts.append(slice(None))
                continue
            shape = draw(st.sampled_from([(2,), (3,), (1,), (2, 3)])) if kind == "array" else (2,)
            n = int(np.prod(shape))
            values = draw(st.lists(st.integers(-length, length - 1), min_size=n, max_size=n))
            parts.append(np.array(values).reshape(shape) if kind == "array" else values)
        elif kind == "mask":
            parts.append(np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)), bool))
        elif kind == "none":
            parts.append(None)
            dims.insert(0, length) if len(parts) < 6 else None
        else:
            parts.append(...)
            break
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


def as_torch(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(as_torch, index))
    return torch.from_numpy(index) if isinstance(index, np.ndarray) else index


@fast
@given(st.data())
def test_indexing(data: Any) -> None:
    size, tds = data.draw(cases())
    index = data.draw(indices(size))
    # Where the batch is empty, tensordict lets an index reach into the leaves' own dimensions.
    wrong = outcome(lambda size: torch.empty(size)[as_torch(index)], size)
    expected = wrong if isinstance(wrong, Exception) else outcome(lambda td: td[as_torch(index)], tds[0])
    for td in tds[1:]:
        for form in (index, as_torch(index)):
            found = outcome(lambda td, form=form: td[form], td)
            assert plain(found) == plain(expected), f"{index!r}: {expected!r} != {found!r}"


@fast
@given(st.data())
def test_index_assignment(data: Any) -> None:
    size, tds = data.draw(cases(min_dims=1))
    index = as_torch(data.draw(indices(size)))
    value = data.draw(st.sampled_from(["number", "row"]))
    before = plain(tds[0])
    results = []
    for td in tds:
        row = outcome(lambda td: td[index], td)
        if isinstance(row, Exception):
            return
        new = 1 if value == "number" else row.clone().zero_()
        results.append(outcome(lambda td, new=new: td.__setitem__(index, new), td))
    assert isinstance(results[1], Exception) == isinstance(results[0], Exception), results
    assert isinstance(results[2], Exception) == isinstance(results[0], Exception), results
    if not isinstance(results[0], Exception):
        assert plain(tds[1]) == plain(tds[0]), before
        assert plain(tds[2]) == plain(tds[0]), before


SHAPING = {
    "unsqueeze": lambda td, i, j: td.unsqueeze(i),
    "squeeze": lambda td, i, j: td.squeeze(i),
    # tensordict fails where nothing is left.
    "squeeze all": lambda td, i, j: td.squeeze() if any(n != 1 for n in td.batch_size) else td,
    "transpose": lambda td, i, j: td.transpose(i, j),
    "flatten": lambda td, i, j: td.flatten(i, j % td.ndim),
    "reshape": lambda td, i, j: td.reshape(-1),
    "reshape 2": lambda td, i, j: td.reshape(i, -1),
    "expand": lambda td, i, j: td.expand(abs(j), *td.batch_size),
    "permute": lambda td, i, j: td.permute(*range(td.ndim - 1, -1, -1)),
    "unbind": lambda td, i, j: td.unbind(i),
    "split": lambda td, i, j: td.split(abs(j) + 1, i),
    "chunk": lambda td, i, j: td.chunk(abs(j) + 1, i),
    "unflatten": lambda td, i, j: td.unflatten(i, (-1, abs(j) + 1)),
}


@pytest.mark.parametrize("name", SHAPING)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(min_dims=1), i=st.integers(-3, 3), j=st.integers(-3, 3))
def test_shaping(name: str, case: Any, i: int, j: int) -> None:
    size, tds = case
    if not -len(size) <= i < len(size) and name not in ("unsqueeze",):
        i %= len(size)
    same(lambda td: SHAPING[name](td, i, j), tds)


@fast
@given(st.data())
def test_stack_and_cat(data: Any) -> None:
    size, _ = data.draw(cases())
    source = data.draw(sources(size))
    function = data.draw(st.sampled_from(["stack", "cat"]))
    # Outside the batch, tensordict still takes the leaves' dimensions, and warns.
    low, high = (-len(size) - 1, len(size)) if function == "stack" else (-len(size), max(len(size) - 1, 0))
    dim = data.draw(st.integers(low, high))
    pair = [forms(source, size), forms(source, size)]
    results = []
    for k in range(3):
        tds = [pair[0][k], pair[1][k]]
        results.append(outcome(lambda tds: getattr(type(tds[0]), function)(tds, dim), tds))
        if not isinstance(results[0], Exception):
            assert plain(getattr(torch, function)(tds, dim)) == plain(results[k])
    assert plain(results[1]) == plain(results[0]), results
    assert plain(results[2]) == plain(results[0]), results


ARITHMETIC = {
    "+ number": lambda td: td + 2,
    "- number": lambda td: td - 2,
    "reflected -": lambda td: 2 - td + 0,
    "* number": lambda td: td * 3,
    "reflected /": lambda td: 2 / (td + 1),
    "neg": lambda td: -td,
    "abs": lambda td: abs(td),
    "td + td": lambda td: td + td,
    "td * td": lambda td: td * td,
    "td == td": lambda td: td == td,
    "td != 3": lambda td: td != 3,
    "td < 3": lambda td: td < 3,
    "td >= td": lambda td: td >= td,
    "all": lambda td: (td == td).all(),
    "any": lambda td: (td != td).any(),
    "all 0": lambda td: (td < 5).all(0),
    "any 0": lambda td: (td < 5).any(0),
    "td == None": lambda td: td is not None and bool(td == "x"),
    "bool": bool,
    "in place": lambda td: td.__iadd__(1),
    "in place mul": lambda td: td.__imul__(td.clone()),
    "sum": lambda td: td.sum(),
    "sum 0": lambda td: td.sum(0),
    "zero": lambda td: td.clone().zero_(),
}


@pytest.mark.parametrize("name", ARITHMETIC)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(min_dims=1, dtypes=("float32", "float64", "int64")))
def test_arithmetic(name: str, case: Any) -> None:
    _, tds = case
    if "/" in name:  # of integers, it has each library's own dtype
        tds = tuple(td.double() for td in tds)
    same(ARITHMETIC[name], tds)


KEYS = {
    "keys": lambda td: list(td.keys()),
    "keys nested": lambda td: list(td.keys(True)),
    "keys leaves": lambda td: list(td.keys(True, True)),
    "keys leaves of one level": lambda td: list(td.keys(False, True)),
    "items": lambda td: sorted((str(k), plain(v)) for k, v in td.items(True)),
    "values": lambda td: [plain(v) for v in td.values(True, True)],
    "get": lambda td: td.get("a"),
    "get nested": lambda td: td.get(("a", "b")),
    "get default": lambda td: td.get(("a", "q"), 5),
    "getitem": lambda td: td["a"],
    "getitem nested": lambda td: td["a", "b"],
    "in": lambda td: ("a" in td, ("a", "b") in td.keys(True), ("a", "q") in td),
    "set": lambda td: td.set("new", next(iter(td.values()))),
    "set nested": lambda td: td.set(("p", "q", "r"), next(iter(td.values(True, True)))),
    "set through a leaf": lambda td: td.set(("a", "q"), next(iter(td.values(True, True)))),
    "pop": lambda td: (td.pop("a"), td),
    "pop default": lambda td: (td.pop("zz", None), td),
    "pop nested": lambda td: (td.pop(("a", "b")), td),
    "del": lambda td: (td.del_("a"), td)[1],
    "select": lambda td: td.select("a"),
    "select nested": lambda td: td.select(("a", "b"), strict=False),
    "select in place": lambda td: (td.select("a", "b", strict=False, inplace=True), td)[1],
    "exclude": lambda td: td.exclude("a", ("b", "c")),
    "rename": lambda td: td.rename_key_("a", "z"),
    "rename to nested": lambda td: td.rename_key_("a", ("z", "y")),
    "rename safe": lambda td: td.rename_key_("a", "b", safe=True),
    "flatten keys": lambda td: td.flatten_keys(),
    "unflatten keys": lambda td: td.flatten_keys("|").unflatten_keys("|"),
    "update": lambda td: td.clone().update(td.flatten_keys("|")),
    "update in place": lambda td: td.update(td.clone().zero_(), inplace=True),
    "update_": lambda td: td.update_(td.clone().zero_()),
    "update_ with a new key": lambda td: td.update_({"new": 1}),
    "set_": lambda td: td.set_("a", td["a"] * 0),
    "locked set": lambda td: td.lock_().set("a", td["a"]),
    "locked set_": lambda td: td.lock_().set_("a", td["a"] * 0),
    "locked update in place": lambda td: td.lock_().update(td.clone().zero_(), inplace=True),
    "locked pop": lambda td: td.lock_().pop("a"),
    "locked nested": lambda td: td.lock_()["a"].set("n", 1),
    "unlocked": lambda td: td.lock_().unlock_().set("z", td["a"]),
    "to_dict": lambda td: td.to_dict(),
    "numpy": lambda td: td.numpy(),
    "empty": lambda td: (td.empty(), td.is_empty(), td.empty().is_empty()),
    "len": lambda td: (len(td), td.numel(), td.dim(), tuple(td.shape)),
    "iterate": lambda td: list(td),
    "clone": lambda td: td.clone(),
    "apply": lambda td: td.apply(lambda x: x == x),
    "apply of two": lambda td: td.apply(lambda x, y: x == y, td),
    "apply nothing": lambda td: td.apply(lambda x: None),
    "apply nothing to some": lambda td: td.apply(lambda x: x if len(x.shape) > 1 else None),
    "named apply": lambda td: td.named_apply(lambda k, x: None if k == "a" else x),
    "dtype": lambda td: td.to(torch.float64) if isinstance(td, tensordict.TensorDict) else td.to("float64"),
    "set batch size": lambda td: (setattr(td, "batch_size", [*td.batch_size, 2]), td)[1],
    "drop batch size": lambda td: (setattr(td, "batch_size", []), td)[1],
    "contiguous": lambda td: td.contiguous(),
    "bytes": lambda td: td.bytes(),
}


@pytest.mark.parametrize("name", KEYS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(dtypes=("float32", "int64")))
def test_keys(name: str, case: Any) -> None:
    _, tds = case
    same(KEYS[name], tds)


@fast
@given(st.data())
def test_batch_size_is_checked(data: Any) -> None:
    size, _ = data.draw(cases())
    source = data.draw(sources(size))
    other = data.draw(batch_sizes())
    results = [
        outcome(lambda _, k=k, kind=kind: kind(forms(source, ())[k].to_dict(), other), None)
        for k, kind in ((0, tensordict.TensorDict), (1, corral.TensorDict), (2, corral.TensorDict))
    ]
    assert plain(results[1]) == plain(results[0])
    assert plain(results[2]) == plain(results[0])
