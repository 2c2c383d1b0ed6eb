"""Groups and arrays of zarr stores, with the interface of h5py's that TensorDicts in files use."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Array", "Group", "Store", "open_store"]

# tensordict's marks: of an array that holds the bytes of a value, and of a group that stands for a TensorDict.
VALUE = "__tensordict_non_tensor__"
FACTS = "__tensordict__"


def library() -> Any:
    """Return zarr, or say how to get it."""
    try:
        import zarr  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ModuleNotFoundError(
            "TensorDicts in zarr stores need zarr, which is not installed: pip install 'corral[zarr]'"
        ) from error
    if int(zarr.__version__.split(".")[0]) < 3:
        raise ImportError(f"TensorDicts in zarr stores need zarr 3, not {zarr.__version__}: pip install 'corral[zarr]'")
    return zarr


def open_store(
    place: Any, mode: str, allow_pickle: bool | None = None, name: str = "/", facts: dict[str, Any] | None = None
) -> Group:
    """Return a group of a store: a directory, or an object of zarr's.

    Parameters
    ----------
    place : path or zarr.abc.store.Store
        The store.
    mode : {"r", "r+", "w", "w-", "x", "a"}
        See `zarr.open_group`.
    allow_pickle : bool, optional
        Whether pickled values are read; by default they are, with a warning.
    name : str
        Path of the group in the store.
    facts : dict, optional
        The batch size and the names of the TensorDict that a new store is of.
    """
    if allow_pickle is not None and not isinstance(allow_pickle, bool):
        raise TypeError(f"PersistentTensorDict: allow_pickle must be a bool or None, not {allow_pickle!r}")
    zarr = library()
    place = str(place) if isinstance(place, Path) else place
    # Gathered metadata are fast to read, and would be wrong after a write.
    options: dict[str, Any] = {} if mode == "r" else {"use_consolidated": False}
    if facts is not None:
        options["attributes"] = _attributes(facts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node = zarr.open_group(place, mode="w-" if mode == "x" else mode, path=name.strip("/"), **options)
    return Group(Store(node, place, allow_pickle, gathered=False if mode == "w" else None), node)


def _attributes(facts: dict[str, Any]) -> dict[str, Any]:
    names = {"names": list(facts["names"])} if facts.get("names") else {}
    return {FACTS: {"batch_size": list(facts["batch_size"]), "version": 1, **names}}


class Store:
    """What the groups of a store share.

    Parameters
    ----------
    root : zarr.Group
        A group of the store.
    place : path or zarr.abc.store.Store, optional
        Where the store is.
    allow_pickle : bool, optional
        Whether pickled values are read.
    gathered : bool, optional
        Whether the store has the metadata of all entries in one place, if this is known.
    """

    def __init__(
        self, root: Any, place: Any = None, allow_pickle: bool | None = None, gathered: bool | None = None
    ) -> None:
        self.root = root
        self.filename = root.store if place is None else place
        self.allow_pickle = allow_pickle
        self.gathered = gathered
        self.is_open = True
        # Whether groups are told their batch size when they are made: an archive cannot change them later.
        self.tells = False

    @property
    def mode(self) -> str:
        """How the store can be opened again."""
        return "r" if self.root.read_only else "r+"

    def close(self) -> None:
        """Close the store."""
        self.is_open = False
        self.root.store.close()

    def gather(self) -> None:
        """Write the metadata of all entries into one place, for those who open the store to read it."""
        if not self.root.store.supports_deletes:  # a second version of a file in a ZIP archive would stay beside it
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library().consolidate_metadata(self.root.store)
        self.gathered = True

    def changed(self) -> None:
        """Keep gathered metadata true after entries have come or gone."""
        if self.gathered is None:
            top = library().open_group(self.root.store, mode="r")
            self.gathered = top.metadata.consolidated_metadata is not None
        if self.gathered:
            self.gather()


class Array:
    """An array of a store.

    Parameters
    ----------
    node : zarr.Array
        The array.
    store : Store
        What it is in.
    """

    def __init__(self, node: Any, store: Store) -> None:
        self.node = node
        self.store = store
        self.shape: tuple[int, ...] = node.shape
        self.ndim = len(node.shape)
        self.dtype = np.dtype(node.dtype)
        self.attrs = node.attrs

    @property
    def is_array(self) -> bool:
        """Whether it holds numbers."""
        return self.dtype.kind in "biufc" and VALUE not in self.attrs

    def value(self) -> Any:
        """Return what an array that holds no numbers says."""
        mark = self.attrs.get(VALUE)
        if mark is None:
            found = self[...]
            return found if self.ndim else found.item()
        data = self[...].tobytes()
        encoding = mark.get("encoding") if isinstance(mark, dict) else None
        if encoding == "json":
            return json.loads(data)
        if encoding != "pickle":
            raise ValueError(f"the entry {self.node.name} is encoded as {encoding!r}; 'json' and 'pickle' are known")
        if self.store.allow_pickle is False:
            raise RuntimeError(
                f"the entry {self.node.name} is pickled, and reading it could run any code: pass allow_pickle=True if "
                "the store is to be trusted"
            )
        if self.store.allow_pickle is None:
            warnings.warn(
                f"the entry {self.node.name} is pickled, and reading it can run any code: pass allow_pickle=True if "
                "the store is to be trusted, or allow_pickle=False to refuse",
                FutureWarning,
                stacklevel=2,
            )
        return pickle.loads(data)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self.node[index if index != () else ...])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.node[index if index != () else ...] = value


class Group:
    """A group of a store.

    Parameters
    ----------
    store : Store
        What it is in.
    node : zarr.Group
        The group.
    """

    def __init__(self, store: Store, node: Any) -> None:
        self.file = store
        self.node = node
        self.name = node.name

    def __repr__(self) -> str:
        return f"the group {self.name} of {self.file.filename}"

    def __bool__(self) -> bool:
        return self.file.is_open

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.node))

    def __len__(self) -> int:
        return sum(1 for _ in self.node)

    def get(self, key: str) -> Any:
        """Return an entry, or None."""
        node = self.node.get(key) if self.file.is_open else None
        if node is None:
            return None
        return Group(self.file, node) if isinstance(node, library().Group) else Array(node, self.file)

    def __delitem__(self, key: str) -> None:
        del self.node[key]
        self.file.changed()

    def create_group(self, key: str, size: Sequence[int] = ()) -> Group:
        """Make a group, for a TensorDict of a batch size."""
        attributes = _attributes({"batch_size": size}) if self.file.tells else None
        made = Group(self.file, self.node.create_group(key, attributes=attributes))
        self.file.changed()
        return made

    def create_dataset(
        self,
        key: str,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        data: Any = None,
        attributes: Any = None,
        **options: Any,
    ) -> Array:
        """Make an array, of zeros or of `data`; by default it is one chunk that is not compressed."""
        above, _, name = key.rpartition("/")
        group = self.node.require_group(above) if above else self.node
        shape = tuple(data.shape if shape is None else shape)
        options.setdefault("compressors", None)
        chunks = options.pop("chunks", None)
        if shape:
            # Fewer lengths than dimensions are those of the leading ones.
            first = () if chunks is None else (chunks,) if isinstance(chunks, int) else tuple(chunks)
            first = first[: len(shape)]
            options["chunks"] = tuple(max(1, int(length)) for length in (*first, *shape[len(first) :]))
        dtype = data.dtype if dtype is None else dtype
        made = Array(group.create_array(name, shape=shape, dtype=dtype, attributes=attributes, **options), self.file)
        if data is not None and data.size:
            made[...] = data
        self.file.changed()
        return made

    def create_value(self, key: str, value: Any, attributes: dict[str, Any]) -> None:
        """Store a value that is no array: as JSON if that gives it back, and pickled otherwise."""
        try:
            text = json.dumps(value)
            same = bool(json.loads(text) == value)
        except (TypeError, ValueError):
            same = False
        data = np.frombuffer(text.encode() if same else pickle.dumps(value), np.uint8)
        mark = {VALUE: {"encoding": "json" if same else "pickle"}}
        self.create_dataset(key, data=data, attributes={**attributes, **mark})

    def move(self, old: str, new: str) -> None:
        """Give an entry another name."""
        self._copy(new, self.get(old))
        del self[old]

    def _copy(self, key: str, source: Any) -> None:
        attributes = dict(source.node.attrs)
        if isinstance(source, Array):
            options = {"chunks": source.node.chunks, "compressors": source.node.compressors or None}
            text = source.dtype.kind in "OTU"
            dtype = str if text else source.dtype
            self.create_dataset(key, source.shape, dtype, source[...], attributes, **options)
            return
        self.node.create_group(key, attributes=attributes)
        for name in source:
            self._copy(f"{key}/{name}", source.get(name))

    # What tensordict tells of a TensorDict

    @property
    def facts(self) -> dict[str, Any]:
        """The batch size and the names of the TensorDict, if it was a TensorDict that was written."""
        found = self.node.attrs.get(FACTS)
        return dict(found) if isinstance(found, dict) else {}

    @facts.setter
    def facts(self, facts: dict[str, Any]) -> None:
        attributes = _attributes(facts)
        if self.facts != attributes[FACTS]:
            self.node.attrs.update(attributes)
