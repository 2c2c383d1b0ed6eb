"""The form of a saved TensorDict: a directory with one file a leaf, and a `meta.json` that describes them.

It is that of tensordict, so that each library reads what the other has written. Nothing here maps a file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from pathlib import Path
from typing import Any

from corral.arrays.libraries import dtype_name, library_of

__all__ = [
    "ENTRIES",
    "META",
    "Description",
    "directory_of",
    "encode",
    "in_json",
    "leaf_file",
    "read",
    "refuse_link",
    "write",
]

META = "meta.json"
ENTRIES = "_tensordict"
"""Where the entries of a tensorclass are, in its directory."""

_UNSAFE = str.maketrans({c: f"%{ord(c):02X}" for c in '/<>:"|?*\\ %\x7f' + "".join(map(chr, range(32)))})
# What meta.json says of the TensorDict itself. Entries of such names are described apart, so that neither is lost.
_RESERVED = frozenset({"shape", "device", "_type", "_class", "_format_version", "_names", "_is_non_tensor"})
_APART = "_entries"
_DTYPE = re.compile(r"[a-z][a-z0-9_]*(\[[a-zA-Z0-9]+\])?")
_TENSORDICT = {
    "_type": "<class 'tensordict._td.TensorDict'>",
    "_format_version": 1,
    "_class": "tensordict:TensorDict",
}


def encode(key: str, robust: bool | None = True) -> str:
    """Return a key as the name of a file, in tensordict's way.

    Examples
    --------
    >>> encode("a/b c"), encode(".."), encode("")
    ('a%2Fb%20c', '%2E%2E', '%')
    """
    if robust is False:
        return key
    if not key:
        return "%"
    return "%2E" * len(key) if key in (".", "..") else key.translate(_UNSAFE)


def _found(prefix: Path, key: str, suffix: str, robust: bool | None) -> Path:
    """Return the path of an entry, which earlier versions of tensordict did not encode."""
    path = prefix / (encode(key, robust) + suffix)
    inside = "/" not in key and "\\" not in key and (suffix or key not in ("", ".", ".."))
    if robust is False:
        if not inside:
            raise ValueError(f"the key {key!r} is no name of a file in {prefix}: load it with robust_key=True")
        return path
    if path.name != key + suffix and inside and not path.exists() and "\0" not in key:
        plain = prefix / (key + suffix)
        if plain.exists():
            return plain
    return path


def leaf_file(prefix: Path, key: str, robust: bool | None = True) -> Path:
    """Return the file of a leaf that has been saved."""
    return _found(prefix, key, ".memmap", robust)


def directory_of(prefix: Path, key: str, robust: bool | None = True) -> Path:
    """Return the directory of a nested TensorDict that has been saved."""
    return _found(prefix, key, "", robust)


def refuse_link(path: Path) -> None:
    """Raise an error if a path that is to be written to is a symbolic link."""
    if path.is_symlink():
        raise RuntimeError(f"refusing to write a TensorDict through the symbolic link {path}")


class Description:
    """What `meta.json` says: of every entry, and of the TensorDict."""

    def __init__(self, facts: dict[str, Any] | None = None) -> None:
        self.facts: dict[str, Any] = dict(facts or {})
        apart = self.facts.pop(_APART, {})
        self.entries = _entries(self.facts)
        for key in self.entries:
            del self.facts[key]
        self.entries.update(_entries(apart) if isinstance(apart, dict) else {})

    def add_leaf(self, key: str, leaf: Any) -> None:
        """Describe an array."""
        self.entries[key] = {
            "device": "cpu",
            "shape": list(leaf.shape),
            "dtype": f"torch.{dtype_name(leaf)}",
            "is_nested": False,
            "library": "torch" if library_of(leaf) == "torch" else "numpy",
        }

    def add_nested(self, key: str, kind: str = "TensorDict") -> None:
        """Describe an entry that has a directory of its own."""
        self.entries[key] = {"type": kind}

    def set_shape(self, shape: tuple[int, ...], names: tuple[str | None, ...] | None = None) -> None:
        """Describe the TensorDict itself."""
        self.facts.update({"shape": list(shape), "device": "cpu", **_TENSORDICT})
        if names is not None and any(name is not None for name in names):
            self.facts["_names"] = list(names)

    def set_kind(self, name: str, module: str, **facts: Any) -> None:
        """Describe something else, of a class of tensordict's."""
        self.facts["_type"] = f"<class 'tensordict.{module}.{name}'>"
        if name != "NonTensorData":  # of which tensordict takes all facts for fields
            self.facts.update({"_format_version": 1, "_class": f"tensordict:{name}"})
        self.facts.update(facts)

    @property
    def names(self) -> tuple[str | None, ...] | None:
        """The names of the batch dimensions, if they have some."""
        names = self.facts.get("_names")
        if names is None:
            return None
        known = isinstance(names, list) and all(name is None or isinstance(name, str) for name in names)
        if not known or len(names) != len(self.shape):
            raise ValueError(f"the names of dimensions are {names!r}, for the batch size {list(self.shape)}")
        return tuple(names)

    def to_json(self) -> dict[str, Any]:
        """Return what is written."""
        plain = {key: entry for key, entry in self.entries.items() if key not in _RESERVED and key != _APART}
        apart = {key: entry for key, entry in self.entries.items() if key not in plain}
        return {**plain, **self.facts, **({_APART: apart} if apart else {})}

    @property
    def shape(self) -> tuple[int, ...]:
        """The batch size."""
        return sizes(self.facts.get("shape", []), "the batch size")

    @property
    def kind(self) -> str:
        """The name of the class that was saved."""
        name = self.facts.get("_class") or self.facts.get("_type", "")
        return re.split(r"[.:]", str(name).removeprefix("<class '").removesuffix("'>"))[-1]


def _entries(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        key: entry
        for key, entry in facts.items()
        if isinstance(entry, dict) and ("type" in entry or {"dtype", "shape"} <= entry.keys())
    }


def sizes(value: Any, what: str) -> tuple[int, ...]:
    """Return a shape that was read from a file, or say what is wrong with it."""
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 1 << 63 for n in value):
        raise ValueError(f"{what} is {value!r}, which is no list of lengths")
    return tuple(value)


def dtype_in(entry: dict[str, Any], what: str) -> str:
    """Return the name of a dtype that was read from a file, or say what is wrong with it."""
    name = str(entry.get("dtype")).removeprefix("torch.")
    if not _DTYPE.fullmatch(name):
        raise ValueError(f"{what} has the dtype {entry.get('dtype')!r}, which is no name of a dtype")
    return name


def in_json(data: Any) -> bool:
    """Whether JSON gives back what it is given: neither tuples nor keys that are numbers, for example."""
    if data is None or type(data) in (bool, int, str):
        return True
    if type(data) is float:
        return data == data and data not in (float("inf"), float("-inf"))
    if type(data) is list:
        return all(map(in_json, data))
    return type(data) is dict and all(type(key) is str and in_json(value) for key, value in data.items())


def write(prefix: Path, description: Description) -> None:
    """Put `meta.json` in its place in one step: whoever finds it finds all of it."""
    write_bytes(prefix / META, json.dumps(description.to_json()).encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Put a file in its place in one step."""
    name = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with open(name, "xb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def read(prefix: Path) -> Description:
    """Return what `meta.json` says.

    Raises
    ------
    FileNotFoundError
        If there is none: nothing was saved there, or not to its end.
    ValueError
        If it is not what a TensorDict's would be.
    """
    path = prefix / META
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(
            errno.ENOENT, f"no TensorDict was saved in {prefix}, or not to its end: it has no {META}", str(path)
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} does not describe a TensorDict: {error}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"{path} does not describe a TensorDict: it holds a {type(facts).__name__}")
    return Description(facts)
