"""Calls with arguments that are unusual, and mean something: compared with tensordict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import corral
from tests.tensordict.test_lazy_methods import form, values

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict


def dense(library: Any) -> Any:
    nested = library.TensorDict({"c": values(100, 2, 3, 1)}, batch_size=[2, 3])
    return library.TensorDict({"a": values(0, 2, 3, 4), "n": nested}, batch_size=[2, 3])


def with_objects(library: Any) -> Any:
    td = dense(library)
    td["s"] = library.NonTensorData("hi", [2, 3])
    return td


def with_lazy(library: Any) -> Any:
    parts = [library.TensorDict({"r": values(0, 2 + i), "s": "q"}) for i in range(2)]
    return library.TensorDict({"a": values(0, 2, 3), "l": library.lazy_stack(parts)}, batch_size=[2])


CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "zeros of a tensor's size": (dense, lambda td: td.new_zeros(torch.tensor([1, 0]))),
    "ones of a tensor's size": (dense, lambda td: td.new_ones(torch.tensor([2, 1]))),
    "tile by a tensor": (dense, lambda td: td.tile(torch.tensor([1, 2]))),
    "auto_batch_size_ of less than none": (dense, lambda td: td.auto_batch_size_(-1)),
    "auto_batch_size_ of none": (dense, lambda td: td.auto_batch_size_(0)),
    "from_dict_instance of a TensorDict": (dense, lambda td: td.from_dict_instance(td.clone())),
    "from_list of a TensorDict": (dense, lambda td: td.from_list(td.clone())),
    "new_tensor beside objects": (with_objects, lambda td: td.new_tensor(7.0)),
    "new_tensor of objects": (with_objects, lambda td: td.new_tensor(td + 1)),
    "empty, nested": (with_lazy, lambda td: td.empty(recurse=True)),
    "expand of one": (with_lazy, lambda td: td.expand(-1)),
    "expand": (with_lazy, lambda td: td.expand(3, 2)),
    "expand_as": (with_lazy, lambda td: td.expand_as(torch.zeros(3, 2))),
}


@pytest.mark.parametrize("name", CALLS)
def test_same(name: str) -> None:
    make, call = CALLS[name]
    found = []
    for library in (corral, tensordict):
        td = make(library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call(td)
        assert all(type(length) is int for length in result.batch_size)
        found.append((form(result), list(result.names), form(td)))
    assert found[0] == found[1]


def test_pad_by_a_tensor() -> None:
    assert dense(corral).pad(torch.tensor([1, 0, 0, 2])).batch_size == (3, 5)


@pytest.mark.parametrize("library", [corral, tensordict])
def test_objects_of_rows_have_no_quantiles(library: Any) -> None:
    td = dense(library)
    td["st"] = library.NonTensorStack(*(library.NonTensorStack(*row) for row in ("abc", "def")))
    with pytest.raises(RuntimeError, match="quantile"):
        td.quantile(0.5)
