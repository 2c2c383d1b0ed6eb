"""TensorDicts in one file: all leaves one behind the other, and at its end what they are.

The form is tensordict's, so that each library reads what the other has written.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from pathlib import Path
from typing import Any, Self

import numpy as np

from corral.arrays.libraries import Library, copy_into, dtype_name, library_of, to_numpy
from corral.arrays.mapped import dtype_of, map_file, numpy_dtype
from corral.arrays.operations import nbytes
from corral.tensordict.base import Base
from corral.tensordict.directories import dtype_in, in_json, sizes
from corral.tensordict.names import some_names
from corral.tensordict.sharing import Sharing
from corral.tensordict.sizes import Size
from corral.wire.entries import in_class, make_lazy
from corral.wire.errors import CodecError

__all__ = ["Consolidation"]

_WORD = 8
_ALIGNMENT = 64
_NESTED_IN_FORM = frozenset({"cls", "non_tensors", "leaves", "cls_metadata", "size"})
_KEYS_OF_NODE = frozenset({"cls", "non_tensors", "leaves", "cls_metadata"})


class Consolidation(Sharing):
    """Write all leaves to one file, and read them from it."""

    __slots__ = ()
    _joined: tuple[Any, ...]

    def consolidate(
        self,
        filename: str | Path | None = None,
        *,
        num_threads: int = 0,
        device: Any = None,
        non_blocking: bool = False,
        inplace: bool = False,
        return_early: bool = False,
        use_buffer: bool = False,
        share_memory: bool = False,
        pin_memory: bool = False,
        metadata: bool = False,
    ) -> Self:
        """Return a TensorDict whose leaves are views of one buffer, one behind the other.

        Parameters
        ----------
        filename : path, optional
            Make the buffer a file, which `from_consolidated` reads. It takes its place when it is complete.
        device : optional
            ``"cpu"`` or nothing where a file is written.
        inplace : bool
            Replace this TensorDict's leaves.
        share_memory : bool
            Allocate the buffer in shared memory.
        num_threads, non_blocking, return_early, use_buffer, pin_memory, metadata : optional
            Accepted for compatibility.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(3), b={"c": np.ones(2)})
        >>> with tempfile.TemporaryDirectory() as path:
        ...     _ = td.consolidate(f"{path}/file")
        ...     TensorDict.from_consolidated(f"{path}/file")["b", "c"].tolist()
        [1.0, 1.0]
        """
        if filename is None:
            result = super().consolidate(inplace=inplace, share_memory=share_memory)
            result._mark_consolidated()
            return result if device is None else result.to(device)  # type: ignore[attr-defined]
        if device is not None and str(device) != "cpu":
            raise RuntimeError(f"consolidate: a file lies in host memory, so device={device} cannot be given with it")
        if inplace:
            self._refuse_if_locked()
        self._refuse_nested()
        path = Path(filename)
        leaves: list[tuple[int, Any]] = []
        form = self._form((), leaves, [0])
        _write(path, leaves, json.dumps(form).encode())
        result = _read(path, type(self), None, "r+")
        result._set_device("cpu")
        if inplace:
            self._adopt(result)
            self.clear_device_()  # type: ignore[attr-defined]
            result = self
        result._mark_consolidated()
        return result.lock_()

    def _mark_consolidated(self) -> None:
        self._joined = tuple(map(weakref.ref, self._leaves()))  # type: ignore[misc]  # a slot of Loading's

    def is_consolidated(self) -> bool:
        """Whether the leaves are still those that `consolidate` has put into one buffer.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(3), b=np.ones(2))
        >>> td.is_consolidated(), td.consolidate().is_consolidated()
        (False, True)
        """
        leaves, marked = list(self._leaves()), getattr(self, "_joined", ())
        return (
            bool(leaves)
            and len(leaves) == len(marked)
            and all(mark() is leaf for mark, leaf in zip(marked, leaves, strict=True))
        )

    def _form(self, path: tuple[str, ...], leaves: list[tuple[int, Any]], end: list[int]) -> dict[str, Any]:
        """Return what the file says of this TensorDict, and collect its leaves with their places."""
        described: dict[str, Any] = {}
        nested: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        members = self._members()
        if members is not None:
            nested = {str(i): member._form((*path, str(i)), leaves, end) for i, member in enumerate(members)}
            return _stack_form(self.stack_dim, self._stack_name, self.is_locked) | nested  # type: ignore[attr-defined]
        for key, value in self._source.items():
            if isinstance(value, Base) and value._fits_any:
                objects[key] = [_in_form(value._unwrapped(), (*path, key)), list(value._batch_size), value._device]
                continue
            if isinstance(value, Consolidation):
                if key in _NESTED_IN_FORM:
                    raise ValueError(f"consolidate: no nested TensorDict in a file can have the key {key!r}: rename it")
                if value._holds_objects:
                    nested[key] = _form_of_cells(value._cells(), value._device, (*path, key))  # type: ignore[attr-defined]
                else:
                    nested[key] = value._form((*path, key), leaves, end)
                continue
            name = dtype_name(value)
            if library_of(value) != "torch":
                numpy_dtype(name)
            start = -(-end[0] // _ALIGNMENT) * _ALIGNMENT
            size = nbytes(value)
            padding = -size % _WORD
            end[0] = start + size + padding
            leaves.append((start, value))
            library = "torch" if library_of(value) == "torch" else "numpy"
            described[key] = [f"torch.{name}", list(value.shape), start, end[0], padding, library]
        facts = {"device": self._device, "names": self._name_list(), "batch_size": list(self._batch_size)}
        return {
            "cls": "TensorDict",
            "non_tensors": objects,
            "leaves": described,
            "cls_metadata": {**facts, "is_locked": self.is_locked},
            **nested,
        }

    @classmethod
    def from_consolidated(cls, filename: str | Path, *, library: Library | None = None) -> Any:
        """Return the TensorDict that `consolidate`, or tensordict's, has written to a file.

        Its leaves are views of the file's memory; what is written to them stays in this process.

        Parameters
        ----------
        filename : path
            The file.
        library : {"numpy", "torch"}, optional
            Library of the leaves: see `load_memmap`.

        Raises
        ------
        ValueError
            If the file was not written to its end, or is not of this form.
        """
        return _read(Path(filename), cls, library, "r")


def _write(path: Path, leaves: list[tuple[int, Any]], form: bytes) -> None:
    """Write a file next to its place, and put it there when it is complete."""
    work = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with open(work, "xb") as file:
            for start, leaf in leaves:
                file.write(bytes(start - file.tell()))
                file.write(_bytes_of(leaf))
                file.write(bytes(-file.tell() % _WORD))
            file.write(form)
            file.write(len(form).to_bytes(_WORD, "little"))
        os.replace(work, path)
    except BaseException:
        work.unlink(missing_ok=True)
        raise


def _bytes_of(leaf: Any) -> Any:
    if library_of(leaf) == "torch":
        import torch

        plain = torch.empty(tuple(leaf.shape), dtype=leaf.dtype)
        copy_into(plain, leaf.to_dense() if leaf.layout is not torch.strided else leaf)
        return plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b""
    array = to_numpy(leaf)
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
    return native.reshape(-1).view(np.uint8).data


def _read(path: Path, kind: type[Any], library: Library | None, mode: str) -> Any:
    wrong = f"from_consolidated: {path} is no file that consolidate has written to its end"
    size = path.stat().st_size
    with open(path, "rb") as file:
        file.seek(max(size - _WORD, 0))
        length = int.from_bytes(file.read(_WORD), "little")
        if not 0 < length <= size - _WORD:
            raise ValueError(f"{wrong}: its last bytes tell a length of {length} in {size} bytes")
        file.seek(size - _WORD - length)
        try:
            form = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError(f"{wrong}: {error}") from error
    return _node(path, form, kind, library, mode, size - _WORD - length, wrong)


def _stack_form(stack_dim: int, name: Any, locked: bool) -> dict[str, Any]:
    facts = {"stack_dim": stack_dim, "stack_dim_name": name, "is_locked": locked}
    return {"cls": "LazyStackedTensorDict", "non_tensors": {}, "leaves": {}, "cls_metadata": facts}


def _form_of_cells(cells: Any, device: str | None, path: tuple[str, ...]) -> dict[str, Any]:
    """Return what the file says of objects, one for each element of a batch: stacks in stacks."""
    form = _stack_form(0, None, False) | {"cls": "NonTensorStack"}
    if cells.ndim > 1:
        return form | {str(i): _form_of_cells(row, device, path) for i, row in enumerate(cells)}
    return form | {"non_tensors": {str(i): [_in_form(each, path), [], device] for i, each in enumerate(cells)}}


def _in_form(data: Any, path: tuple[str, ...]) -> Any:
    if in_json(data):
        return data
    raise TypeError(
        f"consolidate: the entry {path if len(path) > 1 else path[0]!r} is a {type(data).__qualname__}: of what is no "
        "array, such a file holds text, numbers, None, and lists and dicts of them. Leave it out by exclude(), or save "
        "it with memmap()"
    )


def _node(path: Path, form: Any, kind: type[Any], library: Library | None, mode: str, end: int, wrong: str) -> Any:
    name = form.get("cls") if isinstance(form, dict) else form
    if not isinstance(form, dict) or not form.keys() >= _KEYS_OF_NODE or not isinstance(name, str):
        raise ValueError(f"{wrong}: a TensorDict is expected, not {name!r}")
    facts, leaves, objects = form["cls_metadata"], form["leaves"], form["non_tensors"]
    if not isinstance(facts, dict) or not isinstance(leaves, dict) or not isinstance(objects, dict):
        raise ValueError(f"{wrong}: it describes entries as {leaves!r} and {objects!r}")
    source: dict[str, Any] = {}
    for key, entry in leaves.items():
        source[key] = _leaf(path, key, entry, library, mode, end, wrong)
    for key, entry in objects.items():
        source[key] = _object(key, entry, wrong)
    for key, entry in form.items():
        if key not in _NESTED_IN_FORM:
            source[key] = _node(path, entry, kind._entry_class(), library, mode, end, wrong)
    if name in ("LazyStackedTensorDict", "NonTensorStack"):
        return _stack(name, source, facts, wrong)
    if name != "TensorDict" and not name.startswith("<class '"):
        raise ValueError(f"{wrong}: a TensorDict is expected, not {name!r}")
    size = Size(sizes(facts.get("batch_size"), "the batch size"))
    for key, value in source.items():
        if tuple(value.shape[: len(size)]) != size:
            raise ValueError(f"{wrong}: the shape {Size(value.shape)} of {key!r} does not start with {size}")
    device, names = facts.get("device"), facts.get("names") or [None] * len(size)
    if (
        not isinstance(names, list)
        or len(names) != len(size)
        or not all(each is None or isinstance(each, str) for each in names)
    ):
        raise ValueError(f"{wrong}: the names of the dimensions of {size} are {names!r}")
    result = kind._make(source, size, None if device is None else str(device), some_names(tuple(names)))
    if name != "TensorDict":  # a tensorclass of the package tensordict, if this process has one of that name
        result = in_class(result, name.removeprefix("<class '").removesuffix("'>"))
    return result.lock_() if facts.get("is_locked") else result


def _object(key: str, entry: Any, wrong: str) -> Any:
    from corral.tensordict.nontensor import NonTensorData

    if not isinstance(entry, list) or len(entry) != 3 or not (entry[2] is None or isinstance(entry[2], str)):
        raise ValueError(f"{wrong}: {key!r} is described as {entry!r}")
    return NonTensorData(entry[0], sizes(entry[1], f"the batch size of {key!r}"), entry[2])


def _stack(name: str, source: dict[str, Any], facts: dict[str, Any], wrong: str) -> Any:
    from corral.tensordict.lazy import LazyStackedTensorDict
    from corral.tensordict.nontensor import NonTensorStack

    members = [source.get(str(i)) for i in range(len(source))]
    stack_dim, stack_name = facts.get("stack_dim"), facts.get("stack_dim_name")
    known = stack_name is None or isinstance(stack_name, str)
    is_lazy = name == "LazyStackedTensorDict"
    if (
        type(stack_dim) is not int
        or not known
        or not all(isinstance(each, Base) and each._holds_objects is not is_lazy for each in members)
    ):
        raise ValueError(f"{wrong}: a stack of {sorted(source)} along dimension {stack_dim!r}")
    try:
        if not is_lazy:
            return NonTensorStack(*members, stack_dim=stack_dim)
        result = make_lazy(stack_dim, members, stack_name)
    except (CodecError, ValueError, RuntimeError) as error:
        raise ValueError(f"{wrong}: {error}") from error
    assert isinstance(result, LazyStackedTensorDict)
    return result.lock_() if facts.get("is_locked") else result


def _leaf(path: Path, key: str, entry: Any, library: Library | None, mode: str, end: int, wrong: str) -> Any:
    if not isinstance(entry, list) or len(entry) not in (5, 6) or key.startswith("<NJT"):
        raise ValueError(f"{wrong}: {key!r} is described as {entry!r}")
    name = dtype_in({"dtype": entry[0]}, repr(key))
    shape, start = sizes(entry[1], f"the shape of {key!r}"), entry[2]
    kind: Library = library or ("numpy" if entry[5:] == ["numpy"] else "torch")
    if library == "torch":
        import torch  # noqa: F401 - it is asked for
    elif "torch" not in sys.modules:
        kind = "numpy"
    item = dtype_of(name, kind).itemsize
    needed = int(np.prod(shape, dtype=object)) * item
    if type(start) is not int or not 0 <= start <= end - needed:
        raise ValueError(f"{wrong}: {key!r} is at byte {start}, behind which there are not {needed} bytes")
    if not needed or start % item == 0:
        return map_file(path, name, shape, kind, mode, start)
    raw = map_file(path, "uint8", (needed,), kind, mode, start)  # where torch cannot have a view of the file
    if kind == "torch":
        return raw.clone().view(dtype_of(name, kind)).view(shape)
    return raw.view(dtype_of(name, kind)).reshape(shape)
