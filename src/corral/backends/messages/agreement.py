"""How the ranks of a group agree on a collective before any byte moves.

What each rank calls rises through a tree to the coordinator, with what it gives if that is small. The verdict falls
through the same tree, with what each rank gets. So a call that fits and is small takes one way up and one down, and
one that does not fit fails on every rank, by name, and leaves the group in step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from corral.backends.messages import frames
from corral.backends.messages.calls import REFUSED, Call
from corral.backends.messages.frames import BadFrameError
from corral.backends.messages.operations import Failure, Operation, Reason
from corral.backends.messages.transport import ALIKE, OPEN
from corral.backends.messages.verdicts import (
    ALL,
    DIFFERENT,
    DIRECT,
    INLINE,
    ROWS,
    UNFIT,
    Blob,
    Record,
    Verdict,
    rank_of,
    read_entry,
    read_verdict,
    write_entry,
    write_verdict,
)

if TYPE_CHECKING:
    from corral.backends.messages.job import Job
    from corral.backends.messages.rounds import Ledger
    from corral.backends.messages.transport import Arrival

__all__ = ["Refused", "Round"]

_INLINE = 8192  # bytes that a rank gives along with its call, at most
_INLINE_ALL = 256 * 1024  # bytes that all ranks give, at most


class Round(Operation):
    """One collective of a group, from the call to its end.

    Attributes
    ----------
    ledger : Ledger
        The group's.
    call : Call
        What this rank called.
    told : bool
        Whether the verdict is here.
    open : bool
        Whether it was begun in one step, and not all that the other ranks say is here.
    """

    def __init__(self, job: Job, ledger: Ledger, call: Call) -> None:
        super().__init__(job, ledger.context, call.label)
        self.ledger = ledger
        self.call = call
        self.number = -1
        self.told = False
        self.open = False
        self._entries: dict[int, memoryview] = {}
        self._expected: dict[tuple[int, int], tuple[Sequence[memoryview], int, Callable[[], None] | None]] = {}
        self._held: dict[tuple[int, int], Arrival] = {}
        self._coming: set[tuple[int, int]] = set()  # parts whose bytes are on their way
        self._transfers = 0
        self._busy = 0  # inside a call that may start more

    @property
    def sequence(self) -> int | None:
        return self.number

    # What the kinds of collectives do ---------------------------------------------------------------------------

    def blobs(self) -> list[Blob]:
        """Return what this rank gives; called if that is small."""
        return []

    def given_bytes(self) -> int:
        """Return how much that is."""
        return 0

    def common(self, call: Call) -> tuple[int, ...]:
        """Return what else must be the same on all ranks."""
        return ()

    def misfit(self, calls: Sequence[Call]) -> Verdict | None:
        """Return what does not fit in calls that are otherwise the same. On the coordinator."""
        return None

    def results(self, calls: Sequence[Call], blobs: dict[int, list[Blob]]) -> list[Record]:
        """Return what each rank gets. On the coordinator."""
        return [Record(dst, src, content) for src, given in blobs.items() for dst, content in given]

    def sizes(self, calls: Sequence[Call]) -> list[Record]:
        """Return what the ranks must know before much moves. On the coordinator."""
        return []

    def accept(self, records: Sequence[Record]) -> None:
        """Take what the verdict brought."""

    def move(self, records: Sequence[Record]) -> None:
        """Start to move what was too much for that."""

    def differ(self, verdict: Verdict) -> None:
        """Take note that rows do not fit as they are."""

    # The way up -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        ledger = self.ledger
        if self.number < 0:
            self.number = ledger.begin()
        else:
            self.open = True
            self.job.rounds.open.add(self)
        ledger.last, ledger.last_number, ledger.last_failed = self.call, self.number, False
        ledger.active[self.number] = self
        early = ledger.early.pop(self.number, ())
        failed = ledger.failed.pop(self.number, None)
        if failed is not None:
            return self.finish(failed)
        size = self.given_bytes()
        small = size <= min(_INLINE, max(256, _INLINE_ALL // ledger.size))
        self._entries[ledger.rank] = write_entry(ledger.rank, self.call, self.blobs() if small else None)
        for source, content in early:
            try:
                self._add(source, content)
            except BadFrameError as error:
                self.job.peers.lose(source, f"has sent what makes no sense ({error})")
        if not self.open:  # else it is looked at once what has come before is heard: that somebody has given up, say
            self._pass_on()
        self._check_lost()
        return None

    def begun(self, number: int) -> Round:
        """Say, before it starts, that it was begun in one step; return itself."""
        self.number = number
        return self

    def look(self) -> None:
        """See what has become of a call that was begun in one step."""
        numbers = self.ledger.numbers
        assert numbers is not None
        state = numbers.state(self.number)
        if self.done or state == OPEN:
            return
        self.open = False
        self.job.rounds.open.discard(self)
        if state == ALIKE:
            given = {rank: [Blob(ALL, said)] for rank, said in enumerate(numbers.contents(self.number)) if said}
            self.told = True
            self.accept(self.results([self.call] * self.ledger.size, given))
            self.finish()
        else:
            self._pass_on()
            self._check_lost()

    def _check_lost(self) -> None:
        if self.job.lost:
            for place, member in enumerate(self.ledger.members):
                if member in self.job.lost:
                    self.lose(place)

    def rise(self, source: int, content: memoryview) -> None:
        """Take in what ranks below have called."""
        self._add(source, content)
        self._pass_on()

    def _add(self, source: int, content: memoryview) -> None:
        below = self.ledger.tree.children.get(self.ledger.place(source))
        if below is None:
            raise BadFrameError("a contribution from a rank that has another to tell")
        while content:
            rank, entry = rank_of(content)
            if rank not in below:
                raise BadFrameError(f"a contribution for rank {rank}, which has another to tell")
            self._entries[rank] = entry
            content = content[len(entry) :]

    def _pass_on(self) -> None:
        ledger = self.ledger
        if self.done or self.told or len(self._entries) < ledger.tree.size:
            return
        if ledger.tree.parent >= 0:
            if self.open:
                return
            content = b"".join(self._entries.values())
            self.job.send_long(ledger.members[ledger.tree.parent], frames.RISE, self.context, self.number, content)
            return
        read = {rank: read_entry(entry) for rank, entry in self._entries.items()}
        self._fall(self._judge(read))

    def call_of(self, rank: int) -> Call:
        """Return what a rank called, of which this one has heard."""
        return read_entry(self._entries[rank])[0]

    def _judge(self, read: dict[int, tuple[Call, list[Blob] | None]]) -> Verdict:
        calls = [read[rank][0] for rank in range(self.ledger.size)]
        first = calls[0]

        def what(call: Call) -> tuple[object, ...]:
            return call.label, call.family, call.root, call.detail, self.common(call)

        if any(call.state == REFUSED or what(call) != what(first) for call in calls):
            return Verdict(DIFFERENT, calls=tuple(enumerate(calls)))
        misfit = self.misfit(calls)
        if misfit is not None:
            return misfit
        blobs = {rank: given for rank, (_, given) in read.items() if given is not None}
        if len(blobs) == len(read):
            return Verdict(INLINE, records=self.results(calls, blobs))
        return Verdict(DIRECT, records=self.sizes(calls))

    # The way down -----------------------------------------------------------------------------------------------

    def fall(self, source: int, content: memoryview) -> None:
        """Take in the verdict."""
        if self.ledger.place(source) != self.ledger.tree.parent or self.told:
            raise BadFrameError("a verdict from a rank that has none to tell")
        self._fall(read_verdict(content))

    def _fall(self, verdict: Verdict) -> None:
        ledger = self.ledger
        self.told = True
        for_all = all(record.dst == ALL for record in verdict.records)
        content = b""
        for child, below in ledger.tree.children.items():
            if not content or not for_all:
                content = write_verdict(verdict, None if for_all else below)
            self.job.send_long(ledger.members[child], frames.FALL, self.context, self.number, content)
        mine = [record for record in verdict.records if record.dst in (ALL, ledger.rank)]
        if verdict.code == INLINE:
            self.accept(mine)
            self.finish()
        elif verdict.code == DIRECT:
            self._busy += 1
            self.move(verdict.records)
            self._busy -= 1
            self._check_end()
        elif verdict.code == ROWS:
            self.differ(verdict)
            self.finish()
        elif verdict.code == UNFIT:
            reason = Reason.TYPE if verdict.by_type else Reason.SIZE
            sender, finder = ledger.members[verdict.sender], ledger.members[verdict.finder]
            self.finish(Failure(reason, sender, 0, finder, verdict.actual, verdict.expected))
        else:
            refused = any(call.state == REFUSED for _, call in verdict.calls)
            self.finish(Failure(Reason.REFUSED if refused else Reason.DIFFERENT, calls=verdict.calls))

    # Parts that move directly -----------------------------------------------------------------------------------

    def give(self, dst: int, part: int, pieces: Sequence[memoryview]) -> None:
        """Send a part to a rank of the group, whose memory is ready since it contributed to the agreement."""
        if self.done:
            return
        self._transfers += 1
        head = frames.encode(frames.PART, self.context, self.number, part)

        def sent(error: BaseException | None) -> None:
            self._transfers -= 1
            if error is not None:
                self.fail(Failure(Reason.LOST, self.ledger.members[dst], text=str(error)))
            else:
                self._check_end()

        self.job.send(self.ledger.members[dst], head, pieces, sent, self)

    def expect(self, src: int, part: int, pieces: Sequence[memoryview], then: Callable[[], None] | None = None) -> None:
        """Receive a part from a rank of the group; `then` is called when it is here."""
        if self.done:
            return
        key = src, part
        self._expected[key] = pieces, sum(map(len, pieces)), then
        held = self._held.pop(key, None)
        if held is not None:
            self.part(held, src, part)
        elif self.ledger.members[src] in self.job.lost:
            self.fail(Failure(Reason.LOST, self.ledger.members[src]))

    def part(self, arrival: Arrival, src: int, part: int) -> None:
        """Take in a part that has come."""
        key = src, part
        if key not in self._expected:
            if key in self._held:
                raise BadFrameError("a part that has come before")
            self._held[key] = arrival
            return
        pieces, size, then = self._expected[key]
        if arrival.body_size != size:
            raise BadFrameError(f"a part of {arrival.body_size} bytes where {size} are expected")
        self._transfers += 1
        self._coming.add(key)

        def received(error: BaseException | None) -> None:
            self._transfers -= 1
            self._coming.discard(key)
            if self.done:
                return
            if error is not None:
                self.fail(Failure(Reason.LOST, arrival.source, text=str(error)))
                return
            del self._expected[key]
            if then is not None:
                self._busy += 1
                then()
                self._busy -= 1
            self._check_end()

        if size == 0:
            received(None)
        else:
            self.job.receive(arrival, pieces, received, self)

    def _check_end(self) -> None:
        if self.told and not self._busy and not self._transfers and not self._expected and not self.done:
            self.finish()

    # The end ----------------------------------------------------------------------------------------------------

    def lose(self, place: int) -> None:
        """Consider that a rank of the group is lost."""
        if self.done:
            return
        failure = Failure(Reason.LOST, self.ledger.members[place])
        if self.told:
            # One that leaves has sent all that it had to: what has begun to come from it will be here in a moment.
            if any(key[0] == place and key not in self._coming for key in self._expected):
                self.fail(failure)
        elif self.open:
            assert self.ledger.numbers is not None
            if not self.ledger.numbers.has(self.number, place):
                self.fail(failure)
        elif place in self._entries:
            return
        elif place == self.ledger.tree.parent or any(place in below for below in self.ledger.tree.children.values()):
            self.fail(failure)
        else:
            self.job.rounds.doubt(self, place)

    def fail(self, failure: Failure) -> None:
        """End the call here, and tell the others."""
        if self.done:
            return
        self.finish(failure)
        most = self.job.transport.head_limit - frames.HEAD_BYTES
        lost = failure.rank + 1 if failure.reason is Reason.LOST else 0
        head = frames.encode(
            frames.FAIL,
            self.context,
            self.number,
            lost,
            label=int(failure.reason),
            payload=failure.text.encode()[:most],
        )
        self.job.rounds.tell(self.ledger, head)

    def give_up(self, failure: Failure) -> None:
        if self.number >= 0:  # else nobody has heard of it
            self.fail(failure)

    def finish(self, failure: Failure | None = None) -> None:
        if self.done:
            return
        self.ledger.active.pop(self.number, None)
        self.job.rounds.open.discard(self)
        if self.ledger.numbers is not None:
            self.ledger.numbers.forget(self.number)
        if self.number == self.ledger.next - 1:
            self.ledger.last_failed = failure is not None
        held, self._held = self._held, {}
        self._expected = {}
        for arrival in held.values():
            self.job.discard(arrival)
        if failure is None:
            self.settle()
        super().finish(failure)

    def settle(self) -> None:
        """Move what was received to where it belongs."""

    def gives_still(self) -> bool:
        """Whether others wait for what this rank is to send."""
        return self.told

    def needed(self) -> list[int]:
        return [member for member in self.ledger.members if member != self.job.rank]


class Refused(Round):
    """A call whose arguments this rank has refused: it has its number, and fails on every rank."""

    def __init__(self, job: Job, ledger: Ledger, label: int) -> None:
        super().__init__(job, ledger, Call(label, state=REFUSED))

    def gives_still(self) -> bool:
        return True
