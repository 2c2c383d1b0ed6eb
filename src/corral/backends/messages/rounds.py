"""The collectives of a job's groups: which are under way, and what has come of those that are not yet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.backends.messages import frames
from corral.backends.messages.calls import Call
from corral.backends.messages.frames import BadFrameError, Frame
from corral.backends.messages.operations import Failure, Reason
from corral.backends.messages.trees import Tree

if TYPE_CHECKING:
    from corral.backends.messages.agreement import Round
    from corral.backends.messages.job import Job
    from corral.backends.messages.transport import Arrival, Numbers

__all__ = ["Ledger", "Rounds"]

_DOUBT = 0.8  # seconds that a verdict may take after a rank is lost that may have contributed to it
_MOST_FAILED = 1024


class Ledger:
    """The collectives of one group.

    Attributes
    ----------
    members : tuple of int
        The group's ranks, as ranks of the job; empty while this rank has not made the group.
    numbers : Numbers or None
        What agrees on small calls in one step.
    active : dict of int to Round
        The calls under way.
    early : dict of int to list
        Contributions to calls that this rank has not made yet, each with its sender.
    failed : dict of int to Failure
        Calls that this rank has not made yet, which others have given up.
    last : Call or None
        The last call.
    """

    def __init__(self, context: int) -> None:
        self.context = context
        self.members: tuple[int, ...] = ()
        self.rank = 0
        self.tree: Tree
        self.numbers: Numbers | None = None
        self._next = 0
        self.active: dict[int, Round] = {}
        self.early: dict[int, list[tuple[int, memoryview]]] = {}
        self.failed: dict[int, Failure] = {}
        self.last: Call | None = None
        self.last_number = -1
        self.last_failed = False
        self.closed = False
        self._places: dict[int, int] = {}

    def join(self, members: Sequence[int], rank: int, hosts: Sequence[str]) -> None:
        """Make the group."""
        self.members = tuple(members)
        self.rank = rank
        self._places = {member: place for place, member in enumerate(members)}
        self.tree = Tree([hosts[member] for member in members], rank)

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def next(self) -> int:
        """Number of the next call."""
        return self._next if self.numbers is None else self.numbers.next

    def begin(self) -> int:
        """Return the number of a call that begins now."""
        if self.numbers is not None:
            return self.numbers.begin()
        self._next += 1
        return self._next - 1

    def place(self, member: int) -> int:
        """Return the rank in the group of a rank of the job; -1 if it has none."""
        return self._places.get(member, -1)


class Rounds:
    """The collectives of a job, in all its groups."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ledgers: dict[int, Ledger] = {}
        self.doubtful: dict[Round, tuple[float, int]] = {}
        self.open: set[Round] = set()
        self.handlers = {
            frames.RISE: self._on_rise,
            frames.FALL: self._on_fall,
            frames.PART: self._on_part,
            frames.FAIL: self._on_fail,
            frames.ABORT: self._on_abort,
        }

    def ledger(self, context: int) -> Ledger:
        ledger = self.ledgers.get(context)
        if ledger is None:
            ledger = self.ledgers[context] = Ledger(context)
        return ledger

    def close(self, context: int) -> None:
        """Forget a group."""
        ledger = self.ledger(context)
        for round_ in list(ledger.active.values()):
            round_.fail(Failure(Reason.CLOSED))
        ledger.closed = True
        ledger.early.clear()
        ledger.failed.clear()

    def abort(self, context: int, failure: Failure) -> None:
        """End everything that is under way in a group."""
        for round_ in list(self.ledger(context).active.values()):
            round_.finish(failure)

    def last_call(self, context: int) -> tuple[int, int, Call | None]:
        """Return how many collectives this rank has called, and the last one with its state."""
        ledger = self.ledger(context)
        small = None if ledger.numbers is None else ledger.numbers.last()
        if small is not None and small[0] > ledger.last_number:
            _, label, root, detail, kind, size = small
            return ledger.next, 2, Call(label, root, detail, type=kind, size=size)
        state = 1 if ledger.next - 1 in ledger.active else 3 if ledger.last_failed else 2
        return ledger.next, state, ledger.last

    def giving(self) -> bool:
        """Whether something is under way that others wait for."""
        return any(round_.gives_still() for ledger in self.ledgers.values() for round_ in ledger.active.values())

    def lose(self, rank: int) -> None:
        """End what needs a rank that is lost."""
        for ledger in self.ledgers.values():
            place = ledger.place(rank)
            if place >= 0:
                for round_ in list(ledger.active.values()):
                    round_.lose(place)

    def doubt(self, round_: Round, place: int) -> None:
        """Fail a call soon, unless the verdict comes: a rank is lost that may have contributed, or not."""
        self.doubtful.setdefault(round_, (time.monotonic() + _DOUBT, place))

    def look(self) -> None:
        """See whether doubts have proved right."""
        now = time.monotonic()
        for round_, (until, place) in list(self.doubtful.items()):
            if round_.done or round_.told:
                del self.doubtful[round_]
            elif now >= until:
                del self.doubtful[round_]
                round_.fail(Failure(Reason.LOST, round_.ledger.members[place]))

    # What comes -------------------------------------------------------------------------------------------------

    def _on_rise(self, arrival: Arrival, frame: Frame) -> None:
        ledger = self.ledger(frame.context)
        round_ = ledger.active.get(frame.a)
        if round_ is not None:
            round_.rise(arrival.source, frame.payload)
        elif frame.a >= ledger.next and not ledger.closed:
            ledger.early.setdefault(frame.a, []).append((arrival.source, frame.payload))

    def _on_fall(self, arrival: Arrival, frame: Frame) -> None:
        round_ = self.ledger(frame.context).active.get(frame.a)
        if round_ is not None:
            round_.fall(arrival.source, frame.payload)

    def _on_part(self, arrival: Arrival, frame: Frame) -> None:
        ledger = self.ledger(frame.context)
        round_ = ledger.active.get(frame.a)
        place = ledger.place(arrival.source)
        if round_ is None or place < 0:
            self.job.discard(arrival)
        else:
            round_.part(arrival, place, frame.b)

    def _on_fail(self, arrival: Arrival, frame: Frame) -> None:
        try:
            reason = Reason(frame.label)
        except ValueError:
            raise BadFrameError(f"a failure for reason {frame.label}") from None
        text = bytes(frame.payload).decode(errors="replace")
        failure = Failure(Reason.GAVE_UP, arrival.source, reason, text=text)
        if reason is Reason.LOST and 0 < frame.b <= self.job.size:
            failure = Failure(Reason.LOST, frame.b - 1)
        ledger = self.ledger(frame.context)
        round_ = ledger.active.get(frame.a)
        if round_ is not None:
            round_.finish(failure)
        elif frame.a >= ledger.next and not ledger.closed and len(ledger.failed) < _MOST_FAILED:
            ledger.failed.setdefault(frame.a, failure)

    def _on_abort(self, arrival: Arrival, frame: Frame) -> None:
        text = bytes(frame.payload).decode(errors="replace")
        failure = Failure(Reason.ABORTED, arrival.source, text=text)
        if 0 < frame.a <= self.job.size:
            failure = Failure(Reason.LOST, frame.a - 1)
        self.abort(frame.context, failure)
        self.job.post.abort(frame.context, failure)

    def tell(self, ledger: Ledger, head: bytes) -> None:
        """Send a head to all other members of a group."""
        for member in ledger.members:
            if member != self.job.rank:
                self.job.send(member, head)
