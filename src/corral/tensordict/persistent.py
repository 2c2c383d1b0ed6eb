"""A TensorDict whose entries stay in an HDF5 file or a zarr store."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from corral.arrays.indexing import normalize
from corral.arrays.libraries import dtype_name, library_of
from corral.arrays.mapped import numpy_dtype
from corral.arrays.operations import as_array
from corral.tensordict import hdf5, pytrees, stored_values, zarr_stores
from corral.tensordict.base import Base, Size, as_size, device_name, unravel_key
from corral.tensordict.dense import TensorDict
from corral.tensordict.entries import Entries
from corral.tensordict.indexing import indexed_size
from corral.tensordict.stored import Stored, parts_of, take_sizes
from corral.tensordict.updating import _chosen

__all__ = ["PersistentTensorDict"]


class PersistentTensorDict(Stored):
    """A TensorDict whose entries stay in an HDF5 file or a zarr store: each read is of the file, and so is each write.

    An entry is read when it is asked for, into a new array; `keys`, `batch_size`, the repr and all that shapes and
    dtypes tell read no values. An index gives a view of the file: reading an entry of it reads these rows alone, and
    writing one writes them. What operations return lies in memory: they give a `TensorDict`; those in place write
    their result into the file. Files are those of tensordict: a group for each TensorDict, a dataset for each leaf.

    Parameters
    ----------
    batch_size : sequence of int, optional
        The leading dimensions that all datasets share; none by default.
    filename : path, optional
        The file, or the store: a directory or an object of zarr's. Either this or `group` is given.
    group : h5py.Group or zarr.Group, optional
        A group of an open file or store.
    mode : {"r", "r+", "w", "w-", "x", "a"}
        How the file is opened: see `h5py.File` and `zarr.open_group`.
    backend : {"h5", "zarr"}
        The format.
    device : optional
        Where arrays shall lie that are read.
    validate_batch_size : bool
        Compare the batch size with the shapes of the datasets.
    non_tensor_as_stack : bool
        Accepted for compatibility.
    allow_pickle : bool, optional
        Whether pickled values in a zarr store are read; by default they are, with a warning. HDF5 files have none.
    library : {"numpy", "torch", "jax", "cupy"}
        Library of the arrays that are read.
    **kwargs
        What new datasets are made with: see `h5py.Group.create_dataset` and `zarr.Group.create_array`.

    Raises
    ------
    ModuleNotFoundError
        If h5py or zarr is not installed.
    ValueError
        If a dataset does not have the batch size.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from corral import PersistentTensorDict
    >>> with tempfile.TemporaryDirectory() as path:
    ...     td = PersistentTensorDict(filename=f"{path}/steps.h5", batch_size=[3], mode="w")
    ...     td["obs"] = np.zeros((3, 2))
    ...     td[1] = {"obs": [5.0, 6.0]}
    ...     print(td, td["obs"][1], sep="\\n")
    ...     td.close()
    PersistentTensorDict(batch_size=[3], library=numpy, fields={obs: f64[2]})
    [5. 6.]
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        batch_size: Any = None,
        filename: str | Path | None = None,
        group: Any = None,
        mode: str = "r",
        backend: str = "h5",
        device: Any = None,
        validate_batch_size: bool = True,
        non_tensor_as_stack: bool = False,
        allow_pickle: bool | None = None,
        library: str = "numpy",
        **kwargs: Any,
    ) -> None:
        if backend not in ("h5", "zarr"):
            raise NotImplementedError(f"PersistentTensorDict: backend must be 'h5' or 'zarr', not {backend!r}")
        if (filename is None) == (group is None):
            raise RuntimeError(
                f"PersistentTensorDict: either filename or group must be given, got filename={filename!r} and "
                f"group={group!r}"
            )
        if isinstance(group, zarr_stores.Group):
            pass
        elif backend == "zarr" and group is not None:
            group = zarr_stores.Group(zarr_stores.Store(group, None, allow_pickle), group)
        elif group is None:
            group = _group(backend, filename, mode, allow_pickle)
        self.filename = filename
        self.mode = mode
        self._device = device_name(device)
        self._locked = False
        self._names = None
        self._source = Entries(group, None, kwargs, library, self._device)
        self._resize(as_size(batch_size))
        if validate_batch_size:
            try:
                self._validate(self._batch_size)
            except ValueError:
                if filename is not None:
                    group.file.close()
                raise

    def _validate(self, size: Size) -> None:
        for key, leaf in self._outline().items(True, True):
            if tuple(leaf.shape[: len(size)]) != size:
                raise ValueError(
                    f"batch size and array size mismatch: the dataset {key!r} has shape {Size(leaf.shape)}, which does "
                    f"not start with the batch size {size}"
                )

    @classmethod
    def from_dict(  # type: ignore[override]
        cls,
        input_dict: Any,
        filename: str | Path,
        *,
        auto_batch_size: bool = False,
        batch_size: Any = None,
        device: Any = None,
        backend: str = "h5",
        batch_dims: int | None = None,
        allow_pickle: bool | None = None,
        library: str | None = None,
        **kwargs: Any,
    ) -> PersistentTensorDict:
        """Write a dict or a TensorDict to a new file, and return the TensorDict of that file.

        Parameters
        ----------
        input_dict : dict or TensorDict
            The entries.
        filename : path
            The file; one that exists is replaced.
        auto_batch_size : bool
            Accepted for compatibility: without `batch_size`, that of a dict is the leading dimensions that all
            entries share, and a TensorDict keeps its own.
        batch_size : sequence of int, optional
            The batch size.
        device, backend, allow_pickle, library, **kwargs
            As for `PersistentTensorDict`. By default, arrays that are read are of the library of the first leaf.
        batch_dims : int, optional
            The largest number of batch dimensions to find.
        """
        if batch_size is not None and batch_dims is not None:
            raise ValueError("from_dict: batch_size and batch_dims cannot both be given")
        source = input_dict if isinstance(input_dict, Base) else TensorDict(input_dict, batch_size=batch_size)
        first = next(iter(source._leaves()), None)
        library = library or (library_of(first) if library_of(first) != "other" else "numpy")
        size = source._batch_size if batch_size is None else as_size(batch_size)
        if backend == "zarr":
            known = batch_size is not None or isinstance(input_dict, Base)
            facts = {"batch_size": size, "names": source._names} if known else None
            # What is pickled was pickled here.
            group = zarr_stores.open_store(filename, "w", allow_pickle is None or allow_pickle, facts=facts)
            group.file.tells = known
            out = cls(group=group, backend=backend, device=device, library=library, **kwargs)
            out.filename, out.mode = filename, "w"
        else:
            out = cls(filename=filename, mode="w", backend=backend, device=device, library=library, **kwargs)
        out._resize(size)
        out.update(source)
        if batch_size is None and not isinstance(input_dict, Base):
            out.auto_batch_size_(batch_dims)
        if backend == "zarr":
            out._names = source._names
            out._tell()
            out._source.group.file.tells = False
            out._source.group.file.gather()
        return out

    def _tell(self) -> None:
        """Write the batch sizes to the store, with the names of dimensions."""
        self._source.group.facts = {"batch_size": self._batch_size, "names": self._names and list(self._names)}
        for key in self._source:
            nested = self._source.get(key)
            if isinstance(nested, PersistentTensorDict):
                nested._tell()

    @classmethod
    def of_zeros(cls, template: TensorDict, filename: str | Path, device: Any = None, **kwargs: Any) -> Any:
        """Return the TensorDict of a new file with datasets of zeros, of the shapes and dtypes of another TensorDict.

        Parameters
        ----------
        template : TensorDict
            Its values are not read.
        filename : path
            The file; one that exists is replaced.
        device, **kwargs
            As for `PersistentTensorDict`.
        """
        first = next(iter(template._leaves()), None)
        kwargs.setdefault("library", library_of(first) if library_of(first) != "other" else "numpy")
        out = cls(filename=filename, mode="w", device=device, **kwargs)
        out._resize(template._batch_size)
        for key, leaf in template.items(True, True):
            path = "/".join(parts_of(key))
            options = out._source.options if leaf.ndim and 0 not in leaf.shape else {}
            out._source.group.create_dataset(path, tuple(leaf.shape), numpy_dtype(dtype_name(leaf)), **options)
        take_sizes(out, template)
        return out

    def clone(self, recurse: bool = True, newfile: str | Path | None = None, **kwargs: Any) -> Any:
        """Return a copy: in memory, in a new file if `newfile` is given, or of the same file if not `recurse`."""
        if newfile is not None:
            return type(self).from_dict(self, newfile, library=self._source.library, **self._source.options)
        if recurse:
            return super().clone()
        entries = self._source
        copy = Entries(entries.group, entries.rows, entries.options, entries.library, entries.device, entries.origin)
        copy.whole, copy.size = entries.whole, entries.size
        result = type(self)._over(copy, self._batch_size)
        if entries.rows is None:
            take_sizes(result, self._outline())
        return result

    def _children(self) -> Any:
        return self._source.nested.values()  # those that have been met: nothing is read for it

    # Writing

    def set(self, key: Any, item: Any, inplace: bool = False, *, non_blocking: bool = False, **kwargs: Any) -> Any:
        """Set an entry: a dataset of another shape or dtype is replaced, unless `inplace`."""
        key = unravel_key(key)
        if inplace and key in self:
            return self.set_(key, item)
        self._refuse_if_locked()
        self._put(key, item)
        return self

    def _put(self, key: Any, value: Any) -> None:
        if isinstance(key, str):
            is_value = library_of(value) == "other" and isinstance(value, (str, bytes))
            self._source[key] = value if is_value else self._check_entry(key, value)
            return
        first, rest = key[0], key[1] if len(key) == 2 else key[1:]
        nested = self._source.get(first)
        if nested is not None and not isinstance(nested, PersistentTensorDict):
            raise KeyError(f"cannot set the nested key {key!r}: the entry {first!r} is a dataset, not a group")
        if nested is None:
            wrapped = TensorDict._make({}, self._batch_size, self._device)
            wrapped._put(rest, value)
            self._source.refuse(wrapped, new=True)  # before a group is made for it
            self._source[first] = TensorDict._make({}, self._batch_size, self._device)
            nested = self._source.get(first)
        nested._put(rest, value)

    def set_(self, key: Any, item: Any, *, non_blocking: bool = False) -> Any:
        """Write an entry in place; it must exist, and the value fit it."""
        if key not in self:
            raise self._no_key(key)
        parts = parts_of(key)
        self._owner(parts)._write(parts[-1], item)
        return self

    def setdefault(self, key: Any, default: Any, inplace: bool = False) -> Any:
        """Return an entry, setting it first if there is none."""
        if key not in self:
            self.set(key, default, inplace=inplace)
        return self.get(key)

    update_ = TensorDict.update_  # not in memory

    def _check_objects(self, key: str, entry: Any) -> None:
        """Raise a TypeError or ValueError if the file cannot hold objects."""
        stored_values.check(self._source.group, key, self._check(key, entry))

    def _put_objects(self, key: str, entry: Any) -> None:
        """Put objects into the file, in the place of those that are there."""
        self._source[key] = self._check(key, entry)

    def _write(self, key: str, item: Any, loosely: bool = False) -> None:
        node = self._source.get(key)
        if isinstance(node, PersistentTensorDict):
            if not isinstance(item, (Base, Mapping)):
                raise RuntimeError(
                    f"the entry {key!r} is a TensorDict: a {type(item).__name__} cannot be written to it"
                )
            node.update_(item)
            return
        is_entry = isinstance(item, Base) and item._holds_objects
        if isinstance(item, (Base, Mapping)) and (hdf5.is_array(node) or not is_entry):
            raise RuntimeError(f"the entry {key!r} is no TensorDict: a {type(item).__name__} cannot be written into it")
        if not hdf5.is_array(node):
            self._source[key] = self._check(key, item) if is_entry else item
            return
        value = as_array(item)
        rows, shape = self._source.rows, self._shape_of(key, node)
        if tuple(value.shape) != tuple(shape) and not self._broadcasts(value.shape, shape, loosely):
            raise RuntimeError(
                f"the value of shape {Size(value.shape)} does not fit the dataset {key!r}, of shape {Size(shape)}"
            )
        hdf5.write(node, value, rows)

    def _shape_of(self, key: str, leaf: Any) -> tuple[int, ...]:
        entries = self._source
        return tuple(leaf.shape if entries.rows is None else (*entries.size, *leaf.shape[len(entries.whole) :]))

    def _merge(self, entries: Any, clone: bool, inplace: bool, wanted: Any, is_leaf: Any) -> None:
        """Write entries after all have been checked, as what is in the file cannot be taken back."""
        outline = entries._outline() if isinstance(entries, PersistentTensorDict) else entries  # nothing is read for it
        chosen = outline if wanted is None else _chosen(outline, wanted)
        trial = TensorDict._make({}, self._batch_size, self._device)
        trial._fill({key: value for key, value in chosen.items() if not (inplace and key in self)})
        self._source.refuse(trial)
        super()._merge(entries, clone, inplace, wanted, is_leaf)

    def __setitem__(self, index: Any, value: Any) -> None:
        named = isinstance(index, str) or (isinstance(index, tuple) and index and isinstance(index[0], (str, tuple)))
        if named and index in self and not isinstance(value, (Base, Mapping)):
            self.set_(index, value)
        else:
            super().__setitem__(index, value)

    def _refuse_misfit_rows(self, entries: Any, size: Size, dims: int | None = None) -> None:
        self._outline()._refuse_misfit_rows(entries, size, dims)

    def _missing(self, value: Base, dims: int, path: tuple[str, ...]) -> Any:
        missing = self._outline()._missing(value, dims, path)  # which does not have objects
        return ((key, entry) for key, entry in missing if key not in self)

    def _assign(self, index: tuple[Any, ...], value: Any, keys: Iterable[str] | None = None) -> None:
        if self._source.rows is not None:
            dense = self.to_tensordict()
            dense._assign(index, value, keys)
            self.update_(dense)
            return
        for key in keys if keys is not None else value._source if isinstance(value, Base) else self._source:
            node = self._source.get(key)
            new = value._source[key] if isinstance(value, Base) else value
            if isinstance(node, PersistentTensorDict):
                node._assign(index, new)
            elif hdf5.is_array(node):
                hdf5.write(node, new, index)
            else:
                self._source[key] = self._source[key]._assign(index, new)

    def set_at_(self, key: Any, value: Any, index: Any, *, non_blocking: bool = False) -> Any:
        """Write a part of an entry in place; the rest is not touched."""
        if key not in self:
            raise self._no_key(key)
        parts = parts_of(key)
        owner = self._owner(parts)
        node = owner._source.get(parts[-1])
        if isinstance(node, Base):
            node[index] = value  # type: ignore[index]
        elif not hdf5.is_array(node):
            owner._source[parts[-1]] = owner._source[parts[-1]]._assign(normalize(index, len(self._batch_size)), value)
        elif owner._source.rows is None:
            hdf5.write(node, as_array(value), normalize(index, node.ndim))
        else:
            current = self.get(key)
            TensorDict._make({"x": current}, Size()).set_at_("x", value, index)
            self.set_(key, current)
        return self

    def rename_key_(self, old_key: Any, new_key: Any, safe: bool = False) -> Any:
        """Give an entry another key; nothing is copied."""
        self._refuse_if_locked()
        if old_key not in self:
            raise self._no_key(old_key)
        old, new = parts_of(old_key), parts_of(new_key)
        if old == new:
            return self
        if new_key in self:
            if safe:
                raise KeyError(f"key {new_key} already present in TensorDict.")
            self.del_(new_key)
        self._source.group.move("/".join(old), "/".join(new))
        self._owner(old)._source.nested.pop(old[-1], None)
        return self

    # Locks, files

    def _refuse(self, name: str) -> Any:
        raise RuntimeError(
            f"{name}: the entries lie in the file {self._source.group.file.filename}; to_tensordict() reads them"
        )

    def close(self) -> None:
        """Close the file."""
        self._source.group.file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        entries = self._source
        if entries.rows is not None:
            whole = self._over(entries.origin, entries.origin.size)
            return _row, (whole, entries.rows)
        group = entries.group
        place = _backend(group), group.file.filename, group.name, group.file.mode, entries.options, entries.library
        allow_pickle = getattr(group.file, "allow_pickle", None)
        return _open, (place, self._outline().empty(True), self._device, self.is_locked, allow_pickle)


def _backend(group: Any) -> str:
    return "zarr" if isinstance(group, zarr_stores.Group) else "h5"


def _group(backend: str, filename: Any, mode: str, allow_pickle: bool | None, name: str = "/") -> Any:
    if backend == "zarr":
        return zarr_stores.open_store(filename, mode, allow_pickle, name)
    file = hdf5.library().File(filename, mode)
    return file if name == "/" else file[name]


def _open(
    place: Any, outline: TensorDict, device: str | None, locked: bool, allow_pickle: bool | None = None
) -> PersistentTensorDict:
    backend, filename, name, mode, options, library = place
    entries = Entries(_group(backend, filename, mode, allow_pickle, name), None, options, library, device)
    td = PersistentTensorDict._over(entries, Size())
    take_sizes(td, outline)
    return td.lock_() if locked else td


def _row(td: Any, rows: tuple[Any, ...]) -> Any:
    return td._view(rows, indexed_size(td._batch_size, rows))


def _in_memory(name: str) -> Any:
    """Return a method that does in memory what TensorDict's does in place, and writes the result to the file."""
    method = getattr(TensorDict, name)

    @functools.wraps(method)
    def call(self: PersistentTensorDict, *args: Any, **kwargs: Any) -> Any:
        if name in ("apply", "named_apply") and not kwargs.get("inplace"):
            return method(self, *args, **kwargs)
        dense = self.to_tensordict()
        result = getattr(dense, name)(*args, **kwargs)
        self.update_(dense)
        return self if result is dense else result

    return call


def _refusal(name: str) -> Any:
    @functools.wraps(getattr(TensorDict, name))
    def call(self: PersistentTensorDict, *args: Any, **kwargs: Any) -> Any:
        self._refuse(name)

    return call


_LIKE_ANY = frozenset({"lock_", "unlock_", "del_", "update_at_", "clear_device_"})
_REFUSED = frozenset(
    {"share_", "share_memory_", "memmap_", "load_memmap_", "load_", "memmap_refresh_", "requires_grad_"}
)
for _name in dir(TensorDict):
    _in_place = (_name.endswith("_") and not _name.startswith("_")) or _name in ("apply", "named_apply")
    _augmented = (
        _name.startswith("__i")
        and _name.endswith("__")
        and _name[3:-2] in (*("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor", "matmul"),)
    )
    _own = _name in vars(PersistentTensorDict) or getattr(PersistentTensorDict, _name) is not getattr(TensorDict, _name)
    if _own or _name in _LIKE_ANY or not (_in_place or _augmented):
        continue
    setattr(PersistentTensorDict, _name, _refusal(_name) if _name in _REFUSED else _in_memory(_name))

pytrees.register_kind(PersistentTensorDict)
