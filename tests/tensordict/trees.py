"""Random nested structures as the same TensorDict in three forms, and a comparison of results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensordict
import torch
from hypothesis import strategies as st

import corral
from corral.arrays.libraries import library_of
from corral.tensordict.base import Base

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "float16", "complex64")
NAMES = ("a", "b", "c", "obs", "x_y")


def fill(shape: tuple[int, ...], dtype: str, start: int) -> np.ndarray[Any, Any]:
    """Every element differs from all others, as far as the dtype can tell."""
    count = int(np.prod(shape, dtype=int))
    values = np.arange(start, start + count)
    return (values % 3 == 0 if dtype == "bool" else values).astype(dtype).reshape(shape)


def batch_sizes(min_dims: int = 0, max_dims: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 4), min_size=min_dims, max_size=max_dims).map(tuple)


@st.composite
def sources(draw: Any, batch_size: tuple[int, ...], dtypes: tuple[str, ...] = DTYPES, depth: int = 2) -> Any:
    """A nested dict of NumPy arrays whose shapes start with the batch size."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    source: dict[str, Any] = {}
    for name in names:
        if depth and draw(st.integers(0, 3)) == 0:
            source[name] = draw(sources(batch_size, dtypes, depth - 1))
            continue
        shape = (*batch_size, *draw(st.lists(st.integers(0, 3), max_size=2)))
        array = fill(shape, draw(st.sampled_from(dtypes)), draw(st.integers(0, 60)))
        if shape and draw(st.booleans()):  # the same values with other strides
            array = np.ascontiguousarray(array.T).T
        source[name] = array
    return source


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}
    return function(tree)


def forms(source: Any, batch_size: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return tensordict's, corral's with torch leaves, corral's with NumPy leaves; none shares memory."""

    def tensor(x: Any) -> Any:
        return torch.empty_strided(
            x.shape, tuple(s // x.itemsize for s in x.strides), dtype=getattr(torch, x.dtype.name)
        ).copy_(torch.from_numpy(x.copy()))

    return (
        tensordict.TensorDict(tree_map(tensor, source), batch_size=batch_size),
        corral.TensorDict(tree_map(tensor, source), batch_size=batch_size),
        corral.TensorDict(tree_map(lambda x: x.copy("K"), source), batch_size=batch_size),
    )


def outcome(function: Callable[[Any], Any], td: Any) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(td)
    except Exception as error:  # what matters is that there is one
        return error


def plain(value: Any) -> Any:
    """Return a result in a form that can be compared: values, dtypes, batch sizes."""
    if isinstance(value, Exception):
        return "an error"
    if isinstance(value, (tensordict.TensorDictBase, Base)):
        return tuple(value.batch_size), {key: plain(entry) for key, entry in sorted(value.items())}
    if isinstance(value, torch.Tensor):
        return str(value.dtype)[6:], tuple(value.shape), value.tolist()
    if library_of(value) == "jax":
        value = np.asarray(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.name, tuple(value.shape), value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return value


def same(function: Callable[[Any], Any], tds: tuple[Any, ...]) -> Any:
    """Assert that a function has one result for all forms; return what it is for each."""
    results = [outcome(function, td) for td in tds]
    reference = plain(results[0])
    for result in results[1:]:
        found = plain(result)
        detail = f"{results[0]!r}\n!=\n{result!r}"
        assert repr(found) == repr(reference), detail
    return results
