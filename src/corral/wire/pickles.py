"""Objects that only `pickle` can carry: whether they may, and how, with their arrays out of band."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

from corral.wire.errors import PickleError

__all__ = ["denied_by_environment", "freeze", "permitted", "thaw", "type_name"]


def denied_by_environment() -> bool:
    """Whether the environment's ``CORRAL_PICKLE`` forbids pickles: ``deny`` does, ``allow`` and nothing do not.

    Raises
    ------
    ValueError
        If it says something else: a misspelt prohibition must not become a permission.
    """
    said = os.environ.get("CORRAL_PICKLE", "")
    word = said.strip().lower()
    if word not in ("", "allow", "deny"):
        raise ValueError(
            f"the environment variable CORRAL_PICKLE is {said!r}: set it to 'deny' to refuse pickles, or to 'allow' "
            "(as when it is not set)"
        )
    return word == "deny"


def permitted(allow_pickle: bool) -> bool:
    """Whether objects may be pickled: neither the group nor the environment says no."""
    return allow_pickle and not denied_by_environment()


def type_name(kind: type) -> str:
    """Return a type's full name."""
    return f"{kind.__module__}.{kind.__qualname__}"


def check(name: str, allow_pickle: bool, verb: str) -> None:
    """Raise `PickleError` unless objects of the type called `name` may be pickled."""
    if not permitted(allow_pickle):
        reason = "CORRAL_PICKLE=deny" if allow_pickle else "allow_pickle=False"
        raise PickleError(
            f"an object of type {name} can only {verb} as a pickle, which {reason} refuses: use plain data "
            "(numbers, strings, lists, dicts, arrays, TensorDicts), or allow pickles"
        )


class _Pickler(pickle.Pickler):
    """Leaves the memory of tensors out of the pickle, as NumPy does by itself for its arrays."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and obj.layout is torch.strided:
            from corral.wire import array_values as arrays

            if obj.device.type == "cpu" and not obj.is_quantized and not obj.is_nested:
                name, shape, flags, memory = arrays.describe_torch(obj)
                return _tensor, (name, shape, flags, pickle.PickleBuffer(memory))
        return NotImplemented


def _tensor(name: str, shape: list[int], flags: int, memory: Any) -> Any:
    from corral.wire import array_values as arrays

    return arrays.build_torch(name, shape, flags, memory)


def freeze(obj: Any, allow_pickle: bool) -> tuple[bytes, list[memoryview]]:
    """Return an object's pickle, and the memory that it refers to."""
    check(type_name(type(obj)), allow_pickle, "be sent")
    pieces: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    try:
        _Pickler(stream, protocol=5, buffer_callback=pieces.append).dump(obj)
    except Exception as error:
        raise PickleError(f"an object of type {type_name(type(obj))} could not be pickled: {error}") from error
    return stream.getvalue(), [_raw(piece) for piece in pieces]


def _raw(piece: pickle.PickleBuffer) -> memoryview:
    try:
        return piece.raw()
    except BufferError:  # not contiguous
        return memoryview(memoryview(piece).tobytes())


def thaw(name: str, data: Any, buffers: Sequence[Any], allow_pickle: bool) -> Any:
    """Return the object of a pickle. Runs whatever code the pickle names."""
    check(name, allow_pickle, "be received")
    try:
        return pickle.loads(data, buffers=buffers)
    except Exception as error:
        raise PickleError(f"an object of type {name} could not be unpickled here: {error}") from error
