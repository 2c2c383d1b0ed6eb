"""Python objects as bytes, in a format that runs no code.

Plain data is MessagePack. What MessagePack cannot tell apart (a tuple from a list) or lacks (sets, arrays,
dates) is an extension type whose content is again of this format. Memory of arrays travels beside the header,
and is never copied into it. Objects of any other type are pickled one by one, if that is permitted.

An encoded object that consists of MessagePack's own types is nothing but their MessagePack. Any other starts
with a byte that no MessagePack has; then come a table of lengths, the header, and the memory of the arrays, each
array's at a multiple of 16 bytes: in memory that a message came in, arrays lie where they can be used.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from corral.wire.errors import CodecError, PickleError
from corral.wire.extensions import MAX_DEPTH, SCALARS, Reader, Unsendable, Writer

__all__ = ["CodecError", "PickleError", "decode", "dumps", "encode", "loads", "pieces"]

_MAGIC = b"\xc1CR\x01"
_HEAD = struct.Struct("<4sIQ")

_ALIGNMENT = 16
_PADDING = bytes(_ALIGNMENT)
_JOINED = 8192  # bytes that are sooner copied into one piece than sent as several

_NOTHING: frozenset[type] = frozenset()

_NO_BUFFERS: list[Any] = []
_idle: list[Reader] = []  # making one takes as long as reading a small object

_pack = msgspec.msgpack.Encoder().encode


def _no_extension(code: int, data: memoryview) -> Any:
    raise CodecError(f"malformed object: extension {code} outside a header")


_unpack_plain = msgspec.msgpack.Decoder(ext_hook=_no_extension).decode


def dumps(obj: Any, allow_pickle: bool = True) -> bytes:
    """Return an object as bytes.

    Parameters
    ----------
    obj
        Plain data, arrays, TensorDicts, and containers of them; or any object that can be pickled.
    allow_pickle
        Whether what is none of these may be pickled.

    Raises
    ------
    PickleError
        If some object in it would have to be pickled and that is refused, or fails.
    ValueError
        If a container contains itself, or lies too deep.

    Examples
    --------
    >>> loads(dumps({"a": (1, 2.0), 3: {"x"}}))
    {'a': (1, 2.0), 3: {'x'}}
    """
    parts = pieces(obj, allow_pickle)
    return parts if isinstance(parts, bytes) else b"".join(parts)


def pieces(obj: Any, allow_pickle: bool = True) -> bytes | list[Any]:
    """Return an object as the buffers that make up what `dumps` returns, one after another.

    The memory of large arrays is among them where it lies, not a copy. Few bytes are returned as they are.

    Parameters
    ----------
    obj, allow_pickle
        As for `dumps`, which also says what this raises.

    Examples
    --------
    >>> [len(piece) for piece in pieces({"a": bytearray(100_000)})]
    [32, 100000]
    """
    kind = type(obj)
    if kind in SCALARS or (
        kind is dict and SCALARS.issuperset(map(type, obj.values())) and SCALARS.issuperset(map(type, obj))
    ):
        try:
            return _pack(obj)
        except (ValueError, OverflowError):
            pass  # an integer of more than 64 bits, a lone surrogate
    writer, header = _encode(obj, allow_pickle)
    if not writer.tagged:
        return header
    buffers = writer.buffers
    if not buffers:
        return _HEAD.pack(_MAGIC, 0, len(header)) + header
    lengths = [buffer.nbytes for buffer in buffers]
    head = b"".join([_HEAD.pack(_MAGIC, len(buffers), len(header)), struct.pack(f"<{len(buffers)}Q", *lengths), header])
    parts: list[Any] = [head]
    end = len(head)
    for buffer, length in zip(buffers, lengths, strict=True):
        if end % _ALIGNMENT:
            padding = _PADDING[end % _ALIGNMENT :]
            if end == len(head):
                parts[0] = head + padding
            else:
                parts.append(padding)
            end += len(padding)
        parts.append(buffer)
        end += length
    return b"".join(parts) if end <= _JOINED else parts


def loads(data: Any, allow_pickle: bool = True) -> Any:
    """Return the object that `dumps` turned into bytes.

    Parameters
    ----------
    data
        The bytes, from whomever: unless pickles are allowed, nothing in them runs code. If they can be written, the
        arrays keep them as their memory; if not, each array gets a copy.
    allow_pickle
        Whether pickles in it may be opened.

    Raises
    ------
    CodecError
        If the bytes are malformed.
    PickleError
        If they contain a pickle, and that is refused or fails.
    """
    view = data if type(data) is bytes else memoryview(data).cast("B")
    if not view or view[0] != 0xC1:
        try:
            return _unpack_plain(view)
        except CodecError:
            raise
        except Exception as error:
            raise CodecError(f"malformed object: {error}") from None
    view = memoryview(view)
    if len(view) < _HEAD.size:
        raise CodecError("malformed object: it ends early")
    magic, count, length = _HEAD.unpack_from(view)
    if magic != _MAGIC:
        raise CodecError("malformed object: of an unknown format")
    start = _HEAD.size + 8 * count
    end = start + length
    if end > len(view):
        raise CodecError("malformed object: it ends early")
    header = view[start:end]
    buffers = []
    for size in struct.unpack_from(f"<{count}Q", view, _HEAD.size):
        at = end + -end % _ALIGNMENT
        end = at + size
        if end > len(view):
            raise CodecError("malformed object: it ends early")
        buffers.append(view[at:end])
    if end != len(view):
        raise CodecError("malformed object: its parts do not add up")
    return decode(header, buffers, allow_pickle)


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
    ValueError
        If a container contains itself, or is nested too deeply.
    """
    writer, header = _encode(obj, allow_pickle)
    return header, writer.buffers


def decode(header: Any, buffers: Sequence[Any] = (), allow_pickle: bool = True) -> Any:
    """Rebuild the object that `encode` took apart.

    Parameters
    ----------
    header
        From `encode`.
    buffers
        Objects with the buffer protocol that hold what `encode`'s buffers held. Arrays keep as their
        memory those that can be written, and copy others.
    allow_pickle
        As for `encode`: a pickle inside is refused unless it is permitted here too.

    Raises
    ------
    CodecError
        If the bytes are not an encoding; whatever they are, no code of theirs runs.
    PickleError
        If there is a pickle inside and that is denied; the message names the type.
    """
    try:
        reader = _idle.pop()
    except IndexError:
        reader = Reader()
    reader.begin(list(buffers), allow_pickle)
    try:
        return reader.read(header)
    except (CodecError, PickleError):
        raise
    except Exception as error:  # of whatever type a library raises for a date, a zone, a dtype that cannot be
        raise CodecError(f"malformed object: {error}") from None
    finally:
        reader.begin(_NO_BUFFERS, False)
        _idle.append(reader)


def _encode(obj: Any, allow_pickle: bool) -> tuple[Writer, bytes]:
    for trusted in (SCALARS, _NOTHING):  # look at single scalars only where some of them cannot be packed
        writer = Writer(allow_pickle, trusted)
        try:
            return writer, _pack(writer.walk(obj))
        except RecursionError:
            raise ValueError(f"the object's containers lie too deep ({MAX_DEPTH} levels can be sent)") from None
        except (OverflowError, UnicodeEncodeError):
            if trusted is _NOTHING:
                raise
        except Unsendable as error:
            raise ValueError(str(error)) from None
        except ValueError as error:
            if trusted is _NOTHING or isinstance(error, PickleError):
                raise
    raise AssertionError("unreachable")
