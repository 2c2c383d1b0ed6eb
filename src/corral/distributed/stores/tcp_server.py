"""The server of a `TCPStore`: one thread, however many clients there are.

A client is a stranger until it has shown that it knows the secret. Strangers can say only what has few bytes,
are few, and have little time: the oldest makes room for a new one. So nobody without the secret can make the
server take memory, wait, or turn away those that have it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from corral.distributed.errors import DistNetworkError
from corral.distributed.stores import tcp_wire as wire
from corral.distributed.stores.service import Service, Wait
from corral.distributed.stores.tcp_wire import Frames, Kind, Malformed

__all__ = ["Server"]

MAX_STRANGERS = 64  # clients that have not yet shown that they know the secret
STRANGER_SECONDS = 10.0  # that they have for it
_ACCEPTS = 16  # connections taken in at a time, so that those already there get their turn
_CHUNK = 1 << 18
_PAUSE_ABOVE = 1 << 20  # bytes of answers that a client has not taken: it may ask nothing more
_DROP_ABOVE = 4 * wire.MAX_FRAME  # it does not take them at all

_servers: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """A server that answers from the moment it is made until `close`.

    Parameters
    ----------
    listener
        A bound socket.
    secret
        What clients must know; ``None`` to make one, and give it to processes of this user on this host.
    """

    def __init__(self, listener: socket.socket, secret: bytes | None) -> None:
        self.host, self.port = listener.getsockname()[:2]
        self.owner = os.getpid()
        self.users = 1  # stores of this process that keep it
        self.secret = wire.nonce() if secret is None else secret
        self._service = Service()
        self._clients: dict[_Client, None] = {}
        self._strangers: dict[_Client, float] = {}  # when each must have become a client; oldest first
        self._talking: set[_Client] = set()  # those with answers that are not yet sent
        self._sockets: list[socket.socket] = [listener]
        self._closing = False
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        try:
            usher = self._usher() if secret is None else None
            listener.listen(1024)
            wake, self._waker = socket.socketpair()
            self._sockets += [wake, self._waker]
            self._watch(listener, lambda: self._accept(listener, self._welcome))
            self._watch(wake, lambda: None)
            if usher is not None:
                self._watch(usher, lambda: self._accept(usher, self._give_secret))
            self._thread = threading.Thread(target=self._run, name="corral-store", daemon=True)
            self._thread.start()
        except BaseException:
            self._close_all()
            raise
        _servers.add(self)

    def close(self) -> None:
        """Stop; clients see that the server is gone."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _usher(self) -> socket.socket:
        """Make the socket at which processes of this user get the secret."""
        usher = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets.append(usher)
        try:
            usher.bind(wire.where_secret_is(self.host, self.port))
        except OSError as error:
            raise DistNetworkError(
                f"TCPStore cannot serve at {self.host}:{self.port}: the name under which this user's processes are let "
                f"in is taken ({error.strerror}); set CORRAL_SECRET to a secret of this job"
            ) from error
        usher.listen(1024)
        return usher

    def _watch(self, one: socket.socket, act: Callable[[], None]) -> None:
        one.setblocking(False)
        self._selector.register(one, selectors.EVENT_READ, act)

    def _run(self) -> None:
        try:
            while not self._closing:
                for key, events in self._selector.select(self._patience()):
                    if isinstance(key.data, _Client):
                        self._attend(key.data, events)
                    else:
                        key.data()
                    while self._talking:
                        self._flush(self._talking.pop())
                self._show_out()
        finally:
            self._close_all()

    def _patience(self) -> float | None:
        for deadline in self._strangers.values():
            return max(0.0, deadline - time.monotonic())
        return None

    def _show_out(self) -> None:
        """Drop strangers whose time is up."""
        now = time.monotonic()
        while self._strangers and next(iter(self._strangers.values())) <= now:
            self._drop(next(iter(self._strangers)))

    def _accept(self, listener: socket.socket, use: Callable[[socket.socket], None]) -> None:
        for _ in range(_ACCEPTS):
            try:
                made, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away(listener)
                continue  # or the caller went away again
            try:
                use(made)
            except OSError:
                made.close()

    def _turn_away(self, listener: socket.socket) -> None:
        """Take in a caller for whom there is no descriptor, and drop it: else it would be announced for ever."""
        if self._strangers:
            self._drop(next(iter(self._strangers)))
            return
        self._close_spare()
        with contextlib.suppress(OSError):  # another thread may take the descriptor at any time
            listener.accept()[0].close()
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_secret(self, made: socket.socket) -> None:
        with made:
            credentials = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[1] == os.geteuid():
                made.setblocking(False)
                made.send(self.secret, socket.MSG_NOSIGNAL)

    def _welcome(self, made: socket.socket) -> None:
        made.setblocking(False)
        wire.tune(made)
        if len(self._strangers) >= MAX_STRANGERS:
            self._drop(next(iter(self._strangers)))
        client = _Client(made, self._talking)
        self._selector.register(made, selectors.EVENT_READ, client)
        self._clients[client] = None
        self._strangers[client] = time.monotonic() + STRANGER_SECONDS

    def _attend(self, client: _Client, events: int) -> None:
        if client not in self._clients:  # dropped since the selector said so
            return
        if events & selectors.EVENT_WRITE:
            self._talking.add(client)
        if not events & selectors.EVENT_READ:
            return
        try:
            data = client.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        client.frames.feed(data)
        self._hear(client)

    def _hear(self, client: _Client) -> None:
        """Deal with the frames that have come of a client, as long as it takes the answers."""
        try:
            while not client.ending:
                client.unheard = len(client.outgoing) > _PAUSE_ABOVE
                if client.unheard:
                    break
                frame = client.frames.next(wire.MAX_HANDSHAKE if client in self._strangers else wire.MAX_FRAME)
                if frame is None:
                    break
                if client in self._strangers:
                    self._examine(client, *frame)
                else:
                    self._service.request(client, *frame)
        except Malformed as error:
            client.end(f"that is not what a client of a TCPStore says: {error}")
        except Exception as error:  # whatever one client has caused must not end the others' store
            client.end(f"the server failed: {type(error).__name__}: {error}")

    def _examine(self, client: _Client, number: int, kind: Kind, fields: list[bytes]) -> None:
        """Hear what a stranger says to become a client."""
        if kind is Kind.HELLO and not client.nonces and len(fields) == 3 and fields[0] == wire.MAGIC:
            _, version, nonce = fields
            if version != wire.VERSION:
                said = f"version {version.hex()} of the protocol, the server version {wire.VERSION.hex()}"
                client.end(f"the client speaks {said}: do all ranks run the same version of corral?")
            elif len(nonce) != wire.NONCE:
                raise Malformed(f"a nonce of {len(nonce)} bytes")
            else:
                client.nonces = (nonce, wire.nonce())
                client.reply(0, Kind.CHALLENGE, [client.nonces[1]])
        elif kind is Kind.PROOF and client.nonces and len(fields) == 1:
            if not wire.same_proof(fields[0], wire.proof(self.secret, b"client", *client.nonces)):
                client.end("it has another secret: give all ranks of the job the same CORRAL_SECRET, or none of them")
                return
            del self._strangers[client]
            client.reply(0, Kind.WELCOME, [wire.proof(self.secret, b"server", *client.nonces)])
        else:
            raise Malformed(f"{kind.name} from a stranger")

    def _flush(self, client: _Client) -> None:
        if client not in self._clients:
            return
        try:
            while client.outgoing:
                with memoryview(client.outgoing) as view:
                    sent = client.socket.send(view[:_CHUNK], socket.MSG_NOSIGNAL)
                del client.outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        left = len(client.outgoing)
        if left > _DROP_ABOVE or (client.ending and not left):
            self._drop(client)
            return
        if client.unheard and left <= _PAUSE_ABOVE:
            self._hear(client)
            left = len(client.outgoing)
        events = selectors.EVENT_WRITE if left else 0
        if left <= _PAUSE_ABOVE and not client.ending:
            events |= selectors.EVENT_READ
        if events != client.events:
            client.events = events
            self._selector.modify(client.socket, events, client)

    def _drop(self, client: _Client) -> None:
        self._selector.unregister(client.socket)
        del self._clients[client]
        self._strangers.pop(client, None)
        self._talking.discard(client)
        self._service.forget(client)
        client.socket.close()

    def _close_all(self) -> None:
        self._selector.close()
        for one in [*self._sockets, *(client.socket for client in self._clients)]:
            one.close()
        self._close_spare()

    def _close_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def abandon(self) -> None:
        """Let go of what a fork has of its parent's server: clients must see when the parent is gone."""
        self._closing = True
        self._close_all()


class _Client:
    """One connection, as the server sees it."""

    def __init__(self, made: socket.socket, talking: set[_Client]) -> None:
        self.socket = made
        self.frames = Frames()
        self.outgoing = bytearray()
        self.events = selectors.EVENT_READ
        self.unheard = False  # whether frames have come that are not dealt with while it takes no answers
        self.nonces: tuple[bytes, ...] = ()
        self.waits: dict[int, Wait] = {}
        self.will: tuple[bytes, bytes] | None = None
        self.ending = False
        self._talking = talking

    def reply(self, number: int, kind: Kind, fields: Sequence[bytes] = ()) -> None:
        """Have an answer sent soon."""
        try:
            self.outgoing += wire.frame(number, kind, fields)
        except ValueError as error:
            self.outgoing += wire.frame(number, Kind.INVALID, [f"the answer is too long: {error}".encode()])
        self._talking.add(self)

    def end(self, why: str) -> None:
        """Say why nothing more will be heard, and hang up."""
        self.reply(0, Kind.REFUSED, [why.encode(errors="replace")[: wire.MAX_HANDSHAKE - 16]])
        self.ending = True


def _after_fork() -> None:
    for server in list(_servers):
        server.abandon()
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)
