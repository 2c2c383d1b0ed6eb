"""How the ranks of one host find each other: an address is only a name under which they meet.

Rank 0 listens on a Unix socket whose name, derived from the address, lies in the kernel's abstract namespace: it is
gone with the process, so no exit path leaves a file behind, and a stale file of an earlier run does not matter. Both
ends ask the kernel whose process the other one is, and nothing that a socket says is trusted.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from corral.distributed.errors import DistNetworkError, DistTimeoutError, PeerLostError

__all__ = ["meet", "resolve"]

_HELLO = struct.Struct("<8sIIIQ")  # magic, version, rank, world size, bytes of payload
_MAGIC = b"CORRALRV"
_VERSION = 1
_MAX_PAYLOAD = 1 << 20
_HELLO_TIMEOUT = 5.0  # for a peer that has connected to say who it is
_WELCOME, _REFUSED = b"W", b"R"


def resolve(
    init_method: str | None, rank: int = -1, world_size: int = -1, environ: Mapping[str, str] | None = None
) -> tuple[str, int, int]:
    """Find out where to meet, who this is, and how many there are.

    Parameters
    ----------
    init_method
        ``"env://"`` (the default), ``"tcp://host:port"`` or ``"file:///path"``; the last two may carry
        ``?rank=...&world_size=...``.
    rank, world_size
        -1 to take them from `init_method` or the environment.
    environ
        The environment; `os.environ` when ``None``.

    Returns
    -------
    tuple of (str, int, int)
        The meeting's address, the rank and the world size.

    Raises
    ------
    ValueError
        If something is missing, contradictory or out of range; the message names it.

    Examples
    --------
    >>> resolve("tcp://127.0.0.1:29500?rank=1&world_size=4")
    ('tcp://127.0.0.1:29500', 1, 4)
    """
    environ = os.environ if environ is None else environ
    method = "env://" if init_method is None else init_method
    if "://" not in method:
        raise ValueError(f"init_method must look like 'env://', 'tcp://host:port' or 'file:///path', got {method!r}")
    parts = urlsplit(method)
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    rank = _number("rank", query["rank"]) if rank < 0 and "rank" in query else rank
    world_size = _number("world_size", query["world_size"]) if world_size < 0 and "world_size" in query else world_size
    if parts.scheme == "env":
        rank = _number("RANK", _variable(environ, "RANK")) if rank < 0 else rank
        world_size = _number("WORLD_SIZE", _variable(environ, "WORLD_SIZE")) if world_size < 0 else world_size
        host, port = _variable(environ, "MASTER_ADDR"), _variable(environ, "MASTER_PORT")
        _number("MASTER_PORT", port)
        address = f"tcp://{host}:{port}"
        # torchrun keeps its address when it starts the workers again.
        run = [environ.get("TORCHELASTIC_RUN_ID", ""), environ.get("TORCHELASTIC_RESTART_COUNT", "")]
        if any(run):
            address += f"?run={'.'.join(run)}"
        if world_size > 1:
            _check_local(host)
    elif parts.scheme == "tcp":
        if not parts.hostname or parts.port is None:
            raise ValueError(f"init_method {method!r} needs a host and a port: 'tcp://host:port'")
        address = f"tcp://{parts.hostname}:{parts.port}"
        if world_size > 1:
            _check_local(parts.hostname)
    elif parts.scheme == "file":
        path = (parts.netloc + parts.path) or ""
        if not path or path == "/":
            raise ValueError(f"init_method {method!r} names no file: 'file:///path'")
        address = f"file://{os.path.realpath(path)}"
    else:
        raise ValueError(f"init_method {method!r} is of an unknown kind; use 'env://', 'tcp://host:port' or 'file:///path'")
    if world_size <= 0:
        raise ValueError(f"world_size is missing or not positive ({world_size}); pass world_size= or put it into init_method")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is missing or out of range: {rank}, expected 0 to {world_size - 1}")
    return address, rank, world_size


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be an integer, got {text!r}") from None


def _variable(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise ValueError(
            f"env:// rendezvous: the environment variable {name} is expected, but not set. Start the ranks with "
            "`corral run` or torchrun, or pass init_method=, rank= and world_size= to init_process_group"
        )
    return value


def _check_local(host: str) -> None:
    """Refuse an address of another host: the ranks of this backend share memory."""
    if host in ("localhost", socket.gethostname()):
        return
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return  # only a name under which the ranks of this host meet
    for text in found:
        address = ipaddress.ip_address(str(text).partition("%")[0])
        if address.is_loopback or address.is_unspecified:
            return
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:  # only an address of this host can be bound
                probe.bind((str(address), 0))
                return
            except OSError:
                continue
    raise ValueError(
        f"the ranks would meet at {host!r}, which is another host; backend 'shm' joins the ranks of one host. "
        "Start all ranks on one host and let them meet at 127.0.0.1"
    )


def meet(init_method: str, rank: int, world_size: int, payload: bytes, timeout: float) -> list[bytes]:
    """Hand in this rank's bytes and return those of all ranks, in rank order.

    Parameters
    ----------
    init_method
        An address as `resolve` returns it: the same on every rank.
    rank, world_size
        This rank, and how many there are.
    payload
        At most 1 MiB.
    timeout
        Seconds to wait for the others.

    Raises
    ------
    DistTimeoutError
        If some ranks do not come, on every rank that came; the message names them.
    PeerLostError
        If a rank ended after it came and before all had come.
    DistNetworkError
        If this rank is refused: another world size, or a rank that is there already.
    """
    if len(payload) > _MAX_PAYLOAD:
        raise ValueError(f"the payload has {len(payload)} bytes, at most {_MAX_PAYLOAD} are allowed")
    if world_size == 1:
        return [payload]
    digest = hashlib.blake2b(f"{os.getuid()}\0{init_method}".encode(), digest_size=16).hexdigest()
    name = f"\0corral-{os.getuid()}-{digest}"
    deadline = time.monotonic() + timeout
    if rank == 0:
        return _Host(name, init_method, world_size, payload, deadline, timeout).run()
    return _join(name, init_method, rank, world_size, payload, deadline, timeout)


def _remaining(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _same_user(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("iII", raw)
    return bool(uid == os.getuid())


def _plural(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _frame(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<Q", len(body)) + body


class _Caller:
    """A connection that has not said yet, or has said, who it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.since = time.monotonic()
        self.rank = -1


class _Host:
    """Rank 0's side of a meeting."""

    def __init__(
        self, name: str, address: str, world_size: int, payload: bytes, deadline: float, timeout: float
    ) -> None:
        self.name, self.address, self.world_size = name, address, world_size
        self.deadline, self.timeout = deadline, timeout
        self.payloads: dict[int, bytes] = {0: payload}
        self.callers: dict[int, _Caller] = {}  # by descriptor
        self.members: dict[int, _Caller] = {}  # by rank

    def run(self) -> list[bytes]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            self._bind(listener)
            listener.listen(self.world_size + 16)
            listener.setblocking(False)
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            try:
                self._gather(listener, poll)
                return self._answer()
            finally:
                for caller in self.callers.values():
                    caller.connection.close()

    def _bind(self, listener: socket.socket) -> None:
        # A rank 0 of an earlier meeting under this name may be closing its listener just now.
        patience = time.monotonic() + 1.0
        while True:
            try:
                return listener.bind(self.name)
            except OSError as error:
                if time.monotonic() > min(patience, self.deadline):
                    raise DistNetworkError(
                        f"rank 0 cannot meet the others at {self.address}: another job is meeting there ({error}). "
                        "Use another port or file for each job"
                    ) from None
                time.sleep(0.01)

    def _gather(self, listener: socket.socket, poll: select.poll) -> None:
        while len(self.payloads) < self.world_size:
            left = _remaining(self.deadline)
            if left == 0.0:
                self._give_up()
            for fd, _ in poll.poll(min(left, 1.0) * 1000 + 1):
                if fd == listener.fileno():
                    self._accept(listener, poll)
                else:
                    self._hear(self.callers[fd], poll)
            for caller in list(self.callers.values()):
                if caller.rank < 0 and time.monotonic() - caller.since > _HELLO_TIMEOUT:
                    self._drop(caller, poll)

    def _accept(self, listener: socket.socket, poll: select.poll) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if not _same_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        self.callers[connection.fileno()] = _Caller(connection)
        poll.register(connection, select.POLLIN)

    def _drop(self, caller: _Caller, poll: select.poll, why: str = "") -> None:
        poll.unregister(caller.connection)
        del self.callers[caller.connection.fileno()]
        if why:
            _try_send(caller.connection, _frame(_REFUSED, why.encode()))
        caller.connection.close()

    def _hear(self, caller: _Caller, poll: select.poll) -> None:
        try:
            data = caller.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if caller.rank >= 0:
            if not data:
                self._lost(caller.rank)
            return self._drop(caller, poll)  # who has said who it is has nothing more to say
        if not data:
            return self._drop(caller, poll)
        caller.received += data
        if len(caller.received) < _HELLO.size:
            return None
        magic, version, rank, world_size, size = _HELLO.unpack_from(caller.received)
        if magic != _MAGIC or size > _MAX_PAYLOAD or len(caller.received) > _HELLO.size + size:
            return self._drop(caller, poll)
        if version != _VERSION:
            return self._drop(caller, poll, "rank 0 runs another version of corral")
        if world_size != self.world_size:
            return self._drop(
                caller, poll, f"rank 0 has world_size {self.world_size}, rank {rank} has {world_size}; they must agree"
            )
        if not 0 < rank < self.world_size:
            return self._drop(caller, poll, f"rank {rank} is out of range 1 to {self.world_size - 1}")
        if rank in self.payloads:
            return self._drop(caller, poll, f"rank {rank} is there already; two processes have the same rank")
        if len(caller.received) < _HELLO.size + size:
            return None
        caller.rank = rank
        self.members[rank] = caller
        self.payloads[rank] = bytes(caller.received[_HELLO.size :])
        return None

    def _tell(self, frame: bytes) -> None:
        for caller in self.members.values():
            _try_send(caller.connection, frame)

    def _give_up(self) -> None:
        missing = [rank for rank in range(self.world_size) if rank not in self.payloads]
        text = f"{_plural(missing)} of {self.world_size} never came to {self.address} within {self.timeout:g} s"
        self._tell(_frame(_REFUSED, b"T" + text.encode()))
        raise DistTimeoutError(
            f"init_process_group on rank 0: {text}. Look for their errors, or allow more time with timeout="
        )

    def _lost(self, rank: int) -> None:
        text = f"rank {rank} ended before all ranks had come to {self.address}"
        self._tell(_frame(_REFUSED, b"L" + struct.pack("<I", rank) + text.encode()))
        raise PeerLostError(f"init_process_group on rank 0: {text}", (rank,))

    def _answer(self) -> list[bytes]:
        everyone = [self.payloads[rank] for rank in range(self.world_size)]
        body = b"".join(struct.pack("<Q", len(payload)) + payload for payload in everyone)
        frame = _frame(_WELCOME, body)
        for rank, caller in self.members.items():
            caller.connection.settimeout(max(1.0, _remaining(self.deadline)))
            try:
                caller.connection.sendall(frame)
            except OSError:
                self._lost(rank)
        return everyone


def _try_send(connection: socket.socket, frame: bytes) -> None:
    try:
        connection.settimeout(1.0)
        connection.sendall(frame)
    except OSError:
        pass  # it is gone: nobody is left to be told


def _join(
    name: str, address: str, rank: int, world_size: int, payload: bytes, deadline: float, timeout: float
) -> list[bytes]:
    absent = DistTimeoutError(
        f"init_process_group on rank {rank}: rank 0 never came to {address} within {timeout:g} s. "
        "Look for its error, or allow more time with timeout="
    )
    delay = 0.001
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.settimeout(max(0.001, _remaining(deadline)))
                connection.connect(name)
            except OSError:
                if _remaining(deadline) == 0.0:
                    raise absent from None
                time.sleep(min(delay, _remaining(deadline)))
                delay = min(delay * 2, 0.05)
                continue
            if not _same_user(connection):
                raise DistNetworkError(f"rank {rank}: {address} is taken by another user's process")
            try:
                connection.sendall(_HELLO.pack(_MAGIC, _VERSION, rank, world_size, len(payload)) + payload)
                # Rank 0 speaks up to its own deadline, which may be a little later than this one.
                connection.settimeout(_remaining(deadline) + 2.0)
                kind = _read(connection, 1)
                (size,) = struct.unpack("<Q", _read(connection, 8))
                if size > world_size * (_MAX_PAYLOAD + 8):
                    raise DistNetworkError(f"rank {rank}: what answers at {address} is not rank 0 of this job")
                body = _read(connection, size)
            except TimeoutError:
                raise absent from None
            except OSError as error:
                raise PeerLostError(
                    f"init_process_group on rank {rank}: rank 0 ended before all ranks had come to {address} ({error})",
                    (0,),
                ) from None
        if kind == _WELCOME:
            return _payloads(body, world_size)
        raise _refusal(rank, body)


def _refusal(rank: int, body: bytes) -> Exception:
    heading = f"init_process_group on rank {rank}: "
    if body[:1] == b"T":
        text = body[1:].decode(errors="replace")
        return DistTimeoutError(f"{heading}{text}. Look for their errors, or allow more time with timeout=")
    if body[:1] == b"L" and len(body) >= 5:
        (lost,) = struct.unpack_from("<I", body, 1)
        return PeerLostError(heading + body[5:].decode(errors="replace"), (lost,))
    return DistNetworkError(heading + body.decode(errors="replace"))


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        data = connection.recv(min(1 << 20, size - len(parts)))
        if not data:
            raise ConnectionResetError("the connection was closed")
        parts += data
    return bytes(parts)


def _payloads(body: bytes, world_size: int) -> list[bytes]:
    payloads, at = [], 0
    for _ in range(world_size):
        (size,) = struct.unpack_from("<Q", body, at)
        at += 8
        payloads.append(body[at : at + size])
        at += size
    return payloads


def _milliseconds(seconds: float) -> float:
    return 1000 * min(max(0.0, seconds), 3600.0)  # the kernel takes no more than 24 days, let alone infinity
