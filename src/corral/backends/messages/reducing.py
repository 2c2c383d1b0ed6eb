"""Collectives that combine what the ranks give, element by element, in rank order."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corral import _core
from corral.backends.messages.agreement import Round
from corral.backends.messages.calls import Call, digest_of
from corral.backends.messages.chains import combine_along, follow_each_other
from corral.backends.messages.verdicts import ALL, Blob, Record

if TYPE_CHECKING:
    from corral.backends.messages.job import Job
    from corral.backends.messages.rounds import Ledger

__all__ = ["Reduce", "Result"]

_CUT = 64  # bytes; a multiple of every element's size
_FAMILY = 64
_PREMUL_SUM = 8
_Runs = Sequence[tuple[int, int]]


class Result(enum.IntEnum):
    """Who gets the result."""

    EVERYWHERE = 0
    ROOT = 1
    SCATTERED = 2


class Reduce(Round):
    """A reduction.

    Where much is to be combined, each rank does an equal part of it, which all others give it; what it has combined
    it gives to whoever gets the result. Where the result is scattered, that part is the rank's own. Between hosts,
    where it is not, it goes from host to host: see `chains`.

    Parameters
    ----------
    job, ledger
        The job, and the group's collectives.
    result
        Who gets the result.
    label
        What the user called.
    parts
        What this rank gives: one, or one for each rank where the result is scattered.
    into
        Where the result goes, on ranks that get one.
    op, factor
        The reduction's number, and this rank's factor.
    root
        The root's rank in the group, if there is one.
    """

    def __init__(
        self,
        job: Job,
        ledger: Ledger,
        result: Result,
        label: int,
        parts: Sequence[_core.Memory],
        into: _core.Memory | None,
        op: int,
        factor: float,
        root: int = -1,
    ) -> None:
        self.result = result
        self.parts, self.into = list(parts), into
        self.op = op
        self.root = root
        shapes = tuple(run for part in parts for run in part.runs)
        first = into if result == Result.SCATTERED and into is not None else parts[0]
        call = Call(
            label,
            root,
            detail=op + 1,
            family=_FAMILY + int(result),
            type=first.type,
            size=first.nbytes,
            digest=digest_of(shapes),
            factor=factor if op == _PREMUL_SUM else 1.0,
        )
        self._runs: _Runs = first.runs
        self._factors: list[float] = []
        super().__init__(job, ledger, call)

    # The agreement ----------------------------------------------------------------------------------------------

    def given_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def blobs(self) -> list[Blob]:
        if self.result == Result.SCATTERED:
            return [Blob(dst, part.read()) for dst, part in enumerate(self.parts)]
        return [Blob(self.root if self.result == Result.ROOT else ALL, self.parts[0].read())]

    def common(self, call: Call) -> tuple[int, ...]:
        return (call.digest,) if self.result == Result.SCATTERED else (call.type, call.size, call.digest)

    def results(self, calls: Sequence[Call], blobs: dict[int, list[Blob]]) -> list[Record]:
        self._factors = [call.factor for call in calls]
        records = []
        for number, blob in enumerate(blobs[self.ledger.rank]):
            given = [blobs[rank][number].content for rank in range(len(calls))]
            out = bytearray(len(blob.content))
            self.combine(self.parts[number].runs, range(len(calls)), given, memoryview(out))
            records.append(Record(blob.dst, 0, bytes(out)))
        return records

    def sizes(self, calls: Sequence[Call]) -> list[Record]:
        if self.op != _PREMUL_SUM:
            return []
        return [Record(ALL, rank, None, _bits(call.factor)) for rank, call in enumerate(calls)]

    def accept(self, records: Sequence[Record]) -> None:
        for record in records:
            if self.into is not None and record.content is not None:
                self.into.write(record.content)

    # Large ones -------------------------------------------------------------------------------------------------

    def move(self, records: Sequence[Record]) -> None:
        n, me = self.ledger.size, self.ledger.rank
        self._factors = [1.0] * n
        for record in records:
            if record.content is None and 0 <= record.src < n:
                self._factors[record.src] = _factor(record.number)
        scattered = self.result == Result.SCATTERED
        if not scattered and follow_each_other(self.ledger.tree.hosts):
            combine_along(self)
            return
        cuts = [*(self.cut(self.parts[0].nbytes // n * rank) for rank in range(n)), self.parts[0].nbytes]
        own = self.parts[me] if scattered else self.parts[0].part(cuts[me], cuts[me + 1] - cuts[me])
        runs = self._runs if scattered else self.runs_between(cuts[me], cuts[me + 1])
        others = [(me + k) % n for k in range(1, n)]
        parts = {rank: memoryview(np.empty(own.nbytes, np.uint8)) for rank in others}
        missing = set(others)

        def arrived(rank: int) -> None:
            missing.discard(rank)
            if not missing:
                self._combine_own(own, runs, parts, cuts)

        if not others:
            self._combine_own(own, runs, parts, cuts)
        if not scattered and self.into is not None:
            for rank in others:
                self.expect(rank, n + rank, self.into.part(cuts[rank], cuts[rank + 1] - cuts[rank]).pieces())
        for rank in others:
            self.expect(rank, rank, [parts[rank]], lambda rank=rank: arrived(rank))  # type: ignore[misc]
        for rank in others:
            part = self.parts[rank] if scattered else self.parts[0].part(cuts[rank], cuts[rank + 1] - cuts[rank])
            self.give(rank, me, part.pieces())

    def _combine_own(self, own: _core.Memory, runs: _Runs, parts: dict[int, memoryview], cuts: Sequence[int]) -> None:
        """Combine this rank's part, and give it to those who get it."""
        n, me = self.ledger.size, self.ledger.rank
        mine = own.pieces()
        given: list[bytes | memoryview] = [parts[rank] if rank != me else b"" for rank in range(n)]
        given[me] = mine[0] if len(mine) == 1 else own.read()
        out = memoryview(np.empty(own.nbytes, np.uint8))
        self.combine(runs, range(n), given, out)
        if self.into is not None:
            whole = self.result == Result.SCATTERED
            (self.into if whole else self.into.part(cuts[me], cuts[me + 1] - cuts[me])).write(out)
        if self.result == Result.SCATTERED:
            return
        for rank in [self.root] if self.result == Result.ROOT else [(me + k) % n for k in range(1, n)]:
            if rank != me:
                self.give(rank, n + me, [out] if len(out) else [])

    def combine(
        self,
        runs: _Runs,
        ranks: Sequence[int],
        given: Sequence[bytes | memoryview],
        out: memoryview,
        before: memoryview | None = None,
        last: bool = True,
    ) -> None:
        """Combine what some ranks give: after what came `before`, if anything did, and before others, if not `last`.

        Between hosts accumulators travel, of 16-bit floats as float32: in `before`, and in `out` unless it is the last.
        """
        n = self.ledger.size
        factors = [self._factors[rank] for rank in ranks]
        at_in = at_before = at_out = 0
        for kind, nbytes in runs:
            if not nbytes:
                continue
            wide = nbytes // _core.element_bytes(kind) * _core.accumulator_bytes(kind)
            size = nbytes if last else wide
            part = [memoryview(each)[at_in : at_in + nbytes] for each in given]
            start = None if before is None else before[at_before : at_before + wide]
            _core.combine(kind, self.op, factors, part, out[at_out : at_out + size], start, last, n)
            at_in, at_before, at_out = at_in + nbytes, at_before + wide, at_out + size

    def cut(self, target: int) -> int:
        """Return where to cut near, and not behind, a place: between two elements, alike on all ranks."""
        start = 0
        for _, nbytes in self._runs:
            if target < start + nbytes:
                return start + (target - start) // _CUT * _CUT
            start += nbytes
        return start

    def runs_between(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return what lies in a range of elements of several types."""
        found, start = [], 0
        for kind, nbytes in self._runs:
            low, high = max(start, first), min(start + nbytes, last)
            if low < high:
                found.append((kind, high - low))
            start += nbytes
        return found

    def settle(self) -> None:
        if self.into is not None:
            self.into.settle()


def _bits(factor: float) -> int:
    return int.from_bytes(struct.pack("<d", factor), "little")


def _factor(bits: int) -> float:
    factor: float = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
    return factor
