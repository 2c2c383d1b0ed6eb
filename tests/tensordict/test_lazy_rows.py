"""Rows of lazy stacks that are repeated, rolled and written, along every dimension, in corral and in tensordict."""

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


def stack(library: Any, dim: int, ragged: bool) -> Any:
    def member(i: int) -> Any:
        nested = library.TensorDict({"c": values(100 * i, 2, 1)}, batch_size=[2])
        return library.TensorDict({"a": values(10 * i, 2, 3 + i * ragged), "n": nested}, batch_size=[2])

    return library.lazy_stack([member(0), member(1)], dim)


def container(td: Any) -> Any:
    """Return what a TensorDict is made of."""
    kind = type(td).__name__.lstrip("_")
    return (kind, td.stack_dim, [container(member) for member in td.tensordicts]) if hasattr(td, "stack_dim") else kind


def outcome(library: Any, dim: int, ragged: bool, call: Callable[[Any], Any]) -> Any:
    td = stack(library, dim, ragged)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = call(td)
        except Exception as error:
            return type(error), form(td)
    return form(found), container(found), found.names, found.is_locked, form(td)


everywhere = pytest.mark.parametrize(
    ("dim", "ragged"),
    [(0, False), (1, False), (0, True), (1, True)],
    ids=["first", "second", "ragged first", "ragged second"],
)

REPEATED: dict[str, Callable[[Any], Any]] = {
    "repeat": lambda td: td.repeat(2, 3),
    "repeat once": lambda td: td.repeat(1, 1),
    "repeat, a list": lambda td: td.repeat([2, 1]),
    "repeat, a tensor": lambda td: td.repeat(torch.tensor([1, 2])),
    "repeat, too few": lambda td: td.repeat(2),
    "repeat, locked": lambda td: td.lock_().repeat(1, 2),
    "repeat, named": lambda td: td.rename("x", "y").repeat(2, 1),
    "repeat in place": lambda td: td.repeat(2, 1, inplace=True),
    "interleave": lambda td: td.repeat_interleave(2, dim=0),
    "interleave last": lambda td: td.repeat_interleave(torch.tensor([1, 2]), dim=-1),
    "interleave, locked": lambda td: td.lock_().repeat_interleave(2, dim=0),
    "interleave, named": lambda td: td.rename("x", "y").repeat_interleave(2, dim=1),
    "interleave, negative": lambda td: td.repeat_interleave(-1, dim=0),
    "interleave in place": lambda td: td.repeat_interleave(2, dim=0, inplace=True),
    "reshape in place": lambda td: td.reshape(4, inplace=True),
    "flatten in place": lambda td: td.flatten(0, 1, inplace=True),
    "unflatten in place": lambda td: td.unflatten(0, (2, 1), inplace=True),
    "gather in place": lambda td: td.gather(0, torch.zeros(2, 2, dtype=torch.int64), inplace=True),
    "masked_select in place": lambda td: td.masked_select(torch.tensor([True, False]), inplace=True),
    "softmax of members": lambda td: td.softmax(1 - td.stack_dim),
    "all rows": lambda td: td[:],
}


@everywhere
@pytest.mark.parametrize("name", REPEATED)
def test_repeated(name: str, dim: int, ragged: bool) -> None:
    mine, theirs = (outcome(library, dim, ragged, REPEATED[name]) for library in (corral, tensordict))
    assert mine == theirs


@everywhere
def test_no_repeats_are_an_empty_batch_of_the_right_shape(dim: int, ragged: bool) -> None:
    td = stack(corral, dim, ragged)
    assert td.repeat(*((0, 1) if dim == 0 else (1, 0))).batch_size == ((0, 2) if dim == 0 else (2, 0))
    assert td.repeat(*((1, 0) if dim == 0 else (0, 1))).batch_size == ((2, 0) if dim == 0 else (0, 2))
    assert td.repeat_interleave(0, dim=dim).batch_size == ((0, 2) if dim == 0 else (2, 0))
    with pytest.raises(RuntimeError, match="-1 times"):
        td.repeat(*((-1, 1) if dim == 0 else (1, -1)))


@pytest.mark.parametrize("dim", [0, 1])
def test_roll_in_place(dim: int) -> None:
    for dims in (0, 1, None):
        mine, theirs = (stack(library, dim, False) for library in (corral, tensordict))
        assert mine.roll(1, dims, inplace=True) is mine
        theirs.roll(1, dims, inplace=True)
        assert form(mine) == form(theirs)
        assert container(mine) == container(theirs)
    with pytest.raises(RuntimeError, match="locked"):
        stack(corral, dim, False).lock_().roll(1, 0, inplace=True)


@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_of_what_does_not_fit_says_why(dim: int) -> None:
    with pytest.raises(RuntimeError, match=rf"stack dimension {dim}.*'a'.*\[2, 3\].*\[2, 4\].*Pad them"):
        stack(corral, dim, True).softmax(dim)
    td = stack(corral, dim, False)
    td.tensordicts[0]["own"] = values(0, 2)
    with pytest.raises(RuntimeError, match=r"only some members.*'own'"):
        td.softmax(dim)


def test_all_rows_are_a_stack_of_their_own() -> None:
    td = stack(corral, 0, False)
    part = td[:]
    part.append(td[0].clone())
    assert [len(td), len(part)] == [2, 3]


INDICES: dict[str, Any] = {
    "row": 0,
    "last row": -1,
    "some rows": slice(0, 1),
    "all": slice(None),
    "rows by number": [1, 0],
    "rows by tensor": torch.tensor([1]),
    "rows by mask": torch.tensor([True, False]),
    "column": (slice(None), 0),
    "some columns": (slice(None), slice(1, None)),
    "columns by number": (slice(None), [1, 0]),
    "columns by mask": (slice(None), torch.tensor([False, True])),
    "behind an ellipsis": (..., 1),
    "an element": (0, 1),
    "elements by number": ([0, 1], [1, 0]),
    "elements by mask": torch.tensor([[True, False], [False, True]]),
    "a new dimension": None,
    "too far": 2,
}


@everywhere
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
def test_rows_with_new_keys(index: Any, dim: int, ragged: bool) -> None:
    def write(td: Any) -> Any:
        part = td[index].clone()
        size = part.batch_size
        part["z"] = values(0, *size, 2)
        part["n", "z"] = values(50, *size)
        td[index] = part
        return td

    mine, theirs = (outcome(library, dim, ragged, write) for library in (corral, tensordict))
    assert mine == theirs
