"""Methods that work on the set of keys, and that count: compared with tensordict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from corral import TensorDict
from tests.tensordict.comparing import KEYS, batches, compare, specs

NUMBERS = ("float32", "int64", "float64", "int16")
paths = st.lists(st.sampled_from(KEYS), min_size=1, max_size=2).map(lambda p: p[0] if len(p) == 1 else tuple(p))


def table(functions: dict[str, Callable[..., Any]]) -> Any:
    return pytest.mark.parametrize("function", functions.values(), ids=functions.keys())


BY_KEYS = {
    "split_keys": lambda td, k, q: td.split_keys([k], [q]),
    "split_keys loosely": lambda td, k, q: td.split_keys([k, q], strict=False),
    "split_keys dict": lambda td, k, q: td.split_keys({k: "z"}, strict=False),
    "split_keys function": lambda td, k, q: td.split_keys(lambda key, value: key[0] == k),
    "split_keys in place": lambda td, k, q: td.split_keys([k], inplace=True, strict=False),
    "split_keys structure": lambda td, k, q: td.split_keys([k], reproduce_struct=True, strict=False),
    "separates": lambda td, k, q: td.separates(k),
    "separates some": lambda td, k, q: td.separates(*(key for key in (k, q) if key in td.keys(True))),
    "separates kept": lambda td, k, q: td.separates(k, filter_empty=False),
    "rename_keys": lambda td, k, q: td.rename_keys({k: "z"}),
    "rename_keys swapped": lambda td, k, q: td.rename_keys({k: q, q: k}) if len(k) == len(q) == 1 else None,
    "rename_keys loosely": lambda td, k, q: td.rename_keys({k: ("y", "z")}, strict=False),
    "replace": lambda td, k, q: td.replace({k: td.get(k)}) if k in td else None,
    "replace keyword": lambda td, k, q: td.replace(z=torch.ones(td.shape)).exclude("z"),
    "replace nothing": lambda td, k, q: td.replace(),
    "replace by another": lambda td, k, q: td.replace(td.apply(lambda x: x + 1, filter_empty=False)),
    "replace by two": lambda td, k, q: td.replace({}, {}),
    "replace by a number": lambda td, k, q: td.replace(3),
    "create_nested": lambda td, k, q: td.create_nested(("z", "y")),
    "create_nested key": lambda td, k, q: td.create_nested(k) if k not in td else None,
    "create_nested locked": lambda td, k, q: td.lock_().create_nested("z"),
    "get_item_shape": lambda td, k, q: tuple(td.get_item_shape(k)),
    "filter_empty_": lambda td, k, q: td.filter_empty_(),
    "filter_empty_ empty": lambda td, k, q: td.empty(recurse=True).filter_empty_(),
    "depth": lambda td, k, q: td.depth,
    "param_count": lambda td, k, q: [td.param_count(), td.param_count(count_duplicates=False)],
    "bytes": lambda td, k, q: [td.bytes(), td.bytes(count_duplicates=False)],
    "apply_": lambda td, k, q: td.apply_(lambda x: x + 1),
    "apply_ locked": lambda td, k, q: td.lock_().apply_(lambda x: x + 1),
    "to_tensordict": lambda td, k, q: td.lock_().to_tensordict(),
    "auto_device_": lambda td, k, q: td.auto_device_(),
    "copy_": lambda td, k, q: td.copy_(td.apply(lambda x: x + 1, filter_empty=False)),
    "copy_at_": lambda td, k, q: td.copy_at_(td[0].clone(), 0),
    "update_at_": lambda td, k, q: td.update_at_(td[0].apply(lambda x: x + 1, filter_empty=False), 0),
    "update_at_ some": lambda td, k, q: td.update_at_(
        td[0].apply(lambda x: x + 1, filter_empty=False), 0, keys_to_update=[k]
    ),
    "popitem": lambda td, k, q: td.popitem(),
    "popitem locked": lambda td, k, q: td.lock_().popitem(),
    "empty": lambda td, k, q: [td.empty(batch_size=td.shape[:1]), td.empty(device="cpu")],
    "getitems": lambda td, k, q: td.__getitems__([0, 0]),
    "sorted_keys": lambda td, k, q: td.sorted_keys,
    "named_apply": lambda td, k, q: td.named_apply(lambda key, x: x + len(key)),
    "setdefault": lambda td, k, q: td.setdefault("z", td[k]),
    "fromkeys": lambda td, k, q: type(td).fromkeys(["a", "b"], 3).batch_size == (),
}


@table(BY_KEYS)
@settings(max_examples=30, deadline=None)
@given(specs(dtypes=NUMBERS, min_size=1), batches(max_dims=2), paths, paths)
def test_by_keys(function: Any, spec: Any, batch: Any, one: Any, two: Any) -> None:
    if one == two or one[0] == two[0]:
        two = "d" if one[0] != "d" else "c"
    compare(lambda td: function(td, one, two), spec, batch)


JOINS = {
    "stack_from": lambda td, i: td.stack_from_tensordict(i),
    "cat_from": lambda td, i: td.cat_from_tensordict(i),
    "stack_from sorted": lambda td, i: td.stack_from_tensordict(i, sorted=True),
    "cat_from keys": lambda td, i: td.cat_from_tensordict(i, sorted=sorted(td.keys(True, True), reverse=True, key=str)),
    "cat_from wrong keys": lambda td, i: td.cat_from_tensordict(i, sorted=["z"]),
    "stack_tensors": lambda td, i: td.stack_tensors("a", "b", out_key="z", dim=i),
    "cat_tensors": lambda td, i: td.cat_tensors("a", "b", out_key=("z", "y"), dim=i),
    "stack_tensors kept": lambda td, i: td.stack_tensors("b", "a", out_key="z", dim=i, keep_entries=True),
    "cat_tensors to one of them": lambda td, i: td.cat_tensors("a", "b", out_key="a", dim=i),
    "cat_tensors locked": lambda td, i: td.lock_().cat_tensors("a", "b", out_key="a", dim=i),
    "cat_tensors unknown": lambda td, i: td.cat_tensors("a", "q", out_key="a", dim=i),
}


@table(JOINS)
@settings(max_examples=25, deadline=None)
@given(batches(max_dims=2), st.lists(st.integers(1, 2), max_size=2).map(tuple), st.integers(-3, 3), st.booleans())
def test_entries_in_one_array(function: Any, batch: Any, shape: Any, dim: int, alike: bool) -> None:
    assume(0 not in batch)  # torch joins an empty vector with anything
    leaf = ("leaf", shape, "float32")
    spec = {"b": leaf, "a": leaf if alike else ("leaf", (*shape, 1), "float32")}
    if "stack_from_tensordict" in function.__code__.co_names or "cat_from_tensordict" in function.__code__.co_names:
        spec["n"] = ("nested", (), {"c": leaf})
    compare(lambda td: function(td, dim), spec, batch)


def test_arrays_joined_into_another() -> None:
    td = TensorDict(a=np.zeros(2), b=np.ones(2))
    out = np.empty((2, 2))
    assert td.stack_from_tensordict(out=out) is out
    assert out.tolist() == [[0, 0], [1, 1]]
    tensors = td.torch()
    target = torch.empty(4, dtype=torch.float64)
    assert tensors.cat_from_tensordict(out=target) is target
    assert target.tolist() == [0, 0, 1, 1]
    with pytest.raises(RuntimeError, match="no entry"):
        TensorDict().stack_from_tensordict()


def test_separates_leaves_out_what_does_not_exist() -> None:
    td = TensorDict(a=np.zeros(2), b=np.ones(2))
    assert list(td.separates("a", "q", strict=False).keys()) == ["a"]
    assert td.separates("q", default=np.ones(1))["q"].tolist() == [1]
    with pytest.raises(KeyError, match='"q" not found'):
        td.separates("q")


def test_duplicates_are_counted_once() -> None:
    x = np.zeros(3)
    td = TensorDict(a=x, b={"c": x})
    assert td.bytes() == 48
    assert td.bytes(count_duplicates=False) == 24
    assert td.param_count() == 6
    assert td.param_count(count_duplicates=False) == 3
    assert td.entry_class("a") is np.ndarray
    assert td.entry_class("b") is TensorDict


@pytest.mark.parametrize("flags", [(1, 1), (None, True), (np.True_, np.False_), (0, 1)])
def test_flags_that_are_no_booleans(flags: Any) -> None:
    td = TensorDict({"a": torch.ones(1), "n": {"b": torch.ones(1)}}, batch_size=[])
    expected = td.keys(*map(bool, flags))
    assert list(td.keys(*flags)) == list(expected)
    assert len(td.keys(*flags)) == len(list(expected))
