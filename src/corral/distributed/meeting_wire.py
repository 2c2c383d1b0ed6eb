"""What ranks say to each other while they meet: frames on a local stream, checked before believed."""

from __future__ import annotations

import enum
import os
import socket
import struct
from collections.abc import Mapping, Sequence

from corral.distributed.errors import DistNetworkError, DistTimeoutError, MismatchError, PeerLostError

__all__ = [
    "MAX_FAILURE",
    "MAX_HELLO",
    "MAX_PAYLOAD",
    "MAX_RANKS",
    "Connection",
    "Kind",
    "Malformed",
    "OtherVersion",
    "failure",
    "failure_body",
    "frame",
    "give_up",
    "hello",
    "max_result",
    "parse_failure",
    "parse_give_up",
    "parse_hello",
    "parse_result",
    "ranks_text",
    "result",
]

_MAGIC = b"crrl"
_VERSION = 1
_HEADER = struct.Struct("<4sII")  # magic, kind, bytes that follow
_HELLO = struct.Struct("<III")  # version, rank, world size; the payload follows
_FAILURE = struct.Struct("<II")  # index in _ERRORS, rank; the message follows
_PATIENCE = struct.Struct("<d")
_LENGTH = struct.Struct("<I")
_NO_RANK = 0xFFFFFFFF
_CHUNK = 1 << 16

MAX_PAYLOAD = 1 << 20
MAX_RANKS = 1 << 16
MAX_HELLO = _HELLO.size + MAX_PAYLOAD
MAX_FAILURE = 1 << 14

_ERRORS: tuple[type[Exception], ...] = (DistTimeoutError, PeerLostError, MismatchError, DistNetworkError)


class Malformed(Exception):
    """What came is not what a rank would have said."""


class OtherVersion(Exception):
    """The other end is a rank, but speaks another version of the protocol."""


class Kind(enum.IntEnum):
    """What a frame says."""

    HELLO = 1
    WELCOME = 2
    RESULT = 3
    FAILURE = 4
    GIVE_UP = 5


class Connection:
    """One end of a stream that is never waited for in here: both directions are buffered.

    Attributes
    ----------
    pid, uid : int
        The process and user at the other end, as the kernel knows them.
    rank : int
        The rank at the other end, once known.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream
        self._incoming = bytearray()
        self._outgoing = bytearray()
        stream.setblocking(False)
        credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int
        self.uid: int
        self.pid, self.uid, _ = struct.unpack("3i", credentials)
        self.rank = -1

    def fileno(self) -> int:
        return self._socket.fileno()

    def is_ours(self) -> bool:
        """Whether the other end runs as the same user."""
        return self.uid == os.geteuid()

    def close(self) -> None:
        self._socket.close()

    def fill(self) -> bool:
        """Read some of what has come; false if the other end is gone and there is nothing more."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._incoming += data
        return bool(data)

    def has_frame(self) -> bool:
        """Whether a whole frame, or one that cannot be right, has been read."""
        if len(self._incoming) < _HEADER.size:
            return False
        length = int(_HEADER.unpack_from(self._incoming)[2])
        return len(self._incoming) - _HEADER.size >= length

    def frame(self, limit: int) -> tuple[Kind, bytes] | None:
        """Take the next whole frame out of what was read; ``None`` if there is none yet.

        Raises
        ------
        Malformed
            As soon as what was read cannot become a frame of at most `limit` bytes.
        """
        start = self._incoming[: len(_MAGIC)]
        if start != _MAGIC[: len(start)]:
            raise Malformed("no magic number")
        if len(self._incoming) < _HEADER.size:
            return None
        _, number, length = _HEADER.unpack_from(self._incoming)
        if length > limit:
            raise Malformed(f"a frame of {length} bytes")
        try:
            kind = Kind(number)
        except ValueError as error:
            raise Malformed(f"a frame of kind {number}") from error
        end = _HEADER.size + length
        if len(self._incoming) < end:
            return None
        body = bytes(self._incoming[_HEADER.size : end])
        del self._incoming[:end]
        return kind, body

    def queue(self, data: bytes) -> None:
        """Have data sent by the next calls of `flush`."""
        self._outgoing += data

    def flush(self) -> bool:
        """Send what the other end takes now; true if nothing is left to send, or nobody to send it to."""
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            return False
        except OSError:  # it is gone; whoever reads from it learns that
            self._outgoing.clear()
        return True

    def say(self, data: bytes) -> None:
        """Send a few bytes, which fit into the socket's buffer, at once."""
        self.queue(data)
        self.flush()


def frame(kind: Kind, body: bytes = b"") -> bytes:
    """Make a frame."""
    return _HEADER.pack(_MAGIC, kind, len(body)) + body


def hello(rank: int, world_size: int, payload: bytes) -> bytes:
    """Make what a guest says first."""
    return frame(Kind.HELLO, _HELLO.pack(_VERSION, rank, world_size) + payload)


def parse_hello(body: bytes) -> tuple[int, int, bytes]:
    """Return the rank, world size and payload of a hello."""
    if len(body) < _HELLO.size:
        raise Malformed(f"a hello of {len(body)} bytes")
    version, rank, world_size = _HELLO.unpack_from(body)
    if version != _VERSION:
        raise OtherVersion(
            f"a rank speaks version {version} of the protocol, rank 0 version {_VERSION}: do all ranks run "
            "the same version of corral?"
        )
    if not 0 < world_size <= MAX_RANKS or rank >= MAX_RANKS:
        raise Malformed(f"rank {rank} of {world_size}")
    return rank, world_size, body[_HELLO.size :]


def result(payloads: Mapping[int, bytes]) -> bytes:
    """Make what the host says to all when all have come."""
    parts = []
    for rank in range(len(payloads)):
        parts += [_LENGTH.pack(len(payloads[rank])), payloads[rank]]
    return frame(Kind.RESULT, b"".join(parts))


def max_result(world_size: int) -> int:
    """Return how long the body of a result, or of any other frame, may be."""
    return max(MAX_FAILURE, world_size * (_LENGTH.size + MAX_PAYLOAD))


def parse_result(body: bytes, world_size: int) -> list[bytes]:
    """Return every rank's payload."""
    payloads = []
    at = 0
    for _ in range(world_size):
        if len(body) - at < _LENGTH.size:
            raise Malformed("a result that ends early")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if length > len(body) - at:
            raise Malformed("a result that ends early")
        payloads.append(body[at : at + length])
        at += length
    if at != len(body):
        raise Malformed("a result that is too long")
    return payloads


def give_up(patience: float) -> bytes:
    """Make what a guest says whose timeout has run out."""
    return frame(Kind.GIVE_UP, _PATIENCE.pack(patience))


def parse_give_up(kind: Kind, body: bytes) -> float:
    """Return how many seconds a guest has waited."""
    if kind is not Kind.GIVE_UP or len(body) != _PATIENCE.size:
        raise Malformed(f"{kind.name} of {len(body)} bytes from a guest")
    (patience,) = _PATIENCE.unpack(body)
    return float(patience)


def failure(error: Exception) -> bytes:
    """Make what the host says when the meeting has failed, or to a guest that is not welcome."""
    return frame(Kind.FAILURE, failure_body(error))


def failure_body(error: Exception) -> bytes:
    """Return what a failure says, for `parse_failure`."""
    index = next(i for i, kind in enumerate(_ERRORS) if isinstance(error, kind))
    rank = error.ranks[0] if isinstance(error, PeerLostError) and error.ranks else _NO_RANK
    message = str(error).encode()[: MAX_FAILURE - _FAILURE.size]
    return _FAILURE.pack(index, rank) + message


def parse_failure(body: bytes) -> Exception:
    """Return the error that `failure` was given."""
    if not _FAILURE.size <= len(body) <= MAX_FAILURE:
        raise Malformed(f"a failure of {len(body)} bytes")
    index, rank = _FAILURE.unpack_from(body)
    if index >= len(_ERRORS):
        raise Malformed(f"a failure of kind {index}")
    message = body[_FAILURE.size :].decode(errors="replace")
    kind: type[Exception] = _ERRORS[index]
    if kind is PeerLostError:
        return PeerLostError(message, () if rank == _NO_RANK else (rank,))
    return kind(message)


def ranks_text(ranks: Sequence[int], noun: str = "rank") -> str:
    """Write down ranks, or what else has such numbers, in increasing order, for a message.

    Examples
    --------
    >>> ranks_text([3]), ranks_text([1, 2, 3, 5])
    ('rank 3', 'ranks 1-3, 5')
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs]
    shown = ", ".join(texts[:20]) + (f" and {len(texts) - 20} more ranges" if len(texts) > 20 else "")
    return f"{noun} {shown}" if len(ranks) == 1 else f"{noun}s {shown}"
