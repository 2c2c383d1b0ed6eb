"""What ranks tell each other of the TensorDicts that they are about to move: records of one size.

As all records are of one size, a rank can ask for another's without waiting for it, and know later what was in it.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from corral.distributed.errors import MismatchError
from corral.functional.fitting import check_alike
from corral.functional.offers import check_roots
from corral.functional.reducing import check_operations
from corral.tensordict.moving.leaves import Leaves
from corral.wire.errors import CodecError
from corral.wire.layout import Layout

if TYPE_CHECKING:
    from corral.distributed.groups import ProcessGroup

__all__ = ["SIZE", "Record", "agree", "check_same", "read", "record_of", "refused", "write"]

SIZE = 2048
"""Bytes of a record."""

_HEAD = struct.Struct("<4sH")
_MAGIC = b"\xc1CR\x01"  # no array of anyone's starts like this, as good as never
_NOT_PACKED, _PACKED, _TOO_LONG = 0, 1, 2
_MOST_TEXT = 1500
_MOST_LAYOUT = 1 << 20  # bytes that a packed layout may become


class Record(msgspec.Struct, array_like=True):
    """One rank's part of an operation, in words."""

    refusal: str
    """Why the rank cannot take part; empty if it does."""
    fingerprint: bytes
    form: int
    layout: bytes
    root: int
    reduction: str
    objects: int = 0
    """Number of the message with the entries that are no arrays; 0 if there is none."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def record_of(leaves: Leaves, root: int = -1, reduction: str = "", objects: int = 0) -> Record:
    """Describe what a rank contributes or expects."""
    form, layout = _NOT_PACKED, leaves.layout
    room = SIZE - 256
    if len(layout) > room:
        form, layout = (_PACKED, _packed(layout)) if len(layout) <= _MOST_LAYOUT else (_TOO_LONG, b"")
        if len(layout) > room:
            form, layout = _TOO_LONG, b""
    return Record("", leaves.fingerprint, form, layout, root, reduction, objects)


@functools.lru_cache(maxsize=16)
def _packed(layout: bytes) -> bytes:
    return zlib.compress(layout, 1)


def refused(error: Exception, rank: int) -> Record:
    """Say why a rank cannot take part."""
    text = str(error) if isinstance(error, MismatchError) else f"rank {rank}: {type(error).__name__}: {error}"
    return Record(text.encode(errors="replace")[:_MOST_TEXT].decode(errors="ignore"), b"", _TOO_LONG, b"", -1, "")


def write(record: Record, into: np.ndarray[Any, Any]) -> None:
    """Write a record to `SIZE` bytes."""
    data = _encode(record)
    into[: _HEAD.size + len(data)] = np.frombuffer(_HEAD.pack(_MAGIC, len(data)) + data, np.uint8)


def read(data: np.ndarray[Any, Any]) -> Record:
    """Invert `write`; raise `CodecError` for anything else."""
    magic, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CodecError("it does not start like one of a TensorDict")
    try:
        return _decode(data[_HEAD.size : _HEAD.size + length].tobytes())
    except msgspec.MsgspecError as error:
        raise CodecError(f"malformed: {error}") from None


def check_same(one: Record, other: Record, ranks: tuple[int, int]) -> None:
    """Raise `MismatchError`, which says what differs, unless the TensorDicts of two ranks fit."""
    if one.fingerprint == other.fingerprint:
        return
    if _TOO_LONG not in (one.form, other.form):
        check_alike([_layout(one), _layout(other)], ranks)
    raise MismatchError(
        f"the TensorDicts on rank {ranks[0]} and rank {ranks[1]} differ in keys, dtypes or shapes; they have too many "
        "leaves to say in which"
    )


def _layout(record: Record) -> Layout:
    if record.form == _NOT_PACKED:
        return Layout.from_bytes(record.layout)
    return Layout.from_bytes(zlib.decompressobj().decompress(record.layout, _MOST_LAYOUT))


def agree(pg: ProcessGroup, operation: str, rows: Sequence[np.ndarray[Any, Any]]) -> None:
    """Raise `MismatchError`, the same on every rank, unless the records of all ranks fit together."""
    try:
        records = [read(row) for row in rows]
        for record in records:
            if record.refusal:
                raise MismatchError(record.refusal)
        check_operations(pg, [record.reduction for record in records])
        for rank, record in zip(pg.ranks[1:], records[1:], strict=True):
            check_same(records[0], record, (pg.ranks[0], rank))
    except (MismatchError, CodecError) as error:
        raise MismatchError(f"{operation}: {error}") from None
    check_roots(pg, operation, "dst", [record.root for record in records])
