"""Lazy stacks: the same calls on corral's and on tensordict's, with members whose shapes and keys differ."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import corral
from corral import LazyStackedTensorDict, TensorDict, lazy_stack
from corral.arrays import to_numpy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict

NAMES = ("a", "b", "c", "d")
LAZY = "LazyStackedTensorDict"


def shown(value: Any) -> Any:
    """Return a result in a form that is the same for both libraries; lazy stacks by their members."""
    kind = type(value).__name__
    if kind == LAZY:
        return list(value.batch_size), value.stack_dim, [shown(td) for td in value.tensordicts]
    if kind == "TensorDict":
        return list(value.batch_size), {key: shown(value.get(key)) for key in sorted(value.keys())}
    if kind in ("NonTensorData", "NonTensorStack"):
        return kind, value.tolist()
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        array = to_numpy(value)
        return array.shape, array.tolist()
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return {key: shown(item) for key, item in sorted(value.items())}
    return value


def values_of(value: Any) -> Any:
    """Return what is in a TensorDict, lazy or not, by its rows: for results that only one library makes lazy."""
    kind = type(value).__name__
    if kind in (LAZY, "TensorDict") and value.batch_size:
        return list(value.batch_size), [values_of(row) for row in value.unbind(0)]
    return shown(value)


@st.composite
def stacks(draw: Any, ragged: bool = True) -> Any:
    """Return batch size of the members, the stack dimension, and what each member is made of."""
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    count = draw(st.integers(1, 3))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    members: list[dict[str, Any]] = [{} for _ in range(count)]
    number = itertools.count()
    for name in names:
        kind = draw(st.sampled_from(("same", "same", "nested", *(("ragged", "some") if ragged else ()))))
        shape = draw(st.lists(st.integers(0, 3), max_size=2))
        for i, member in enumerate(members):
            tail = [*shape, i + 1] if kind == "ragged" else shape
            if kind == "some" and i and draw(st.booleans()):
                continue
            leaf = ("leaf", (*batch, *tail), next(number))
            member[name] = {"x": leaf, "y": ("leaf", (*batch, 2), next(number))} if kind == "nested" else leaf
    return batch, draw(st.integers(0, len(batch))), members


def member_of(spec: Any, batch: Any, kind: Any, leaf: Any) -> Any:
    source = {
        key: member_of(value, batch, kind, leaf)
        if isinstance(value, dict)
        else leaf(np.arange(100.0 * value[2], 100.0 * value[2] + np.prod(value[1], dtype=int)).reshape(value[1]))
        for key, value in spec.items()
    }
    return kind(source, batch_size=list(batch))


def make(stack: Any, module: Any, leaf: Any) -> Any:
    batch, dim, members = stack
    return module.lazy_stack([member_of(spec, batch, module.TensorDict, leaf) for spec in members], dim)


def outcome(function: Callable[[Any], Any], td: Any, show: Callable[[Any], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(td)
        except Exception as error:  # what matters is that there is one
            return "an error", error
        return show(result), shown(td)


def compare(function: Callable[[Any], Any], stack: Any, show: Callable[[Any], Any] = shown) -> None:
    theirs = outcome(function, make(stack, tensordict, torch.from_numpy), show)
    for leaf in (torch.from_numpy, np.asarray):
        mine = outcome(function, make(stack, corral, leaf), show)
        if "an error" in (theirs[0], mine[0]):
            assert mine[0] == theirs[0], f"{mine}\n!=\n{theirs}"
        else:
            assert repr(mine) == repr(theirs)


def like(td: Any, value: float = 5.0) -> Any:
    """Return an array of the batch's shape and the leaves' library."""
    leaf = next(iter(td.tensordicts[0].values(True, True)))
    full = np.full(tuple(td.batch_size), value)
    return torch.from_numpy(full) if isinstance(leaf, torch.Tensor) else full


SAME = {
    "itself": lambda td: td,
    "batch": lambda td: (list(td.batch_size), td.stack_dim, len(td), td.numel(), td.ndim),
    "keys": lambda td: (list(td.keys()), list(td.keys(True)), list(td.keys(True, True))),
    "contains": lambda td: ["a" in td, "a" in td.keys(), ("a", "x") in td.keys(True)],  # noqa: SIM118
    "get": lambda td: td.get("a"),
    "get item": lambda td: td["a"],
    "get as list": lambda td: td.get("a", as_list=True),
    "get default": lambda td: td.get("z", 3),
    "get nested": lambda td: td.get(("a", "x")),
    "items": lambda td: sorted(td.items(), key=lambda item: item[0]),
    "tolist of rows": lambda td: td.unbind(td.stack_dim),
    "clone": lambda td: td.clone(),
    "shallow clone": lambda td: td.clone(False),
    "deepcopy": lambda td: copy.deepcopy(td),
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "to_tensordict": lambda td: td.to_tensordict(),
    "contiguous": lambda td: td.contiguous(),
    "apply": lambda td: td.apply(lambda x: x + 1),
    "apply in place": lambda td: td.apply(lambda x: x + 1, inplace=True),
    "apply two": lambda td: td.apply(lambda x, y: x + y, td.clone()),
    "select": lambda td: td.select("a"),
    "select loosely": lambda td: td.select("a", strict=False),
    "exclude": lambda td: td.exclude("a"),
    "select in place": lambda td: td.select("a", inplace=True),
    "add": lambda td: td + 1,
    "add itself": lambda td: td + td,
    "add in place": lambda td: td.__iadd__(1),
    "equal": lambda td: td == td.clone(),
    "all equal": lambda td: (td == td.clone()).all(),
    "negate": lambda td: -td,
    "zero": lambda td: td.zero_(),
    "is_empty": lambda td: td.is_empty(),
    "part": lambda td: td[:1],
    "row": lambda td: td[0],
    "last row": lambda td: td[-1],
    "too far": lambda td: td[7],
    "column": lambda td: td[:, 0],
    "columns": lambda td: td[:, :1],
    "element": lambda td: td[tuple(0 for _ in td.batch_size)],
    "rows": lambda td: list(td),
    "unbind last": lambda td: td.unbind(-1),
    "new dimension": lambda td: td[None],
    "unsqueeze": lambda td: td.unsqueeze(-1),
    "permute": lambda td: td.permute(*reversed(range(td.ndim))),
    "some rows": lambda td: td[[0]],
    "some columns": lambda td: td[:, [0, 0]],
    "split": lambda td: td.split(1, 0),
    "stack": lambda td: torch.stack([td, td.clone()]),
    "stack last": lambda td: torch.stack([td, td.clone()], -1),
    "set": lambda td: td.set("z", like(td)),
    "set item": lambda td: td.__setitem__("a", like(td)),
    "set wrong": lambda td: td.set("z", like(td)[:0]),
    "set nested": lambda td: td.set(("n", "m"), like(td)),
    "set string": lambda td: td.set("z", "gnu"),
    "set locked": lambda td: td.lock_().set("z", like(td)),
    "update": lambda td: td.update({"z": like(td)}),
    "update itself": lambda td: td.update(td.clone()),
    "update_ itself": lambda td: td.update_(td.apply(lambda x: x + 1)),
    "update in place": lambda td: td.update(td.apply(lambda x: x + 1), inplace=True),
    "locked update_": lambda td: td.lock_().update_(td.apply(lambda x: x + 1)),
    "delete": lambda td: td.del_("a"),
    "rename": lambda td: td.rename_key_("a", "z"),
    "append": lambda td: td.append(td[(slice(None),) * td.stack_dim + (0,)].clone()),
    "insert": lambda td: td.insert(0, td[(slice(None),) * td.stack_dim + (0,)].clone()),
    "append wrong": lambda td: td.append(td),
    "append locked": lambda td: td.lock_().append(td.tensordicts[0].clone()),
    "write a row": lambda td: td.__setitem__(0, td[-1].clone() + 1),
    "write all": lambda td: td.__setitem__(slice(None), td.clone() + 1),
    "write a number": lambda td: td.__setitem__(0, 3.0),
    "write a column": lambda td: td.__setitem__((slice(None), 0), 3.0) if td.ndim > 1 else None,
    "resize": lambda td: setattr(td, "batch_size", [7]),
    "lock": lambda td: (td.lock_().is_locked, [each.is_locked for each in td.tensordicts]),
}


@pytest.mark.parametrize("function", SAME.values(), ids=SAME.keys())
@settings(max_examples=25, deadline=None)
@given(stacks())
def test_same(function: Any, stack: Any) -> None:
    compare(function, stack)


def mask(td: Any) -> Any:
    full = np.arange(int(np.prod(td.batch_size))).reshape(tuple(td.batch_size)) % 2 == 0
    return torch.from_numpy(full)


def named(td: Any) -> Any:
    return td.refine_names(..., "last")


METHODS = {
    "names": lambda td: (td.names, named(td).names, named(td).clone().names, (named(td) + 1).names),
    "names of rows": lambda td: (named(td)[:1].names, named(td).unsqueeze(0).names),
    "all names": lambda td: (setattr(td, "names", list("xyz"[: td.ndim])), td.names, td[0].names),
    "names of a permuted one": lambda td: named(td).permute(*reversed(range(td.ndim))).names,
    "renamed": lambda td: named(td).rename(last="q").names,
    "movedim": lambda td: td.movedim(0, -1),
    "transpose": lambda td: td.transpose(0, -1),
    "chunk": lambda td: td.chunk(2, 0),
    "chunk last": lambda td: td.chunk(2, -1),
    "split in lengths": lambda td: td.split([1] * td.batch_size[0], 0),
    "repeat_interleave": lambda td: td.repeat_interleave(2, dim=0),
    "repeat_interleave last": lambda td: td.repeat_interleave(2, dim=-1),
    "where": lambda td: td.where(mask(td), 0.0),
    "where a TensorDict": lambda td: td.where(mask(td), td + 1),
    "masked_fill": lambda td: td.masked_fill(mask(td), 2.0),
    "masked_fill_": lambda td: td.masked_fill_(mask(td), 2.0),
    "add an array": lambda td: td + like(td),
    "add_ itself": lambda td: td.add_(td.clone()),
    "add_ locked": lambda td: td.lock_().add_(2),
    "add locked": lambda td: (td.lock_() + 1).is_locked,
    "div_": lambda td: td.div_(2),
    "clamp": lambda td: td.clamp(0, 150),
    "lerp": lambda td: td.lerp(td + 1, 0.5),
    "addcmul": lambda td: td.addcmul(td, td, value=2),
    "less": lambda td: td < 3,
    "equal to an array": lambda td: td == like(td),
    "power": lambda td: td**2,
    "exp": lambda td: (td / 100).exp(),
    "neg_": lambda td: td.neg_(),
    "isnan": lambda td: td.isnan(),
    "float": lambda td: td.float(),
    "all": lambda td: (td >= 0).all(),
    "any": lambda td: (td < 0).any(),
    "bytes": lambda td: td.bytes(),
    "named_apply": lambda td: td.named_apply(lambda k, x: x + len(k)),
    "apply_": lambda td: td.apply_(lambda x: x + 1),
    "copy_": lambda td: td.copy_(td.clone() + 1),
    "detach": lambda td: td.detach(),
    "empty": lambda td: td.empty(),
    "set_at_": lambda td: td.set_at_("a", 7.0, 0),
}


@pytest.mark.parametrize("function", METHODS.values(), ids=METHODS.keys())
@settings(max_examples=12, deadline=None)
@given(stacks())
def test_methods(function: Any, stack: Any) -> None:
    compare(function, stack)


VALUES = {
    "flatten keys": lambda td: td.flatten_keys(),
    "unflatten keys": lambda td: td.flatten_keys().unflatten_keys(),
    "flip": lambda td: td.flip(0),
    "roll": lambda td: td.roll(1, 0),
    "narrow": lambda td: td.narrow(-1, 0, 1),
    "unflatten": lambda td: td.unflatten(0, (1, -1)),
    "pad": lambda td: td.pad([1, 0] * td.ndim, value=3.0),
    "gather": lambda td: td.gather(0, torch.zeros((1, *td.batch_size[1:]), dtype=torch.long)),
    "masked_select": lambda td: td.masked_select(mask(td)),
    "where another": lambda td: td.where(mask(td), td.to_tensordict() + 1),
    "add a dense one": lambda td: td + td.to_tensordict(),
    "add to a dense one": lambda td: td.to_tensordict() + td,
    "equal to a dense one": lambda td: td == td.to_tensordict(),
    "sum of all": lambda td: td.sum(reduce=True),
    "sums": lambda td: td.sum(),
    "largest": lambda td: td.max(0),
    "mean of features": lambda td: td.mean("feature"),
    "norm": lambda td: td.norm(),
    "flat": lambda td: td.reshape(-1),
    "reshaped": lambda td: td.reshape(1, *td.batch_size),
    "expanded": lambda td: td.expand(2, *td.batch_size),
    "squeezed": lambda td: td.squeeze(0),
    "rows by number": lambda td: td[torch.tensor([0, -1, 0])],
    "rows by table": lambda td: td[torch.tensor([[0, -1], [0, 0]])],
    "rows by mask": lambda td: td[torch.tensor([True] * td.batch_size[0])],
    "elements by mask": lambda td: td[torch.ones(tuple(td.batch_size), dtype=torch.bool)],
    "elements by number": lambda td: td[torch.tensor([0, 0]), torch.tensor([0, -1])],
    "cat": lambda td: torch.cat([td, td.clone()]),
    "cat last": lambda td: torch.cat([td, td.clone()], td.ndim - 1),
    "cat with dense": lambda td: torch.cat([td, td.to_tensordict()]),
    "stack with dense": lambda td: torch.stack([td, td.to_tensordict()]),
    "sum": lambda td: td.sum(0),
}


@pytest.mark.parametrize("function", VALUES.values(), ids=VALUES.keys())
@settings(max_examples=25, deadline=None)
@given(stacks(ragged=False))
def test_same_values(function: Any, stack: Any) -> None:
    compare(function, stack, values_of)


FUNCTIONS = {
    "lazy_stack": lambda m, a, b: m.lazy_stack([a, b]),
    "stack": lambda m, a, b: torch.stack([a, b]),
    "maybe_dense_stack": lambda m, a, b: m.maybe_dense_stack([a, b]),
    "maybe_dense_stack of one kind": lambda m, a, b: m.maybe_dense_stack([a, a]),
    "dense_stack_tds": lambda m, a, b: m.dense_stack_tds(m.lazy_stack([a, a])),
    "dense_stack_tds of others": lambda m, a, b: m.dense_stack_tds(m.lazy_stack([a, b])),
    "dense_stack_tds of a list": lambda m, a, b: m.dense_stack_tds([a, b]),
    "class": lambda m, a, b: m.LazyStackedTensorDict(a, b, stack_dim=0),
    "method": lambda m, a, b: m.TensorDict.lazy_stack([a, b]),
    "no items": lambda m, a, b: m.lazy_stack([]),
    "far dimension": lambda m, a, b: m.lazy_stack([a, b], 3),
    "other numbers of dimensions": lambda m, a, b: m.lazy_stack([a, b[0]]),
    "other batch sizes": lambda m, a, b: m.lazy_stack([a, b[:1]]),
    "strict batch sizes": lambda m, a, b: m.lazy_stack([a, b[:1]], strict_shape=True),
    "arrays": lambda m, a, b: m.lazy_stack([torch.zeros(1), torch.ones(1)]),
    "ragged arrays": lambda m, a, b: m.lazy_stack([torch.zeros(1), torch.ones(2)]),
    "strings": lambda m, a, b: m.lazy_stack([m.TensorDict(s="u"), m.TensorDict(s="v")]).get("s"),
    "one string": lambda m, a, b: m.lazy_stack([m.TensorDict(s="u"), m.TensorDict(s="u")])["s"],
    "string and array": lambda m, a, b: m.lazy_stack([m.TensorDict(s="u"), m.TensorDict(s=torch.zeros(1))]).get("s"),
    "padded": lambda m, a, b: m.lazy_stack([a, b]).get("r", as_padded_tensor=True, padding_value=7),
    "padded left": lambda m, a, b: m.lazy_stack([a, b], 1).get("r", as_padded_tensor=True, padding_side="left"),
    "nested in a dense one": lambda m, a, b: m.TensorDict(n=m.lazy_stack([a, b], 1), batch_size=[2])[0],
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_functions(function: Any) -> None:
    def call(module: Any) -> Any:
        a = module.TensorDict({"x": torch.zeros(2, 3), "r": torch.zeros(2, 1)}, batch_size=[2])
        b = module.TensorDict({"x": torch.ones(2, 3), "r": torch.ones(2, 4), "y": torch.ones(2)}, batch_size=[2])
        return function(module, a, b)

    results = []
    for module in (corral, tensordict):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                results.append(repr(shown(call(module))))
            except Exception as error:  # what matters is that there is one
                results.append("an error" if isinstance(error, Exception) else "")
    assert results[0] == results[1]


def test_members_are_themselves() -> None:
    a, b = TensorDict(x=np.zeros(2)), TensorDict(x=np.ones(3))
    td = lazy_stack([a, b])
    assert td[0] is a
    assert td.unbind(0)[1] is b
    assert td[:1].tensordicts[0] is a


def test_writes_reach_the_members() -> None:
    a, b = (TensorDict(x=np.zeros((2, 3)), batch_size=[2]) for _ in range(2))
    memory = a["x"]
    td = lazy_stack([a, b], 1)
    td.set_("x", np.ones((2, 2, 3)))
    td[0] = {"x": np.full((2, 3), 2.0)}
    td["y"] = np.arange(4).reshape(2, 2)
    assert memory.tolist() == [[2.0] * 3, [1.0] * 3]
    assert a["y"].tolist() == [0, 2]


def test_error_of_a_ragged_key_names_it_and_the_shapes() -> None:
    td = lazy_stack([TensorDict(x=np.zeros(2)), TensorDict(x=np.ones(3))])
    with pytest.raises(RuntimeError, match=r"'x'.*\[2\].*\[3\].*as_list"):
        td["x"]


def test_shown_with_ragged_shapes_and_keys_of_some() -> None:
    td = lazy_stack([TensorDict(x=np.zeros(2), y=np.zeros(1)), TensorDict(x=np.ones(3))])
    assert repr(td) == (
        "LazyStackedTensorDict(batch_size=[2], library=numpy, stack_dim=0, fields={x: f64[-1]}, "
        "exclusive_fields={0: {y: f64[1]}})"
    )
    assert "x: f64[-1]" in repr(TensorDict(n=td))


def test_types_are_exported() -> None:
    td = lazy_stack([TensorDict(x=np.zeros(2))])
    assert type(td) is LazyStackedTensorDict
    assert isinstance(td, corral.TensorDictBase)
    assert not isinstance(td, TensorDict)
