"""How the ranks of a job find each other, and exchange a few bytes, before there is an engine.

This is for the ranks of one host; :mod:`corral.distributed.host_meeting` is for those of several.

Rank 0 is the host of the meeting: it listens on an abstract socket, whose name is derived from the address
that all ranks were given, and the others are its guests. Such a socket has no file: it is gone with the
process that made it, however that ends. The kernel tells each end the other's user, and no other user may
come in.

Each guest says hello with its rank, its world size and its bytes, and is welcomed, or told why it is not.
When all have come the host stops listening, and only then sends everyone's bytes to everyone: whoever leaves
a meeting can go to the next one at the same address at once, and cannot mistake the old one for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time

from corral.distributed import meeting_wire as wire
from corral.distributed.addresses import Meeting, is_over_hosts, place, resolve
from corral.distributed.errors import DistNetworkError, DistTimeoutError, MismatchError, PeerLostError
from corral.distributed.meeting_wire import Connection, Kind, Malformed

__all__ = ["Meeting", "meet", "resolve"]

_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.05  # seconds between two attempts to reach rank 0
_LAST_WORDS = 1.0  # seconds for telling the others why a meeting failed, or for being told
_MOST_STRANGERS = 64  # connections that have not yet said who they are


def meet(init_method: str, rank: int, world_size: int, payload: bytes, timeout: float) -> list[bytes]:
    """Wait for all ranks of a job and return the bytes that each of them brought.

    Parameters
    ----------
    init_method
        Where to meet; see `resolve`.
    rank, world_size
        This rank, and how many there are.
    payload
        What to tell the others: at most 1 MiB.
    timeout
        Seconds to wait for the others.

    Returns
    -------
    list of bytes
        Every rank's payload, in rank order.

    Raises
    ------
    DistTimeoutError
        If some ranks did not come in time, on all that did; the message names the missing ones.
    PeerLostError
        If a rank left, or died, before all had come.
    MismatchError
        If ranks disagree about the number of ranks, on all of them; or if this rank has already come.
    DistNetworkError
        If something other than a rank of this job holds the address.

    Examples
    --------
    >>> meet("tcp://127.0.0.1:29500", 0, 1, b"alone", timeout=1.0)
    [b'alone']
    """
    address, rank, world_size = resolve(init_method, rank, world_size)
    if len(payload) > wire.MAX_PAYLOAD:
        raise ValueError(f"payload must be at most {wire.MAX_PAYLOAD} bytes, got {len(payload)}")
    if world_size > wire.MAX_RANKS:
        raise ValueError(f"world_size must be at most {wire.MAX_RANKS}, got {world_size}")
    if world_size == 1:
        return [bytes(payload)]
    if is_over_hosts(address):
        from corral.distributed.host_meeting import meet_over_hosts

        return meet_over_hosts(address, rank, world_size, payload, timeout)
    if rank == 0:
        return _Host(address, world_size, payload, timeout).run()
    return _Guest(address, rank, world_size, payload, timeout).run()


class _Host:
    """Rank 0, who waits for all the others."""

    def __init__(self, address: str, world_size: int, payload: bytes, timeout: float) -> None:
        self.address = address
        self.world_size = world_size
        self.payloads: dict[int, bytes] = {0: bytes(payload)}
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.poller = select.poll()
        self.strangers: dict[int, Connection] = {}  # by descriptor, as is the next
        self.guests: dict[int, Connection] = {}

    def run(self) -> list[bytes]:
        try:
            with contextlib.closing(self._listen()) as listener:
                listener.setblocking(False)
                self.poller.register(listener, select.POLLIN)
                while len(self.payloads) < self.world_size:
                    self._wait(listener)
            self._say_to_all(wire.result(self.payloads))
            return [self.payloads[rank] for rank in range(self.world_size)]
        finally:
            for connection in [*self.strangers.values(), *self.guests.values()]:
                connection.close()

    def _listen(self) -> socket.socket:
        """Take the address; if it is taken, find out by whom."""
        pause = _FIRST_PAUSE
        while True:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(place(self.address))
                listener.listen(self.world_size + _MOST_STRANGERS)
                return listener
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise DistNetworkError(f"cannot meet at {self.address}: {error}") from error
            except BaseException:
                listener.close()
                raise
            # Another rank 0 will say so. If it is just going away, the address is about to be free.
            other = _Guest(self.address, 0, self.world_size, b"", self.timeout)
            other.deadline = self.deadline
            if other.attempt() is not None:
                raise DistNetworkError(f"cannot meet at {self.address}: its holder welcomed a second rank 0")
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise other.nobody()
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_PAUSE)

    def _wait(self, listener: socket.socket) -> None:
        """Deal with whatever happens next."""
        left = self.deadline - time.monotonic()
        events = self.poller.poll(_milliseconds(left))
        if left <= 0 and not events:
            self._fail(self._missing(f"after {self.timeout:g} s"))
        for descriptor, _ in events:
            if descriptor == listener.fileno():
                self._accept(listener)
            elif descriptor in self.guests:
                self._hear_guest(self.guests[descriptor])
            elif descriptor in self.strangers:
                self._hear_stranger(self.strangers[descriptor])

    def _accept(self, listener: socket.socket) -> None:
        try:
            made, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return  # the caller went away again
            if not self.strangers:
                raise DistNetworkError(f"cannot meet at {self.address}: {error}") from error
            self._drop(next(iter(self.strangers.values())))
            return
        connection = Connection(made)
        if not connection.is_ours():
            connection.close()
            return
        if len(self.strangers) >= _MOST_STRANGERS:  # the oldest has had its time
            self._drop(next(iter(self.strangers.values())))
        self.strangers[connection.fileno()] = connection
        self.poller.register(connection, select.POLLIN)

    def _hear_stranger(self, connection: Connection) -> None:
        try:
            open_ = connection.fill()
            frame = connection.frame(wire.MAX_HELLO)
            if frame is None:
                if not open_:
                    self._drop(connection)
                return
            kind, body = frame
            if kind is not Kind.HELLO:
                raise Malformed(f"{kind.name} from a stranger")
            rank, world_size, payload = wire.parse_hello(body)
        except wire.OtherVersion as error:
            self._refuse(connection, DistNetworkError(f"cannot meet at {self.address}: {error}"))
        except Malformed:  # not a rank of any job: it must not keep the real ones from meeting
            self._drop(connection)
        else:
            self._judge(connection, rank, world_size, payload)

    def _judge(self, connection: Connection, rank: int, world_size: int, payload: bytes) -> None:
        """Welcome a stranger as the rank that it says it is, or not."""
        where = f"cannot meet at {self.address}"
        if world_size != self.world_size:
            error = MismatchError(
                f"{where}: rank {rank} (process {connection.pid}) has world_size={world_size}, "
                f"rank 0 has world_size={self.world_size}"
            )
            self._refuse(connection, error)
            self._fail(error)
        elif rank >= self.world_size:
            valid = f"valid ranks are 0 to {self.world_size - 1}"
            self._refuse(connection, MismatchError(f"{where}: rank {rank} is out of range; {valid}"))
        elif rank in self.payloads:
            pids = {0: os.getpid()} | {guest.rank: guest.pid for guest in self.guests.values()}
            error = MismatchError(
                f"{where}: rank {rank} has already come (process {pids[rank]}); were two processes given the "
                "same rank, or does another job use the same address?"
            )
            self._refuse(connection, error)
        else:
            connection.rank = rank
            self.payloads[rank] = payload
            self.guests[connection.fileno()] = self.strangers.pop(connection.fileno())
            connection.say(wire.frame(Kind.WELCOME))

    def _hear_guest(self, connection: Connection) -> None:
        try:
            open_ = connection.fill()
            frame = connection.frame(wire.MAX_FAILURE)
            patience = None if frame is None else wire.parse_give_up(*frame)
        except Malformed:
            open_, patience = False, None
        if patience is not None:
            self._fail(self._missing(f"after {patience:g} s, the timeout of rank {connection.rank}"))
        elif not open_:
            who = f"rank {connection.rank} (process {connection.pid})"
            self._drop(connection)
            what = f"cannot meet at {self.address}: {who} came, and was gone before all had come"
            self._fail(PeerLostError(what, (connection.rank,)))

    def _missing(self, when: str) -> DistTimeoutError:
        missing = [rank for rank in range(self.world_size) if rank not in self.payloads]
        return _timed_out(self.address, when, f"{wire.ranks_text(missing)} of {self.world_size} never came")

    def _fail(self, error: Exception) -> None:
        self._say_to_all(wire.failure(error))
        raise error

    def _say_to_all(self, data: bytes) -> None:
        """Send to every guest, as fast as each takes it; one that takes nothing holds up nobody for long."""
        poller = select.poll()
        left = dict(self.guests)
        for connection in left.values():
            connection.queue(data)
            poller.register(connection, select.POLLOUT)
        deadline = time.monotonic() + _LAST_WORDS
        while left:
            events = poller.poll(_milliseconds(deadline - time.monotonic()))
            if not events:
                return
            for descriptor, _ in events:
                if left[descriptor].flush():
                    poller.unregister(descriptor)
                    del left[descriptor]

    def _refuse(self, connection: Connection, error: Exception) -> None:
        connection.say(wire.failure(error))
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        descriptor = connection.fileno()
        self.poller.unregister(descriptor)
        self.strangers.pop(descriptor, None)
        self.guests.pop(descriptor, None)
        connection.close()


class _Guest:
    """A rank other than 0, who goes to rank 0."""

    def __init__(self, address: str, rank: int, world_size: int, payload: bytes, timeout: float) -> None:
        self.address = address
        self.world_size = world_size
        self.hello = wire.hello(rank, world_size, payload)
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.holder = 0  # the process that has the address, if it does not answer

    def run(self) -> list[bytes]:
        pause = _FIRST_PAUSE
        while True:
            payloads = self.attempt()
            if payloads is not None:
                return payloads
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise self.nobody()
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_PAUSE)

    def nobody(self) -> DistTimeoutError:
        """Make the error of a rank that did not reach rank 0 at all."""
        what = f"rank 0 of {self.world_size} never came"
        if self.holder:
            what = f"rank 0 (process {self.holder}) is there, but does not answer"
        return _timed_out(self.address, f"after {self.timeout:g} s", what)

    def attempt(self) -> list[bytes] | None:
        """Go to rank 0 and wait there for the others; ``None`` if there is no rank 0 yet."""
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as made:
            made.setblocking(False)
            try:
                made.connect(place(self.address))
            except (ConnectionRefusedError, BlockingIOError):  # nobody there; or a crowd
                return None
            except OSError as error:
                raise DistNetworkError(f"cannot meet at {self.address}: {error}") from error
            connection = Connection(made)
            if not connection.is_ours():
                raise DistNetworkError(
                    f"cannot meet at {self.address}: process {connection.pid} of another user (uid "
                    f"{connection.uid}) holds it"
                )
            connection.queue(self.hello)
            try:
                return self._attend(connection)
            except Malformed as error:
                raise DistNetworkError(
                    f"cannot meet at {self.address}: process {connection.pid}, which holds it, does not "
                    f"speak as a rank of a corral job ({error})"
                ) from error

    def _attend(self, connection: Connection) -> list[bytes] | None:
        poller = select.poll()
        poller.register(connection, select.POLLIN | select.POLLOUT)
        limit = wire.max_result(self.world_size)
        welcome = gave_up = False
        deadline = self.deadline
        while True:
            frame = connection.frame(limit)
            if frame is not None:
                kind, body = frame
                if kind is Kind.FAILURE:
                    raise wire.parse_failure(body)
                if kind is Kind.RESULT and welcome:
                    return wire.parse_result(body, self.world_size)
                if kind is not Kind.WELCOME or welcome:
                    raise Malformed(f"{kind.name} out of turn")
                welcome = True
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                if gave_up or not welcome:
                    self.holder = connection.pid
                    raise self.nobody()
                connection.queue(wire.give_up(self.timeout))  # rank 0 alone knows who is missing
                poller.modify(connection, select.POLLIN | select.POLLOUT)
                gave_up, deadline = True, time.monotonic() + _LAST_WORDS
                continue
            for _, event in poller.poll(_milliseconds(left)):
                if event & select.POLLOUT and connection.flush():
                    poller.modify(connection, select.POLLIN)
                if event & ~select.POLLOUT and not connection.fill() and not connection.has_frame():
                    if not welcome:  # it had stopped listening: that was an earlier meeting
                        return None
                    who = f"rank 0 (process {connection.pid})"
                    what = f"cannot meet at {self.address}: {who} was gone before all had come"
                    raise PeerLostError(what, (0,))


def _timed_out(address: str, when: str, what: str) -> DistTimeoutError:
    return DistTimeoutError(f"the meeting of all ranks at {address} timed out {when}: {what}")


def _milliseconds(seconds: float) -> float:
    return 1000 * min(max(0.0, seconds), 3600.0)  # the kernel takes no more than 24 days, let alone infinity
