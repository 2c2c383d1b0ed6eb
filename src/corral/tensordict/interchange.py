"""TensorDicts from the structures of other libraries, and the other way round."""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np

from corral.arrays.libraries import library_of, to_numpy
from corral.tensordict import tables
from corral.tensordict.base import Base

__all__ = ["Interchange"]


class Interchange(Base):
    """Convert to and from structured arrays, tuples, dataclasses, tables and files.

    All that make a TensorDict take ``batch_size``, ``device``, ``auto_batch_size`` (take as batch size the leading
    dimensions that all leaves share) and ``batch_dims`` (the largest number of dimensions to take so).
    """

    __slots__ = ()

    @classmethod
    def _from_entries(
        cls, entries: Any, name: str, auto_batch_size: bool, batch_dims: int | None, device: Any, batch_size: Any
    ) -> Any:
        kind: Any = cls
        td = kind(entries, batch_size=batch_size, device=device)
        if auto_batch_size:
            if batch_size is not None:
                raise TypeError(f"{name}: batch_size and auto_batch_size cannot both be given")
            td.auto_batch_size_(batch_dims)
        return td

    @classmethod
    def from_any(
        cls,
        obj: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
    ) -> Any:
        """Return a TensorDict of a dict, tuple, namedtuple, dataclass, structured array, data frame or HDF5 file.

        Arrays and TensorDicts, and what cannot be converted, are returned as they are.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> list(TensorDict.from_any((np.zeros(2), {"a": np.ones(2)})).keys(True, True))
        ['0', ('1', 'a')]
        """
        kwargs = {
            "auto_batch_size": auto_batch_size,
            "batch_dims": batch_dims,
            "device": device,
            "batch_size": batch_size,
        }
        kind: Any = cls
        from corral.tensordict.nontensor import NonTensorStack

        if isinstance(obj, Base):
            return obj
        if isinstance(obj, np.ndarray) and obj.dtype.names is not None:
            return cls.from_struct_array(obj, **kwargs)
        if library_of(obj) != "other":
            return obj
        if isinstance(obj, Mapping):
            entries = {key: cls.from_any(value, device=device, batch_size=batch_size) for key, value in obj.items()}
            return cls._from_entries(entries, "from_any", auto_batch_size, batch_dims, device, batch_size)
        if isinstance(obj, tuple):
            return (cls.from_namedtuple if hasattr(obj, "_fields") else cls.from_tuple)(obj, **kwargs)
        if isinstance(obj, list):
            return NonTensorStack.from_list(obj) if _form(obj) is None else np.asarray(obj)
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            return cls.from_dataclass(obj, **kwargs)
        if "pandas" in sys.modules and isinstance(obj, sys.modules["pandas"].DataFrame):
            return cls.from_pandas(obj, **kwargs)
        if "h5py" in sys.modules and isinstance(obj, sys.modules["h5py"].File):
            from corral.tensordict.persistent import PersistentTensorDict

            kind = PersistentTensorDict(group=obj, batch_size=batch_size)
            return kind.auto_batch_size_(batch_dims) if auto_batch_size else kind
        return obj

    @classmethod
    def _converted(cls, values: Mapping[str, Any], device: Any, batch_size: Any) -> dict[str, Any]:
        return {key: cls.from_any(value, device=device, batch_size=batch_size) for key, value in values.items()}

    @classmethod
    def from_tuple(
        cls,
        obj: Sequence[Any],
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
    ) -> Any:
        """Return a TensorDict of a tuple's items, whose keys are ``"0"``, ``"1"`` and so on."""
        entries = cls._converted({str(i): item for i, item in enumerate(obj)}, device, batch_size)
        return cls._from_entries(entries, "from_tuple", auto_batch_size, batch_dims, device, batch_size)

    @classmethod
    def from_namedtuple(
        cls,
        named_tuple: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
    ) -> Any:
        """Return a TensorDict of a namedtuple's fields.

        Examples
        --------
        >>> import collections, numpy as np
        >>> from corral import TensorDict
        >>> Step = collections.namedtuple("Step", "obs reward")
        >>> td = TensorDict.from_namedtuple(Step(np.zeros((3, 2)), np.ones(3)), batch_size=[3])
        >>> td.to_namedtuple(Step).reward
        array([1., 1., 1.])
        """
        if not hasattr(named_tuple, "_asdict") and hasattr(named_tuple, "n_fields"):  # as those of torch.return_types
            names = type(named_tuple).__match_args__
            fields = {name: getattr(named_tuple, name) for name in names}
        else:
            fields = named_tuple._asdict()
        entries = cls._converted(fields, device, batch_size)
        return cls._from_entries(entries, "from_namedtuple", auto_batch_size, batch_dims, device, batch_size)

    def to_namedtuple(self, dest_cls: type[Any] | None = None) -> Any:
        """Return the entries as a namedtuple, and nested ones as namedtuples in it.

        Parameters
        ----------
        dest_cls : type, optional
            The class to make; by default one that is made up. Nested TensorDicts become it too, if it takes their keys.
        """
        return _as_namedtuple(self, dest_cls, root=True)

    @classmethod
    def from_dataclass(
        cls,
        dataclass: Any,
        *,
        dest_cls: type[Any] | None = None,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        as_tensorclass: bool = False,
        device: Any = None,
        batch_size: Any = None,
    ) -> Any:
        """Return a TensorDict of a dataclass's fields; with `as_tensorclass` what `corral.from_dataclass` returns.

        `dest_cls` is then the tensorclass to make an instance of.
        """
        if as_tensorclass:
            from corral.tensordict.tensorclass_dataclasses import from_dataclass

            return from_dataclass(dataclass, dest_cls=dest_cls, **_batch(locals()))
        if not dataclasses.is_dataclass(dataclass) or isinstance(dataclass, type):
            raise TypeError(f"from_dataclass: an instance of a dataclass is expected, not {dataclass!r}")
        fields = {field.name: getattr(dataclass, field.name) for field in dataclasses.fields(dataclass)}
        entries = cls._converted(fields, device, batch_size)
        return cls._from_entries(entries, "from_dataclass", auto_batch_size, batch_dims, device, batch_size)

    @classmethod
    def from_struct_array(
        cls,
        struct_array: np.ndarray[Any, Any],
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
    ) -> Any:
        """Return a TensorDict of a structured array's fields, which shares its memory.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> rows = np.array([(1, [2.0, 3.0])], dtype=[("a", "i4"), ("b", "f8", 2)])
        >>> td = TensorDict.from_struct_array(rows)
        >>> td["b"], td.to_struct_array()
        (array([[2., 3.]]), array([(1, [2., 3.])], dtype=[('a', '<i4'), ('b', '<f8', (2,))]))
        """
        if struct_array.dtype.names is None:
            raise TypeError(f"from_struct_array: a structured array is expected, not one of dtype {struct_array.dtype}")
        if auto_batch_size and batch_size is not None:
            raise TypeError("from_struct_array: batch_size and auto_batch_size cannot both be given")
        size = struct_array.shape if batch_size is None else batch_size
        entries: dict[str, Any] = {}
        for name in struct_array.dtype.names:
            field = struct_array[name]
            if field.dtype.names is not None:
                entries[name] = cls.from_struct_array(field, batch_size=size)
            else:
                entries[name] = field.tolist() if field.dtype.hasobject else field
        td = cls._from_entries(entries, "from_struct_array", False, None, device, size)
        return td.auto_batch_size_(batch_dims) if auto_batch_size else td

    def to_struct_array(self) -> np.ndarray[Any, Any]:
        """Return the batch as a structured array with a field for each entry; values are copied.

        Text becomes a field of text, other objects one of Python objects, where tensordict would write what they look
        like.
        """
        size, dims = self._batch_size, len(self._batch_size)
        columns = {
            key: _column(value) if isinstance(value, Interchange) else to_numpy(value)
            for key, value in self._source.items()
        }
        if not columns:
            raise ValueError("to_struct_array: a structured array needs a field, and the TensorDict has no entry")
        fields: list[Any] = [(key, column.dtype, column.shape[dims:]) for key, column in columns.items()]
        result = np.empty(size, fields)
        for key, column in columns.items():
            result[key] = column
        return result

    # Tables

    @classmethod
    def _of_columns(
        cls, columns: tables.Columns, rows: int, name: str, separator: str | None, dtype: Any, kwargs: dict[str, Any]
    ) -> Any:
        if kwargs["auto_batch_size"] and kwargs["batch_size"] is not None:
            raise TypeError(f"{name}: batch_size and auto_batch_size cannot both be given")
        size = [rows] if kwargs["batch_size"] is None else kwargs["batch_size"]
        td = cls._from_entries(tables.entries_of(columns, separator, dtype), name, False, None, kwargs["device"], size)
        return td.auto_batch_size_(kwargs["batch_dims"]) if kwargs["auto_batch_size"] else td

    @classmethod
    def from_pandas(
        cls,
        dataframe: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
        separator: str | None = None,
        dtype: Any = None,
    ) -> Any:
        """Return a TensorDict of the columns of a data frame of pandas.

        Parameters
        ----------
        dataframe : pandas.DataFrame
            The columns; categories become their codes, times the nanoseconds since 1970.
        auto_batch_size, batch_dims, device, batch_size : optional
            See `Interchange`; by default the batch size is the number of rows.
        separator : str, optional
            Where a column's name has it, its entry is nested.
        dtype : optional
            Cast columns of numbers.
        """
        columns, rows = tables.of_frame(dataframe)
        return cls._of_columns(columns, rows, "from_pandas", separator, dtype, _batch(locals()))

    def to_pandas(self, *, separator: str | None = None) -> Any:
        """Return a data frame of pandas with a column for each entry, and each nested one if there is a separator."""
        return tables.frame_of(self, separator, "to_pandas")

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
        separator: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return a TensorDict of a CSV file's columns, read with pandas or pyarrow: see `from_pandas`."""
        columns, rows = tables.read_csv(path, **kwargs)
        return cls._of_columns(columns, rows, "from_csv", separator, dtype, _batch(locals()))

    def to_csv(self, path: str | Path, *, separator: str | None = None, **kwargs: Any) -> None:
        """Write a CSV file with pandas: see `to_pandas`."""
        tables.frame_of(self, separator, "to_csv").to_csv(path, index=False, **kwargs)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
        separator: str | None = None,
        dtype: Any = None,
        columns: list[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return a TensorDict of a Parquet file's columns, or some of them, read with pyarrow: see `from_pandas`."""
        found, rows = tables.read_parquet(path, columns, **kwargs)
        return cls._of_columns(found, rows, "from_parquet", separator, dtype, _batch(locals()))

    def to_parquet(self, path: str | Path, *, separator: str | None = None, **kwargs: Any) -> None:
        """Write a Parquet file with pyarrow: see `to_pandas`."""
        tables.write_parquet(self, path, separator, **kwargs)

    @classmethod
    def from_json(
        cls,
        path: str | Path,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
        separator: str | None = None,
        dtype: Any = None,
        lines: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return a TensorDict of the records in a JSON file, an array or one a line: see `from_pandas`."""
        columns, rows = tables.read_json(path, lines, **kwargs)
        return cls._of_columns(columns, rows, "from_json", separator, dtype, _batch(locals()))

    def to_json(self, path: str | Path, *, separator: str | None = None, lines: bool = False, **kwargs: Any) -> None:
        """Write a JSON file with an array of records, or with one record a line: see `to_pandas`."""
        tables.write_json(self, path, separator, lines, **kwargs)

    # HDF5

    @classmethod
    def from_h5(
        cls,
        filename: str | Path,
        *,
        mode: str = "r",
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        batch_size: Any = None,
        non_tensor_as_stack: bool = False,
        library: str = "numpy",
    ) -> Any:
        """Open an HDF5 file as a `corral.PersistentTensorDict`.

        Parameters
        ----------
        filename : path
            The file.
        mode : str
            See `h5py.File`.
        auto_batch_size, batch_dims, batch_size : optional
            See `Interchange`; without any, each TensorDict of the file has the largest batch size that there can be.
        non_tensor_as_stack : bool
            Accepted for compatibility.
        library : {"numpy", "torch", "jax", "cupy"}
            Library of the arrays that are read.
        """
        from corral.tensordict.persistent import PersistentTensorDict

        if auto_batch_size and batch_size is not None:
            raise TypeError("from_h5: batch_size and auto_batch_size cannot both be given")
        td = PersistentTensorDict(filename=filename, mode=mode, batch_size=batch_size, library=library)
        if batch_size is None:
            td.auto_batch_size_(batch_dims if auto_batch_size else None)
            td._name_as_told(nested=True)
        return td

    def to_h5(self, filename: str | Path, **kwargs: Any) -> Any:
        """Write a new HDF5 file, and return the `corral.PersistentTensorDict` of it.

        Parameters
        ----------
        filename : path
            The file; one that exists is replaced.
        **kwargs
            What datasets are made with, as ``compression="gzip"``: see `h5py.Group.create_dataset`.
        """
        from corral.tensordict.persistent import PersistentTensorDict

        return PersistentTensorDict.from_dict(self, filename, **kwargs)


def _form(items: list[Any]) -> tuple[Any, tuple[int, ...]] | None:
    """Return the type of the numbers in nested lists and the shape, or None if they have several or are no numbers."""
    kinds, shapes = set(), set()
    for item in items:
        form = _form(item) if isinstance(item, list) else (type(item), ()) if isinstance(item, Number) else None
        if form is None:
            return None
        kinds |= {form[0]} - {None}
        shapes |= {form[1]} if isinstance(item, list) else set()
    if len(kinds) > 1 or len(shapes) > 1:
        return None
    return (kinds.pop() if kinds else None), (len(items), *(shapes.pop() if shapes else ()))


def _batch(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("auto_batch_size", "batch_dims", "device", "batch_size")}


def _column(value: Any) -> np.ndarray[Any, Any]:
    """Return a TensorDict, or objects, as a field of a structured array."""
    if not value._holds_objects:
        return value.to_struct_array()  # type: ignore[no-any-return]
    cells = value._cells()
    return cells.astype(str) if cells.size and all(type(each) is str for each in cells.flat) else cells  # type: ignore[no-any-return]


def _as_namedtuple(td: Base, dest: type[Any] | None, root: bool = False) -> Any:
    entries = {
        key: (value._unwrapped() if value._holds_objects else _as_namedtuple(value, dest))
        if isinstance(value, Base)
        else value
        for key, value in td._source.items()
    }
    kind: Any = dest
    if kind is not None and not root and hasattr(kind, "_fields"):
        needed = set(kind._fields) - set(kind._field_defaults)
        if not needed <= entries.keys() <= set(kind._fields):
            kind = None
    make: Any = kind if kind is not None else collections.namedtuple("GenericDict", entries.keys())
    return make(**entries)
