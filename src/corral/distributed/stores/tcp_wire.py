"""What a `TCPStore` and its server say to each other: frames, checked before believed, and who may talk.

A frame is its length, the number of the request that it belongs to, its kind, and fields of bytes. Both ends
first prove to each other that they know the job's secret, by an HMAC over random bytes of both: neither says
anything else before, and no frame of such an end is longer than `MAX_HANDSHAKE`.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
from collections.abc import Sequence
from urllib.parse import quote

from corral.distributed.addresses import is_loopback, place
from corral.distributed.meeting_wire import Malformed

__all__ = [
    "MAGIC",
    "MAX_FIELDS",
    "MAX_FRAME",
    "MAX_HANDSHAKE",
    "NONCE",
    "VERSION",
    "Frame",
    "Frames",
    "Kind",
    "Malformed",
    "frame",
    "integer",
    "is_loopback",
    "job_secret",
    "nonce",
    "parse_integer",
    "proof",
    "same_proof",
    "tune",
    "where_secret_is",
]

MAGIC = b"crls"
VERSION = b"\x01"
NONCE = 32
MAX_FRAME = 64 << 20
MAX_HANDSHAKE = 256
MAX_FIELDS = 1 << 20

_HEADER = struct.Struct("<IIB")  # bytes after the header, number of the request, kind
_FIELD = struct.Struct("<I")
_INTEGER = struct.Struct("<q")


class Kind(enum.IntEnum):
    """What a frame says."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5

    DONE = 16  # answers
    INVALID = 17  # the request cannot be met: why
    NOTHING = 18  # what was to be waited for is not there: what is missing

    SET = 32  # requests
    GET = 33
    ADD = 34
    WAIT = 35
    CHECK = 36
    COMPARE_SET = 37
    DELETE = 38
    NUM_KEYS = 39
    LIST_KEYS = 40
    MULTI_SET = 41
    APPEND = 42
    PUSH = 43
    POP = 44
    QUEUE_LEN = 45
    BARRIER = 46
    REACH = 47  # wait until a counter is so high
    WILL = 48  # what to set, where nobody has set it by then, when this client is gone; nothing to leave none
    CANCEL = 63  # do not wait any longer; the answer is what is there now, or NOTHING


Frame = tuple[int, Kind, list[bytes]]


class Frames:
    """What has come of a stream, cut into frames. It holds no more bytes than have come."""

    def __init__(self) -> None:
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self, limit: int) -> Frame | None:
        """Take the next whole frame; ``None`` if there is none yet.

        Raises
        ------
        Malformed
            As soon as what has come cannot become a frame whose rest has at most `limit` bytes.
        """
        if len(self._data) < _FIELD.size:
            return None
        (length,) = _FIELD.unpack_from(self._data)
        if length > limit:
            raise Malformed(f"a frame of {length} bytes")
        if len(self._data) < _HEADER.size:
            return None
        _, number, code = _HEADER.unpack_from(self._data)
        try:
            kind = Kind(code)
        except ValueError as error:
            raise Malformed(f"a frame of kind {code}") from error
        end = _HEADER.size + length
        if len(self._data) < end:
            return None
        body = bytes(memoryview(self._data)[_HEADER.size : end])
        del self._data[:end]
        return number, kind, _fields(body)


def _fields(body: bytes) -> list[bytes]:
    fields: list[bytes] = []
    at = 0
    while at < len(body):
        if len(fields) == MAX_FIELDS:
            raise Malformed(f"more than {MAX_FIELDS} fields")
        if len(body) - at < _FIELD.size:
            raise Malformed("a frame that ends in a field")
        (length,) = _FIELD.unpack_from(body, at)
        at += _FIELD.size
        if length > len(body) - at:
            raise Malformed("a frame that ends in a field")
        fields.append(body[at : at + length])
        at += length
    return fields


def frame(number: int, kind: Kind, fields: Sequence[bytes] = ()) -> bytes:
    """Make a frame.

    Raises
    ------
    ValueError
        If it would be longer than the other end accepts.
    """
    length = sum(map(len, fields)) + _FIELD.size * len(fields)
    if length > MAX_FRAME or len(fields) > MAX_FIELDS:
        raise ValueError(
            f"{kind.name.lower()}: keys and values must have at most {MAX_FRAME} bytes together and be at most "
            f"{MAX_FIELDS}, got {length} bytes in {len(fields)} parts"
        )
    parts = [_HEADER.pack(length, number, kind)]
    for field in fields:
        parts += [_FIELD.pack(len(field)), field]
    return b"".join(parts)


def integer(value: int) -> bytes:
    """Make a field of a number."""
    return _INTEGER.pack(value)


def parse_integer(field: bytes) -> int:
    """Return the number of a field."""
    if len(field) != _INTEGER.size:
        raise Malformed(f"a number of {len(field)} bytes")
    return int(_INTEGER.unpack(field)[0])


def proof(secret: bytes, role: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Make what shows that one knows the secret. A role's proof is of no use to the other role.

    Examples
    --------
    >>> a, b = b"a" * NONCE, b"b" * NONCE
    >>> proof(b"secret", b"client", a, b) == proof(b"secret", b"server", a, b)
    False
    """
    import hashlib  # with OpenSSL, which is not to be loaded where no store is
    import hmac

    return hmac.digest(secret, b"corral store " + VERSION + role + client_nonce + server_nonce, hashlib.sha256)


def same_proof(given: bytes, expected: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not depend on where they differ."""
    import hmac

    return hmac.compare_digest(given, expected)


def nonce() -> bytes:
    """Return bytes that nobody has said before."""
    return os.urandom(NONCE)


def job_secret(secret: str | bytes | None) -> bytes | None:
    """Return what ``CORRAL_SECRET`` says, else the argument; ``None`` if neither says anything.

    Examples
    --------
    >>> job_secret("a word")
    b'a word'
    """
    said: str | bytes | None = os.environ.get("CORRAL_SECRET") or secret
    if said is not None and not isinstance(said, (str, bytes)):
        raise TypeError(f"TCPStore: secret must be a string or bytes, got {type(said).__qualname__}")
    return (said.encode("utf-8", "surrogateescape") if isinstance(said, str) else said) or None


def tune(stream: socket.socket) -> None:
    """Have small frames sent at once, and a host that is gone noticed within 15 s, whether or not something is sent."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 5)):
        stream.setsockopt(socket.IPPROTO_TCP, option, seconds)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000)


def where_secret_is(host: str, port: int) -> bytes:
    """Return the name of the abstract socket at which a server without a secret gives out the one that it made.

    The kernel tells each end of such a socket the other's user, as it does not on a TCP connection.
    """
    return place(f"tcp://127.0.0.1:{port}#store-{quote(host)}")
