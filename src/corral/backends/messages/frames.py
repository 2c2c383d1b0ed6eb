"""Heads of the frames that ranks send each other. Whatever is read from one is checked before it is used."""

from __future__ import annotations

import struct
from typing import NamedTuple

__all__ = [
    "ABORT",
    "ASK",
    "BODY",
    "CREDIT",
    "EAGER",
    "FAIL",
    "FALL",
    "HEAD_BYTES",
    "LEAVE",
    "MORE",
    "OFFER",
    "PART",
    "RISE",
    "SKIP",
    "TAKE",
    "TELL",
    "VOID",
    "WITHDRAW",
    "BadFrameError",
    "Frame",
    "decode",
    "encode",
]

# Point to point: a message in its head, or offered, taken (or not), and sent in a body.
EAGER, OFFER, TAKE, SKIP, BODY, WITHDRAW, VOID, CREDIT = range(1, 9)
# Collectives: contributions rise to the coordinator, the verdict falls; then parts; or somebody gives up.
RISE, FALL, PART, FAIL, ABORT = range(9, 14)
# What a rank does, and that it leaves the job.
ASK, TELL, LEAVE = range(14, 17)

MORE = 1
"""Flag: the payload goes on in the next frame of this kind from this rank."""

_HEAD = struct.Struct("<BBHIQQQQQ")
HEAD_BYTES = _HEAD.size


class BadFrameError(ValueError):
    """What a rank sent makes no sense."""


class Frame(NamedTuple):
    """A head, taken apart. What the numbers mean depends on the kind."""

    kind: int
    flags: int
    label: int
    extra: int
    context: int
    a: int
    b: int
    c: int
    d: int
    payload: memoryview


def encode(
    kind: int,
    context: int = 0,
    a: int = 0,
    b: int = 0,
    c: int = 0,
    d: int = 0,
    *,
    flags: int = 0,
    label: int = 0,
    extra: int = 0,
    payload: bytes | memoryview = b"",
) -> bytes:
    """Return the head of a frame.

    Examples
    --------
    >>> frame = decode(encode(EAGER, 7, a=3, payload=b"abc"))
    >>> frame.kind == EAGER, frame.context, frame.a, bytes(frame.payload)
    (True, 7, 3, b'abc')
    """
    head = _HEAD.pack(kind, flags, label, extra, context, a, b, c, d)
    return head + payload if payload else head


def decode(head: bytes) -> Frame:
    """Take a head apart.

    Raises
    ------
    BadFrameError
        If it is too short, or of no kind that there is.

    Examples
    --------
    >>> decode(b"?")
    Traceback (most recent call last):
        ...
    corral.backends.messages.frames.BadFrameError: a head of 1 bytes, where there are at least 48
    """
    if len(head) < HEAD_BYTES:
        raise BadFrameError(f"a head of {len(head)} bytes, where there are at least {HEAD_BYTES}")
    frame = Frame._make([*_HEAD.unpack_from(head), memoryview(head)[HEAD_BYTES:]])
    if not EAGER <= frame.kind <= LEAVE:
        raise BadFrameError(f"a frame of kind {frame.kind}, which there is not")
    return frame
