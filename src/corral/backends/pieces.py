"""Bodies of frames: sequences of pieces of memory, cut and joined as an engine's messages need it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["Incoming", "address_of", "cut", "outgoing", "parcels", "total"]


def total(pieces: Iterable[memoryview]) -> int:
    """Return how many bytes pieces have together."""
    return sum(piece.nbytes for piece in pieces)


def address_of(piece: memoryview) -> int:
    """Return where a piece, which may be read-only, begins in memory."""
    address: int = np.frombuffer(piece, np.uint8).__array_interface__["data"][0]
    return address


def cut(pieces: Iterable[memoryview], sizes: Iterable[int]) -> list[list[memoryview]]:
    """Divide the bytes of pieces into runs of the given sizes, each a list of parts of pieces.

    Examples
    --------
    >>> pieces = [memoryview(b"abc"), memoryview(b"defgh")]
    >>> [[bytes(part) for part in run] for run in cut(pieces, [4, 4])]
    [[b'abc', b'd'], [b'efgh']]
    """
    rest = iter(pieces)
    piece = memoryview(b"")
    runs = []
    for size in sizes:
        run = []
        while size:
            while not piece.nbytes:
                piece = next(rest)
            run.append(piece[:size])
            piece = piece[size:]
            size -= run[-1].nbytes
        runs.append(run)
    return runs


def parcels(pieces: Sequence[memoryview], most: int, small: int, large: int) -> list[int]:
    """Return sizes of at most `most` messages in which to send pieces.

    A piece of more than `small` bytes travels by itself, without being copied, in messages of up to `large`
    bytes; smaller ones are put together. Where that makes too many messages, larger ones are put together too.

    Examples
    --------
    >>> pieces = [memoryview(bytes(n)) for n in (10, 10, 500, 10, 2500)]
    >>> parcels(pieces, most=8, small=100, large=1000)
    [20, 500, 10, 1000, 1000, 500]
    >>> parcels(pieces, most=4, small=100, large=1000)
    [530, 1000, 1000, 500]
    """
    while True:
        sizes: list[int] = []
        open_ = 0
        for piece in pieces:
            size = piece.nbytes
            if size > small:
                if open_:
                    sizes.append(open_)
                    open_ = 0
                sizes.extend(itertools.repeat(large, size // large))
                if size % large:
                    sizes.append(size % large)
                continue
            if open_ and open_ + size > large:
                sizes.append(open_)
                open_ = 0
            open_ += size
        if open_:
            sizes.append(open_)
        if len(sizes) <= most:
            return sizes
        everything = total(pieces)
        if small >= large or small >= everything:
            even = max(large, -(-everything // most))
            return [even] * (everything // even) + ([everything % even] if everything % even else [])
        small *= 8


def outgoing(pieces: Sequence[memoryview], sizes: Sequence[int]) -> list[memoryview]:
    """Return pieces as messages of the given sizes: each a part of a piece where it lies, or a copy of several."""
    return [run[0] if len(run) == 1 else _joined(run) for run in cut(pieces, sizes)]


def _joined(run: Sequence[memoryview]) -> memoryview:
    memory = np.empty(total(run), np.uint8)
    at = 0
    for part in run:
        memory[at : at + part.nbytes] = np.frombuffer(part, np.uint8)
        at += part.nbytes
    return memoryview(memory)


class Incoming:
    """Memory for messages of the given sizes that together fill pieces.

    Attributes
    ----------
    messages : list of memoryview
        The memory for each: a part of a piece, or memory that stands in for parts of several until `finish`.

    Examples
    --------
    >>> memory = np.zeros(6, np.uint8)
    >>> incoming = Incoming([memoryview(memory[:2]), memoryview(memory[2:])], [3, 3])
    >>> incoming.messages[0][:] = b"abc"
    >>> incoming.messages[1][:] = b"def"
    >>> incoming.finish()
    >>> memory.tobytes()
    b'abcdef'
    """

    __slots__ = ("_staged", "messages")

    def __init__(self, pieces: Sequence[memoryview], sizes: Sequence[int]) -> None:
        self.messages: list[memoryview] = []
        self._staged: list[tuple[memoryview, list[memoryview]]] = []
        for size, run in zip(sizes, cut(pieces, sizes), strict=True):
            if len(run) == 1:
                self.messages.append(run[0])
            else:
                memory = memoryview(np.empty(size, np.uint8))
                self._staged.append((memory, run))
                self.messages.append(memory)

    def finish(self) -> None:
        """Bring what has come into the pieces."""
        for memory, run in self._staged:
            at = 0
            for part in run:
                part[:] = memory[at : at + part.nbytes]
                at += part.nbytes
        self._staged.clear()
