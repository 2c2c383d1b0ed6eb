"""Objects to bytes and back, in a format that runs no code.

A message is one byte that tells its form, then either plain MessagePack, for what that holds exactly, or a body
of MessagePack with extensions followed by the arrays' bytes, which are copied into no other encoding. What has no
place in the format is pickled on its own, with its arrays out of band, where that is permitted.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from corral.wire import extensions
from corral.wire.errors import CodecError, PickleError

__all__ = ["CodecError", "PickleError", "decode", "dumps", "encode", "loads"]

_PLAIN, _EXTENDED = b"\x01", b"\x02"
_HEAD = struct.Struct("<cQI")  # form, bytes of the body, number of buffers
_LENGTH = struct.Struct("<Q")

_encode_plain = msgspec.msgpack.Encoder().encode
_decode_plain = msgspec.msgpack.Decoder().decode

# Types whose values MessagePack gives back as they were; integers only within 64 bits.
_ATOMS = frozenset({type(None), bool, float, str, bytes})
_LOW, _HIGH = -(1 << 63), 1 << 63
_MAX_DEPTH = extensions.MAX_DEPTH


def _is_plain(obj: Any, depth: int = 0) -> bool:
    kind = type(obj)
    if kind in _ATOMS:
        return True
    if kind is int:
        return _LOW <= obj < _HIGH
    if depth > _MAX_DEPTH:
        return False
    if kind is dict:
        for key, value in obj.items():
            if type(key) is not str:
                return False
            inner = type(value)
            if inner in _ATOMS:
                continue
            if inner is int:
                if not _LOW <= value < _HIGH:
                    return False
            elif not _is_plain(value, depth + 1):
                return False
        return True
    if kind is list:
        return all(_is_plain(item, depth + 1) for item in obj)
    return False


def _may_pickle(allowed: bool) -> bool:
    return allowed and os.environ.get("CORRAL_PICKLE", "").lower() != "deny"


def encode(obj: Any, allow_pickle: bool = True) -> tuple[bytes, list[memoryview]]:
    """Encode an object as a header, and the buffers of its arrays where they lie.

    Parameters
    ----------
    obj
        ``None``, a bool, int, float, complex, str, bytes, list, tuple, dict, set, date or time, an array, a
        `corral.TensorDict`, any nesting of these; or, where it is permitted, anything that can be pickled.
    allow_pickle
        Whether pickles are permitted. The environment's ``CORRAL_PICKLE=deny`` forbids them in any case.

    Returns
    -------
    tuple of (bytes, list of memoryview)
        `decode` takes both. The views are of the arrays' own memory where it is contiguous.

    Raises
    ------
    PickleError
        If an object inside needs pickle and that is denied; the message names its type.
    CodecError
        If the object is nested too deeply, as one that contains itself is.
    """
    if _is_plain(obj):
        return _PLAIN + _encode_plain(obj), []
    buffers: list[memoryview] = []
    body = extensions.pack(obj, buffers, _may_pickle(allow_pickle))
    table = b"".join(_LENGTH.pack(buffer.nbytes) for buffer in buffers)
    return _HEAD.pack(_EXTENDED, len(body), len(buffers)) + table + body, buffers


def decode(header: bytes | memoryview, buffers: Sequence[Any] = (), allow_pickle: bool = True) -> Any:
    """Rebuild the object that `encode` took apart.

    Parameters
    ----------
    header
        From `encode`.
    buffers
        Objects with the buffer protocol that hold what `encode`'s buffers held. Arrays are copied out of them.
    allow_pickle
        As for `encode`: a pickle inside is refused unless it is permitted here too.

    Raises
    ------
    CodecError
        If the bytes are not an encoding; whatever they are, no code of theirs runs.
    PickleError
        If there is a pickle inside and that is denied; the message names the type.
    """
    view = memoryview(header)
    form = bytes(view[:1])
    if form == _PLAIN:
        return _guard(_decode_plain, view[1:])
    body, lengths = _parse(view)
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    if [each.nbytes for each in views] != lengths:
        raise CodecError("the message's arrays do not have the sizes that its header gives")
    return _guard(lambda data: extensions.unpack(data, views, _may_pickle(allow_pickle)), body)


def dumps(obj: Any, allow_pickle: bool = True) -> bytes:
    """Encode an object as one piece.

    Parameters, exceptions
        As for `encode`.

    Examples
    --------
    >>> loads(dumps({"loss": 0.5, "shape": (2, 3)}))
    {'loss': 0.5, 'shape': (2, 3)}
    """
    header, buffers = encode(obj, allow_pickle)
    return b"".join([header, *buffers]) if buffers else header


def loads(data: bytes | memoryview, allow_pickle: bool = True) -> Any:
    """Decode what `dumps` made.

    Parameters, exceptions
        As for `decode`.
    """
    view = memoryview(data)
    if bytes(view[:1]) == _PLAIN:
        return _guard(_decode_plain, view[1:])
    body, lengths = _parse(view)
    at = _HEAD.size + len(lengths) * _LENGTH.size + body.nbytes
    if at + sum(lengths) != view.nbytes:
        raise CodecError("the message's arrays do not have the sizes that its header gives")
    views = []
    for length in lengths:
        views.append(view[at : at + length])
        at += length
    return _guard(lambda part: extensions.unpack(part, views, _may_pickle(allow_pickle)), body)


def _parse(view: memoryview) -> tuple[memoryview, list[int]]:
    """Split a header into its body and the lengths of its buffers, believing no number before it is checked."""
    if view.nbytes < _HEAD.size:
        raise CodecError("the message is too short")
    form, size, count = _HEAD.unpack_from(view)
    if form != _EXTENDED:
        raise CodecError(f"the message is of an unknown form {form!r}")
    start = _HEAD.size + count * _LENGTH.size
    if start > view.nbytes or size > view.nbytes - start:
        raise CodecError("the message is shorter than its header says")
    lengths = [_LENGTH.unpack_from(view, _HEAD.size + i * _LENGTH.size)[0] for i in range(count)]
    return view[start : start + size], lengths


def _guard(read: Callable[[memoryview], Any], data: memoryview) -> Any:
    try:
        return read(data)
    except (CodecError, PickleError):
        raise
    except RecursionError:
        raise CodecError("the message is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise CodecError(f"the message cannot be decoded: {error}") from None
