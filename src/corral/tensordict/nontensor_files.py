"""Objects that are no arrays in directories: in `meta.json` where that can hold them, else in a pickle next to it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from corral.tensordict import directories
from corral.tensordict.object_arrays import cells
from corral.tensordict.saving import Options, Saving
from corral.tensordict.sizes import Size

__all__ = ["ObjectFiles", "read_objects"]

_PICKLES = {"NonTensorData": "other.pickle", "NonTensorStack": "pickle.pkl"}


class ObjectFiles(Saving):
    """The parts of `memmap` for entries of objects."""

    __slots__ = ()
    _kind_in_files: ClassVar[str] = "NonTensorData"

    def _check_targets(self, path: Path, options: Options) -> None:
        directories.refuse_link(path / _PICKLES[self._kind_in_files])

    def _to_files(
        self,
        path: Path,
        options: Options,
        copies: list[Callable[[], int]],
        described: list[tuple[Path, directories.Description]],
    ) -> Any:
        path.mkdir(parents=True, exist_ok=True)
        (path / directories.META).unlink(missing_ok=True)
        description, file = self._described(path, self._unwrapped())
        described.append((path, description))
        _remove_others(path, file)
        return self.clone()  # type: ignore[attr-defined]

    def _described(self, path: Path, data: Any) -> tuple[directories.Description, Path | None]:
        """Write objects that JSON cannot hold to a file; return what describes all objects, and that file."""
        description = directories.Description()
        is_stack = self._kind_in_files == "NonTensorStack"
        file = path / _PICKLES[self._kind_in_files]
        facts: dict[str, Any] = {"stack_dim": 0, "device": None} if is_stack else {}
        is_plain = directories.in_json(data)
        if is_plain:
            facts["data"] = data
        else:
            directories.write_bytes(file, pickle.dumps(data if is_stack else {"data": data}))
            facts |= {"data": file.name} if is_stack else {}
        if not is_stack:
            facts |= {"_metadata": None, "_is_non_tensor": True}
        description.set_kind(self._kind_in_files, "tensorclass", **facts)
        return description, None if is_plain else file

    def _file_away(self, data: Any) -> None:
        """Write the objects that this entry is about to have to its directory, if it is memory-mapped.

        It comes first: if it fails, nothing has changed.
        """
        path = getattr(self, "_saved", (None, False))[0]
        if path is not None and self.is_memmap():
            description, file = self._described(path, data)
            directories.write(path, description)
            _remove_others(path, file)

    def _succeed(self, old: Any) -> None:
        """Take the place of another entry in its directory, if that one is memory-mapped."""
        if self is not old and isinstance(old, ObjectFiles) and old.is_memmap():
            data = self._unwrapped()  # before the directory is known, which has others
            self._saved = old._saved
            self._file_away(data)
            self._locked = old._locked


def _remove_others(path: Path, file: Path | None) -> None:
    """Remove files of objects that an entry had before: tensordict would read them."""
    for name in _PICKLES.values():
        if file is None or name != file.name:
            (path / name).unlink(missing_ok=True)


def read_objects(path: Path, description: directories.Description, size: Size, allow_pickle: bool) -> Any:
    """Return an entry of objects that was saved as a part of a batch.

    Raises
    ------
    RuntimeError
        If it is pickled, and `allow_pickle` is not set.
    """
    from corral.tensordict.nontensor import NonTensorData, NonTensorStack

    facts = json.loads((path / directories.META).read_bytes())
    file = path / _PICKLES[description.kind]
    is_stack = description.kind == "NonTensorStack"
    if file.exists() and (facts.get("data") == file.name if is_stack else "data" not in facts):
        if not allow_pickle:
            raise RuntimeError(
                f"load_memmap: {path} holds pickled data, and to unpickle can run any code: pass allow_pickle=True if "
                "you trust who wrote it"
            )
        data = pickle.loads(file.read_bytes())
        data = data if is_stack else data["data"]
    elif "data" not in facts:
        raise ValueError(f"load_memmap: {path} holds neither data nor {file.name}: the directory is not complete")
    else:
        data = facts["data"]
    if not is_stack:
        return NonTensorData(data, size)
    if not isinstance(data, list):
        raise ValueError(f"load_memmap: the data of {path} is a {type(data).__name__}, not a list")
    return NonTensorStack._of(cells(data, len(size) or None))
