"""The same nested structure as corral's TensorDict, with leaves of several libraries, and as tensordict's."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

NUMBERS = ("float32", "float64", "int64", "int32", "uint8")
DTYPES = (*NUMBERS, "bool", "float16", "complex64", "int16", "int8", "complex128")
_NAMES = ("a", "b", "c", "obs")
_PATHS = [(name,) for name in _NAMES] + [("n", name) for name in _NAMES] + [("n", "m", "a"), ("z", "b")]

Spec = list[tuple[tuple[str, ...], tuple[int, ...], str, bool]]
"""Of each leaf the path, the shape behind the batch size, the dtype, and whether it is transposed."""


def specs(dtypes: tuple[str, ...] = DTYPES) -> st.SearchStrategy[Spec]:
    leaf = st.tuples(
        st.sampled_from(_PATHS),
        st.lists(st.integers(0, 4), max_size=2).map(tuple),
        st.sampled_from(dtypes),
        st.booleans(),
    )
    return st.lists(leaf, max_size=5, unique_by=lambda each: each[0])


def values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Small whole numbers, of which sums are exact, that differ from place to place and from seed to seed."""
    count = int(np.prod(shape, dtype=int))
    numbers = (np.arange(count) * 3 + seed * 7 + 1) % 23
    return (numbers % 2 if dtype == "bool" else numbers).astype(dtype).reshape(shape)


def arrays(spec: Spec, seed: int) -> dict[Any, np.ndarray[Any, Any]]:
    """Return each leaf's array; two rows in each."""
    found = {}
    for index, (path, tail, dtype, transposed) in enumerate(spec):
        array = values((2, *tail), dtype, seed + index)
        found[path] = np.ascontiguousarray(array.T).T if transposed else array
    return found


def ours(spec: Spec, seed: int, library: str = "numpy") -> Any:
    """Build one of corral; the order of its keys, and with "mixed" its libraries, depend on the seed."""
    import torch

    import corral

    td = corral.TensorDict(batch_size=[2])
    items = list(arrays(spec, seed).items())
    for index, (path, array) in enumerate(items if seed % 2 else items[::-1]):
        torchy = library == "torch" or (library == "mixed" and (seed + index) % 2)
        td[path] = _tensor(torch, array) if torchy else array
    return td


def theirs(spec: Spec, seed: int) -> Any:
    """Build one of tensordict."""
    import tensordict
    import torch

    td = tensordict.TensorDict(batch_size=[2])
    for path, array in arrays(spec, seed).items():
        td[path] = torch.from_numpy(np.ascontiguousarray(array))  # gloo takes no other strides
    return td


def _tensor(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    steps = tuple(step // array.itemsize for step in array.strides)
    return torch.empty_strided(array.shape, steps, dtype=getattr(torch, array.dtype.name)).copy_(
        torch.from_numpy(array.copy())
    )


def plain(value: Any) -> Any:
    """Return a TensorDict's keys, dtypes, shapes and values, whoever's it is, in a form that can be compared."""
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, list):
        return [plain(each) for each in value]
    if hasattr(value, "batch_size"):
        leaves = value.items(include_nested=True, leaves_only=True)
        return sorted((key if isinstance(key, tuple) else (key,), plain(leaf)) for key, leaf in leaves)
    name = str(value.dtype).removeprefix("torch.")
    return name, tuple(value.shape), value.tolist()


def addresses(td: Any) -> dict[Any, int]:
    """Return where each leaf's memory is."""
    return {
        key: leaf.__array_interface__["data"][0] if isinstance(leaf, np.ndarray) else leaf.data_ptr()
        for key, leaf in td.items(True, True)
    }
