"""TensorDicts from the files that others, or other libraries, have saved."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Self

from corral.arrays.libraries import Library
from corral.arrays.mapped import dtype_of, map_file
from corral.arrays.operations import nbytes
from corral.tensordict import directories
from corral.tensordict.base import Base, device_name
from corral.tensordict.nested_keys import unravel_key
from corral.tensordict.progress import Bar
from corral.tensordict.sizes import Size

__all__ = ["Loader", "Loading"]


class Loading(Base):
    """Load from files that are mapped into memory."""

    # The directory that this TensorDict was saved in, and whether it is memory-mapped; not set if neither. References
    # to the leaves that `consolidate` has put into one buffer.
    __slots__ = ("_joined", "_saved")
    _saved: tuple[Path | None, bool]
    _joined: tuple[Any, ...]

    def is_memmap(self) -> bool:
        """Whether `memmap`, `memmap_` or `memmap_like` made this TensorDict, and it has not been unlocked since."""
        return bool(getattr(self, "_saved", (None, False))[1])

    @property
    def saved_path(self) -> Path | None:
        """The directory that the files of a memory-mapped TensorDict are in; ``None`` if its memory has no name."""
        if not self.is_memmap():
            raise AttributeError("the TensorDict has no saved path: it is not memory-mapped")
        return self._saved[0]

    def _note(self, path: Path | None, mapped: bool, robust: bool | None = True) -> None:
        self._saved = (path, mapped)
        for key, value in self._source.items():
            if isinstance(value, Loading):
                value._note(None if path is None else path / directories.encode(key, robust), mapped, robust)

    @classmethod
    def load_memmap(
        cls,
        prefix: str | Path,
        device: Any = None,
        non_blocking: bool = False,
        *,
        out: Any = None,
        robust_key: bool | None = True,
        subpath: Any = None,
        mode: str | None = None,
        num_threads: int = 0,
        allow_pickle: bool | None = None,
        library: Library | None = None,
        progress: bool | None = None,
    ) -> Any:
        """Return the TensorDict that `memmap`, or tensordict's, has saved in a directory.

        No leaf is read before it is used. Nothing is unpickled, unless it is asked for.

        Parameters
        ----------
        prefix : path
            The directory.
        device : optional
            Where the leaves shall lie, if not in the files. ``"meta"`` gives torch's leaves without values.
        non_blocking : bool
            Accepted for compatibility.
        out : TensorDict, optional
            One whose entries are replaced by those that were saved.
        robust_key : bool, optional
            As for `memmap`.
        subpath : str or tuple of str, optional
            Load only this nested TensorDict: a path with slashes, or a nested key.
        mode : {"r", "r+"}, optional
            ``"r+"``: writes reach the files; ``"r"``: they stay in this process; by default the former where the
            files can be written.
        num_threads : int
            Accepted for compatibility.
        allow_pickle : bool, optional
            Whether to unpickle what was pickled, which can run any code. It is refused by default.
        library : {"numpy", "torch"}, optional
            Library of the leaves. By default each has that with which it was saved; torch's leaves, and those that
            tensordict has saved, are NumPy's in a process that has not imported torch.
        progress : bool, optional
            Whether to show a bar of what is mapped or, for a device, read.

        Raises
        ------
        FileNotFoundError
            If nothing was saved in the directory, or not to its end.
        ValueError
            If its files are not what ``meta.json`` says.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from corral import TensorDict
        >>> with tempfile.TemporaryDirectory() as path:
        ...     _ = TensorDict(a=np.arange(3), b={"c": np.ones((3, 2))}, batch_size=[3]).save(path)
        ...     print(TensorDict.load(path), TensorDict.load(path, subpath="b"))
        TensorDict(batch_size=[3], device=cpu, library=numpy, fields={a: i64[], b: {c: f64[2]}}) \
TensorDict(batch_size=[3], device=cpu, library=numpy, fields={c: f64[2]})
        """
        if mode not in (None, "r", "r+"):
            raise ValueError(f"load_memmap: mode must be 'r', 'r+' or None, not {mode!r}")
        if allow_pickle is not None and not isinstance(allow_pickle, bool):
            raise TypeError(f"load_memmap: allow_pickle must be a bool or None, not {allow_pickle!r}")
        if library not in (None, "numpy", "torch"):
            raise ValueError(f"load_memmap: library must be 'numpy', 'torch' or None, not {library!r}")
        path = find(Path(prefix), subpath, robust_key)
        target = out._device if device is None and out is not None else device
        with Bar(f"Loading {path.name}", None, progress) as bar:
            return Loader(target, robust_key, mode, allow_pickle, library, bar).load(path, cls, out)

    @classmethod
    def load(cls, prefix: str | Path, *args: Any, **kwargs: Any) -> Any:
        """Do the same as `load_memmap`."""
        return cls.load_memmap(prefix, *args, **kwargs)

    def load_memmap_(
        self,
        prefix: str | Path,
        robust_key: bool | None = True,
        *,
        allow_pickle: bool | None = None,
        mode: str | None = None,
    ) -> Self:
        """Replace this TensorDict's entries by those that were saved in a directory.

        A TensorDict that is memory-mapped is so afterwards, in that directory, unless the mode is ``"r"``.
        """
        mapped = self.is_memmap()
        if mapped:
            self.unlock_()
        self.load_memmap(prefix, out=self, robust_key=robust_key, allow_pickle=allow_pickle, mode=mode)
        if mapped and mode != "r":
            self.lock_()
            self._note(Path(prefix), True, robust_key)
        return self

    load_ = load_memmap_

    def memmap_refresh_(self, *, allow_pickle: bool | None = None) -> Self:
        """Load the entries again from the directory of a memory-mapped TensorDict, which another process may change."""
        if not self.is_memmap() or self._saved[0] is None:
            raise RuntimeError("memmap_refresh_: the TensorDict is not memory-mapped in a directory")
        return self.load_memmap_(self._saved[0], allow_pickle=allow_pickle)


def find(prefix: Path, subpath: Any, robust: bool | None) -> Path:
    """Return the directory of a TensorDict, or of one that is nested in it."""
    if prefix.is_file():
        raise NotImplementedError(
            f"load_memmap: {prefix} is a file, and archives cannot be read: unpack it with tensordict.unpack_memmap"
        )
    if subpath is None:
        return prefix
    parts: Any = [part for part in subpath.split("/") if part] if isinstance(subpath, str) else unravel_key(subpath)
    path = prefix
    for part in (parts,) if isinstance(parts, str) else parts:
        path = directories.directory_of(path, part, robust)
    if not (path / directories.META).exists():
        raise ValueError(f"load_memmap: there is no TensorDict at subpath={subpath!r} of {prefix}: {path} has none")
    return path


class Loader:
    """Makes TensorDicts of directories.

    Parameters
    ----------
    device : optional
        Where leaves shall lie, if not in the files.
    robust : bool, optional
        Whether the names of files are encoded keys.
    mode : {"r", "r+"}, optional
        How files are mapped.
    allow_pickle : bool, optional
        Whether to unpickle.
    library : {"numpy", "torch"}, optional
        Library of all leaves.
    bar : Bar, optional
        Told of each leaf's bytes.
    """

    def __init__(
        self,
        device: Any,
        robust: bool | None,
        mode: str | None,
        allow_pickle: bool | None,
        library: Library | None,
        bar: Bar | None = None,
    ) -> None:
        self._bar = bar
        self._device = device_name(device)
        self._robust = robust
        self._mode = mode
        self._allow_pickle = allow_pickle is True
        self._library = library

    def load(self, path: Path, kind: type[Any], out: Any = None) -> Any:
        """Return the TensorDict of a directory, or put its entries into `out`."""
        found = self._load(path, directories.read(path), kind, Size())
        if not isinstance(found, Base):
            raise TypeError(f"load_memmap: {path} holds no TensorDict, but the {type(found).__name__} of an entry")
        if out is None:
            return found
        out._refuse_if_locked()
        _replace(out, found)
        return out

    def _load(self, path: Path, description: directories.Description, kind: type[Any], batch: Size) -> Any:
        """Return what is in a directory, a part of a batch of this size at least."""
        if "shape" not in description.facts and (path / directories.ENTRIES / directories.META).exists():
            return self._tensorclass(path, description, batch)
        if description.kind == "LazyStackedTensorDict":
            return self._stack(path, description, kind)
        if description.kind in ("NonTensorData", "NonTensorStack"):
            from corral.tensordict.nontensor_files import read_objects

            return read_objects(path, description, batch, self._allow_pickle)
        if description.kind != "TensorDict":
            raise TypeError(f"load_memmap: {path} holds a {description.kind}, and a TensorDict is what can be loaded")
        size = Size(description.shape)
        source: dict[str, Any] = {}
        for key, entry in description.entries.items():
            if "type" in entry:
                nested = directories.directory_of(path, key, self._robust)
                source[key] = self._load(nested, directories.read(nested), kind._entry_class(), size)
            else:
                source[key] = self._leaf(path, key, entry)
                if self._bar is not None:
                    self._bar.advance(nbytes(source[key]))
            if tuple(source[key].shape[: len(size)]) != size:
                raise ValueError(
                    f"the entry {key!r} in {path} has shape {Size(source[key].shape)}, which does not start with the "
                    f"batch size {size}"
                )
        device = self._device or description.facts.get("device")
        result = kind._make(source, size, None if device in (None, "None") else str(device), description.names)
        result._saved = (path if self._mode != "r" else None, False)
        return result

    def _tensorclass(self, path: Path, description: directories.Description, batch: Size) -> Any:
        """Return an instance of the tensorclass that this process has defined under the name, or a TensorDict."""
        from corral.tensordict.dense import TensorDict
        from corral.tensordict.tensorclass_kinds import known

        inner = path / directories.ENTRIES
        td = self._load(inner, directories.read(inner), TensorDict, batch)
        name = str(description.facts.get("_type")).removeprefix("<class '").removesuffix("'>")
        objects = {key: value for key, value in description.facts.items() if key != "_type" and value is not None}
        cls = known(name)
        if cls is not None and cls._fits_class(td) and cls._fields.issuperset(objects):
            return cls.from_tensordict(td, objects)
        for key, value in objects.items():
            td.set_non_tensor(key, value)
        return td

    def _leaf(self, path: Path, key: str, entry: dict[str, Any]) -> Any:
        what = f"the entry {key!r} in {path}"
        if entry.get("is_nested"):
            raise TypeError(f"{what} is a nested tensor of torch's, which has no one shape: save its components")
        shape = directories.sizes(entry.get("shape"), f"the shape of {what}")
        dtype = directories.dtype_in(entry, what)
        library: Library = self._library or ("torch" if entry.get("library") != "numpy" else "numpy")
        if self._device not in (None, "cpu") or self._library == "torch":
            import torch  # noqa: F401 - a device other than the host's is torch's
        elif library == "torch" and "torch" not in sys.modules:
            library = "numpy"
        if self._device == "meta":
            return sys.modules["torch"].empty(shape, dtype=dtype_of(dtype, "torch"), device="meta")
        file = directories.leaf_file(path, key, self._robust)
        if math.prod(shape) and not file.exists():
            raise ValueError(f"{what} has no file {file.name}: the directory is not complete")
        leaf = map_file(file, dtype, shape, library, self._mode)
        if self._device in (None, "cpu"):
            return leaf
        return sys.modules["torch"].as_tensor(leaf).to(self._device)

    def _stack(self, path: Path, description: directories.Description, kind: type[Any]) -> Any:
        from corral.tensordict.lazy import LazyStackedTensorDict

        dim, name = description.facts.get("stack_dim"), description.facts.get("stack_dim_name")
        members: list[Any] = []
        while (path / str(len(members))).exists():
            member = path / str(len(members))
            members.append(self._load(member, directories.read(member), kind, Size()))
        if not members or type(dim) is not int or not (name is None or isinstance(name, str)):
            raise ValueError(f"load_memmap: {path} does not describe a stack of its {len(members)} members")
        result = LazyStackedTensorDict(*members, stack_dim=dim)
        result._stack_name = name
        return result


def _replace(out: Any, found: Any) -> None:
    """Give one TensorDict the entries of another, and keep those that are nested in it."""
    source: dict[str, Any] = {}
    for key, value in found._source.items():
        mine = out._source.get(key)
        if {getattr(each, "_kind_in_files", None) for each in (mine, value)} == {"TensorDict"}:
            _replace(mine, value)
            source[key] = mine
        else:
            source[key] = value
    out._source = source
    out._batch_size = found._batch_size
    out._names = found._names
    out._saved = found._saved
