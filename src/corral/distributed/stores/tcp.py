"""A store in one process that others reach through TCP."""

from __future__ import annotations

import operator
import os
import socket
import threading
import weakref
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import SupportsIndex

from corral.distributed.errors import DistNetworkError, QueueEmptyError, StoreTimeoutError
from corral.distributed.stores import tcp_wire as wire
from corral.distributed.stores.base import DEFAULT_TIMEOUT, Store, key_bytes, limit_seconds
from corral.distributed.stores.tcp_client import Connection, connect
from corral.distributed.stores.tcp_server import Server
from corral.distributed.stores.tcp_wire import Kind, integer, parse_integer

__all__ = ["TCPStore"]

_USER = b"/"  # before every key of the caller's; the store's own have none
_JOINED = b"init/"  # counts the clients that have come

_lock = threading.RLock()  # a store may be collected, and leave its server, while another one is made
_shared: dict[int, Server] = {}  # by port: those of which this process may want more than one


class TCPStore(Store):
    """A store that one process serves and others reach, as ``torch.distributed.TCPStore``.

    Only processes that know the job's secret are let in; each end proves to the other that it does. The secret
    is in the environment variable ``CORRAL_SECRET``, else it is `secret`. Where there is none, the store can be
    reached through a loopback address only, and only by processes of the same user. What is sent is neither
    encrypted nor pickled.

    Parameters
    ----------
    host_name
        Address of the master. It listens on that address alone: ``"127.0.0.1"`` is not seen by other hosts.
    port
        Port of the master; 0 to have it take a free one, which `port` then tells.
    world_size
        Number of processes that use the store, the master included; ``None`` if it is not fixed.
    is_master
        Whether this process serves the store.
    timeout
        How long to wait for the master, for the others, and for keys: a `datetime.timedelta` or seconds.
    wait_for_workers
        Whether the master waits until `world_size` processes have come.
    multi_tenant
        Whether other stores of this process may be masters at the same port; they share one store.
    master_listen_fd
        Descriptor of a bound socket for the master to listen on; the store closes it.
    use_libuv
        Accepted for compatibility with torch, and not used.
    secret
        The job's secret, where ``CORRAL_SECRET`` is not set.

    Raises
    ------
    DistNetworkError
        If there is no master in time, or it and this process do not know the same secret, or if the master cannot
        listen.
    DistStoreError
        On the master, if not all come in time; the message says how many have.

    Examples
    --------
    >>> store = TCPStore("127.0.0.1", 0, 1, is_master=True)
    >>> store.set("key", "value")
    >>> TCPStore("127.0.0.1", store.port).get("key")
    b'value'
    """

    def __init__(
        self,
        host_name: str,
        port: SupportsIndex,
        world_size: SupportsIndex | None = None,
        is_master: bool = False,
        timeout: timedelta | float = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: SupportsIndex | None = None,
        use_libuv: bool = True,
        *,
        secret: str | bytes | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(host_name, str):
            raise TypeError(f"TCPStore: host_name must be a string, got {type(host_name).__qualname__}")
        number = operator.index(port)
        if not 0 <= number < 1 << 16:
            raise ValueError(f"TCPStore: port must be in 0 to 65535, got {number}")
        size = None if world_size is None else operator.index(world_size)
        if size == 0:
            raise ValueError("TCPStore: world_size must not be 0")
        self._limit = limit_seconds(timeout, "TCPStore")
        self._host = host_name
        self._secret = wire.job_secret(secret)
        self._server: Server | None = None
        self._forks = threading.Lock()
        address, secret_there = host_name, self._secret
        if is_master:
            descriptor = None if master_listen_fd is None else operator.index(master_listen_fd)
            self._server = server = _serve(host_name, number, self._secret, multi_tenant, descriptor)
            address, number, secret_there = _reachable(server.host), server.port, server.secret
        self._address = address
        self._port = number
        try:
            self._connection = connect(address, number, secret_there, self._limit)
        except BaseException:
            _leave(None, self._server)
            raise
        self._finalizer = weakref.finalize(self, _leave, self._connection, self._server)
        if size is not None and size > 0 and wait_for_workers:
            self._join(size, is_master)

    def __repr__(self) -> str:
        return f"TCPStore({self._host!r}, {self._port}{', is_master=True' if self._server is not None else ''})"

    @property
    def host(self) -> str:
        """Address of the master, as it was given."""
        return self._host

    @property
    def port(self) -> int:
        """Port of the master."""
        return self._port

    @property
    def libuvBackend(self) -> bool:
        """Whether the server is torch's own with libuv: never."""
        return False

    def clone(self) -> TCPStore:
        """Return a store with a connection of its own to the same master."""
        secret = self._server.secret if self._server is not None else self._secret
        other = TCPStore.__new__(TCPStore)
        Store.__init__(other)
        other._limit = self._limit
        other._host, other._address, other._port = self._host, self._address, self._port
        other._secret, other._server, other._forks = secret, None, threading.Lock()
        other._connection = connect(self._address, self._port, secret, self._limit)
        other._finalizer = weakref.finalize(other, _leave, other._connection, None)
        return other

    def leave_word(self, key: str | None, value: bytes = b"") -> None:
        """Have the master set a key that has no value by then when this store's connection ends, however it does.

        So the others learn that a process is gone. A later call replaces an earlier one.

        Parameters
        ----------
        key, value
            What to set; ``None`` to leave no word.

        Examples
        --------
        >>> master = TCPStore("127.0.0.1", 0, is_master=True)
        >>> other = TCPStore("127.0.0.1", master.port)
        >>> other.leave_word("end", b"the other is gone")
        >>> del other
        >>> master.get("end")
        b'the other is gone'
        """
        self._ask(Kind.WILL, [] if key is None else [_USER + key_bytes(key, "leave_word"), value])

    def close(self) -> None:
        """Hang up; the master serves no longer, unless another store of this process shares it."""
        self._finalizer()

    def _join(self, size: int, is_master: bool) -> None:
        """Say that this process has come; the master waits until all have."""
        self._ask(Kind.ADD, [_JOINED, integer(1)])
        if not is_master:
            return
        kind, fields = self._ask(Kind.REACH, [_JOINED, integer(size)], self._limit)
        if kind is Kind.NOTHING:
            raise StoreTimeoutError(
                f"{self!r} timed out after {self._limit:g} s: {parse_integer(fields[0])} of {size} processes have "
                "come. Were the others started, with the same host, port and world_size?"
            )

    def _ask(self, kind: Kind, fields: Sequence[bytes], limit: float | None = None) -> tuple[Kind, list[bytes]]:
        connection = self._connection
        if connection.pid != os.getpid():
            connection = self._reconnect()
        return connection.ask(kind, fields, limit)

    def _reconnect(self) -> Connection:
        """Make a connection of a fork's own: that of its parent has the parent's answers."""
        with self._forks:
            if self._connection.pid != os.getpid():
                secret = self._server.secret if self._server is not None else self._secret
                self._connection.abandon()
                self._connection = connect(self._address, self._port, secret, self._limit)
                self._server = None
                self._secret = secret
                self._finalizer = weakref.finalize(self, _leave, self._connection, None)
            return self._connection

    def _set(self, key: bytes, value: bytes) -> None:
        self._ask(Kind.SET, [_USER + key, value])

    def _get(self, keys: list[bytes], where: str) -> list[bytes]:
        if not keys:
            return []
        kind, fields = self._ask(Kind.GET, [_USER + key for key in keys], self._limit)
        if kind is Kind.NOTHING:
            raise self._nobody_set(where, self._limit, _names(fields))
        return fields

    def _add(self, key: bytes, amount: int) -> int:
        return parse_integer(self._ask(Kind.ADD, [_USER + key, integer(amount)])[1][0])

    def _wait(self, keys: list[bytes], limit: float) -> None:
        if keys:
            kind, fields = self._ask(Kind.WAIT, [_USER + key for key in keys], limit)
            if kind is Kind.NOTHING:
                raise self._nobody_set("wait", limit, _names(fields))

    def _check(self, keys: list[bytes]) -> bool:
        return bool(parse_integer(self._ask(Kind.CHECK, [_USER + key for key in keys])[1][0]))

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        return self._ask(Kind.COMPARE_SET, [_USER + key, expected, desired])[1][0]

    def _delete(self, key: bytes) -> bool:
        return bool(parse_integer(self._ask(Kind.DELETE, [_USER + key])[1][0]))

    def _num_keys(self) -> int:
        return parse_integer(self._ask(Kind.NUM_KEYS, [])[1][0])

    def _list_keys(self) -> list[bytes]:
        return _names(key for key in self._ask(Kind.LIST_KEYS, [])[1] if key.startswith(_USER))

    def _multi_set(self, keys: list[bytes], values: list[bytes]) -> None:
        fields = [field for key, value in zip(keys, values, strict=True) for field in (_USER + key, value)]
        self._ask(Kind.MULTI_SET, fields)

    def _append(self, key: bytes, value: bytes) -> None:
        self._ask(Kind.APPEND, [_USER + key, value])

    def _push(self, key: bytes, value: bytes) -> None:
        self._ask(Kind.PUSH, [_USER + key, value])

    def _pop(self, key: bytes, block: bool) -> bytes:
        kind, fields = self._ask(Kind.POP, [_USER + key], self._limit if block else 0.0)
        if kind is Kind.NOTHING:
            raise self._nobody_pushed(self._limit, key) if block else QueueEmptyError(self._empty(key))
        return fields[0]

    def _queue_len(self, key: bytes) -> int:
        return parse_integer(self._ask(Kind.QUEUE_LEN, [_USER + key])[1][0])

    def _barrier(self, key: bytes, size: int, limit: float) -> None:
        kind, fields = self._ask(Kind.BARRIER, [_USER + key, integer(size)], limit)
        if kind is Kind.NOTHING:
            raise self._few_came(limit, key, parse_integer(fields[0]), size)


def _names(keys: Iterable[bytes]) -> list[bytes]:
    return [key.removeprefix(_USER) for key in keys]


def _reachable(host: str) -> str:
    """Return where this process itself reaches what it listens on."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _serve(host: str, port: int, secret: bytes | None, shared: bool, descriptor: int | None) -> Server:
    """Start a server, or, where that is allowed, take part in the one that this process has."""
    with _lock:
        running = _shared.get(port) if shared and descriptor is None else None
        if running is not None and running.owner == os.getpid():
            running.users += 1
            return running
        listener = _listener(host, port, descriptor)
        try:
            bound, taken = listener.getsockname()[:2]
            if secret is None and not wire.is_loopback(bound):
                raise DistNetworkError(
                    f"TCPStore at {host}:{taken}: {bound} can be reached from other hosts, and who may talk to the "
                    "store must be known: set CORRAL_SECRET to the same secret on all ranks, or listen on 127.0.0.1"
                )
            server = Server(listener, secret)
        except BaseException:
            listener.close()
            raise
        if shared:
            _shared[server.port] = server
        return server


def _listener(host: str, port: int, descriptor: int | None) -> socket.socket:
    """Make the bound socket of a server."""
    if descriptor is not None:
        listener = socket.socket(fileno=descriptor)
        taken = listener.getsockname()[1]
        if port not in (0, taken):
            listener.close()
            raise ValueError(f"TCPStore: port is {port}, but master_listen_fd is bound to port {taken}")
        return listener
    where = f"TCPStore cannot listen at {host}:{port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise DistNetworkError(f"{where}: {error.strerror}") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise DistNetworkError(
            f"{where}: {error.strerror}. The master listens on the address that it is given: that must be one of its "
            "host's, and the port must be free (0 takes a free one)"
        ) from error
    return listener


def _leave(connection: Connection | None, server: Server | None) -> None:
    """End what a store that is no more has had."""
    if connection is not None:
        if connection.pid == os.getpid():
            connection.close()
        else:
            connection.abandon()
    if server is not None and server.owner == os.getpid():
        with _lock:
            server.users -= 1
            if server.users:
                return
            if _shared.get(server.port) is server:
                del _shared[server.port]
        server.close()
