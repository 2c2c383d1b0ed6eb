"""TensorDicts in safetensors files."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from corral.arrays.dtypes import EXTENDED
from corral.arrays.libraries import Library, convert, dtype_name, library_of, to_numpy
from corral.tensordict.base import Base
from corral.tensordict.lazy_entries import Ragged
from corral.tensordict.safetensors_reading import FORMATS, KEY, VERSION, Reader
from corral.tensordict.tensorclass_kinds import name_of

__all__ = ["SafetensorsFiles"]

_DTYPES = frozenset(
    {
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("bool", "float16", "float32", "float64", "complex64"),
        *FORMATS.values(),
    }
)


class SafetensorsFiles(Base):
    """To and from safetensors files, which tensordict reads, and which it may have written."""

    __slots__ = ()

    def to_safetensors(self, path: str | Path) -> None:
        """Write a safetensors file, as tensordict's function of this name does.

        Each leaf has its nested key, joined with dots, as its name, as in the state of a torch module. What else
        there is to know lies in the file's metadata: batch sizes, names of dimensions, tensorclasses, lazy stacks and
        objects that JSON can hold. Leaves that share memory are written one by one; a lazy stack is written stacked.

        Parameters
        ----------
        path : path
            The file; one that exists is replaced when the new one is complete.

        Raises
        ------
        ModuleNotFoundError
            If safetensors is not installed.
        TypeError
            If an entry cannot be in such a file: another object, one object for each element, an array of another
            dtype, a sparse one; entries of a lazy stack that differ in shape, or members that differ in keys.
        ValueError
            If two leaves would have one name.

        Examples
        --------
        >>> import tempfile, numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(obs=np.zeros((4, 2)), info={"step": np.arange(4)}, batch_size=[4])
        >>> with tempfile.TemporaryDirectory() as path:
        ...     td.to_safetensors(f"{path}/steps.safetensors")
        ...     TensorDict.from_safetensors(f"{path}/steps.safetensors")["info"]
        TensorDict(batch_size=[4], library=numpy, fields={step: i64[]})
        """
        _library("to_safetensors")
        if self._holds_objects:
            raise TypeError("to_safetensors: an entry of objects is no TensorDict: write one that has it as an entry")
        leaves: dict[str, Any] = {}
        description = json.dumps({"version": VERSION, "root": _described(self, (), leaves)})
        target = Path(path)
        # A directory of its own, as the file's permissions are then those of any new file.
        import tempfile

        with tempfile.TemporaryDirectory(prefix=".tdtmp-", dir=target.parent) as work:
            new = Path(work) / "new.safetensors"
            _write(leaves, new, {KEY: description})
            os.replace(new, target)

    @classmethod
    def from_safetensors(cls, path: str | Path, *, device: Any = None, library: Library | None = None) -> Any:
        """Return the TensorDict of a safetensors file.

        One that `to_safetensors`, or tensordict's, has written comes back with its batch sizes, names of dimensions,
        lazy stacks, objects and those tensorclasses that this process has defined. Any other file gives nested
        TensorDicts without batch dimensions, by the dots in its names.

        Parameters
        ----------
        path : path
            The file.
        device : optional
            Where the leaves shall lie.
        library : {"numpy", "torch", "jax", "cupy"}, optional
            Library of the leaves. By default NumPy's leaves are NumPy's again, and others are torch's, but NumPy's in
            a process that has not imported torch.

        Raises
        ------
        ModuleNotFoundError
            If safetensors is not installed, or ml_dtypes where NumPy's leaves need it.
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is no safetensors file, or its leaves are not what its metadata say.

        Examples
        --------
        >>> import tempfile, numpy as np
        >>> from corral import TensorDict
        >>> from safetensors.numpy import save_file
        >>> with tempfile.TemporaryDirectory() as path:
        ...     save_file({"0.weight": np.ones((4, 3)), "0.bias": np.zeros(4)}, f"{path}/model.safetensors")
        ...     TensorDict.from_safetensors(f"{path}/model.safetensors", library="numpy")["0", "weight"].shape
        (4, 3)
        """
        safetensors = _library("from_safetensors")
        if library not in (None, "numpy", "torch", "jax", "cupy"):
            raise ValueError(
                f"from_safetensors: library must be 'numpy', 'torch', 'jax', 'cupy' or None, not {library!r}"
            )
        if not Path(path).exists():
            raise FileNotFoundError(f"from_safetensors: there is no file {path}")
        with ExitStack() as stack:
            try:
                reader = Reader(Path(path), safetensors, stack, device, library)
                return reader.read()
            except safetensors.SafetensorError as error:
                raise ValueError(f"from_safetensors: {path} is no safetensors file to be read: {error}") from error


def _library(what: str) -> Any:
    """Return safetensors, or say how to get it."""
    try:
        import safetensors
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{what} needs safetensors, which is not installed: pip install 'corral[safetensors]'"
        ) from error
    return safetensors


def _described(td: Any, path: tuple[str, ...], leaves: dict[str, Any]) -> dict[str, Any]:
    """Return what the metadata say of a TensorDict, and add its leaves to those that are to be written."""
    names = td._names
    level: dict[str, Any] = {"batch_size": list(td._batch_size), "names": None if names is None else list(names)}
    if td._members() is not None:
        _check_stack(td, path)
        level["stack_dim"] = td.stack_dim
    if name_of(type(td)):
        level["class"] = f"<class '{name_of(type(td))}'>"
    entries = level["keys"] = {}
    for key in list(td._source):
        here = (*path, key)
        value = td._source[key]
        if not isinstance(value, Base):
            name = ".".join(here)
            if name in leaves or name == "__metadata__":
                taken = "another leaf has" if name in leaves else "the file's metadata have"
                raise ValueError(
                    f"to_safetensors: the leaf {_shown(here)} would be {name!r} in the file, a name that {taken}: "
                    "rename its key"
                )
            _check_leaf(value, here)
            leaves[name] = value
            # tensordict, all of whose leaves are torch's, does not look at the library.
            entries[key] = {"tensor": name} | ({} if library_of(value) == "torch" else {"library": "numpy"})
        elif value._holds_objects:
            entries[key] = {"non_tensor": _in_json(value, here)}
        else:
            entries[key] = {"td": _described(value, here, leaves)}
    return level


def _check_stack(td: Any, path: tuple[str, ...]) -> None:
    """Raise if a lazy stack has no dense form of the same entries."""
    members = td._members()
    if any(set(member._source) != set(members[0]._source) for member in members):
        raise TypeError(
            f"to_safetensors: the members of the lazy stack {_shown(path)} have different keys, and all must have the "
            "same: select() those that all have"
        )
    for member in members:
        if member._members() is not None:
            _check_stack(member, path)
    ragged = [key for key, value in td._peeks() if isinstance(value, Ragged) and -1 in value.shape]
    if ragged or -1 in td._batch_size:
        what = f"the entries {ragged}" if ragged else "the batch sizes"
        raise TypeError(
            f"to_safetensors: {what} of the lazy stack {_shown(path)} differ in shape, and a leaf in a file has one "
            "shape: pad them, or write each member into a file of its own"
        )


def _check_leaf(leaf: Any, path: tuple[str, ...]) -> None:
    """Raise if a leaf cannot be written."""
    if library_of(leaf) == "torch":
        kind = "nested" if leaf.is_nested else str(leaf.layout)
        if kind != "torch.strided":
            raise TypeError(
                f"to_safetensors: the leaf {_shown(path)} is a tensor of layout {kind}, and a dense one is expected: "
                "call its to_dense() or to_padded_tensor()"
            )
        if leaf.device.type == "meta":
            raise TypeError(f"to_safetensors: the leaf {_shown(path)} lies on the device 'meta', without values")
    name = dtype_name(leaf)
    if name not in _DTYPES:
        raise TypeError(
            f"to_safetensors: the leaf {_shown(path)} has dtype {name}, which safetensors files do not know: cast it "
            "to one that they do, as float64 or int64"
        )


def _in_json(entry: Any, path: tuple[str, ...]) -> Any:
    if not entry._fits_any:
        raise TypeError(
            f"to_safetensors: the entry {_shown(path)} has an object for each element, and one for the whole batch is "
            "what safetensors files hold: use memmap() or to_zarr(), or set_non_tensor() with a list"
        )
    data = entry._unwrapped()
    if not _is_json(data):
        raise TypeError(
            f"to_safetensors: the object {_shown(path)}, a {type(data).__name__}, is none that JSON gives back (str, "
            "int, float, bool, None, lists and dicts of them): use memmap() or to_zarr(), which can pickle it"
        )
    return data


def _is_json(data: Any) -> bool:
    if type(data) is list:
        return all(map(_is_json, data))
    if type(data) is dict:
        return all(type(key) is str and _is_json(value) for key, value in data.items())
    return data is None or type(data) in (str, int, float, bool)


def _shown(path: tuple[str, ...]) -> str:
    return repr(path[0] if len(path) == 1 else path) if path else "that is written"


def _write(leaves: dict[str, Any], file: Path, metadata: dict[str, str]) -> None:
    """Write leaves with safetensors: through torch if one of its tensors has a dtype that NumPy itself lacks."""
    if any(library_of(leaf) == "torch" and dtype_name(leaf) in EXTENDED for leaf in leaves.values()):
        from safetensors.torch import save_file

        tensors: dict[str, Any] = {}
        storages: set[int] = set()
        for name, leaf in leaves.items():
            tensor = convert(leaf, "torch").detach().cpu().resolve_conj().resolve_neg().contiguous()
            storage = tensor.untyped_storage().data_ptr()
            tensors[name] = tensor.clone() if storage in storages else tensor  # safetensors refuses shared memory
            storages.add(storage)
        save_file(tensors, file, metadata)
        return
    from safetensors.numpy import save_file

    # Not ascontiguousarray, which gives an array without dimensions one; safetensors writes memory as it lies.
    arrays = {name: np.asarray(to_numpy(leaf), order="C") for name, leaf in leaves.items()}
    save_file(arrays, file, metadata)
