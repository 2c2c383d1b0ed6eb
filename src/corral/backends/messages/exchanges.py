"""Collectives that bring what ranks give to other ranks as it is."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corral import _core
from corral.backends.messages.agreement import Round
from corral.backends.messages.calls import Call, Fit, digest_of, expand, shrink
from corral.backends.messages.frames import BadFrameError
from corral.backends.messages.routes import move
from corral.backends.messages.verdicts import ALL, ROWS, UNFIT, Blob, Record, Verdict

if TYPE_CHECKING:
    from corral.backends.messages.job import Job
    from corral.backends.messages.rounds import Ledger

__all__ = ["Exchange", "Pattern", "copy", "made"]


class Pattern(enum.IntEnum):
    """Who gives to whom."""

    NONE = 1
    TO_ROOT = 2
    BROADCAST = 3
    SCATTER = 4
    TO_ALL = 5
    PAIRS = 6


class Exchange(Round):
    """A collective that moves bytes.

    Parameters
    ----------
    job, ledger
        The job, and the group's collectives.
    pattern
        Who gives to whom.
    label
        What the user called.
    gives
        What this rank gives to each rank; one entry if that is the same for all, or goes to the root.
    takes
        Where this rank takes what each rank gives; empty if it takes nothing, one entry if that is the root's. An
        entry is ``None`` where nothing comes; all are where memory is to be made.
    root
        The root's rank in the group, if there is one.
    makes
        Whether memory is made for what comes, of whatever size it is.
    print
        For rows: the fingerprint of this rank's tree.
    """

    def __init__(
        self,
        job: Job,
        ledger: Ledger,
        pattern: Pattern,
        label: int,
        gives: Sequence[_core.Memory] = (),
        takes: Sequence[_core.Memory | None] = (),
        root: int = -1,
        makes: bool = False,
        print: bytes | None = None,
    ) -> None:
        self.pattern = pattern
        self.root = root
        self.makes = makes
        self.rows = print is not None
        self.gives, self.takes = list(gives), list(takes)
        self.fit = True
        self.prints: list[bytes] = []
        self.structure = b""
        first = next((each for each in (*self.gives, *self.takes) if each is not None), None)
        of_gives = shrink([Fit(each.type, each.nbytes) for each in self.gives])
        of_takes = shrink([Fit(0, 0) if each is None else Fit(each.type, each.nbytes) for each in self.takes])
        digest = 0
        if pattern == Pattern.TO_ALL and not makes:
            digest, of_takes = digest_of(of_takes), ()
        call = Call(
            label,
            root,
            family=int(pattern) + (16 if makes else 0) + (32 if self.rows else 0),
            type=0 if first is None or makes or self.rows else first.type,
            size=0 if first is None or makes or self.rows else first.nbytes,
            digest=digest,
            print=print or bytes(16),
            gives=of_gives,
            takes=() if makes else of_takes,
        )
        super().__init__(job, ledger, call)

    @property
    def size(self) -> int:
        return self.ledger.size

    @property
    def me(self) -> int:
        return self.ledger.rank

    def given(self, dst: int) -> _core.Memory:
        """Return what this rank gives to another."""
        return self.gives[dst if len(self.gives) > 1 or self.pattern in (Pattern.SCATTER, Pattern.PAIRS) else 0]

    def taken(self, src: int) -> _core.Memory:
        """Return where this rank takes what another gives."""
        single = self.pattern in (Pattern.BROADCAST, Pattern.SCATTER)
        memory = self.takes[0 if single else src]
        assert memory is not None
        return memory

    def gives_to(self) -> list[int]:
        """List the other ranks that this one gives something."""
        if self.pattern == Pattern.NONE or not self.gives:
            return []
        if self.pattern == Pattern.TO_ROOT:
            return [] if self.me == self.root else [self.root]
        return [rank for rank in range(self.size) if rank != self.me]

    # The agreement ----------------------------------------------------------------------------------------------

    def given_bytes(self) -> int:
        return sum(each.nbytes for each in self.gives) if self.gives_to() else 0

    def blobs(self) -> list[Blob]:
        dsts = self.gives_to()
        if not dsts:
            return []
        if self.pattern in (Pattern.BROADCAST, Pattern.TO_ALL):
            return [Blob(ALL, self.gives[0].read())]
        return [Blob(dst, self.given(dst).read()) for dst in dsts]

    def common(self, call: Call) -> tuple[int, ...]:
        if self.makes or self.rows:
            return ()
        return (call.type, call.size) if self.pattern == Pattern.BROADCAST else (call.digest,)

    def misfit(self, calls: Sequence[Call]) -> Verdict | None:
        if self.rows:
            return self._other_rows(calls)
        if self.makes or self.pattern not in (Pattern.TO_ROOT, Pattern.SCATTER, Pattern.PAIRS):
            return None
        n, root = self.size, calls[0].root
        if self.pattern == Pattern.TO_ROOT:
            takes = expand(calls[root].takes, n)
            pairs = [(src, root, expand(calls[src].gives, 1)[0], takes[src]) for src in range(n)]
        elif self.pattern == Pattern.SCATTER:
            gives = expand(calls[root].gives, n)
            pairs = [(root, dst, gives[dst], expand(calls[dst].takes, 1)[0]) for dst in range(n)]
        else:
            if len({call.gives for call in calls} | {call.takes for call in calls}) == 1 and len(calls[0].gives) == 1:
                return None
            given, taken = [expand(call.gives, n) for call in calls], [expand(call.takes, n) for call in calls]
            pairs = [(src, dst, given[src][dst], taken[dst][src]) for src in range(n) for dst in range(n)]
        for src, dst, gives_, takes_ in pairs:
            if gives_.type != takes_.type:
                return Verdict(UNFIT, True, src, dst, gives_.type, takes_.type)
            if gives_.size != takes_.size:
                return Verdict(UNFIT, False, src, dst, gives_.size, takes_.size)
        return None

    def _other_rows(self, calls: Sequence[Call]) -> Verdict | None:
        root = calls[0].root
        senders = [call for rank, call in enumerate(calls) if rank != root]
        if all(call.print == calls[root].print for call in senders):
            return None
        return Verdict(ROWS, calls=tuple(enumerate(calls)))

    def differ(self, verdict: Verdict) -> None:
        self.fit = False
        self.prints = [call.print for rank, call in verdict.calls if rank != self.root]

    def sizes(self, calls: Sequence[Call]) -> list[Record]:
        if not self.makes:
            return []
        records = []
        for src, call in enumerate(calls):
            if self.pattern in (Pattern.TO_ROOT, Pattern.BROADCAST, Pattern.TO_ALL):
                if call.gives:
                    dst = call.root if self.pattern == Pattern.TO_ROOT else ALL
                    records.append(Record(dst, src, None, call.gives[0][1].size))
            elif call.gives:
                gives = expand(call.gives, self.size)
                records += [Record(dst, src, None, gives[dst].size) for dst in range(self.size)]
        return records

    def accept(self, records: Sequence[Record]) -> None:
        self._keep_own()
        for _, src, content, _ in records:
            if src == self.me or content is None or not self.takes:
                continue
            if self.makes:
                self.takes[self._slot(src)] = made(len(content))
            self.taken(src).write(content)

    def move(self, records: Sequence[Record]) -> None:
        self._keep_own()
        if self.makes and self.takes:
            for dst, src, _, number in records:
                if dst in (ALL, self.me) and src != self.me:
                    self.takes[self._slot(src)] = made(number)
        move(self, records)

    def _slot(self, src: int) -> int:
        if not 0 <= src < self.size:
            raise BadFrameError(f"a part from rank {src}, which there is not")
        return 0 if self.pattern in (Pattern.BROADCAST, Pattern.SCATTER) else src

    def _keep_own(self) -> None:
        """Take what this rank gives itself."""
        if self.makes or self.rows or not self.gives or not self.takes:
            return
        if self.pattern == Pattern.BROADCAST:
            return
        copy(self.given(self.me), self.taken(self.me))

    def settle(self) -> None:
        for memory in self.takes if self.fit else ():
            if memory is not None:
                memory.settle()


def made(nbytes: int) -> _core.Memory:
    """Return fresh memory to receive into."""
    return _core.Memory([np.empty(nbytes, np.uint8)], 1)


def copy(source: _core.Memory, target: _core.Memory) -> None:
    """Copy from memory to memory of the same size, which may be the same."""
    given = source.pieces()
    for place in target.pieces():
        while place:
            count = min(len(place), len(given[0]))
            place[:count] = given[0][:count]
            place, rest = place[count:], given[0][count:]
            given[:1] = [rest] if rest else []
