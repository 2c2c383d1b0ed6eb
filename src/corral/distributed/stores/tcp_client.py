"""A connection to the server of a `TCPStore`, which many threads may ask at a time."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence

from corral.distributed.errors import DistNetworkError, DistStoreError
from corral.distributed.stores import tcp_wire as wire
from corral.distributed.stores.tcp_wire import Frame, Frames, Kind, Malformed

__all__ = ["Connection", "connect"]

_FIRST_PAUSE, _LAST_PAUSE = 0.005, 0.2  # seconds between two attempts to reach the server
_USHER_SECONDS = 1.0  # for a server that listens to let in this user's processes
_ANSWER_SECONDS = 300.0  # for an answer that the server has at once: longer than any host is busy
_LEAST_SECONDS = 10.0  # for room to send, or for the answer to a request that is given up
_CHUNK = 1 << 18


class _Gone(Exception):
    """The server hung up, as one does who has no room; it may be worth to try again."""


def connect(host: str, port: int, secret: bytes | None, limit: float) -> Connection:
    """Connect to a server, waiting until there is one.

    Parameters
    ----------
    host, port
        Where it is.
    secret
        What it must know, too; ``None`` to ask for that of this user, where the host is this one.
    limit
        Seconds to wait for it.

    Raises
    ------
    DistNetworkError
        If there is none in time, or it is not one of this job.
    """
    where = f"TCPStore at {host}:{port}"
    deadline = time.monotonic() + limit
    pause = _FIRST_PAUSE
    while True:
        left = deadline - time.monotonic()
        try:
            made = socket.create_connection((host, port), timeout=max(left, 0.001))
            try:
                return _introduce(made, where, secret, deadline)
            except BaseException:
                made.close()
                raise
        except (OSError, _Gone) as error:
            why = error.strerror or error if isinstance(error, OSError) else error
        except Malformed as error:
            raise DistNetworkError(f"{where}: what listens there is no server of a TCPStore ({error})") from error
        left = deadline - time.monotonic()
        if left <= 0:
            raise DistNetworkError(
                f"{where} could not be reached for {limit:g} s: {why}. Is the rank with is_master=True alive, and "
                "were all ranks given the same host and port?"
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_PAUSE)


def _introduce(made: socket.socket, where: str, secret: bytes | None, deadline: float) -> Connection:
    """Show the server that one knows the secret, and have it show the same."""
    wire.tune(made)
    if secret is None:
        secret = _users_secret(made, where, deadline)
    frames = Frames()
    ours = wire.nonce()
    _send_all(made, wire.frame(0, Kind.HELLO, [wire.MAGIC, wire.VERSION, ours]), deadline)
    (theirs,) = _expect(made, frames, Kind.CHALLENGE, where, deadline)
    if len(theirs) != wire.NONCE:
        raise Malformed(f"a nonce of {len(theirs)} bytes")
    _send_all(made, wire.frame(0, Kind.PROOF, [wire.proof(secret, b"client", ours, theirs)]), deadline)
    (shown,) = _expect(made, frames, Kind.WELCOME, where, deadline)
    if not wire.same_proof(shown, wire.proof(secret, b"server", ours, theirs)):
        raise DistNetworkError(f"{where}: the server does not know this job's secret; something else poses as it")
    return Connection(made, frames, where)


def _expect(made: socket.socket, frames: Frames, kind: Kind, where: str, deadline: float) -> list[bytes]:
    while (frame := frames.next(wire.MAX_HANDSHAKE)) is None:
        made.settimeout(max(deadline - time.monotonic(), 0.001))
        data = made.recv(wire.MAX_HANDSHAKE)
        if not data:
            raise _Gone("the server hung up")
        frames.feed(data)
    _, said, fields = frame
    if len(fields) != 1:
        raise Malformed(f"{said.name} with {len(fields)} fields")
    if said is Kind.REFUSED:
        raise DistNetworkError(f"{where}: the server refuses this process: {fields[0].decode(errors='replace')}")
    if said is not kind:
        raise Malformed(f"{said.name} in place of {kind.name}")
    return fields


def _send_all(made: socket.socket, data: bytes, deadline: float) -> None:
    made.settimeout(max(deadline - time.monotonic(), 0.001))
    made.sendall(data)


def _users_secret(made: socket.socket, where: str, deadline: float) -> bytes:
    """Get the secret that a server of this user on this host gives to its user's processes alone."""
    host, port = made.getpeername()[:2]
    if not wire.is_loopback(host):
        raise DistNetworkError(
            f"{where}: it can be reached from other hosts, and who may talk to it must be known: set CORRAL_SECRET to "
            "the same secret on all ranks, or use 127.0.0.1"
        )
    patience = min(deadline, time.monotonic() + _USHER_SECONDS)
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as usher:
            usher.settimeout(max(patience - time.monotonic(), 0.001))
            try:
                usher.connect(wire.where_secret_is(host, port))
                credentials = usher.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                user = struct.unpack("3i", credentials)[1]
                if user != os.geteuid():
                    raise DistNetworkError(f"{where}: it is a process of another user (uid {user})")
                given = usher.recv(wire.NONCE + 1, socket.MSG_WAITALL)
                if len(given) == wire.NONCE:
                    return given
            except OSError:  # it is not there yet, or crowded
                pass
        if time.monotonic() >= patience:
            raise DistNetworkError(
                f"{where}: the server is one that demands a secret, or another user's, or none of a TCPStore at all; "
                "set CORRAL_SECRET to that of the job"
            )
        time.sleep(_FIRST_PAUSE)


class _Request:
    """A request that has not been answered."""

    __slots__ = ("answered", "fields", "kind")

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.kind: Kind | None = None
        self.fields: list[bytes] = []


class Connection:
    """A connection to a server that knows the secret.

    Requests have numbers, and a thread reads the answers: one that waits long holds up no other.
    """

    def __init__(self, made: socket.socket, frames: Frames, where: str) -> None:
        self.where = where
        self.pid = os.getpid()
        self._socket = made
        self._frames = frames
        self._sending = threading.Lock()
        self._state = threading.Lock()  # of what follows
        self._requests: dict[int, _Request] = {}
        self._number = 0
        self._broken: str | None = None
        made.setblocking(False)
        self._reader = threading.Thread(target=self._read, name="corral-store-client", daemon=True)
        self._reader.start()

    def ask(self, kind: Kind, fields: Sequence[bytes], limit: float | None = None) -> tuple[Kind, list[bytes]]:
        """Make a request and wait for its answer.

        Parameters
        ----------
        kind, fields
            What to ask.
        limit
            Seconds after which to give it up; ``None`` if the server has the answer at once.

        Raises
        ------
        DistNetworkError
            If the server is gone.
        ValueError
            If the server says that the request cannot be met.
        """
        request = _Request()
        with self._state:
            self._check()
            self._number = number = self._number % 0xFFFFFFFF + 1
            while number in self._requests:  # one that has waited for four billion others
                self._number = number = number % 0xFFFFFFFF + 1
            self._requests[number] = request
        try:
            self._send(wire.frame(number, kind, fields))
            if not request.answered.wait(_ANSWER_SECONDS if limit is None else limit):
                self._send(wire.frame(number, Kind.CANCEL))
                if not request.answered.wait(_LEAST_SECONDS):
                    raise DistStoreError(f"{self.where}: the server does not answer; is its process stopped?")
        except BaseException:
            if request.kind is None and limit is not None:
                with contextlib.suppress(DistNetworkError):
                    self._send(wire.frame(number, Kind.CANCEL))
            raise
        finally:
            with self._state:
                self._requests.pop(number, None)
        if request.kind is None:
            with self._state:
                self._check()
        if request.kind is Kind.INVALID and len(request.fields) == 1:
            raise ValueError(request.fields[0].decode(errors="replace"))
        assert request.kind is not None
        return request.kind, request.fields

    def close(self) -> None:
        """Hang up."""
        self._break("this store was closed")
        if self._reader is not threading.current_thread():
            self._reader.join()
        self._socket.close()

    def abandon(self) -> None:
        """Let go of what a fork has of its parent's connection."""
        self._socket.close()

    def _check(self) -> None:
        if self._broken is not None:
            raise DistNetworkError(f"{self.where}: {self._broken}")

    def _send(self, data: bytes) -> None:
        deadline = time.monotonic() + _LEAST_SECONDS
        with self._sending:
            view = memoryview(data)
            while view:
                with self._state:
                    self._check()
                try:
                    sent = self._socket.send(view, socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    self._await_room(deadline, begun=len(view) < len(data))
                except OSError as error:
                    self._break(f"the server is gone ({error.strerror})")
                else:
                    view = view[sent:]
                    deadline = time.monotonic() + _LEAST_SECONDS

    def _await_room(self, deadline: float, begun: bool) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        try:
            room = poller.poll(1000 * max(0.0, deadline - time.monotonic()))
        except BaseException:
            if begun:  # half a frame would be taken for the head of the next one
                self._break("a request was interrupted while it was sent")
            raise
        if not room:
            if begun:
                self._break("the server has stopped reading")
            raise DistStoreError(f"{self.where}: the server does not answer; is its process stopped?")

    def _read(self) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        try:
            while self._broken is None:
                frame = self._frames.next(wire.MAX_FRAME)
                if frame is not None:
                    self._hear(frame)
                    continue
                poller.poll()
                try:
                    data = self._socket.recv(_CHUNK)
                except BlockingIOError:
                    continue
                if not data:
                    self._break("the server is gone: the rank with is_master=True has ended, or dropped its store")
                self._frames.feed(data)
        except OSError as error:
            self._break(f"the server is gone ({error.strerror})")
        except Malformed as error:
            self._break(f"the server does not speak as one of a TCPStore ({error})")

    def _hear(self, frame: Frame) -> None:
        number, kind, fields = frame
        if kind is Kind.REFUSED:
            said = fields[0].decode(errors="replace") if fields else ""
            self._break(f"the server refuses this process: {said}")
        elif kind not in (Kind.DONE, Kind.INVALID, Kind.NOTHING):
            raise Malformed(f"{kind.name} as an answer")
        with self._state:
            request = self._requests.pop(number, None)
        if request is not None:  # else its caller was interrupted
            request.kind, request.fields = kind, fields
            request.answered.set()

    def _break(self, why: str) -> None:
        """Say to all who wait, and to all who will ask, that this connection is no more."""
        with self._state:
            if self._broken is None:
                self._broken = why
            waiting = list(self._requests.values())
            self._requests.clear()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for request in waiting:
            request.answered.set()
