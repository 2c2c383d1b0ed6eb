"""Tensorclasses in directories, in the form of tensordict: their entries lie in one of its own within theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corral.tensordict import directories
from corral.tensordict.tensorclass_conversion import Conversions
from corral.tensordict.tensorclass_kinds import name_of

__all__ = ["Filed"]

_ENTRIES = directories.ENTRIES


class Filed(Conversions):
    """Save instances so that their class is known when they are loaded."""

    __slots__ = ()

    def _check_targets(self, path: Path, options: Any) -> None:
        super()._check_targets(path / _ENTRIES, options)

    def _to_files(self, path: Path, options: Any, copies: list[Any], described: list[Any]) -> Any:
        path.mkdir(parents=True, exist_ok=True)
        (path / directories.META).unlink(missing_ok=True)
        described.append((path, directories.Description({"_type": f"<class '{name_of(self._front)}'>"})))
        return super()._to_files(path / _ENTRIES, options, copies, described)

    def _note(self, path: Path | None, mapped: bool, robust: bool | None = True) -> None:
        super()._note(None if path is None else path / _ENTRIES, mapped, robust)

    @property
    def saved_path(self) -> Path | None:
        """The directory that a memory-mapped instance was saved in; ``None`` if its memory has no name."""
        path = super().saved_path
        return path.parent if path is not None and path.name == _ENTRIES else path

    def _save(self, prefix: Any, *options: Any, **more: Any) -> Any:
        if prefix is None and self.is_memmap():
            prefix = self.saved_path
        return super()._save(prefix, *options, **more)

    def _atomically(self, *args: Any) -> Any:
        result = super()._atomically(*args)
        return result if result is self else self._front._with_nested(self._front._of_tensordict(result))
