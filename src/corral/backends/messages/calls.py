"""What a rank called: what the ranks compare, and what errors tell of it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from corral.arrays.dtypes import name_of
from corral.backends.messages.frames import BadFrameError
from corral.backends.shm_names import NAMES, reduction_name
from corral.digests import digest

__all__ = ["REFUSED", "Call", "Fit", "call_text", "digest_of", "expand", "shrink"]

REFUSED = 1
"""State of a call whose arguments the rank itself has refused."""

_CALL = struct.Struct("<HiBBBQQQd16sII")
_FIT = struct.Struct("<IQQ")


class Fit(NamedTuple):
    """Type and size of what a rank gives to, or takes from, another."""

    type: int
    size: int


class Call(NamedTuple):
    """One rank's call of a collective.

    Attributes
    ----------
    label, root, detail
        What the user called, the root's rank in the group (or -1), and the reduction's number + 1.
    family
        What kind of collective it is.
    state
        0, or `REFUSED`.
    type, size, digest
        What must be the same on all ranks.
    factor
        This rank's, in a sum of products.
    print
        A tree's fingerprint.
    gives, takes
        What must fit that of other ranks: runs of equal ones, each with their number.
    """

    label: int
    root: int = -1
    detail: int = 0
    family: int = 0
    state: int = 0
    type: int = 0
    size: int = 0
    digest: int = 0
    factor: float = 1.0
    print: bytes = bytes(16)
    gives: tuple[tuple[int, Fit], ...] = ()
    takes: tuple[tuple[int, Fit], ...] = ()

    def plain(self) -> Call:
        """Return what errors tell of it."""
        return self._replace(gives=(), takes=())

    def encode(self) -> bytes:
        *numbers, gives, takes = self
        head = _CALL.pack(*numbers, len(gives), len(takes))
        return head + b"".join(_FIT.pack(count, *fit) for count, fit in (*gives, *takes))

    @classmethod
    def decode(cls, content: memoryview) -> Call:
        """Read a call.

        Raises
        ------
        BadFrameError
            If it is not one.

        Examples
        --------
        >>> call = Call(4, root=1, gives=shrink([Fit(1, 8), Fit(1, 8)]))
        >>> Call.decode(memoryview(call.encode())) == call
        True
        """
        if len(content) < _CALL.size:
            raise BadFrameError("a call that is too short")
        *numbers, gives, takes = _CALL.unpack_from(content)
        if len(content) != _CALL.size + (gives + takes) * _FIT.size:
            raise BadFrameError(f"a call of {len(content)} bytes that says it has {gives} and {takes} parts")
        fits = [(count, Fit(*fit)) for count, *fit in _FIT.iter_unpack(content[_CALL.size :])]
        return cls._make([*numbers, tuple(fits[:gives]), tuple(fits[gives:])])


def digest_of(numbers: object) -> int:
    """Return a number that stands for nested tuples of integers, the same in every process.

    Examples
    --------
    >>> digest_of(((1, 2), 3)) == digest_of(((1, 2), 3)) != digest_of((1, (2, 3)))
    True
    """
    return int.from_bytes(digest(repr(numbers).encode(), 8), "little")


def shrink(fits: Sequence[Fit]) -> tuple[tuple[int, Fit], ...]:
    """Return runs of equal ones, each with their number.

    Examples
    --------
    >>> shrink([Fit(1, 8), Fit(1, 8), Fit(1, 4)])
    ((2, Fit(type=1, size=8)), (1, Fit(type=1, size=4)))
    """
    runs: list[tuple[int, Fit]] = []
    for fit in fits:
        if runs and runs[-1][1] == fit:
            runs[-1] = runs[-1][0] + 1, fit
        else:
            runs.append((1, fit))
    return tuple(runs)


def expand(runs: Sequence[tuple[int, Fit]], size: int) -> list[Fit]:
    """Return one for each rank, of what `shrink` made.

    Raises
    ------
    BadFrameError
        If there are not as many.
    """
    if sum(count for count, _ in runs) != size:
        raise BadFrameError("a call with parts for another number of ranks")
    return [fit for count, fit in runs for _ in range(count)]


def call_text(call: Call, member: Callable[[int], int]) -> str:
    """Say what a rank called; `member` gives the number that the user knows a rank by."""
    name = NAMES[call.label] if call.label < len(NAMES) else str(call.label)
    if call.state == REFUSED:
        return f"{name} with arguments that it refused itself"
    words = [] if call.root < 0 else [f"root={member(call.root)}"]
    if call.type:
        words.append(name_of(call.type))
    if call.size:
        words.append(f"{call.size} bytes")
    if call.detail:
        words.append(reduction_name(call.detail - 1))
    return f"{name}({', '.join(words)})"
