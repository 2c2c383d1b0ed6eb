"""State of a TensorDict, and the checks that every write goes through."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from corral.arrays.libraries import convert, library_of
from corral.arrays.operations import as_array, device_of
from corral.tensordict.blocks import Blocks, undone
from corral.tensordict.names import Named, Names, merged
from corral.tensordict.nested_keys import NestedKey, unravel_key
from corral.tensordict.sizes import Size, as_size

__all__ = ["Base", "device_name"]

_LOCKED = (
    "Cannot modify locked TensorDict. For in-place modification, consider using the `set_()` method and make "
    "sure the key is present."
)

_SEVERAL = 8  # entries from which on it pays to see whether one call can do something to all of them


_leaf_types: set[type[Any]] = {np.ndarray}
"""Types of leaves that have been met."""


def device_name(device: Any) -> str | None:
    """Return the name of a device, given by a name, a number of a CUDA device, or a library's object."""
    if device is None:
        return None
    return f"cuda:{device}" if isinstance(device, int) else str(device)


class Base(Named, Blocks):
    """What the parts of `TensorDict` build on."""

    __slots__ = ("__weakref__", "_blocks", "_device", "_locked", "_origin")

    _batch_size: Size
    _device: str | None
    # Whether entries are fixed; a reference to the TensorDict that this one was locked with, if there is one.
    _locked: bool | weakref.ref[Base]
    # Whether this is not a dictionary but an entry of objects that are no arrays; whether it is one for any batch.
    _holds_objects: ClassVar[bool] = False
    _fits_any: ClassVar[bool] = False
    # Whether the class stacks and joins its instances by methods of its own, `_stack_all` and `_cat_all`.
    _joins: ClassVar[bool] = False
    # Whether entries are read from a file, into new arrays, so that writing into those would reach nobody.
    _in_file: ClassVar[bool] = False

    @classmethod
    def _make(cls, source: dict[str, Any], batch_size: Size, device: str | None = None, names: Names = None) -> Self:
        """Wrap entries that are known to be right: nothing is checked and nothing copied."""
        self = cls.__new__(cls)
        self._source = source
        self._batch_size = batch_size
        self._device = device
        self._locked = False
        self._names = names
        return self

    @classmethod
    def _entry_class(cls) -> Any:
        """Return the class of the TensorDicts that nested keys and dicts become."""
        return cls

    def _map(self, function: Callable[[Any], Any], batch_size: Size | None = None, names: Names = None) -> Self:
        """Apply a function to every leaf; `batch_size` takes the place of as many dimensions as `self` has.

        Names are kept where the batch size is, else they are `names`.
        """
        if batch_size is None:
            return self._map_values(function)
        return self._map_resized(function, batch_size, len(self._batch_size), names)

    def _map_values(self, function: Callable[[Any], Any]) -> Self:
        values = self._source.values()
        many = getattr(function, "many", None)  # does the same to several arrays at once, where it can
        done = None if many is None or len(values) < _SEVERAL else many([*values])
        if done is None:
            done = [value._map_values(function) if isinstance(value, Base) else function(value) for value in values]
        source = dict(zip(self._source, done, strict=True))
        return self._make(source, self._batch_size, self._device, self._names)

    def _map_resized(self, function: Callable[[Any], Any], root: Size, replaced: int, names: Names = None) -> Self:
        source = {
            key: value._map_resized(function, root, replaced, names) if isinstance(value, Base) else function(value)
            for key, value in self._source.items()
        }
        size = self._batch_size
        if names is not None or self._names is not None:
            names = merged((None,) * len(root) if names is None else names, replaced, self._names, len(size))
        return self._make(source, Size(root + size[replaced:]), self._device, names)

    def _leaves(self) -> Iterable[Any]:
        for value in self._source.values():
            if isinstance(value, Base):
                yield from value._leaves()
            else:
                yield value

    def _members(self) -> Sequence[Any] | None:
        """Return the members of a lazy stack; ``None`` for all that is none."""
        return None

    def _restacked(self, members: Sequence[Any]) -> Any:
        """Return other members stacked as those of this lazy stack are."""
        raise NotImplementedError

    def _like(self, key: str) -> Any:
        """Return an array that tells shape, dtype and library of a leaf; what is in a file is not read for it."""
        return self._source[key]

    def _partial(self, key: str) -> list[Any] | None:
        """Return an entry that some members of a lazy stack alone have: a value or ``None`` for each member.

        ``None`` where no member has it, and for all that is no lazy stack.
        """
        return None

    def _peek(self, key: str) -> Any:
        return self._source[key]

    def _peeks(self) -> Iterable[tuple[str, Any]]:
        """Return keys with what tells what their entries are like, without reading those."""
        return self._source.items()

    @classmethod
    def _prefix(cls) -> str:
        """Return what stands before the fields where this TensorDict is shown as an entry."""
        return ""

    def _shown(self) -> Iterable[tuple[str, Any]]:
        """Return what is shown as the fields of this TensorDict."""
        return self._peeks()

    def _children(self) -> Iterable[Any]:
        """Return what holds the entries: themselves, or the members of a lazy stack."""
        return self._source.values()

    # Shape and device

    @property
    def batch_size(self) -> Size:
        """The leading dimensions that all leaves share."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        size = as_size(value)
        for key, leaf in self._source.items():
            if tuple(leaf.shape[: len(size)]) != size and not (isinstance(leaf, Base) and leaf._fits(size)):
                raise RuntimeError(
                    f"the tensor {key} has shape {Size(leaf.shape)} which is incompatible with the batch-size {size}."
                )
        for leaf in self._source.values():
            if isinstance(leaf, Base) and leaf._batch_size[: len(size)] != size:
                leaf.batch_size = size
        self._batch_size = size
        self._resize_names(len(size))

    def _fits(self, size: Size) -> bool:
        return all(tuple(leaf.shape[: len(size)]) == size for leaf in self._leaves())

    @property
    def shape(self) -> Size:
        """The same as `batch_size`."""
        return self._batch_size

    @property
    def batch_dims(self) -> int:
        """The number of batch dimensions."""
        return len(self._batch_size)

    @property
    def ndim(self) -> int:
        """The number of batch dimensions."""
        return len(self._batch_size)

    def dim(self) -> int:
        """Return the number of batch dimensions."""
        return len(self._batch_size)

    def ndimension(self) -> int:
        """Return the number of batch dimensions."""
        return len(self._batch_size)

    def numel(self) -> int:
        """Return the number of elements of the batch, at least 1."""
        return max(1, math.prod(self._batch_size))

    def size(self, dim: int | None = None) -> Any:
        """Return the batch size, or one of its dimensions."""
        return self._batch_size if dim is None else self._batch_size[dim]

    @property
    def device(self) -> Any:
        """The device that all leaves lie on, or ``None``: torch's object where torch is imported, else a name."""
        if self._device is not None and "torch" in sys.modules:
            return sys.modules["torch"].device(self._device)
        return self._device

    # Writing

    def _check(self, key: str, value: Any) -> Any:
        """Return a value in the form in which it is kept, or raise the error that says why it cannot be."""
        size = self._batch_size
        if (
            self._device is None
            and (type(value) is np.ndarray or (library_of(value) == "torch" and not value.is_nested))
            and (not size or value.shape[: len(size)] == size)
        ):
            return value
        return self._check_other(key, value)

    def _check_entry(self, key: str, value: Any) -> Any:
        """Do the same as `_check`, and refuse what contains this TensorDict, which may not be a new one."""
        entry = self._check(key, value)
        if isinstance(entry, Base):
            self._refuse_itself(key, value, entry)
        return entry

    def _refuse_itself(self, key: Any, value: Any, entry: Base) -> None:
        """Raise if an entry, made of a value, is this TensorDict or has it anywhere below."""
        if value is self or entry._contains(self):
            raise ValueError(
                f"Cannot set a tensordict inside itself (key {key!r}): tensordicts that contain themselves are not "
                "supported. Set a copy of it, as copy() returns it."
            )

    def _contains(self, other: Base) -> bool:
        """Whether this TensorDict is another one, or has it anywhere below."""
        if self is other:
            return True
        children = self._children()
        if _leaf_types.issuperset(map(type, children)):
            return False
        for each in children:
            if not isinstance(each, Base):
                _leaf_types.add(type(each))
            elif each._contains(other):
                return True
        return False

    def _check_other(self, key: str, value: Any) -> Any:
        size = self._batch_size
        if isinstance(value, Base):
            if value._batch_size[: len(size)] != size or (value._fits_any and value._batch_size != size):
                value = value._resized(size)
            if self._names is not None or value._names is not None:
                value = self._named_alike(value)
            if self._device is not None and value._device != self._device:
                value = value._on_device(self._device)
        elif library_of(value) == "other" and isinstance(value, Mapping) and not hasattr(value, "batch_size"):
            nested = self._entry_class()._make({}, size, self._device, self._names)
            nested._fill(value)
            value = nested if nested._names is self._names else self._named_alike(nested)
        else:
            if library_of(value) == "other" or isinstance(value, np.flexible):
                value = self._from_other(key, value)
                if isinstance(value, Base):
                    return self._check(key, value)
            elif isinstance(value, np.generic):
                value = np.asarray(value)
            elif library_of(value) == "torch" and value.is_nested and value.layout is sys.modules["torch"].strided:
                from corral.arrays.torch_buffers import nested_error

                raise nested_error(f"the value of key {key!r}")
            if size and tuple(value.shape[: len(size)]) != size:
                raise RuntimeError(
                    f"batch dimension mismatch, got self.batch_size={size} and value.shape={Size(value.shape)} for "
                    f"key {key!r}. The leading dimensions of a value must match the batch size."
                )
            if self._device is not None and device_of(value) != self._device:
                value = _moved(value, self._device)
        return value

    def _from_other(self, key: str, value: Any) -> Any:
        if not _is_foreign_entry(value):
            if hasattr(value, "batch_size") and hasattr(value, "items"):  # another library's TensorDict
                nested = self._entry_class()._make({}, as_size(value.batch_size), self._device)
                for name, entry in value.items():
                    nested._put(name, entry)
                return nested
            try:
                return as_array(value)
            except TypeError:
                pass
        from corral.tensordict.nontensor import wrap

        return wrap(value, self._batch_size, self._device)

    def _resized(self, size: Size) -> Any:
        """Return the same entries in a TensorDict of another batch size."""
        copy = self._map_values(_same)  # what is nested gets the batch size as well
        copy.batch_size = size
        return copy

    def _unwrapped(self) -> Any:
        """Return what reading the entry gives: itself, or the objects that it is the wrapping of."""
        return self

    def _fill(self, entries: Any) -> None:
        """Set the entries of a mapping in a new TensorDict."""
        source, check = self._source, self._check
        size, count = self._batch_size, len(self._batch_size)
        plain = self._device is None
        tensor: Any = sys.modules["torch"].Tensor if "torch" in sys.modules else None
        for key, value in entries.items():
            kind = type(value)
            if type(key) is not str:
                self._put(unravel_key(key), value)
            elif plain and kind is np.ndarray and (not count or value.shape[:count] == size):  # noqa: SIM114
                source[key] = value
            elif (
                plain
                and kind is tensor
                and not value.is_nested
                # a part of a shape takes torch twice as long
                and ((shape := value.shape) and shape[0] == size[0] if count == 1 else value.shape[:count] == size)
            ):
                source[key] = value
            else:
                source[key] = check(key, value)

    def _put(self, key: NestedKey, value: Any) -> None:
        """Set an entry that is checked, making the TensorDicts on the way; locks are not looked at."""
        if isinstance(key, str):
            value = self._check_entry(key, value)
            if self._locked and isinstance(value, Base):
                value._lock(weakref.ref(self))
            self._source[key] = value
            return
        first, rest = key[0], key[1:]
        rest = rest[0] if len(rest) == 1 else rest
        nested = self._source.get(first)
        if not isinstance(nested, Base) or nested._holds_objects:
            if nested is not None:
                raise KeyError(f"cannot set the nested key {key!r}: the entry {first!r} is a leaf, not a TensorDict")
            nested = self._entry_class()._make({}, self._batch_size, self._device, self._names)
            nested._put(rest, value)
            self._refuse_itself(key, value, nested)
            self._source[first] = nested  # last, so that nothing is left where the value does not fit
            return
        nested._put(rest, value)

    def _on_device(self, device: str | None) -> Self:
        moved = self._map(lambda leaf: leaf if device is None else _moved(leaf, device))
        moved._set_device(device)
        return moved

    def _set_device(self, device: str | None) -> None:
        self._device = device
        for value in self._source.values():
            if isinstance(value, Base):
                value._set_device(device)

    # Locks

    @property
    def is_locked(self) -> bool:
        """Whether entries can be neither added, replaced nor removed. Their values can still be written."""
        return self._locked is not False

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        self.lock_() if value else self.unlock_()

    @undone
    def lock_(self) -> Self:
        """Forbid to add, replace or remove entries, here and in nested TensorDicts.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(2)).lock_()
        >>> td.set_("a", np.ones(2))["a"]
        array([1., 1.])
        >>> td["b"] = np.ones(2)
        Traceback (most recent call last):
            ...
        RuntimeError: Cannot modify locked TensorDict. For in-place modification, ...
        """
        self._lock(True)
        return self

    @undone
    def unlock_(self) -> Self:
        """Allow again what `lock_` forbids; a nested TensorDict is unlocked with the one that it was locked with."""
        if isinstance(self._locked, weakref.ref):
            parent = self._locked()
            if parent is not None and parent._locked and any(v is self for v in parent._children()):
                raise RuntimeError(
                    "Cannot unlock a tensordict that is part of a locked graph. Unlock the root tensordict first."
                )
        self._lock(False)
        return self

    def _lock(self, locked: bool | weakref.ref[Base]) -> None:
        self._locked = locked
        nested: bool | weakref.ref[Base] = weakref.ref(self) if locked else False
        for value in self._source.values():
            if isinstance(value, Base):
                value._lock(nested)

    def _refuse_if_locked(self) -> None:
        if self._locked:
            raise RuntimeError(_LOCKED)


def _is_foreign_entry(value: Any) -> bool:
    """Whether a value is an entry of objects of the package tensordict, which looks like a mapping."""
    theirs = sys.modules.get("tensordict")
    return theirs is not None and isinstance(value, (theirs.NonTensorData, theirs.NonTensorStack))


def _same(leaf: Any) -> Any:
    return leaf


def _moved(leaf: Any, device: str) -> Any:
    if device_of(leaf) == device or (device == "cpu" and library_of(leaf) == "numpy"):
        return leaf
    library = library_of(leaf)
    return convert(leaf, "torch" if library == "numpy" else library, device)
