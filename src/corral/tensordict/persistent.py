"""A TensorDict whose entries stay in an HDF5 file or a zarr store."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from corral.arrays.libraries import dtype_name, library_of
from corral.arrays.mapped import numpy_dtype
from corral.tensordict import hdf5, pytrees, zarr_stores
from corral.tensordict.base import Base, device_name
from corral.tensordict.dense import TensorDict
from corral.tensordict.entries import Entries
from corral.tensordict.indexing import indexed_size
from corral.tensordict.sizes import Size, as_size
from corral.tensordict.stored import parts_of, take_sizes
from corral.tensordict.stored_writing import StoredWriting

__all__ = ["PersistentTensorDict"]


class PersistentTensorDict(StoredWriting):
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
        if backend == "h5":
            self._name_as_told()

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
        if source._names is not None and source._batch_size == out._batch_size:
            out._set_names(source._names)
        if backend == "zarr":
            out._tell()
            out._source.group.file.tells = False
            out._source.group.file.gather()
        return out

    def _set_names(self, names: Any) -> None:
        super()._set_names(names)
        if self._source.rows is None and self._source.group.file.mode != "r":
            self._tell()

    def _tell(self) -> None:
        """Write the names of dimensions to the file; to a zarr store with the batch sizes."""
        group = self._source.group
        if isinstance(group, zarr_stores.Group):
            group.facts = {"batch_size": self._batch_size, "names": self._names and list(self._names)}
        else:
            hdf5.tell_names(group, self._names)
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
        result._names = self._names
        if entries.rows is None:
            take_sizes(result, self._outline())
        return result

    def _children(self) -> Any:
        return self._source.nested.values()  # those that have been met: nothing is read for it

    update_ = TensorDict.update_  # not in memory

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
