"""A backend of its own: corral over TCP connections within one host."""

import contextlib
import secrets
import selectors
import socket
import struct
import time
from collections import deque

from corral import backends
from corral.backends.messages import Arrival, MessageBackend, Transport

SIZES = struct.Struct("<IQ")  # of a frame's head and body
DOOR = struct.Struct("<I16s")  # where a rank listens, or who calls there; and the secret of the one who listens


class Movement:
    """Bytes on their way; `left` is where those are, or go, that have not moved yet."""

    def __init__(self, pieces):
        self.left = deque(memoryview(piece) for piece in pieces if len(piece))
        self.failure = None

    def done(self):
        return not self.left or self.failure is not None

    def error(self):
        return self.failure

    def divert(self, pieces):
        """Go on with other memory of as many bytes as the body has."""
        count, rest = sum(map(len, pieces)), sum(map(len, self.left))
        heads = [self.left[0]] if rest > count else []  # of which some has yet to leave
        rest -= sum(map(len, heads))
        self.left = deque(heads)
        for piece in reversed(pieces):
            if rest:
                part = piece[-min(rest, len(piece)) :]
                self.left.insert(len(heads), part)
                rest -= len(part)

    def advance(self, move):
        """Move what can be moved without waiting."""
        while self.left:
            count = move([self.left[i] for i in range(min(len(self.left), 64))])
            if not count:
                raise ConnectionError("has closed its connection")
            while count:
                step = min(count, len(self.left[0]))
                self.left[0] = self.left[0][step:]
                count -= step
                if not self.left[0]:
                    self.left.popleft()


class Connection:
    """What goes to a rank, and what comes from it."""

    def __init__(self, sock, places):
        self.socket, self.watched, self.leaving = sock, 0, deque()
        self.places, self.coming = places, next(places)

    def receive(self, pieces):
        return self.socket.recvmsg_into(pieces)[0]

    def close(self):
        self.socket.close()


class Sockets(Transport):
    """One connection for each pair of ranks."""

    name, head_limit = "sockets", 64 * 1024
    any_source = vectors = True  # a selector sees all connections; sendmsg takes pieces that lie apart
    several_hosts = False

    def __init__(self, rank, world_size, meet, timeout):
        self.rank, self.size, self.hosts = rank, world_size, ["here"] * world_size
        self._connections, self._arrived, self._lost = {}, [], {}
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        deadline, secret = time.monotonic() + timeout, secrets.token_bytes(16)
        with socket.create_server(("127.0.0.1", 0), backlog=world_size) as server:
            doors = meet(DOOR.pack(server.getsockname()[1], secret))
            for other, (port, key) in enumerate(map(DOOR.unpack, doors[:rank])):
                sock = socket.create_connection(("127.0.0.1", port), timeout)
                sock.sendall(DOOR.pack(rank, key))
                self._connect(other, sock)
            while len(self._connections) < world_size - 1:
                server.settimeout(max(deadline - time.monotonic(), 0.001))
                sock, _ = server.accept()
                sock.settimeout(1.0)
                with contextlib.suppress(OSError):  # of a stranger
                    other, key = DOOR.unpack(sock.recv(DOOR.size, socket.MSG_WAITALL).ljust(DOOR.size))
                    if secrets.compare_digest(key, secret) and rank < other < world_size:
                        self._connect(other, sock)

    def _connect(self, other, sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self._connections[other] = Connection(sock, self._places(other))
        self._move(other)

    def send(self, dst, head, body=()):
        movement = Movement([SIZES.pack(len(head), sum(map(len, body))) + head, *body])
        self._connections[dst].leaving.append(movement)
        self._move(dst)
        return movement

    def arrivals(self):
        self.wait(0)
        arrived, self._arrived = self._arrived, []
        return arrived

    def receive(self, arrival, into):
        connection = self._connections[arrival.source]
        movement = connection.coming = connection.places.send(Movement(into))
        self._move(arrival.source)
        return movement

    def divert(self, transfer, pieces):
        transfer.divert([memoryview(piece) for piece in pieces if len(piece)])
        return True

    def wait(self, seconds):
        for key, _ in self._selector.select(0 if self._arrived else seconds):
            if key.data is None:
                self._bell.recv(4096)
            else:
                self._move(key.data)

    def wake(self):
        with contextlib.suppress(BlockingIOError):  # it rings already
            self._rope.send(b"!")

    def lost(self):
        return self._lost

    def close(self, timeout):
        for each in (*self._connections.values(), self._selector, self._bell, self._rope):
            each.close()

    def _places(self, rank):
        """Tell where what comes from a rank goes: sizes, head, body; ``None`` while there is no place for a body."""
        while True:
            sizes = bytearray(SIZES.size)
            yield Movement([sizes])
            head_size, body_size = SIZES.unpack(sizes)
            if head_size > self.head_limit:
                raise ConnectionError("has sent what is no frame")
            head = bytearray(head_size)
            yield Movement([head])
            self._arrived.append(Arrival(rank, bytes(head), body_size))
            if body_size:
                yield (yield None)

    def _move(self, rank):
        """Send and receive what can be moved now, and be told when there is more."""
        connection = self._connections[rank]
        try:
            while connection.leaving:
                connection.leaving[0].advance(connection.socket.sendmsg)
                connection.leaving.popleft()
        except BlockingIOError:
            pass
        except OSError as error:  # what has come from there before can still be read
            for movement in connection.leaving:
                movement.failure = error
            connection.leaving.clear()
        try:
            while connection.coming is not None:
                connection.coming.advance(connection.receive)
                connection.coming = next(connection.places)
        except BlockingIOError:
            pass
        except OSError as error:
            self._lost[rank] = str(error)
            connection.coming.failure, connection.coming = error, None
        reads = selectors.EVENT_READ if connection.coming is not None else 0
        events = reads | (selectors.EVENT_WRITE if connection.leaving else 0)
        if connection.watched and events != connection.watched:
            self._selector.unregister(connection.socket)
        if events and events != connection.watched:
            self._selector.register(connection.socket, events, rank)
        connection.watched = events


class SocketBackend(MessageBackend):
    @classmethod
    def create(cls, rank, world_size, meet, timeout):
        return cls.over(Sockets(rank, world_size, meet, timeout), timeout)


backends.register("sockets", SocketBackend)
