"""Casts, masks and gradients: the same calls on corral's TensorDict and on tensordict's, and with NumPy's leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensordict
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corral import TensorDict
from tests.tensordict.comparing import batches, specs
from tests.tensordict.test_math import assert_close, compare, forms, locked

DTYPES = ("float64", "float32", "int64", "uint8", "bool")
CASTS = (
    *("float", "double", "half", "bfloat16", "int", "bool", "float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "complex64", "complex128"),
)


@pytest.mark.parametrize("name", CASTS)
@settings(max_examples=10, deadline=None)
@given(specs(dtypes=DTYPES), batches(max_dims=1), st.booleans())
def test_cast(name: str, spec: Any, batch: Any, lock: bool) -> None:
    def positive(x: Any) -> Any:
        return x  # what is below zero is not defined for unsigned integers

    numpy = name not in ("bfloat16", "int8")  # NumPy's bfloat16 prints otherwise; int8 may overflow
    compare(lambda td: getattr(locked(td, lock), name)(), forms(spec, batch, positive), numpy)
    compare(lambda td: getattr(td, name)(cast_filter=lambda key, leaf: len(key) == 1), forms(spec, batch), False)


@settings(max_examples=30, deadline=None)
@given(specs(dtypes=DTYPES), batches(max_dims=1), st.booleans())
def test_other_casts(spec: Any, batch: Any, lock: bool) -> None:
    compare(lambda td: locked(td, lock).type(torch.int16), forms(spec, batch))
    compare(lambda td: locked(td, lock).to(torch.float32), forms(spec, batch))
    compare(lambda td: td.is_floating_point(), forms(spec, batch))
    compare(lambda td: td.qint8() if any(True for _ in td.keys(True, True)) else td, forms(spec, batch))


@settings(max_examples=20, deadline=None)
@given(specs(dtypes=DTYPES), batches(max_dims=1))
def test_casts_share_memory_where_nothing_changes(spec: Any, batch: Any) -> None:
    td = forms(spec, batch)[2]
    kept = td.to("float32").float()
    again = kept.float()
    for key in kept.keys(True, True):
        assert again[key] is kept[key]


MASKS: dict[str, Callable[..., Any]] = {
    "masked_fill": lambda td, mask: td.masked_fill(mask, 7),
    "masked_fill_": lambda td, mask: td.masked_fill_(mask, 7),
    "where number": lambda td, mask: td.where(mask, 7),
    "where td": lambda td, mask: td.where(mask, td.apply(lambda x: x * 0 + 7, filter_empty=False)),
    "where out": lambda td, mask: td.where(mask, td.apply(lambda x: x * 0 + 7, filter_empty=False), out=td.clone()),
    "where number out": lambda td, mask: td.where(mask, 7, out=td.clone()),
    "where self": lambda td, mask: td.where(mask, td, out=td),
    "where pad": lambda td, mask: td.where(mask, td.exclude("a"), pad=1),
    "where pad other": lambda td, mask: td.exclude("b").where(mask, td, pad=1),
    "where no pad": lambda td, mask: td.where(mask, td.exclude("a")),
    "torch.where": lambda td, mask: torch.where(mask, 7, td),
    "torch.where td": lambda td, mask: torch.where(mask, td, 7),
}


@pytest.mark.parametrize("function", MASKS.values(), ids=MASKS.keys())
@settings(max_examples=30, deadline=None)
@given(specs(dtypes=("float64", "int64")), batches(max_dims=2), st.integers(0, 2), st.integers(0, 99), st.booleans())
def test_mask(function: Any, spec: Any, batch: Any, dims: int, seed: int, lock: bool) -> None:
    mask = torch.from_numpy(np.asarray(np.random.default_rng(seed).random(batch[:dims]) < 0.5))
    compare(lambda td: function(locked(td, lock), mask), forms(spec, batch))


def test_masks_that_do_not_fit() -> None:
    for make in (np.asarray, torch.tensor):
        td = TensorDict(a=make([1.0, 2.0]), batch_size=[2])
        for mask in (make([True, False, True]), make([[True, False]] * 3)):
            with pytest.raises(RuntimeError, match="does not fit"):
                td.masked_fill_(mask, 0)
        with pytest.raises(RuntimeError, match="array of bool"):
            td.where(make([1, 0]), 0)
        assert td["a"].tolist() == [1, 2]


def test_fill() -> None:
    for make in (np.asarray, torch.tensor):
        td = TensorDict(a=make([1.0, 2.0]), b={"c": make([3, 4])})
        leaves = list(td.values(True, True))
        td.fill_("a", 5).fill_(("b", "c"), 6)
        assert td["a"].tolist() == [5, 5]
        assert td["b", "c"].tolist() == [6, 6]
        td.zero_()
        assert [leaf.tolist() for leaf in leaves] == [[0, 0], [0, 0]]


def both() -> tuple[Any, Any]:
    def make(cls: Any) -> Any:
        return cls(
            {"a": torch.arange(1.0, 4), "b": {"c": torch.arange(6.0).reshape(3, 2)}, "empty": {}}, batch_size=[3]
        ).requires_grad_()

    return make(TensorDict), make(tensordict.TensorDict)


GRADIENTS: dict[str, Callable[..., Any]] = {
    "grad": lambda td: (td.mul(td).sum(reduce=True).backward(), td.grad)[1],
    "no grad": lambda td: td.grad,
    "part": lambda td: (td["a"].sum().backward(), td.grad)[1],
    "locked grad": lambda td: (td.lock_(), td.mul(3).sum(reduce=True).backward(), td.grad)[2],
    "zero": lambda td: (td.exp().sum(reduce=True).backward(), td.zero_grad(False).grad)[1],
    "none": lambda td: (td.exp().sum(reduce=True).backward(), td.zero_grad().grad)[1],
    "backward": lambda td: (td.mul(2).sum().backward(), td.grad)[1],
    "backward of many": lambda td: td.mul(2).backward(),
    "backward gradient": lambda td: (td.mul(2).backward(td.data), td.grad)[1],
    "backward wrong gradient": lambda td: td.mul(2).backward(td.data[:2]),
    "backward nothing": lambda td: td.detach().backward(),
    "backward inputs": lambda td: (td.mul(2).sum().backward(inputs=td.select("a")), td.grad)[1],
    "backward retained": lambda td: [(s := td.mul(2).sum()).backward(retain_graph=True), s.backward(), td.grad][2],
    "data": lambda td: (td.data, td.data.requires_grad),
    "locked data": lambda td: td.lock_().data,
    "detach": lambda td: td.lock_().detach(),
    "detach_": lambda td: (td.detach_() is td, td.requires_grad),
    "requires grad": lambda td: (td.requires_grad, td.requires_grad_(False).requires_grad),
    "set data": lambda td: (setattr(td, "data", td.detach() * 3), td.data)[1],
    "set wrong data": lambda td: setattr(td, "data", td.detach()[:2]),
    "set data of more": lambda td: setattr(td, "data", td.detach().set("more", torch.ones(3))),
    "set grad": lambda td: (td.del_("empty"), setattr(td, "grad", td.detach() * 3), td.grad)[2],
    "in place on a leaf": lambda td: td.add_(1),
    "in place later": lambda td: ((later := td.mul(1)).mul_(3).sum(reduce=True).backward(), later.data, td.grad)[1:],
    "in place under no_grad": lambda td: torch.no_grad()(lambda: td.add_(1).data)(),
}


@pytest.mark.parametrize("function", GRADIENTS.values(), ids=GRADIENTS.keys())
def test_gradients(function: Any) -> None:
    mine, theirs = both()
    try:
        expected = function(theirs)
    except Exception as error:
        with pytest.raises((type(error), RuntimeError)):
            function(mine)
        return
    found = function(mine)
    if expected is None:
        assert found is None
        return
    assert_close(found, expected)
    assert_close(mine.detach(), theirs.detach())


def test_other_libraries_have_no_gradients() -> None:
    td = TensorDict(a=np.ones(2), b={"c": np.ones(2)})
    assert td.detach()["a"] is td["a"]
    assert td.data["a"] is td["a"]
    assert td.grad is None
    assert td.zero_grad().requires_grad_(False).detach_() is td
    assert not td.requires_grad
    with pytest.raises(NotImplementedError, match="numpy"):
        td.requires_grad_()
    with pytest.raises(RuntimeError, match="requires a gradient"):
        td.backward()
    td.data = td * 3
    assert td["b", "c"].tolist() == [3, 3]
