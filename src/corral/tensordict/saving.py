"""Write TensorDicts to directories: first the leaves, then what says that they are there."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from corral.arrays.libraries import Library, copy_into, dtype_name, library_of, to_numpy
from corral.arrays.mapped import (
    bytes_of,
    create_file,
    map_file,
    numpy_dtype,
    place_in_file,
    same_file,
    same_place,
    write_file,
)
from corral.arrays.operations import clone, nbytes
from corral.tensordict import directories
from corral.tensordict.loading import Loader, Loading
from corral.tensordict.progress import Bar
from corral.tensordict.relocating import as_leaf
from corral.tensordict.sharing import Sharing, _shared_bytes

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Options", "Saving", "leaf_to_file", "on_host"]

_MUCH, _WRITERS = 64 << 20, 4  # bytes from which on several threads write, and how many at most


class Options:
    """How leaves are written: `like` is without their values; `progress` is whether to show a bar.

    Processes share objects that are no arrays if `shares_objects`. `root` is the real path of the directory that is
    written, as soon as that is known.
    """

    root: str | None = None

    def __init__(
        self,
        copy_existing: bool,
        exist_ok: bool,
        robust: bool | None,
        like: bool,
        progress: bool | None = None,
        shares_objects: bool = False,
    ) -> None:
        self.copy_existing = copy_existing
        self.exist_ok = exist_ok
        self.robust = robust
        self.like = like
        self.progress = progress
        self.shares_objects = shares_objects


class Saving(Loading, Sharing):
    """The parts of `memmap`."""

    __slots__ = ()
    _kind_in_files: ClassVar[str] = "TensorDict"

    def _lock(self, locked: Any) -> None:
        if locked is False and getattr(self, "_saved", None) is not None:
            self._saved = (self._saved[0], False)
        super()._lock(locked)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, args = super().__reduce__()
        return self._pickled(rebuild, *args)

    def _pickled(self, rebuild: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
        """Return a pickle's call that makes this TensorDict again, memory-mapped if it is."""
        return (_rebuild_saved, (rebuild, args, self._saved[0])) if self.is_memmap() else (rebuild, args)

    def _save(
        self,
        prefix: str | Path | None,
        options: Options,
        threads: int,
        early: bool,
        atomic: bool,
        inplace: bool,
    ) -> Any:
        path = getattr(self, "_saved", (None, False))[0] if prefix is None else Path(prefix)
        if atomic and early:
            raise NotImplementedError("return_early is not supported with atomic=True")
        if path is None:
            if atomic:
                raise ValueError("atomic=True needs a directory to write to, as prefix")
            return self._in_memory(options, inplace)
        if atomic:
            return self._atomically(path, options, threads, inplace)
        if threads > 1 and early:
            from concurrent.futures import ThreadPoolExecutor

            pool = ThreadPoolExecutor(1)
            future: Future[Any] = pool.submit(self._to_directory, path, options, threads, inplace)
            pool.shutdown(wait=False)
            return future
        return self._to_directory(path, options, threads, inplace)

    def _in_memory(self, options: Options, inplace: bool) -> Self:
        if self.is_memmap() and inplace:
            return self
        if options.shares_objects and self._has_objects():
            raise ValueError(
                "memmap: share_non_tensor=True shares objects by a directory that all processes see: give one as prefix"
            )
        host = self._map(on_host)
        result = host._relocated(_shared_bytes, inplace=False) if not options.like else host._blank(_shared_bytes)
        return self._finish(result, None, inplace, options)

    def _blank(self, allocate: Callable[[int], Any]) -> Self:
        def blank(leaf: Any) -> Any:
            piece = allocate(nbytes(leaf))[: nbytes(leaf)]
            return as_leaf(piece, leaf.dtype, tuple(leaf.shape), library_of(leaf))

        return self._map(blank)

    def _has_objects(self) -> bool:
        """Whether an entry is one of objects that are no arrays."""
        return self._holds_objects or any(isinstance(each, Saving) and each._has_objects() for each in self._children())

    def _share_objects(self) -> None:
        """Let processes share the objects that are entries here: see `corral.tensordict.nontensor_shared`."""
        from corral.tensordict.nontensor_shared import shared

        for td in self._members() or ():
            td._share_objects()
        for key, value in self._source.items() if self._members() is None else ():
            if isinstance(value, Saving):
                if value._holds_objects:
                    self._source[key] = shared(value)
                else:
                    value._share_objects()

    def _finish(self, result: Self, path: Path | None, inplace: bool, options: Options) -> Self:
        if inplace:
            self._adopt(result)
            result = self
        if options.shares_objects:
            result._share_objects()
        result._set_device("cpu")
        result.lock_()
        result._note(path, True, options.robust)
        return result

    def _to_directory(self, path: Path, options: Options, threads: int, inplace: bool) -> Self:
        self._refuse_nested()
        self._check_targets(path, options)
        copies: list[Callable[[], int]] = []
        described: list[tuple[Path, directories.Description]] = []
        options.root = os.path.realpath(path)
        result = self._to_files(path, options, copies, described)
        total = sum(nbytes(leaf) for leaf in result._leaves()) if copies else 0
        if threads == 0 and total >= _MUCH:
            threads = min(_WRITERS, os.cpu_count() or 1)
        with Bar(f"Saving {path.name}", total, options.progress) as bar:
            if threads > 1 and len(copies) > 1:
                from concurrent.futures import ThreadPoolExecutor, as_completed

                with ThreadPoolExecutor(threads) as pool:
                    for job in as_completed([pool.submit(copy) for copy in copies]):
                        bar.advance(job.result())
            else:
                for copy in copies:
                    bar.advance(copy())
        for directory, description in reversed(described):
            directories.write(directory, description)
        return self._finish(result, path, inplace, options)

    def _check_targets(self, path: Path, options: Options) -> None:
        """Raise what can be known to be wrong before anything is changed on the disk."""
        for key, value in self._source.items():
            if isinstance(value, Saving):
                directory = path / directories.encode(key, options.robust)
                directories.refuse_link(directory)
                value._check_targets(directory, options)
                continue
            file = path / (directories.encode(key, options.robust) + ".memmap")
            directories.refuse_link(file)
            if library_of(value) != "torch":
                numpy_dtype(dtype_name(value))
            if same_place(value, file):
                continue
            place = place_in_file(value)
            if place is not None and not options.copy_existing and not same_file(place[0], file):
                raise RuntimeError(
                    f"the leaf {key!r} lies in a file already ({place[0]}): pass copy_existing=True to copy it to "
                    f"{file}"
                )
            if not options.exist_ok and file.exists():
                raise RuntimeError(f"the file {file} exists already, and existsok is False")

    def _to_files(
        self,
        path: Path,
        options: Options,
        copies: list[Callable[[], int]],
        described: list[tuple[Path, directories.Description]],
    ) -> Self:
        path.mkdir(parents=True, exist_ok=True)
        (path / directories.META).unlink(missing_ok=True)  # what it describes is about to change
        description = directories.Description()
        described.append((path, description))
        source: dict[str, Any] = {}
        for key, value in self._source.items():
            if isinstance(value, Saving):
                nested = path / directories.encode(key, options.robust)
                source[key] = value._to_files(nested, options, copies, described)
                description.add_nested(key, value._kind_in_files)
                continue
            file = path / (directories.encode(key, options.robust) + ".memmap")
            source[key] = leaf_to_file(value, file, options, copies)
            description.add_leaf(key, source[key])
        description.set_shape(self._batch_size, self._names)
        return self._make(source, self._batch_size, "cpu", self._names)

    def _atomically(self, path: Path, options: Options, threads: int, inplace: bool) -> Self:
        import shutil  # with what it needs to pack archives, it would be a tenth of what corral takes to import
        import tempfile

        target = path.resolve()
        if target.exists():
            if not target.is_dir():
                raise NotADirectoryError(f"{path} exists and is not a directory")
            if any(target.iterdir()):
                if not options.exist_ok:
                    raise RuntimeError(f"{path} is not empty, and existsok is False")
                if not (target / directories.META).exists():
                    raise RuntimeError(f"refusing to replace {path} with atomic=True: it holds no saved TensorDict")
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".tdtmp-", dir=target.parent))
        new, old = work / "new", work / "old"
        try:
            self._to_directory(new, options, threads, inplace=False)
            if target.exists():
                shutil.copymode(target, new)
                os.rename(target, old)
                try:
                    os.rename(new, target)
                except BaseException:
                    os.rename(old, target)
                    raise
            else:
                os.rename(new, target)
        finally:
            if target.exists() or not old.exists():
                shutil.rmtree(work, ignore_errors=True)
        moved = Loader("cpu", options.robust, None, None, None).load(target, type(self))
        return self._finish(moved, path, inplace, options)


def on_host(leaf: Any) -> Any:
    """Return the values of a leaf as an array that a file can hold: NumPy's, or torch's if it is a tensor."""
    if library_of(leaf) == "torch":
        leaf = leaf.detach().cpu()
        return leaf if leaf.layout is sys.modules["torch"].strided else leaf.to_dense()
    return to_numpy(leaf)


def _is_within(file: str, root: str | None) -> bool:
    """Whether a file is in a directory, and so perhaps about to be written."""
    return root is not None and os.path.realpath(file).startswith(os.path.join(root, ""))


def leaf_to_file(value: Any, file: Path, options: Options, copies: list[Callable[[], int]]) -> Any:
    """Make the file of a leaf and map it; what fills it is added to `copies`."""
    if same_place(value, file):
        return value
    place = place_in_file(value)
    if place is not None and (same_file(place[0], file) or _is_within(place[0], options.root)):
        value = clone(value)  # else it would be written over while it is read, or before
    library: Library = "torch" if library_of(value) == "torch" else "numpy"
    if not math.prod(value.shape):
        return map_file(file, dtype_name(value), value.shape, library)
    content = None if options.like else bytes_of(value)
    create_file(file, nbytes(value), exist_ok=options.exist_ok, reserve=not options.like and content is None)
    leaf = map_file(file, dtype_name(value), value.shape, library, "r+")
    if not options.like:

        def fill() -> int:
            if content is None:
                copy_into(leaf, on_host(value))
            else:
                write_file(file, content)
            return nbytes(leaf)

        copies.append(fill)
    return leaf


def _rebuild_saved(rebuild: Callable[..., Any], args: tuple[Any, ...], path: Path | None) -> Any:
    td = rebuild(*args)
    td._saved = (path, True)
    return td
