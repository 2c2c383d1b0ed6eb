"""The TensorDict that a safetensors file holds."""

from __future__ import annotations

import json
import math
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from corral.arrays.libraries import Library, convert
from corral.tensordict import directories
from corral.tensordict.base import device_name
from corral.tensordict.sizes import Size
from corral.tensordict.tensorclass_kinds import known

__all__ = ["FORMATS", "KEY", "VERSION", "Reader"]

# tensordict's: where a file's metadata describe the structure, and the version of the description.
KEY = "tensordict"
VERSION = 1

# What safetensors calls the formats of numbers that NumPy has from ml_dtypes alone.
FORMATS = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


class Reader:
    """Reads the leaves and the structure of a file.

    Parameters
    ----------
    path : Path
        The file.
    safetensors : module
        The package.
    stack : ExitStack
        Closes what is opened.
    device : optional
        Where the leaves shall lie.
    library : str, optional
        Library of the leaves.
    """

    def __init__(self, path: Path, safetensors: Any, stack: ExitStack, device: Any, library: Library | None) -> None:
        self.path = path
        self._safetensors = safetensors
        self._stack = stack
        self._device = device_name(device)
        self._library = library
        self._opened: dict[str, Any] = {}
        self._file = self._open("np")
        self._names = set(self._file.keys())
        self._used: set[str] = set()

    def _open(self, framework: str) -> Any:
        file = self._opened.get(framework)
        if file is None:
            file = self._safetensors.safe_open(str(self.path), framework=framework)
            self._opened[framework] = self._stack.enter_context(file)
        return self._opened[framework]

    def read(self) -> Any:
        """Return the TensorDict."""
        metadata = (self._file.metadata() or {}).get(KEY)
        if metadata is None:
            return self._by_names()
        try:
            facts = json.loads(metadata)
            version = facts["version"]
            if version == VERSION:
                td = self._level(facts["root"])
        except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"from_safetensors: the metadata of {self.path} do not describe a TensorDict: {error!r}"
            ) from error
        if version != VERSION:
            raise ValueError(
                f"from_safetensors: the metadata of {self.path} have version {version!r}, and {VERSION} is known here"
            )
        if self._names - self._used:
            raise ValueError(
                f"from_safetensors: the leaves {sorted(self._names - self._used)} of {self.path} are not in its "
                "metadata: another program has changed the file"
            )
        return td

    def _by_names(self) -> Any:
        """Return the TensorDict of a file that says nothing of one."""
        from corral.tensordict.dense import TensorDict

        root: dict[str, Any] = {}
        for name in sorted(self._names):
            *path, last = name.split(".")
            level = root
            for part in path:
                level = level.setdefault(part, {})
                if not isinstance(level, dict):
                    raise ValueError(
                        f"from_safetensors: {self.path} has the leaf {name!r}, and another where this one is nested: "
                        "one key cannot be both"
                    )
            if last in level:
                raise ValueError(f"from_safetensors: {self.path} has the leaf {name!r}, and others nested in it")
            level[last] = self._leaf(name, {})
        return TensorDict(root, device=self._device)

    def _level(self, level: dict[str, Any]) -> Any:
        """Return the TensorDict that a part of the metadata describes."""
        from corral.tensordict.dense import TensorDict
        from corral.tensordict.lazy import LazyStackedTensorDict
        from corral.tensordict.nontensor import NonTensorData

        size = Size(directories.sizes(level["batch_size"], f"the batch size in {self.path}"))
        source: dict[str, Any] = {}
        for key, entry in level["keys"].items():
            if "tensor" in entry:
                source[key] = self._leaf(entry["tensor"], entry)
            elif "non_tensor" in entry:
                source[key] = NonTensorData(entry["non_tensor"], size, self._device)
            else:
                source[key] = self._level(entry["td"])
            if tuple(source[key].shape[: len(size)]) != size:
                raise ValueError(
                    f"from_safetensors: the entry {key!r} in {self.path} has shape {Size(source[key].shape)}, which "
                    f"does not start with the batch size {size}"
                )
        names = level["names"]
        td: Any = TensorDict._make(source, size, self._device)
        dim = level.get("stack_dim")
        if dim is not None:
            if type(dim) is not int or not 0 <= dim < len(size) or not size[dim]:
                raise ValueError(
                    f"from_safetensors: {self.path} has a lazy stack of batch size {size} along dimension {dim!r}, and "
                    "one needs a member at least"
                )
            members = td._unbind(dim)
            td = LazyStackedTensorDict._kind_for(members)._of(members, dim)
        if names is not None:
            td._set_names(names)
        cls = known(str(level.get("class")).removeprefix("<class '").removesuffix("'>"))
        return td if cls is None or not cls._fits_class(td) else cls.from_tensordict(td)

    def _leaf(self, name: str, entry: dict[str, Any]) -> Any:
        if name not in self._names:
            raise ValueError(f"from_safetensors: {self.path} has no leaf {name!r}, which its metadata name")
        self._used.add(name)
        library = self._library
        if library is None:
            host = self._device in (None, "cpu")
            numpy = host and (entry.get("library") == "numpy" or sys.modules.get("torch") is None)
            library = "numpy" if numpy else "torch"
        if library == "torch":
            tensor = self._open("pt").get_tensor(name)
            return tensor if self._device is None else tensor.to(self._device)
        return convert(self._array(name), library, self._device)

    def _array(self, name: str) -> np.ndarray[Any, Any]:
        dtype = FORMATS.get(self._file.get_slice(name).get_dtype())
        if dtype is None:
            array: np.ndarray[Any, Any] = self._file.get_tensor(name)
            return array
        try:
            import ml_dtypes
        except ImportError as error:
            raise ModuleNotFoundError(
                f"from_safetensors: the leaf {name!r} of {self.path} is {dtype}, which NumPy has from ml_dtypes alone: "
                "pip install ml_dtypes, or pass library='torch'"
            ) from error
        # safetensors gives NumPy no float8; it has checked the offsets.
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            facts = json.loads(file.read(length))[name]
            file.seek(8 + length + facts["data_offsets"][0])
            return np.fromfile(file, getattr(ml_dtypes, dtype), math.prod(facts["shape"])).reshape(facts["shape"])
