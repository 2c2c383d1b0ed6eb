"""Build the same TensorDict in corral and in tensordict, and compare what comes of an operation on both."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from corral import LazyStackedTensorDict, TensorDict
from corral.arrays import library_of, to_numpy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict

KEYS = ("a", "b", "c", "d")
made_of: list[Callable[[Any], Any]] = [torch.from_numpy]
"""What makes the leaves of the TensorDicts that are being compared, last."""
DTYPES = ("float32", "int64", "uint8", "bool", "float64", "complex64", "int16")


class Counter:
    """Hands out arrays whose elements all differ, as far as their dtype can tell them apart."""

    def __init__(self) -> None:
        self.next = 1

    def array(self, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
        count = int(np.prod(shape, dtype=np.int64))
        values = np.arange(self.next, self.next + count)
        self.next += count
        if dtype == "bool":
            return (values * values % 7 < 3).reshape(shape)
        return values.astype(dtype).reshape(shape)


Spec = dict[str, Any]
"""Keys to (shape behind the batch, dtype), or (further batch dimensions, spec) for a nested one."""


def specs(depth: int = 2, dtypes: tuple[str, ...] = DTYPES, min_size: int = 0) -> st.SearchStrategy[Spec]:
    """Structures of random keys, shapes and dtypes."""
    shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)
    leaf = st.tuples(st.just("leaf"), shapes, st.sampled_from(dtypes))
    entry: st.SearchStrategy[Any] = leaf
    if depth:
        more = st.lists(st.integers(1, 2), max_size=1).map(tuple)
        entry = leaf | st.tuples(st.just("nested"), more, specs(depth - 1, dtypes, min_size))
    return st.dictionaries(st.sampled_from(KEYS), entry, min_size=min_size, max_size=3)


def batches(min_dims: int = 0, max_dims: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    """Batch sizes."""
    return st.lists(st.integers(0, 4) | st.integers(1, 3), min_size=min_dims, max_size=max_dims).map(tuple)


def build(spec: Spec, batch: tuple[int, ...], make: Callable[..., Any], leaf: Callable[[Any], Any]) -> Any:
    """Return a TensorDict of a structure; the same arguments give the same values."""
    return _build(spec, batch, make, leaf, Counter())


def _build(spec: Spec, batch: tuple[int, ...], make: Callable[..., Any], leaf: Any, counter: Counter) -> Any:
    source = {}
    for key, (kind, shape, rest) in spec.items():
        if kind == "nested":
            source[key] = _build(rest, (*batch, *shape), make, leaf, counter)
        else:
            source[key] = leaf(counter.array((*batch, *shape), rest))
    return make(source, batch_size=list(batch))


def both(spec: Spec, batch: tuple[int, ...]) -> tuple[TensorDict, Any]:
    """Return corral's and tensordict's TensorDict of a structure, with torch's tensors as leaves."""
    return (
        build(spec, batch, TensorDict, torch.from_numpy),
        build(spec, batch, tensordict.TensorDict, torch.from_numpy),
    )


def outcome(function: Callable[[Any], Any], td: Any) -> tuple[Any, Exception | None]:
    """Return a function's result, or the exception it raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(td), None
    except Exception as error:
        return None, error


def assert_same(mine: Any, theirs: Any, where: str = "result", dtypes: bool = True) -> None:
    """Assert that two results have the same keys, batch sizes, shapes, dtypes and values."""
    if isinstance(mine, (TensorDict, LazyStackedTensorDict)):
        assert tensordict.is_tensor_collection(theirs), f"{where}: {theirs!r} is no TensorDict"
        assert set(mine.keys()) == set(theirs.keys()), f"{where}: keys"
        assert tuple(mine.batch_size) == tuple(theirs.batch_size), f"{where}: batch size"
        assert mine.is_locked == theirs.is_locked, f"{where}: is_locked"
        assert str(mine.device) == str(theirs.device), f"{where}: device"
        for key in mine.keys():  # noqa: SIM118
            assert_same(mine.get(key), theirs.get(key), f"{where}[{key!r}]", dtypes)
    elif isinstance(mine, (list, tuple)) and not isinstance(mine, (str, torch.Size)):
        assert len(mine) == len(theirs), f"{where}: length"
        for i, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            assert_same(one, other, f"{where}[{i}]", dtypes)
    elif isinstance(mine, dict):
        assert mine.keys() == theirs.keys(), f"{where}: keys"
        for key, value in mine.items():
            assert_same(value, theirs[key], f"{where}[{key!r}]", dtypes)
    elif library_of(mine) != "other":
        one, other = to_numpy(mine), to_numpy(theirs)
        assert one.shape == other.shape, f"{where}: shapes {one.shape} and {other.shape}"
        assert not dtypes or one.dtype == other.dtype, f"{where}: dtypes {one.dtype} and {other.dtype}"
        np.testing.assert_array_equal(one, other, err_msg=where)
    else:
        assert mine == theirs, f"{where}: {mine!r} and {theirs!r}"


def compare(function: Callable[[Any], Any], spec: Spec, batch: tuple[int, ...]) -> None:
    """Assert that a function does the same to both TensorDicts, and to one with NumPy's arrays.

    Both fail or neither does; results are the same; what the function did to its argument is the same, and so is
    whether the result is made of the argument's memory.
    """
    mine, theirs = both(spec, batch)
    mine_result, mine_error = outcome(function, mine)
    theirs_result, theirs_error = outcome(function, theirs)
    said = f"corral: {mine_error!r}; tensordict: {theirs_error!r}"
    assert (mine_error is None) == (theirs_error is None), said
    if mine_error is not None and theirs_error is not None:
        kinds = (type(theirs_error), RuntimeError, ValueError, IndexError)
        assert isinstance(mine_error, kinds) or type(theirs_error) in (AssertionError, AttributeError), said
        return
    assert_same(mine_result, theirs_result)
    assert_same(mine, theirs, "argument")
    assert aliases(mine_result, mine) == aliases(theirs_result, theirs), "memory is shared in one of the two only"
    compare_numpy(function, spec, batch, mine_result, mine)


def compare_numpy(function: Any, spec: Spec, batch: tuple[int, ...], result: Any, argument: Any) -> None:
    """Assert that a function does to NumPy's leaves what it did to torch's."""
    td = build(spec, batch, TensorDict, np.asarray)
    made_of.append(np.asarray)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of means of nothing, and of complex numbers made real
            mine = function(td)
    finally:
        made_of.pop()
    assert_same_values(mine, result)
    assert_same_values(td, argument, "argument")
    assert all(type(leaf) is np.ndarray for leaf in td.values(True, True))


def assert_same_values(mine: Any, theirs: Any, where: str = "result") -> None:
    """Assert that results with NumPy's and torch's leaves are the same."""
    if isinstance(mine, TensorDict):
        assert all(type(leaf) is np.ndarray for leaf in mine.values(True, True)), f"{where}: a leaf is not NumPy's"
        assert list(mine.keys(True)) == list(theirs.keys(True)), f"{where}: keys"
        assert mine.batch_size == theirs.batch_size, f"{where}: batch size"
        assert_same(list(mine.values(True, True)), list(theirs.values(True, True)), where, dtypes=False)
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs)
        for i, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            assert_same_values(one, other, f"{where}[{i}]")
    elif library_of(mine) != "other":
        assert_same(mine, theirs, where, dtypes=False)


def aliases(result: Any, argument: Any) -> list[bool]:
    """For every leaf of a result, say whether it lies in the memory of a leaf of the argument."""
    places = {_storage(leaf) for leaf in argument.values(True, True)} - {0}
    return [_storage(leaf) in places for leaf in _tensors(result)]


def _tensors(result: Any) -> list[Any]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, TensorDict) or tensordict.is_tensor_collection(result):
        return [leaf for _, leaf in sorted(result.items(True, True), key=lambda pair: str(pair[0]))]
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in _tensors(item)]
    return []


def _storage(leaf: Any) -> int:
    return int(leaf.untyped_storage().data_ptr()) if isinstance(leaf, torch.Tensor) and leaf.numel() else 0
