"""Values that are no arrays in HDF5 files and zarr stores, as tensordict writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from corral.tensordict import hdf5, zarr_stores
from corral.tensordict.nontensor import NonTensorStack
from corral.tensordict.object_arrays import cells

__all__ = ["check", "create", "read"]

# tensordict's marks: of a dataset that holds one string, and of one that holds an object for each element.
STRING = "__tensordict_str__"
STACK = "__tensordict_stack__"


def read(node: Any, rows: tuple[Any, ...] | None = None) -> Any:
    """Return what an entry says that holds no numbers; of objects for each element, those of some rows."""
    shape = node.attrs.get(STACK)
    if shape is not None:
        stack = NonTensorStack._of(cells(_listed(node), len(shape)))
        return stack if rows is None else stack[rows]
    if isinstance(node, zarr_stores.Array):
        return node.value()
    value = node[()]
    if isinstance(value, bytes) and node.attrs.get(STRING, False):
        return value.decode()
    return value.item() if isinstance(value, np.ndarray) and not value.ndim else value


def _listed(node: Any) -> Any:
    if isinstance(node, zarr_stores.Array):
        return node.value() if zarr_stores.VALUE in node.attrs else node[...].tolist()
    strings = hdf5.library().check_string_dtype(node.dtype)
    return (node.asstr() if strings is not None and strings.length is None else node)[()].tolist()


def check(group: Any, key: str, value: Any) -> None:
    """Raise a TypeError or ValueError if a file of HDF5 cannot hold a value that is no array."""
    if isinstance(group, zarr_stores.Group):
        return
    if isinstance(value, NonTensorStack):
        _in_hdf5(key, value)
    elif not isinstance(value := getattr(value, "data", value), str):
        _one_in_hdf5(key, value)


def create(group: Any, key: str, value: Any) -> None:
    """Store a value that is no array as an entry that there is not yet, or raise a TypeError."""
    if isinstance(value, NonTensorStack):
        _create_stack(group, key, value)
        return
    value = getattr(value, "data", value)
    if isinstance(group, zarr_stores.Group):
        group.create_value(key, value, {})
    elif isinstance(value, str):
        group.create_dataset(key, data=value).attrs[STRING] = True
    else:
        group.create_dataset(key, data=_one_in_hdf5(key, value))


def _one_in_hdf5(key: str, value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind not in "biufcS":
        raise TypeError(f"the value of key {key!r}, a {type(value).__name__}, cannot be stored in an HDF5 file")
    return _opaque(array)


def _create_stack(group: Any, key: str, stack: NonTensorStack) -> None:
    objects, kinds = stack.tolist(), {type(each) for each in stack.flat()}
    mark = {STACK: list(stack.batch_size)}
    if isinstance(group, zarr_stores.Group):
        if kinds <= {str}:
            group.create_dataset(key, dtype=str, data=np.array(objects), attributes=mark)
        else:
            group.create_value(key, objects, mark)
        return
    group.create_dataset(key, data=_in_hdf5(key, stack)).attrs.update(mark)


def _in_hdf5(key: str, stack: NonTensorStack) -> np.ndarray[Any, Any]:
    objects, kinds = stack.tolist(), {type(each) for each in stack.flat()}
    if kinds <= {str}:
        array = np.array(objects, dtype=hdf5.library().string_dtype())
        if any("\x00" in each for each in stack.flat()):
            raise ValueError(f"the value of key {key!r}, a string with a zero byte, cannot be stored in an HDF5 file")
    elif len(kinds) == 1 and kinds <= {bytes, bool, int, float}:
        array = _opaque(np.array(objects))
    else:
        raise TypeError(
            f"the values of key {key!r} cannot be stored in an HDF5 file: they must be all strings, bytes, or numbers "
            f"of one type, and are of {sorted(kind.__name__ for kind in kinds)}; to_zarr and memmap store them"
        )
    return array


def _opaque(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(hdf5.library().opaque_dtype(array.dtype))
