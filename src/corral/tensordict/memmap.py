"""TensorDicts whose leaves lie in files, where other processes and later ones find them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from corral.arrays.libraries import Library, library_of
from corral.arrays.mapped import dtype_of
from corral.arrays.operations import as_array
from corral.tensordict import directories
from corral.tensordict.nested_keys import unravel_key
from corral.tensordict.saving import Options, Saving, leaf_to_file, on_host
from corral.tensordict.sharing import _shared_bytes
from corral.tensordict.sizes import Size, as_size

__all__ = ["MemoryMapping", "template"]


class MemoryMapping(Saving):
    """Save to files that are mapped into memory."""

    __slots__ = ()

    def memmap(
        self,
        prefix: str | Path | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        existsok: bool = True,
        robust_key: bool | None = True,
        archive: bool | None = None,
        compression: str | int | None = None,
        atomic: bool = False,
        progress: bool | None = None,
    ) -> Any:
        """Write all leaves to files, and return a locked TensorDict whose leaves are these files' memory.

        NumPy's leaves become `numpy.memmap`, torch's become tensors over mapped files, those of other libraries become
        NumPy's. The files are those that tensordict writes and reads. ``meta.json`` is the last of them: a directory
        without one is not believed, so that a process that was killed leaves nothing that looks saved.

        Parameters
        ----------
        prefix : path, optional
            The directory. By default, that of a TensorDict that is memory-mapped already, and else memory without a
            name that processes can share.
        copy_existing : bool
            Copy leaves that lie in files elsewhere; otherwise they are an error.
        num_threads : int
            How many threads write.
        return_early : bool
            With several threads, return a `concurrent.futures.Future` of the result at once.
        share_non_tensor : bool
            Let processes of the host share objects that are no arrays, too: one that is written in place, as by
            ``td.update_({"name": "new"})``, is read by all that got the TensorDict, as an argument of a process or by
            a queue. It is `prefix` that they read it from, which must be given. What is changed within an object,
            as an item of a list, reaches nobody, and of objects that are written at once, one remains.
        existsok : bool
            Whether files may exist. Those that do are written over in place: who has mapped them sees it.
        robust_key : bool, optional
            Encode keys in the names of files. ``False`` takes them as they are, as early versions of tensordict did.
        archive, compression : optional
            Archives cannot be written; there for tensordict's arguments.
        atomic : bool
            Write a new directory next to `prefix`, and put it in its place when it is complete.
        progress : bool, optional
            Whether to show a bar of what is written. By default where there is a terminal and much to write.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from corral import TensorDict
        >>> with tempfile.TemporaryDirectory() as path:
        ...     saved = TensorDict(a=np.arange(3)).memmap(path)
        ...     saved["a"][0] = 7
        ...     TensorDict.load_memmap(path)["a"].tolist()
        [7, 1, 2]
        """
        _refuse_archive(prefix, archive, compression)
        options = Options(copy_existing, existsok, robust_key, False, progress, share_non_tensor)
        return self._save(prefix, options, num_threads, return_early, atomic, inplace=False)

    def memmap_(
        self,
        prefix: str | Path | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        existsok: bool = True,
        robust_key: bool | None = True,
        atomic: bool = False,
        progress: bool | None = None,
    ) -> Any:
        """Write all leaves to files, replace them by these files' memory, and lock the TensorDict: see `memmap`."""
        if not self.is_memmap() and self.is_shared():
            raise RuntimeError("memmap_: the TensorDict lies in shared memory; memmap() makes a copy of it in files")
        options = Options(copy_existing, existsok, robust_key, False, progress, share_non_tensor)
        return self._save(prefix, options, num_threads, return_early, atomic, inplace=True)

    def memmap_like(
        self,
        prefix: str | Path | None = None,
        copy_existing: bool = False,
        *,
        existsok: bool = True,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        robust_key: bool | None = True,
        archive: bool | None = None,
    ) -> Any:
        """Do the same as `memmap` without writing values: new files are full of zeros, and take no space yet.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from corral import TensorDict
        >>> row = TensorDict(obs=np.zeros((1, 3), "uint8"), batch_size=[1])
        >>> with tempfile.TemporaryDirectory() as path:
        ...     buffer = row.expand(1000).memmap_like(path)
        ...     buffer["obs"].shape, type(buffer["obs"]).__name__
        ((1000, 3), 'memmap')
        """
        _refuse_archive(prefix, archive, None)
        options = Options(True, existsok, robust_key, True, shares_objects=share_non_tensor)
        if prefix is None:
            return self._in_memory(options, inplace=False)
        return self._save(prefix, options, num_threads, return_early, False, inplace=False)

    def save(
        self,
        prefix: str | Path | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        robust_key: bool | None = True,
        archive: bool | None = None,
        compression: str | int | None = None,
        atomic: bool = False,
        progress: bool | None = None,
    ) -> Any:
        """Do the same as `memmap`."""
        return self.memmap(
            prefix,
            copy_existing,
            num_threads=num_threads,
            return_early=return_early,
            share_non_tensor=share_non_tensor,
            robust_key=robust_key,
            archive=archive,
            compression=compression,
            atomic=atomic,
            progress=progress,
        )

    dumps = save

    # Entries that are added to files

    def make_memmap(self, key: Any, shape: Any, *, dtype: Any = None, robust_key: bool | None = True) -> Any:
        """Add an entry to a memory-mapped TensorDict, full of zeros, and return it.

        Parameters
        ----------
        key : str or tuple of str
            A key that the TensorDict does not have.
        shape : sequence of int
            Shape of the new array.
        dtype : optional
            Its element type, float32 by default. One of torch's makes a tensor of torch's.
        robust_key : bool, optional
            As for `memmap`.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from corral import TensorDict
        >>> with tempfile.TemporaryDirectory() as path:
        ...     td = TensorDict(a=np.zeros(3)).memmap(path)
        ...     td.make_memmap("b", (3,), dtype="int64")[:] = 5
        ...     TensorDict.load_memmap(path)["b"].tolist()
        [5, 5, 5]
        """
        zeros = template(dtype, as_size(shape), next(iter(self._leaves()), None))
        return self._add(key, zeros, Options(True, True, robust_key, True), zeros=True)

    def make_memmap_from_tensor(
        self, key: Any, tensor: Any, *, copy_data: bool = True, existsok: bool = True, robust_key: bool | None = True
    ) -> Any:
        """Add an entry to a memory-mapped TensorDict with an array's values, and return it.

        Parameters
        ----------
        key : str or tuple of str
            A key that the TensorDict does not have.
        tensor : array
            Its values; only its shape and dtype if not `copy_data`.
        copy_data : bool
            Whether to write the values.
        existsok : bool
            Whether the file may exist.
        robust_key : bool, optional
            As for `memmap`.
        """
        return self._add(key, as_array(tensor), Options(True, existsok, robust_key, not copy_data))

    def _add(self, key: Any, value: Any, options: Options, zeros: bool = False) -> Any:
        if not self.is_memmap():
            raise RuntimeError("entries can be made in files only in a memory-mapped TensorDict: see memmap")
        parts = unravel_key(key)
        parts = (parts,) if isinstance(parts, str) else parts
        node: Any = self
        for part in parts[:-1]:
            node = node._nested_at(part, options)
        last = parts[-1]
        if last in node._source:
            raise RuntimeError(f"the key {last!r} exists already in the TensorDict: delete that entry first")
        size = node._batch_size
        if tuple(value.shape[: len(size)]) != size:
            raise RuntimeError(
                f"the shape {Size(value.shape)} of the new entry {key!r} does not start with the batch size {size}"
            )
        path = node._saved[0]
        if path is None:
            td = node._make({last: on_host(value)}, Size(), None)
            made = td._blank(_shared_bytes) if options.like else td._relocated(_shared_bytes, inplace=False)
            node._source[last] = made._source[last]
            return node._source[last]
        copies: list[Callable[[], int]] = []
        file = path / (directories.encode(last, options.robust) + ".memmap")
        leaf = leaf_to_file(value, file, options, copies)
        for copy in copies:
            copy()
        if zeros:
            leaf[...] = 0
        description = directories.read(path)
        description.add_leaf(last, leaf)
        directories.write(path, description)
        node._source[last] = leaf
        return leaf

    def _nested_at(self, key: str, options: Options) -> Any:
        value = self._source.get(key)
        if value is None:
            path = self._saved[0]
            nested = self._entry_class()._make({}, self._batch_size, "cpu")
            if path is None:
                nested._saved = (None, True)
            else:
                nested = nested._to_directory(path / directories.encode(key, options.robust), options, 0, False)
                description = directories.read(path)
                description.add_nested(key)
                directories.write(path, description)
            self._put(key, nested)
            return self._source[key]
        if not isinstance(value, MemoryMapping):
            raise KeyError(f"the entry {key!r} is a leaf, not a TensorDict")
        return value


def _refuse_archive(prefix: Any, archive: bool | None, compression: Any) -> None:
    if archive or (archive is None and prefix is not None and Path(prefix).suffix == ".tdz"):
        raise NotImplementedError(
            f"archives cannot be written, and prefix={str(prefix)!r} would be one: name a directory"
        )
    if compression is not None:
        raise ValueError(f"compression={compression!r} is of use for archives alone, which cannot be written")


def template(dtype: Any, shape: Size, leaf: Any = None) -> Any:
    """Return an array of zeros that takes no memory; its library is that of the dtype, else that of a leaf."""
    name, library = _kind(dtype, leaf)
    kind = dtype_of(name, library)
    if library == "torch":
        return sys.modules["torch"].zeros((), dtype=kind).expand(shape)
    return np.broadcast_to(np.zeros((), kind), shape)


def _kind(dtype: Any, leaf: Any) -> tuple[str, Library]:
    """Return the name and the library of a dtype; what it does not say is like that of another leaf."""
    library: Library = "torch" if library_of(leaf) == "torch" else "numpy"
    if dtype is None or isinstance(dtype, str):
        return dtype or "float32", library
    if type(dtype).__module__.partition(".")[0] == "torch":
        return str(dtype).removeprefix("torch."), "torch"
    return np.dtype(dtype).name, "numpy"
