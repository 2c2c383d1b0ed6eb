"""Lazy stacks in directories: one for each member, whose name is its number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from corral.tensordict import directories
from corral.tensordict.lazy_base import LazyBase
from corral.tensordict.saving import Options

__all__ = ["LazyFiles"]


class LazyFiles(LazyBase):
    """The parts of `memmap` for lazy stacks."""

    __slots__ = ()
    _kind_in_files: ClassVar[str] = "LazyStackedTensorDict"

    def _check_targets(self, path: Path, options: Options) -> None:
        for number, td in enumerate(self.tensordicts):
            directory = path / str(number)
            directories.refuse_link(directory)
            td._check_targets(directory, options)
        if (path / str(len(self.tensordicts))).exists():  # it would be read as a member
            raise RuntimeError(f"{path} holds a stack of more than {len(self.tensordicts)} members: remove it first")

    def _to_files(
        self,
        path: Path,
        options: Options,
        copies: list[Callable[[], int]],
        described: list[tuple[Path, directories.Description]],
    ) -> Any:
        path.mkdir(parents=True, exist_ok=True)
        (path / directories.META).unlink(missing_ok=True)
        description = directories.Description()
        described.append((path, description))
        members = [
            td._to_files(path / str(number), options, copies, described) for number, td in enumerate(self.tensordicts)
        ]
        facts = {"stack_dim": self.stack_dim, "stack_dim_name": self._stack_name}
        description.set_kind(self._kind_in_files, "_lazy", **facts)
        result = self._of(members, self.stack_dim)
        result._stack_name = self._stack_name
        return result

    def _note(self, path: Path | None, mapped: bool, robust: bool | None = True) -> None:
        self._saved = (path, mapped)
        for number, td in enumerate(self.tensordicts):
            td._note(None if path is None else path / str(number), mapped, robust)
