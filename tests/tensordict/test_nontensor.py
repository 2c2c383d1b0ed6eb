"""Entries that are objects: the same calls on corral's TensorDict and on tensordict's."""

from __future__ import annotations

import copy
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
from corral import NonTensorData, NonTensorStack, TensorDict
from corral.arrays import to_numpy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict

NAMES = ("a", "b", "c", "d")
OBJECTS = ("ant", "bee", None, ("t", 1), b"raw", frozenset({1}))


def shown(value: Any) -> Any:
    """Return a result in a form that is the same for both libraries, for torch's leaves and NumPy's."""
    kind = type(value).__name__
    if kind in ("NonTensorData", "NonTensorStack"):
        return kind, list(value.batch_size), value.tolist()
    if kind == "TensorDict":
        return list(value.batch_size), value.is_locked, {key: shown(value.get(key)) for key in sorted(value.keys())}
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        array = to_numpy(value)
        return array.shape, array.tolist()
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return {key: shown(item) for key, item in sorted(value.items())}
    return value


def outcome(function: Callable[[Any], Any], td: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(td)
        except Exception as error:  # what matters is that there is one
            return "an error", error
    return shown(result), shown(td)


def objects(shape: tuple[int, ...], start: int) -> Any:
    if not shape:
        return ("ant", "bee", "cat", "dog", "eel")[start % 5]
    return [objects(shape[1:], start + 3 * i + 1) for i in range(shape[0])]


@st.composite
def specs(draw: Any, depth: int = 1) -> dict[str, Any]:
    kinds = st.sampled_from(("array", "one", "each", *(("nested",) if depth else ())))
    found = draw(st.dictionaries(st.sampled_from(NAMES), kinds, min_size=1, max_size=4))
    return {
        key: (kind, draw(specs(depth - 1)) if kind == "nested" else draw(st.integers(0, 4)))
        for key, kind in found.items()
    }


def build(spec: dict[str, Any], batch: tuple[int, ...], kind: Any, leaf: Any) -> Any:
    source: dict[str, Any] = {}
    for key, (what, detail) in spec.items():
        if what == "nested":
            source[key] = build(detail, batch, kind, leaf)
        elif what == "array":
            source[key] = leaf(np.arange(detail, detail + 2 * np.prod(batch, dtype=int)).reshape(*batch, 2) * 1.0)
        elif what == "each" and batch:
            source[key] = objects(batch, detail)
        else:
            source[key] = objects((), detail)
    return kind(source, batch_size=list(batch))


def compare(function: Callable[[Any], Any], spec: Any, batch: tuple[int, ...]) -> None:
    theirs = outcome(function, build(spec, batch, tensordict.TensorDict, torch.from_numpy))
    for leaf in (torch.from_numpy, np.asarray):
        mine = outcome(function, build(spec, batch, TensorDict, leaf))
        if theirs[0] == "an error" or mine[0] == "an error":
            assert mine[0] == theirs[0], f"{mine}\n!=\n{theirs}"
        else:
            assert repr(mine) == repr(theirs)


batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)
CALLS = {
    "items": lambda td: list(td.items()),
    "read": lambda td: [td[key] for key in td.keys()],  # noqa: SIM118
    "keys": lambda td: (list(td.keys(True)), list(td.keys(True, True))),
    "to_dict": lambda td: td.to_dict(),
    "tolist": lambda td: td.to_dict() if td.batch_size else None,
    "numpy": lambda td: td.numpy(),
    "clone": lambda td: td.clone(),
    "copy": lambda td: td.copy(),
    "deepcopy": lambda td: copy.deepcopy(td),
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "row": lambda td: td[0],
    "last row": lambda td: td[-1],
    "part": lambda td: td[1:],
    "nothing": lambda td: td[:0],
    "unsqueeze": lambda td: td.unsqueeze(0),
    "unsqueeze last": lambda td: td.unsqueeze(-1),
    "expand": lambda td: td.expand(2, *td.batch_size),
    "expand a part": lambda td: td[:1].expand(3, *td.batch_size[1:]),
    "column": lambda td: td[:, 0] if td.ndim > 1 else None,
    "rows": lambda td: list(td),
    "unbind": lambda td: td.unbind(-1),
    "split": lambda td: td.split(1),
    "chunk": lambda td: td.chunk(2),
    "transposed": lambda td: td.permute(*reversed(range(td.ndim))),
    "flat": lambda td: td.reshape(-1),
    "view": lambda td: td.view(1, *td.batch_size),
    "stack": lambda td: type(td).stack([td, td]),
    "stack last": lambda td: type(td).stack([td, td.clone()], -1),
    "stack of rows": lambda td: type(td).stack(list(td)),
    "row of a stack": lambda td: type(td).stack([td, td])[0],
    "column of a stack": lambda td: type(td).stack([td, td])[:, 0] if td.ndim else None,
    "cat": lambda td: type(td).cat([td, td]),
    "cat of others": lambda td: type(td).cat([td, td.apply(lambda x: x + 1)], -1),
    "cat of rows": lambda td: type(td).cat([td[:1], td[:1]]),
    "movedim": lambda td: td.movedim(0, -1),
    "flip": lambda td: td.flip(0),
    "roll": lambda td: td.roll(1, 0),
    "repeat_interleave": lambda td: td.repeat_interleave(2, dim=0),
    "narrow": lambda td: td.narrow(0, 0, 1),
    "gather": lambda td: td.gather(0, torch.zeros((1, *td.batch_size[1:]), dtype=torch.long)),
    "masked_select": lambda td: td.masked_select(torch.ones(tuple(td.batch_size), dtype=torch.bool)),
    "rows by number": lambda td: td[torch.tensor([0, 0])],
    "where": lambda td: td.where(torch.ones(tuple(td.batch_size), dtype=torch.bool), 0.0),
    "where a TensorDict": lambda td: td.where(torch.ones(tuple(td.batch_size), dtype=torch.bool), td.clone()),
    "masked_fill": lambda td: td.masked_fill(torch.ones(tuple(td.batch_size), dtype=torch.bool), 2.0),
    "add in place": lambda td: td.add_(1),
    "less": lambda td: td < 3,
    "float": lambda td: td.float(),
    "clamp": lambda td: td.clamp(0, 1),
    "sum": lambda td: td.sum(),
    "sum of rows": lambda td: td.sum(0),
    "largest": lambda td: td.max(0),
    "softmax": lambda td: td.softmax(0),
    "equal": lambda td: td == td.clone(),
    "unequal": lambda td: td != td.clone(),
    "all equal": lambda td: (td == td.clone()).all(),
    "add": lambda td: td + 1,
    "add itself": lambda td: td + td,
    "negate": lambda td: -td,
    "apply": lambda td: td.apply(lambda x: x + 1),
    "apply in place": lambda td: td.apply(lambda x: x + 1, inplace=True),
    "zero": lambda td: td.zero_(),
    "select": lambda td: td.select("a", strict=False),
    "exclude": lambda td: td.exclude("a"),
    "flatten keys": lambda td: td.flatten_keys(),
    "unflatten keys": lambda td: td.flatten_keys().unflatten_keys(),
    "is_empty": lambda td: td.is_empty(),
    "consolidate": lambda td: td.consolidate().clone(),
    "bytes": lambda td: td.bytes(),
    "lock": lambda td: td.lock_(),
    "set locked": lambda td: td.lock_().set("a", "gnu"),
    "pop": lambda td: td.pop("a"),
    "set": lambda td: td.set("a", "gnu"),
    "set item": lambda td: td.__setitem__("z", "gnu"),
    "set list": lambda td: td.set("a", ["gnu"] * (td.batch_size[0] if td.batch_size else 1)),
    "set wrong list": lambda td: td.set("a", ["gnu"] * 7) if td.batch_size else 0 / 0,
    "set None": lambda td: td.set("a", None),
    "set object": lambda td: td.set("a", frozenset({3})),
    "set data": lambda td: td.set("a", td.get("b")),
    "setdefault": lambda td: td.setdefault("z", "gnu"),
    "set nested": lambda td: td.set(("y", "z"), "gnu"),
    "update": lambda td: td.update({"a": "gnu", "z": "hen"}),
    "update itself": lambda td: td.update(td.clone()),
    "update_ itself": lambda td: td.update_(td.clone()),
    "update in place": lambda td: td.update(td.clone(), inplace=True),
    "rename": lambda td: td.rename_key_("a", "z"),
    "delete": lambda td: td.del_("a"),
    "write a row": lambda td: td.__setitem__(0, td[-1].clone()),
    "write rows": lambda td: td.__setitem__(slice(0, 1), td[-1:].clone()),
}


@pytest.mark.parametrize("function", CALLS.values(), ids=CALLS.keys())
@settings(max_examples=25, deadline=None)
@given(specs(), batches)
def test_same(function: Any, spec: Any, batch: Any) -> None:
    compare(function, spec, batch)


ENTRIES = {
    "data": lambda m: (m.NonTensorData("a").data, m.NonTensorData("a", batch_size=[2]).tolist()),
    "wrapped": lambda m: m.NonTensorData(m.NonTensorData("q")),
    "stack": lambda m: m.NonTensorStack("a", "b"),
    "stack of data": lambda m: m.NonTensorStack(m.NonTensorData("a"), m.NonTensorData("b")),
    "stack of lists": lambda m: m.NonTensorStack(["a", "b"], ["c", "d"]),
    "empty stack": lambda m: m.NonTensorStack(),
    "from_list": lambda m: m.NonTensorStack.from_list([["a", "b"], ["c", "d"]]),
    "ragged": lambda m: m.NonTensorStack.from_list([["a", "b"], ["c"]]).tolist(),
    "one of all": lambda m: m.NonTensorStack("a", "a").data,
    "none of all": lambda m: m.NonTensorStack("a", "b").data,
    "to stack": lambda m: m.NonTensorData("a", batch_size=[3]).maybe_to_stack(),
    "equal": lambda m: m.NonTensorData("a", batch_size=[2]) == m.NonTensorStack("a", "b"),
    "unequal": lambda m: m.NonTensorStack("a", "b") != m.NonTensorStack("a", "c"),
    "equal to a string": lambda m: m.NonTensorData("a") == "a",
    "array of data": lambda m: torch.stack([m.NonTensorData(np.zeros(2)), m.NonTensorData(np.zeros(2))]),
    "lists": lambda m: torch.stack([m.NonTensorData([1]), m.NonTensorData([1])]),
    "other batch sizes": lambda m: torch.stack([m.NonTensorData("a"), m.NonTensorData("a", batch_size=[1])]),
    "cat": lambda m: torch.cat([m.NonTensorData("a", batch_size=[2]), m.NonTensorData("a", batch_size=[1])]),
    "assign": lambda m: written(m.NonTensorStack("a", "b"), lambda s: s.__setitem__(0, "z")),
    "assign to data": lambda m: written(m.NonTensorData("a", batch_size=[2]), lambda s: s.__setitem__(0, "z")),
    "update": lambda m: written(m.NonTensorStack("a", "b"), lambda s: s.update_(m.NonTensorStack("c", "d"))),
    "update data": lambda m: written(m.NonTensorData("a"), lambda s: s.update_(m.NonTensorData("b"))),
    "set data": lambda m: written(m.NonTensorData("a"), lambda s: setattr(s, "data", "b")),
    "set locked data": lambda m: written(m.NonTensorData("a").lock_(), lambda s: setattr(s, "data", "b")),
    "truth": lambda m: bool(m.NonTensorData("a")),
    "hash": lambda m: hash(m.NonTensorData("a")),
    "pickle": lambda m: pickle.loads(pickle.dumps(m.NonTensorStack("a", "b"))),
    "shape": lambda m: (m.NonTensorData("a", batch_size=[2, 3]).numel(), m.NonTensorStack("a").ndim),
    "unequal dtypes": lambda m: torch.stack([m.NonTensorData(1), m.NonTensorData(1.0)]),
    "out of bounds": lambda m: m.NonTensorData("a", batch_size=[2])[2],
    "array and object": lambda m: torch.stack([m.TensorDict(a="x"), m.TensorDict(a=torch.zeros(()))]),
    "written through": lambda m: written(
        m.TensorDict({"l": ["p", "q"]}, batch_size=[2]), lambda td: td[:1].set_("l", "zz")
    ),
    "auto batch size": lambda m: m.TensorDict.from_dict({"a": torch.zeros(2, 3), "s": "x"}, auto_batch_size=True),
    "auto batch size with a list": lambda m: m.TensorDict.from_dict(
        {"a": torch.zeros(2, 3), "s": ["x", "y"]}, auto_batch_size=True
    ),
    "auto batch size with others": lambda m: m.TensorDict.from_dict(
        {"a": torch.zeros(2, 3), "s": ["x", "y", "z"]}, auto_batch_size=True
    ),
    "array becomes an object": lambda m: written(m.TensorDict(a=torch.zeros(2)), lambda td: td.set_("a", "x")),
}


def written(entry: Any, write: Callable[[Any], Any]) -> Any:
    write(entry)
    return entry


@pytest.mark.parametrize("function", ENTRIES.values(), ids=ENTRIES.keys())
def test_entries(function: Any) -> None:
    mine, theirs = outcome(function, corral), outcome(function, tensordict)
    assert repr(mine[0]) == repr(theirs[0])


@pytest.mark.parametrize("value", OBJECTS, ids=repr)
def test_objects_stay_what_they_are(value: Any) -> None:
    td = TensorDict(a=np.zeros(2), o=value, batch_size=[2])
    assert td["o"] is value
    assert td[1]["o"] is value
    assert corral.stack([td, td])[0]["o"] is value


def test_takes_the_entries_of_tensordict() -> None:
    theirs = tensordict.TensorDict({"s": "one", "l": ["p", "q"], "n": {"s": "two"}}, batch_size=[2])
    mine = TensorDict(theirs, batch_size=[2])
    assert shown(mine) == shown(theirs)


def test_shown_as_their_types() -> None:
    td = TensorDict(a=np.zeros((2, 3)), s="one", l=["p", "q"], batch_size=[2])
    assert repr(td) == "TensorDict(batch_size=[2], library=numpy, fields={a: f64[3], s: str, l: NonTensorStack})"
    assert repr(td.get("s")) == "NonTensorData(data=one, batch_size=[2], device=None)"
    assert repr(td.get("l")) == "NonTensorStack(['p', 'q'], batch_size=[2], device=None)"


def test_types_are_exported() -> None:
    assert corral.NonTensorData is NonTensorData
    assert isinstance(NonTensorStack("a"), corral.TensorDictBase)
    assert not isinstance(NonTensorStack("a"), TensorDict)
