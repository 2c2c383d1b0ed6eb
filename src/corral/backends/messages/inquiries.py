"""What another rank does: it is asked when an operation has waited for it in vain."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from corral.backends.messages import frames
from corral.backends.messages.calls import Call, call_text
from corral.backends.messages.frames import BadFrameError, Frame
from corral.backends.messages.operations import ANYONE, Operation
from corral.backends.shm_names import NAMES

if TYPE_CHECKING:
    from corral.backends.messages.job import Job
    from corral.backends.messages.transport import Arrival

__all__ = ["Answer", "Inquiries", "label_text"]

_PATIENCE = 0.3  # seconds that an answer may take: who drives, answers at once
_MOST_ASKED = 64
_ANSWER = struct.Struct(
    "<BBBBHHiQdQ"
)  # waits, here, collective, last state, label, -, peer, match, seconds, last number
_STATES = {1: "is in", 2: "has finished", 3: "has failed in", 4: "called"}


class Answer(NamedTuple):
    """What a rank does: what it waits for, if it `waits`; and how many collectives it has called, with the last one."""

    waits: int
    here: int
    collective: int
    state: int
    label: int
    spare: int
    peer: int
    match: int
    seconds: float
    last: int
    call: Call | None


def label_text(label: int) -> str:
    """Name what the user called."""
    return NAMES[label] if label < len(NAMES) else str(label)


class Inquiries:
    """Questions to other ranks, and what they answered."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._token = 0
        self._asked: set[int] = set()
        self._answers: dict[int, Answer] = {}
        self.handlers = {frames.ASK: self._on_ask, frames.TELL: self._on_tell}

    def states(self, operation: Operation) -> str:
        """Say what each rank does that an operation may be waiting for. Drives until they have answered."""
        ranks = [rank for rank in operation.needed() if rank != self.job.rank]
        sequence = operation.sequence
        answers = self.ask(ranks[:_MOST_ASKED], operation.context, lambda: operation.done)
        texts = []
        for rank in ranks:
            answer = answers.get(rank)
            if sequence is not None and answer is not None and answer.last > sequence and len(ranks) > 1:
                continue  # it has called it
            texts.append(self._text(rank, answer, sequence))
        if not texts:
            texts = [self._text(rank, answers.get(rank), sequence) for rank in ranks]
        return "; ".join(texts)

    def ask(self, ranks: Sequence[int], context: int, enough: Callable[[], bool] = bool) -> dict[int, Answer]:
        """Ask ranks what they do, and return what those say that answer soon. With the turn; drives."""
        job = self.job
        self._token += 1
        self._asked, self._answers = {rank for rank in ranks if rank not in job.lost}, {}
        for rank in self._asked:
            job.send(rank, frames.encode(frames.ASK, context, self._token))
        job.drive_until(lambda: enough() or not self._asked, _PATIENCE)
        self._asked = set()
        return self._answers

    def lose(self, rank: int) -> None:
        self._asked.discard(rank)

    def _text(self, rank: int, answer: Answer | None, sequence: int | None) -> str:
        user = self.job.global_rank
        who = f"rank {user(rank)}"
        if rank in self.job.lost:
            return f"{who} {self.job.peers.end_text(rank)}"
        if answer is None:
            silent = time.monotonic() - max(self.job.heard[rank], self.job.transport.heard(rank))
            return (
                f"{who} does not answer: it is in none of corral's operations, or stopped, and nothing has come from "
                f"it for {silent:.1f} s"
            )
        if answer.waits:
            what, where = label_text(answer.label), "" if answer.here else " of another group"
            seconds = f"for {answer.seconds:.1f} s"
            if answer.collective:
                same = answer.here and answer.match == sequence
                return f"{who} is {'waiting too, in' if same else 'in'} {what} #{answer.match}{where} {seconds}"
            whom = "anyone" if answer.peer == ANYONE else f"rank {user(answer.peer)}"
            return f"{who} is in {what} with {whom} (tag {answer.match}){where} {seconds}"
        if answer.call is None:
            return f"{who} has called no collective of this group and waits for nothing"
        state = _STATES.get(answer.state, "knows")
        call = call_text(answer.call, user)
        return f"{who} {state} {call} #{answer.last - 1} and called nothing since"

    def _on_ask(self, arrival: Arrival, frame: Frame) -> None:
        last, state, call = self.job.rounds.last_call(frame.context)
        waits = here = collective = label = match = 0
        peer, seconds = ANYONE, 0.0
        if self.job.waiting:
            operation, since = self.job.waiting[-1]
            waits, here, label = 1, int(operation.context == frame.context), operation.label
            collective = int(operation.sequence is not None)
            match = operation.match if operation.sequence is None else operation.sequence
            peer, seconds = operation.peer, time.monotonic() - since
        answer = _ANSWER.pack(waits, here, collective, state, label, 0, peer, match, seconds, last)
        payload = answer + (b"" if call is None else call.plain().encode())
        self.job.send(arrival.source, frames.encode(frames.TELL, frame.context, frame.a, payload=payload))

    def _on_tell(self, arrival: Arrival, frame: Frame) -> None:
        if frame.a != self._token or arrival.source not in self._asked:
            return
        if len(frame.payload) < _ANSWER.size:
            raise BadFrameError("an answer that is too short")
        call = Call.decode(frame.payload[_ANSWER.size :]) if len(frame.payload) > _ANSWER.size else None
        self._answers[arrival.source] = Answer._make([*_ANSWER.unpack_from(frame.payload), call])
        self._asked.discard(arrival.source)
