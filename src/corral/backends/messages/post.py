"""Messages from one rank to another.

A small message travels in a head. A larger one is offered; the receiver says when its memory is ready, and only then
does the body leave. So either end can withdraw, and nothing is written once an operation has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corral.backends.messages import frames
from corral.backends.messages.frames import BadFrameError, Frame
from corral.backends.messages.matching import Arrived, Mailbox, Taken
from corral.backends.messages.operations import ANYONE, Failure, Reason, Receive, Send

if TYPE_CHECKING:
    from corral.backends.messages.job import Job
    from corral.backends.messages.transport import Arrival

__all__ = ["Post"]

_MOST_INLINE = 16 * 1024
_UNCLAIMED = 4 << 20  # bytes of small messages that a rank may have with another that has not asked for them
_HEAD_COST = 128  # of each, beside its payload
_VIEWED_FROM = 64 * 1024  # from here on a view of the memory itself costs less than a copy as bytes


class Post:
    """The messages of a job, in all its groups.

    Attributes
    ----------
    credit : list of int
        Bytes of small messages that this rank may send each rank.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.boxes: dict[int, Mailbox] = {}
        self.most_inline = min(_MOST_INLINE, job.transport.head_limit - frames.HEAD_BYTES)
        self.offered: dict[int, Send] = {}
        self._taken: dict[int, Taken] = {}
        self._next = 1
        self.credit = [_UNCLAIMED] * job.size
        self._owed = [0] * job.size
        self.handlers = {
            frames.EAGER: self._on_message,
            frames.OFFER: self._on_message,
            frames.TAKE: self._on_take,
            frames.SKIP: self._on_skip,
            frames.BODY: self._on_body,
            frames.WITHDRAW: self._on_withdraw,
            frames.VOID: self._on_void,
            frames.CREDIT: self._on_credit,
        }

    def box(self, context: int) -> Mailbox:
        box = self.boxes.get(context)
        if box is None:
            box = self.boxes[context] = Mailbox()
        return box

    # What this rank does ----------------------------------------------------------------------------------------

    def send(self, send: Send) -> None:
        memory, dst = send.memory, send.dst
        size = memory.nbytes
        job = self.job
        if dst == job.rank:
            arrived = Arrived(dst, send.tag, memory.type, size, memory.read(), 0)
            self._deliver(send.context, arrived)
            return send.finish()
        if dst in job.lost:
            return send.finish(Failure(Reason.LOST, dst))
        if size <= self.most_inline and self.credit[dst] >= size + _HEAD_COST:
            self.credit[dst] -= size + _HEAD_COST
            head = frames.encode(frames.EAGER, send.context, send.tag, memory.type, size, payload=memory.read())
            job.send(dst, head)
            return send.finish()
        send.number = self._number()
        self.offered[send.number] = send
        job.send(dst, frames.encode(frames.OFFER, send.context, send.tag, memory.type, size, send.number))
        return None

    def receive(self, receive: Receive) -> None:
        box = self.box(receive.context)
        arrived = box.claim(receive)
        if arrived is not None:
            return self._meet(receive, arrived)
        box.post(receive)
        self._check_source(receive)
        return None

    def withdraw_send(self, send: Send) -> None:
        if send.number and self.offered.pop(send.number, None) is not None:
            self.job.send(send.dst, frames.encode(frames.WITHDRAW, send.context, send.tag, d=send.number))

    def withdraw_receive(self, receive: Receive) -> None:
        box = self.box(receive.context)
        if box.posted.remove(receive, receive.tag, receive.source):
            return
        for taken in self._taken.values():
            if taken.receive is receive:
                # Its bytes may be on their way: they are for the next receive.
                taken.receive = None
                if not receive.transfers:
                    box.arrived.add_back(taken.arrived, receive.tag, taken.arrived.sender)
                return

    def close(self, context: int) -> None:
        """Forget a group; what others offer in it is skipped from now on."""
        box = self.box(context)
        box.closed = True
        for arrived in box.arrived:
            self._skip(context, arrived)
        for receive in box.posted:
            receive.finish(Failure(Reason.CLOSED))
        box.arrived, box.posted = Mailbox().arrived, Mailbox().posted

    def lose(self, rank: int) -> None:
        """End what needs a rank that is lost."""
        failure = Failure(Reason.LOST, rank)
        for number, send in list(self.offered.items()):
            if send.dst == rank:
                del self.offered[number]
                send.finish(failure)
        for number, taken in list(self._taken.items()):
            if taken.arrived.sender == rank and not taken.started:
                del self._taken[number]
                taken.arrived.taken = None
                if taken.receive is not None:
                    taken.receive.finish(failure)
        for box in self.boxes.values():
            for receive in box.posted:
                self._check_source(receive)

    def abort(self, context: int, failure: Failure) -> None:
        """End everything that is under way in a group."""
        for send in list(self.offered.values()):
            if send.context == context:
                send.give_up(failure)
        for taken in list(self._taken.values()):
            if taken.receive is not None and taken.receive.context == context:
                taken.receive.give_up(failure)
        for receive in self.box(context).posted:
            receive.give_up(failure)

    # What comes -------------------------------------------------------------------------------------------------

    def _on_message(self, arrival: Arrival, frame: Frame) -> None:
        whole = frame.kind == frames.EAGER
        if whole and len(frame.payload) != frame.c:
            raise BadFrameError(f"a message of {len(frame.payload)} bytes that says it has {frame.c}")
        payload, cost = (frame.payload, frame.c + _HEAD_COST) if whole else (None, 0)
        self._deliver(frame.context, Arrived(arrival.source, frame.a, frame.b, frame.c, payload, frame.d, cost))

    def _deliver(self, context: int, arrived: Arrived) -> None:
        box = self.box(context)
        if box.closed:
            return self._skip(context, arrived)
        receive = box.match(arrived.sender, arrived.tag)
        if receive is None:
            box.put(arrived)
        else:
            self._meet(receive, arrived)
        return None

    def _meet(self, receive: Receive, arrived: Arrived) -> None:
        """Bring a message and its receive together."""
        memory = receive.memory
        receive.sender = arrived.sender
        if memory is not None and memory.type != arrived.number:
            self._skip(receive.context, arrived)
            failure = Failure(Reason.TYPE, arrived.sender, actual=arrived.number, expected=memory.type)
            return receive.finish(failure)
        if memory is not None and memory.nbytes != arrived.size:
            self._skip(receive.context, arrived)
            failure = Failure(Reason.SIZE, arrived.sender, actual=arrived.size, expected=memory.nbytes)
            return receive.finish(failure)
        if arrived.payload is not None:
            self.consumed(arrived.sender, arrived.cost)
            if memory is None:
                own = isinstance(arrived.payload, memoryview) and not arrived.payload.readonly
                receive.made = arrived.payload if own and arrived.size >= _VIEWED_FROM else bytes(arrived.payload)
            else:
                memory.write(arrived.payload)
            return receive.finish()
        if arrived.sender in self.job.lost:
            return receive.finish(Failure(Reason.LOST, arrived.sender))
        if memory is None:
            try:
                receive.made = memoryview(np.empty(arrived.size, np.uint8))
            except (MemoryError, ValueError):
                self._skip(receive.context, arrived)
                return receive.finish(
                    Failure(Reason.SYSTEM, arrived.sender, text=f"no memory for {arrived.size} bytes")
                )
        if arrived.taken is not None:  # for one that has given up
            arrived.taken.receive = receive
            return None
        number = self._number()
        arrived.taken = self._taken[number] = Taken(arrived, receive)
        self.job.send(arrived.sender, frames.encode(frames.TAKE, receive.context, a=arrived.name, b=number))
        return None

    def _check_source(self, receive: Receive) -> None:
        """End a receive that nobody can send to any more."""
        lost = self.job.lost
        if not lost:
            return
        gone = receive.source in lost if receive.source != ANYONE else bool(receive.others)
        if receive.source == ANYONE and any(rank not in lost for rank in receive.others):
            return
        if gone and self.box(receive.context).posted.remove(receive, receive.tag, receive.source):
            receive.finish(Failure(Reason.LOST, receive.source))

    def _on_take(self, arrival: Arrival, frame: Frame) -> None:
        send = self.offered.get(frame.a)
        if send is None or send.dst != arrival.source:
            self.job.send(arrival.source, frames.encode(frames.VOID, frame.context, b=frame.b))
            return
        del self.offered[frame.a]

        def sent(error: BaseException | None) -> None:
            send.finish(None if error is None else Failure(Reason.LOST, send.dst, text=str(error)))

        head = frames.encode(frames.BODY, frame.context, b=frame.b)
        self.job.send(arrival.source, head, send.memory.pieces(), sent, send)

    def _on_skip(self, arrival: Arrival, frame: Frame) -> None:
        send = self.offered.get(frame.a)
        if send is not None and send.dst == arrival.source:
            del self.offered[frame.a]
            send.finish()

    def _on_body(self, arrival: Arrival, frame: Frame) -> None:
        taken = self._taken.get(frame.b)
        if taken is None or taken.arrived.sender != arrival.source or taken.started:
            return self.job.discard(arrival)
        arrived, receive = taken.arrived, taken.receive
        if arrival.body_size != arrived.size:
            raise BadFrameError(f"a body of {arrival.body_size} bytes where {arrived.size} were taken")
        taken.started = True
        if receive is None:
            pieces = [memoryview(np.empty(arrived.size, np.uint8))]
        else:
            receive.transfers = 1
            pieces = [receive.made] if receive.memory is None else receive.memory.pieces()

        def received(error: BaseException | None) -> None:
            del self._taken[frame.b]
            arrived.taken = None
            if receive is None:  # it lies here until somebody asks for it
                arrived.payload = pieces[0] if error is None else None
                if taken.receive is not None:
                    self._meet(taken.receive, arrived)
                return
            receive.transfers = 0
            if receive.memory is None and len(receive.made) < _VIEWED_FROM:
                receive.made = bytes(receive.made)
            receive.finish(None if error is None else Failure(Reason.LOST, arrived.sender, text=str(error)))

        self.job.receive(arrival, pieces, received, receive)
        return None

    def _on_withdraw(self, arrival: Arrival, frame: Frame) -> None:
        box = self.box(frame.context)
        for arrived in box.arrived:
            if arrived.sender == arrival.source and arrived.payload is None and arrived.name == frame.d:
                box.arrived.remove(arrived, arrived.tag, arrived.sender)
                return

    def _on_void(self, arrival: Arrival, frame: Frame) -> None:
        """Put back what has taken an offer that was withdrawn meanwhile."""
        taken = self._taken.get(frame.b)
        if taken is None or taken.arrived.sender != arrival.source or taken.started:
            return
        del self._taken[frame.b]
        box, receive = self.box(frame.context), taken.receive
        if receive is None:
            box.arrived.remove(taken.arrived, taken.arrived.tag, taken.arrived.sender)
            return
        receive.sender = ANYONE
        later = box.claim(receive)
        if later is not None:
            self._meet(receive, later)
        else:
            box.posted.add_back(receive, receive.tag, receive.source)
            self._check_source(receive)

    def _on_credit(self, arrival: Arrival, frame: Frame) -> None:
        self.credit[arrival.source] = min(self.credit[arrival.source] + frame.a, _UNCLAIMED)

    # ----------------------------------------------------------------------------------------------------------

    def _skip(self, context: int, arrived: Arrived) -> None:
        """Consume a message without its bytes."""
        if arrived.payload is not None:
            self.consumed(arrived.sender, arrived.cost)
        elif arrived.taken is None:
            self.job.send(arrived.sender, frames.encode(frames.SKIP, context, a=arrived.name))
        # What was taken comes all the same, and is discarded.

    def consumed(self, sender: int, cost: int) -> None:
        """Let a sender know, now and then, that it may send more."""
        self._owed[sender] += cost
        if self._owed[sender] >= _UNCLAIMED // 4:
            self.job.send(sender, frames.encode(frames.CREDIT, a=self._owed[sender]))
            self._owed[sender] = 0

    def _number(self) -> int:
        self._next += 1
        return self._next
