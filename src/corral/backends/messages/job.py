"""What the groups of one job share: the transport, and who drives it.

Threads drive while they wait. What is under way while nobody waits is driven by a thread in the background, which has
the lowest claim to the turn and sleeps when there is nothing of that kind.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from corral.backends.at_exit import AtExit
from corral.backends.messages import frames
from corral.backends.messages.carrier import Carrier
from corral.backends.messages.frames import BadFrameError, Frame
from corral.backends.messages.inquiries import Inquiries
from corral.backends.messages.interrupts import Shield
from corral.backends.messages.operations import Failure, Operation, Reason
from corral.backends.messages.peers import Peers
from corral.backends.messages.post import Post
from corral.backends.messages.rounds import Rounds
from corral.backends.messages.strays import Moving, Strays, waste
from corral.backends.messages.turns import Gate, Turns
from corral.distributed.errors import DistBackendError

if TYPE_CHECKING:
    from corral.backends.messages.transport import Arrival, Transport

__all__ = ["Job"]

_TICK = 0.25  # seconds after which losses are looked for although nothing has come
_SOON = 0.05
_SETTLING = 1.0  # seconds that a transfer may go on for after its operation has been given up
_jobs: weakref.WeakSet[Job] = weakref.WeakSet()

Then = Callable[[BaseException | None], None]


class Job:
    """One rank's end of a job.

    Attributes
    ----------
    pending : set of Operation
        Operations under way that nobody waits for.
    lost : mapping of int to str
        Ranks that cannot be reached any more, and what is known of how they went.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.rank, self.size = transport.rank, transport.size
        self.pending: set[Operation] = set()
        self.waiting: list[tuple[Operation, float]] = []
        self.open_groups = 0
        self.global_ranks = {rank: rank for rank in range(self.size)}
        self.closed = False
        self.forked = False
        self.ending = False
        self.heard = [time.monotonic()] * self.size
        self.peers = Peers(self)
        self.lost = self.peers.lost
        self.turns = Turns(transport.wake)
        self.post = Post(self)
        self.rounds = Rounds(self)
        self.inquiries = Inquiries(self)
        self._handlers: dict[int, Callable[[Arrival, Frame], None]] = {
            **self.post.handlers,
            **self.rounds.handlers,
            **self.inquiries.handlers,
            **self.peers.handlers,
        }
        self._moving: list[Moving] = []
        self.strays = Strays(transport)
        self._partial: dict[tuple[int, int], bytearray] = {}
        self._carrier = Carrier(self)
        _jobs.add(self)
        self._at_exit = AtExit(self._end)  # after the transport has: so that it comes before what that does at exit

    def global_rank(self, rank: int) -> int:
        """Return the rank that a user knows the job's `rank` by, once the job has shrunk."""
        return self.global_ranks.get(rank, rank)

    # For the thread that has the turn --------------------------------------------------------------------------

    def send(
        self,
        dst: int,
        head: bytes,
        body: Sequence[memoryview] = (),
        then: Then | None = None,
        operation: Operation | None = None,
    ) -> None:
        """Start sending a frame; `then` is called with its error, or ``None``, once it is out of our hands.

        The body is in an operation's memory, if one is given.
        """
        if dst in self.lost:
            if then is not None:
                then(ConnectionError(f"rank {dst} is gone"))
            return
        self._follow(Moving(self.transport.send(dst, head, body), then, body, False, operation))

    def send_long(self, dst: int, kind: int, context: int, number: int, content: bytes) -> None:
        """Send what may be too much for one head."""
        most = self.transport.head_limit - frames.HEAD_BYTES
        if len(content) <= most:
            return self.send(dst, frames.encode(kind, context, number, payload=content))
        view = memoryview(content)
        for start in range(0, len(content), most):
            more = frames.MORE if start + most < len(content) else 0
            part = view[start : start + most]
            self.send(dst, frames.encode(kind, context, number, flags=more, payload=part))
        return None

    def receive(
        self, arrival: Arrival, pieces: Sequence[memoryview], then: Then, operation: Operation | None = None
    ) -> None:
        """Start receiving a body; into an operation's memory, if one is given."""
        self._follow(Moving(self.transport.receive(arrival, pieces), then, pieces, True, operation))

    def discard(self, arrival: Arrival) -> None:
        """Receive a body that nobody wants any more."""
        if arrival.body_size:
            pieces = waste(arrival.body_size)
            self._follow(Moving(self.transport.receive(arrival, pieces), None, pieces, True, None))

    def _follow(self, moving: Moving) -> None:
        if not moving.transfer.done():
            self._moving.append(moving)
        elif moving.then is not None:
            moving.then(moving.transfer.error())

    def progress(self) -> None:
        """Do all that can be done now."""
        if self.closed or self.ending:
            return
        lost = dict(self.transport.lost())  # before what came is looked at: a rank's last words come before its end
        for arrival in self.transport.arrivals():
            self._dispatch(arrival)
        if self._moving:
            ended = [each for each in self._moving if each.transfer.done()]
            if ended:
                self._moving = [each for each in self._moving if not any(each is other for other in ended)]
                for moving in ended:
                    if moving.then is not None:
                        moving.then(moving.transfer.error())
        for round_ in [*self.rounds.open]:
            round_.look()
        self.peers.look(lost)
        if self.rounds.doubtful:
            self.rounds.look()

    def _dispatch(self, arrival: Arrival) -> None:
        self.heard[arrival.source] = time.monotonic()
        try:
            frame = frames.decode(arrival.head)
            if frame.kind in (frames.RISE, frames.FALL):
                whole = self._joined(arrival.source, frame)
                if whole is None:
                    return
                frame = whole
            self._handlers[frame.kind](arrival, frame)
        except BadFrameError as error:
            self.peers.lose(arrival.source, f"has sent what makes no sense ({error})")

    def _joined(self, source: int, frame: Frame) -> Frame | None:
        """Put together what was too long for one head."""
        key = source, frame.kind
        if key not in self._partial and not frame.flags & frames.MORE:
            return frame
        content = self._partial.setdefault(key, bytearray())
        content += frame.payload
        if frame.flags & frames.MORE:
            return None
        del self._partial[key]
        return frame._replace(payload=memoryview(content))

    # For the callers -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if this process is not the rank, or the job is over."""
        if self.forked:
            raise DistBackendError(
                f"this process was forked from rank {self.rank}. Only that process is the rank: start workers with the "
                '"spawn" method, or fork before init_process_group.'
            )
        if self.closed:
            raise DistBackendError("the job is over: its last group was destroyed")
        if self.ending:
            raise DistBackendError("the job is over: this process is ending")

    def start(self, operations: Sequence[Operation]) -> None:
        """Start operations that nobody waits for yet."""
        self.check()
        with Shield(self.transport.wake):
            self.turns.take()
            try:
                for operation in operations:
                    self.pending.add(operation)
                    operation.start()
                self.progress()
            finally:
                self._leave()

    def run(self, operation: Operation, timeout: float) -> None:
        """Start an operation and wait for its end."""
        self._wait(operation, timeout, True)

    def wait(self, operation: Operation, timeout: float) -> None:
        """Wait for the end of an operation that was started."""
        if not operation.done:
            self._wait(operation, timeout, False)
        elif operation.failure is not None and self._uses(operation):
            self.call(lambda: self._settle(operation))

    def poll(self, operation: Operation) -> bool:
        """Whether an operation has ended, after doing what can be done now."""
        if not operation.done and not self.forked and self.turns.try_take():
            with Shield(self.transport.wake):
                try:
                    self.progress()
                finally:
                    self._leave()
        return operation.done

    def call(self, function: Callable[[], None]) -> None:
        """Have the turn for the time of a call."""
        with Shield(self.transport.wake):
            self.turns.take()
            try:
                function()
            finally:
                self._leave()

    def drive_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """With the turn, drive until something holds; return whether it does."""
        deadline = time.monotonic() + seconds
        while True:
            self.progress()
            if condition():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.transport.wait(min(left, _SOON))

    def _wait(self, operation: Operation, timeout: float, start: bool) -> None:
        self.check()
        deadline = time.monotonic() + timeout
        entry = operation, time.monotonic()
        with Shield(self.transport.wake) as shield:
            self.turns.take()
            has_turn = True
            try:
                self.waiting.append(entry)
                self.pending.discard(operation)
                if start:
                    operation.start()
                has_turn = self._drive(operation, deadline, shield)
                if not operation.done:
                    states = self.inquiries.states(operation)
                    if not operation.done:  # nor since
                        operation.give_up(Failure(Reason.TIMEOUT, text=states))
                if operation.failure is not None and self._uses(operation):
                    if not has_turn:
                        self.turns.take()
                        has_turn = True
                    self._settle(operation)
            except BaseException:  # usually that of a signal's handler: the caller's memory is its own again
                operation.give_up(Failure(Reason.INTERRUPTED))
                self._settle(operation)
                raise
            finally:
                self.waiting.remove(entry)
                if has_turn:
                    self._leave()

    def _drive(self, operation: Operation, deadline: float, shield: Shield) -> bool:
        """Drive until an operation has ended or its time is over; return whether this thread has the turn."""
        while True:
            self.progress()
            if operation.done:
                return True
            if shield.caught:
                self._deliver(shield)
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return True
            if self.turns.wanted:
                operation.gate = Gate()
                has_turn = self.turns.park(operation.gate, min(left, _TICK))
                operation.gate = None
                if operation.done and not has_turn:
                    return False
                if not has_turn:
                    self.turns.take()
                continue
            self.transport.wait(min(left, _SOON if self.rounds.doubtful or self.peers.suspects else _TICK))

    def _deliver(self, shield: Shield) -> None:
        """Let the program's handler of a signal run, which may raise, as that of Ctrl-C does."""
        self.turns.give()
        try:
            shield.deliver()
        finally:
            self.turns.take()

    def _settle(self, operation: Operation) -> None:
        """Let nothing be moved into, or out of, the memory of an operation that has failed."""
        self._moving = [self.strays.divert(each) if each.operation is operation else each for each in self._moving]
        if self._uses(operation):  # what cannot be diverted ends by itself in a moment, or its peer does
            self.drive_until(lambda: not self._uses(operation), _SETTLING)
        for moving in self._uses(operation):
            self.strays.keep(moving)

    def _uses(self, operation: Operation) -> list[Moving]:
        return [] if self._over() else [each for each in self._moving if each.operation is operation]

    def busy(self) -> bool:
        """Whether something is under way that nobody waits for."""
        return not self.closed and not self.ending and bool(self.pending or self._moving)

    def rest(self) -> None:
        """With the turn, wait until there may be something to do."""
        self.transport.wait(_SOON if self.rounds.doubtful or self.peers.suspects else _TICK)

    def _leave(self) -> None:
        """Give the turn away; to the thread in the background if there is nobody else and it has something to do."""
        busy = self.busy()
        self.turns.give()
        if busy:
            self._carrier.call()

    # The end ---------------------------------------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """Deliver what was sent; return whether all of it was."""
        delivered = False

        def deliver() -> None:
            nonlocal delivered
            delivered = self.drive_until(self._delivered, timeout)

        if not self._over():
            self.call(deliver)
        return delivered

    def _over(self) -> bool:
        return self.closed or self.forked or self.ending

    def _delivered(self) -> bool:
        return not self.post.offered and not self.rounds.giving() and not self._moving

    def keep(self) -> None:
        """Keep what is open so until the process ends: the others take it for its end when a connection closes."""
        if not self.closed and not self.forked:
            self._carrier.call()  # a thread that the interpreter does not wait for, whose frame refers to all of it

    def forget(self, context: int) -> None:
        """End a group: what comes for it from now on is for nobody."""

        def end() -> None:
            self.rounds.close(context)
            self.post.close(context)

        if not self._over():
            self.call(end)

    def leave(self, timeout: float) -> None:
        """Tell the others that this rank leaves, and release everything."""
        if self._over():
            return
        self._at_exit.cancel()

        def say() -> None:
            for context in list(self.rounds.ledgers):
                self.rounds.close(context)
                self.post.close(context)
            for rank in range(self.size):
                if rank != self.rank:
                    self.send(rank, frames.encode(frames.LEAVE))
            self.drive_until(lambda: not self._moving, timeout)
            self.closed = True
            self.transport.close(timeout)

        self.call(say)
        self._carrier.end()

    def _end(self) -> None:
        """Let no thread use the transport any more: its engine's native code does not stand that while Python ends."""

        def end() -> None:
            self.ending = True

        if not self._over():
            self.call(end)


def _in_child() -> None:
    for job in _jobs:
        job.forked = True


os.register_at_fork(after_in_child=_in_child)
