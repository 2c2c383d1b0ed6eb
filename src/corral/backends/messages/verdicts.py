"""What rises to a group's coordinator, and what falls from it, as bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from corral.backends.messages.calls import Call
from corral.backends.messages.frames import BadFrameError

__all__ = [
    "ALL",
    "DIFFERENT",
    "DIRECT",
    "INLINE",
    "ROWS",
    "UNFIT",
    "Blob",
    "Record",
    "Verdict",
    "rank_of",
    "read_entry",
    "read_verdict",
    "write_entry",
    "write_verdict",
]

ALL = -1
"""In place of a rank: everyone."""

INLINE, DIRECT, DIFFERENT, UNFIT, ROWS = range(5)

_ENTRY = struct.Struct("<QIIi")  # size of all of it, rank, size of the call, number of blobs (or -1)
_BLOB = struct.Struct("<iQ")
_VERDICT = struct.Struct("<BBiiQQII")
_SAID = struct.Struct("<II")
_RECORD = struct.Struct("<iiBQ")


class Blob(NamedTuple):
    """What a rank gives along with its call, and to whom."""

    dst: int
    content: bytes | memoryview


class Record(NamedTuple):
    """What a verdict brings to a rank (or to all) from another: bytes, or a number."""

    dst: int
    src: int
    content: bytes | memoryview | None
    number: int = 0


class Verdict(NamedTuple):
    """What the coordinator has decided."""

    code: int
    by_type: bool = False
    sender: int = 0
    finder: int = 0
    actual: int = 0
    expected: int = 0
    calls: tuple[tuple[int, Call], ...] = ()
    records: Sequence[Record] = ()


def write_entry(rank: int, call: Call, blobs: list[Blob] | None) -> memoryview:
    """Return what a rank contributes: its call, and what it gives if that is small."""
    said = call.encode()
    heads = b"".join(_BLOB.pack(blob.dst, len(blob.content)) for blob in blobs or ())
    rest = b"".join([said, heads, *(blob.content for blob in blobs or ())])
    return memoryview(_ENTRY.pack(_ENTRY.size + len(rest), rank, len(said), -1 if blobs is None else len(blobs)) + rest)


def rank_of(content: memoryview) -> tuple[int, memoryview]:
    """Return whose contribution comes first, and that contribution.

    Raises
    ------
    BadFrameError
        If there is none.
    """
    if len(content) < _ENTRY.size:
        raise BadFrameError("a contribution that is too short")
    size, rank, _, _ = _ENTRY.unpack_from(content)
    if not _ENTRY.size <= size <= len(content):
        raise BadFrameError(f"a contribution of {size} bytes where there are {len(content)}")
    return rank, content[:size]


def read_entry(entry: memoryview) -> tuple[Call, list[Blob] | None]:
    """Read a contribution.

    Raises
    ------
    BadFrameError
        If it is not one.
    """
    _, _, said, count = _ENTRY.unpack_from(entry)
    at = _ENTRY.size + said
    if at > len(entry):
        raise BadFrameError("a contribution that is too short")
    call = Call.decode(entry[_ENTRY.size : at])
    if count < 0:
        return call, None
    contents = at + count * _BLOB.size
    if contents > len(entry):
        raise BadFrameError("a contribution that is too short")
    blobs = []
    for dst, size in _BLOB.iter_unpack(entry[at:contents]):
        if size > len(entry) - contents:
            raise BadFrameError("a contribution that is too short")
        blobs.append(Blob(dst, entry[contents : contents + size]))
        contents += size
    return call, blobs


def write_verdict(verdict: Verdict, below: Sequence[int] | None) -> bytes:
    """Return a verdict for some ranks, with what is for them."""
    records = [r for r in verdict.records if below is None or r.dst == ALL or r.dst in below]
    said = [(rank, call.plain().encode()) for rank, call in verdict.calls]
    head = _VERDICT.pack(*verdict[:6], len(said), len(records))
    return b"".join(
        [
            head,
            *(part for rank, content in said for part in (_SAID.pack(rank, len(content)), content)),
            *(
                _RECORD.pack(r.dst, r.src, r.content is None, r.number if r.content is None else len(r.content))
                for r in records
            ),
            *(r.content for r in records if r.content is not None),
        ]
    )


def read_verdict(content: memoryview) -> Verdict:
    """Read a verdict.

    Raises
    ------
    BadFrameError
        If it is not one.
    """
    short = BadFrameError("a verdict that is too short")
    if len(content) < _VERDICT.size:
        raise short
    *numbers, said, count = _VERDICT.unpack_from(content)
    at = _VERDICT.size
    calls = []
    for _ in range(said):
        if len(content) - at < _SAID.size:
            raise short
        rank, size = _SAID.unpack_from(content, at)
        at += _SAID.size
        if len(content) - at < size:
            raise short
        calls.append((rank, Call.decode(content[at : at + size])))
        at += size
    end = at + count * _RECORD.size
    if end > len(content):
        raise short
    records = []
    for dst, src, plain, number in _RECORD.iter_unpack(content[at:end]):
        if plain:
            records.append(Record(dst, src, None, number))
            continue
        if number > len(content) - end:
            raise short
        records.append(Record(dst, src, content[end : end + number]))
        end += number
    return Verdict._make([*numbers, tuple(calls), records])
