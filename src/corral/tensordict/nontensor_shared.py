"""Objects that processes share: each reads them from the directory that they are saved in."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from corral.tensordict import directories, nontensor, pytrees
from corral.tensordict.nontensor_base import ObjectEntry
from corral.tensordict.nontensor_files import read_objects

__all__ = ["NonTensorData", "NonTensorStack", "shared"]

_DATA: Any = nontensor.NonTensorData.__dict__["_data"]
_OBJECTS: Any = nontensor.NonTensorStack.__dict__["_objects"]


class Shared(ObjectEntry):
    """An entry of objects in a directory, which another process may have written since they were last read.

    A write puts `meta.json` in its place in one step, so that a reader finds the old objects or the new ones.
    """

    __slots__ = ()
    _seen: tuple[int, ...]

    def _written(self) -> Any:
        """Return the entry that is in the directory if it is another one than was read last, else ``None``."""
        path: Path | None = getattr(self, "_saved", (None, False))[0]
        if path is None or not self.is_memmap():
            return None
        try:
            seen = _state(path)
            if seen == getattr(self, "_seen", None):
                return None
            while True:
                try:
                    entry = read_objects(path, directories.read(path), self._batch_size, allow_pickle=True)
                    break
                except ValueError:
                    seen, before = _state(path), seen
                    if seen == before:  # it was not written meanwhile: it is wrong
                        raise
        except FileNotFoundError:  # the directory was removed: what was read last remains
            return None
        self._seen = seen  # type: ignore[misc]  # a slot of each class: two bases with slots cannot be combined
        return entry

    def _file_away(self, data: Any) -> None:
        super()._file_away(data)
        path: Path | None = getattr(self, "_saved", (None, False))[0]
        if path is not None and self.is_memmap():
            now = time.time_ns()  # clocks of file systems are slow, and files get the numbers of removed ones
            os.utime(path / directories.META, ns=(now, now))


def _state(path: Path) -> tuple[int, ...]:
    """Return what tells two states of a directory apart."""
    facts = os.stat(path / directories.META)
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


class NonTensorData(Shared, nontensor.NonTensorData):  # by its name, messages know what it is
    """An entry whose object is read anew when a process has written another one."""

    __slots__ = ("_seen",)

    @property
    def _data(self) -> Any:
        entry = self._written()
        if entry is not None:
            _DATA.__set__(self, entry._unwrapped())
        return _DATA.__get__(self)

    @_data.setter
    def _data(self, value: Any) -> None:
        _DATA.__set__(self, value)

    def _with_all(self, objects: np.ndarray[Any, Any]) -> Any:
        stack = NonTensorStack._of(objects, self._device)
        stack._succeed(self)
        return stack

    def __reduce__(self) -> tuple[Any, ...]:
        return self._pickled(_rebuild_data, self._data, tuple(self._batch_size), self._device)


class NonTensorStack(Shared, nontensor.NonTensorStack):
    """An entry whose objects are read anew when a process has written others."""

    __slots__ = ("_seen",)

    @property
    def _objects(self) -> Any:
        entry = self._written()
        if entry is not None:
            _OBJECTS.__set__(self, np.array(np.broadcast_to(entry._cells(), self._batch_size)))
        return _OBJECTS.__get__(self)

    @_objects.setter
    def _objects(self, value: Any) -> None:
        _OBJECTS.__set__(self, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._pickled(_rebuild_stack, self._objects.shape, self.flat(), self._device)


def _rebuild_data(*args: Any) -> Any:
    return NonTensorData(*args)


def _rebuild_stack(*args: Any) -> Any:
    return shared(nontensor._rebuild(*args))


def shared(entry: Any) -> Any:
    """Return an entry of the same objects, which are shared as soon as the entry knows its directory."""
    if isinstance(entry, nontensor.NonTensorData):
        return NonTensorData(entry._data, entry._batch_size, entry._device)
    return NonTensorStack._of(entry._cells().copy(), entry._device)


pytrees.register_kind(NonTensorData)
pytrees.register_kind(NonTensorStack)
