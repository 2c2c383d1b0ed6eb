"""Lazy stacks of tensorclasses whose members do not all have the same fields."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import corral
from tests.tensordict.tensorclasses import Outer, TheirOuter, inner, outer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict


def partial(library: Any, dim: int = 0, extra: Any = "a word") -> Any:
    """Return a stack of three, of which the second alone has all fields."""
    theirs = library is tensordict
    members = [outer((2,), full, theirs) for full in (False, True, False)]
    members[1].extra = extra
    return library.lazy_stack(members, dim)


def deep(library: Any) -> Any:
    """Return a stack of stacks."""
    return library.lazy_stack([partial(library), library.lazy_stack([outer((2,), False, library is tensordict)] * 3)])


def simple(value: Any) -> Any:
    """Return a value in a form that can be compared."""
    if isinstance(value, (list, tuple)):
        return [simple(each) for each in value]
    if tensordict.is_tensor_collection(value) or isinstance(value, corral.TensorDictBase):
        return type(value).__name__[-5:], tuple(value.batch_size), {key: simple(value.get(key)) for key in value.keys()}  # noqa: SIM118
    return value.tolist() if isinstance(value, torch.Tensor) else value


FIELDS = ("x", "inner", "more", "extra")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "make", [partial, lambda lib: partial(lib, 1), lambda lib: partial(lib, 0, torch.ones(2)), deep]
)
def test_field_of_some_members(make: Callable[[Any], Any], field: str) -> None:
    mine, theirs = make(corral), make(tensordict)
    assert simple(getattr(mine, field)) == simple(getattr(theirs, field))
    assert simple(mine.get(field)) == simple(theirs.get(field))
    assert simple(mine.get(field, 5)) == simple(theirs.get(field, 5))
    assert field == "x" or isinstance(getattr(mine, field), list)
    assert simple(getattr(mine[1], field)) == simple(getattr(theirs[1], field))


def test_its_arrays_are_those_of_the_members() -> None:
    stack = partial(corral, extra=torch.ones(2))
    stack.extra[1].fill_(7)
    assert stack[1].extra.tolist() == [7, 7]


def test_field_of_no_member_is_none() -> None:
    for library, kind in ((corral, Outer), (tensordict, TheirOuter)):
        stack = library.lazy_stack([outer((2,), False, kind is TheirOuter) for _ in range(2)])
        assert stack.extra is None
        assert stack.inner is None


@pytest.mark.parametrize("value", [None, torch.zeros(3, 2, 4)])
def test_setting_it_sets_it_in_all_members(value: Any) -> None:
    for library in (corral, tensordict):
        stack = partial(library)
        stack.extra = value
        found = stack.extra
        assert found is None if value is None else found.tolist() == value.tolist()
    mine = partial(corral)
    mine.extra = value
    assert [member.extra is None for member in mine.tensordicts] == [value is None] * 3


def test_deleting_it_deletes_it_where_it_is() -> None:
    stack = partial(corral)
    stack.del_("inner")
    assert stack[1].inner is None
    with pytest.raises(KeyError):
        stack.del_("inner")
    del stack.extra
    assert stack.extra is None
    assert stack[1].extra is None


def test_numpy_leaves() -> None:
    members = [outer((2,), full, make=np.asarray) for full in (False, True)]
    stack = corral.lazy_stack(members)
    assert stack.inner[0] is None
    assert stack.inner[1].q.tolist() == inner((2,), make=np.asarray).q.tolist()
    assert "1: {inner: " in repr(stack)


def test_contiguous_has_what_all_have() -> None:
    mine, theirs = partial(corral).contiguous(), partial(tensordict).contiguous()
    assert simple(mine) == simple(theirs)
    assert type(mine) is Outer
