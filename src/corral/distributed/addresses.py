"""Where the ranks of a job meet: what ``init_method`` means, and the name that it stands for.

On one host an address needs no port that anyone listens on, nor a file that anyone writes: it is only a name
that all ranks of a job know and no other job uses. So torchrun's own listener on ``MASTER_PORT`` is left
alone.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Mapping
from typing import NamedTuple, NoReturn
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from corral.digests import digest
from corral.distributed.starters import Starter, starter_of

__all__ = ["Meeting", "is_loopback", "is_over_hosts", "listening_address", "place", "resolve"]

_JOB_VARIABLES = ("CORRAL_JOB", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
"""What starters of processes set, beside the port, to tell one job, or one attempt at it, from another."""


class Meeting(NamedTuple):
    """Where a rank goes to meet the others, and who it is there."""

    address: str
    rank: int
    world_size: int


def resolve(
    init_method: str | None = None,
    rank: int = -1,
    world_size: int = -1,
    environ: Mapping[str, str] | None = None,
) -> Meeting:
    """Find out where to meet, as which rank of how many.

    Parameters
    ----------
    init_method
        ``"env://"`` (also when ``None``): everything that is not given is read from ``RANK``, ``WORLD_SIZE``,
        ``MASTER_ADDR`` and ``MASTER_PORT``. Where there is no ``RANK``, rank and size are those that Open MPI's
        ``mpirun``, ``srun`` or MPICH's ``mpiexec`` has set, and the first two name the job, too, so that it needs no
        ``MASTER_`` variables. Or ``"tcp://host:port"``, or ``"file:///path"``. Each may end in
        ``?rank=0&world_size=2``.
    rank, world_size
        -1 where `init_method` or the environment says it.
    environ
        Environment to read; this process's when ``None``.

    Raises
    ------
    ValueError
        If something is missing, naming it, or does not fit together.
    RuntimeError
        If `init_method` has a scheme that is not one of the three.

    Examples
    --------
    >>> resolve("tcp://127.0.0.1:29500", rank=1, world_size=2)
    Meeting(address='tcp://127.0.0.1:29500', rank=1, world_size=2)
    >>> resolve("file:///tmp/job?rank=0&world_size=3")
    Meeting(address='file:///tmp/job', rank=0, world_size=3)
    >>> resolve(None, environ={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"})
    Traceback (most recent call last):
        ...
    ValueError: ... env:// rendezvous: environment variable MASTER_PORT expected, but not set
    """
    environ = os.environ if environ is None else environ
    parts = _split(init_method)
    where = f"{parts.scheme}://"
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    rank = _given("rank", rank, query, where)
    world_size = _given("world_size", world_size, query, where)
    if parts.scheme == "env":
        starter = starter_of(environ)
        rank = _variable(starter.rank, environ) if rank < 0 else rank
        world_size = _variable(starter.world_size, environ) if world_size < 0 else world_size
        address = _environment_address(environ, starter)
    elif parts.scheme != "file":
        if _port(parts, where) is None:
            _fail(where, "port number missing")
        address = parts._replace(query="").geturl()
    else:
        if parts.netloc not in ("", "localhost"):
            _fail(where, f"the path must be absolute, as in file:///tmp/name; got {init_method!r}")
        if not parts.path:
            _fail(where, "path missing")
        address = f"file://{parts.path}"
    if rank < 0:
        _fail(where, "rank parameter missing")
    if world_size < 0:
        _fail(where, "world size parameter missing")
    if world_size == 0:
        _fail(where, "world_size must be positive, got 0")
    if rank >= world_size:
        _fail(where, f"rank must be in 0 to {world_size - 1} (world_size={world_size}), got {rank}")
    return Meeting(address, rank, world_size)


def place(address: str) -> bytes:
    """Return the name of the abstract socket that an address stands for.

    It depends on the user, so that two users never meet. All names of this host are one: as with a listener
    on every interface, the port alone tells jobs apart. What follows a ``#`` counts as well.

    Examples
    --------
    >>> place("tcp://localhost:29500") == place("tcp://127.0.0.1:29500")
    True
    >>> place("tcp://localhost:29500") == place("tcp://localhost:29501")
    False
    """
    parts = _split(address)
    if parts.scheme == "file":
        canonical = f"file {os.path.realpath(parts.path)}"
    else:
        canonical = f"tcp {_port(parts, 'tcp://')} {parts.fragment}"
    name = digest(f"{os.geteuid()} {canonical}".encode(), 16).hex()
    return b"\0corral-" + name.encode()


def is_over_hosts(address: str) -> bool:
    """Whether the ranks that meet at an address may be on several hosts.

    They may where it names a host other than by a loopback address, and the job has a secret, by which ranks know each
    other: the environment variable ``CORRAL_SECRET``.

    Raises
    ------
    ValueError
        If there is no secret, and the address names another host: no rank of this one can meet there. A name that
        cannot be resolved is taken for a mere name: in many containers the host's own is one.
    """
    parts = _split(address)
    host = parts.hostname
    if parts.scheme in ("store", "torchrun", "mpi"):
        return True
    if parts.scheme == "file" or not host or host == "localhost" or is_loopback(host):
        return False
    if os.environ.get("CORRAL_SECRET"):
        return True
    if host == socket.gethostname().lower():
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    if not any(_is_local(family, target) for family, _, _, _, target in found):
        raise ValueError(
            f"cannot meet at {address}: {host} is another host. Ranks of several hosts must share a secret, to know "
            "each other by: set CORRAL_SECRET to the same on all of them, or start them by `corral run --nnodes`. For "
            "processes of one host use 127.0.0.1 (MASTER_ADDR under env://)"
        )
    return False


def listening_address(host: str) -> str:
    """Return where to listen so that others reach this host by a name or an address of its.

    That is the same, except where this host knows its own name as a loopback address, or not at all, as many are set
    up: then it is every interface.

    Examples
    --------
    >>> listening_address("127.0.0.1"), listening_address("::1"), listening_address("localhost")
    ('127.0.0.1', '::1', 'localhost')
    """
    if host == "localhost" or is_loopback(host):
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return "0.0.0.0" if host == socket.gethostname().lower() else host
    return "0.0.0.0" if all(is_loopback(str(target[0])) for *_, target in found) else host


def is_loopback(host: str) -> bool:
    """Whether a numeric address can be reached from this host alone.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _split(init_method: str | None) -> SplitResult:
    if init_method is None:
        init_method = "env://"
    if not isinstance(init_method, str):
        raise TypeError(f"init_method must be a string, got {type(init_method).__qualname__}")
    parts = urlsplit(init_method)
    if parts.scheme not in ("env", "tcp", "file", "store", "torchrun", "mpi") or "://" not in init_method:
        raise RuntimeError(
            f"No rendezvous handler for {parts.scheme}://: init_method must start with env://, tcp:// or "
            f"file://, got {init_method!r}"
        )
    return parts


def _fail(where: str, what: str) -> NoReturn:
    raise ValueError(f"Error initializing corral.distributed using {where} rendezvous: {what}")


def _port(parts: SplitResult, where: str) -> int | None:
    try:
        return parts.port
    except ValueError as error:
        _fail(where, f"{error} in {parts.geturl()!r}")


def _given(name: str, value: int, query: Mapping[str, str], where: str) -> int:
    """Return what the argument or the query of the URL says; -1 if neither does."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    value = value.__index__()
    if value < -1:
        _fail(where, f"{name} must not be negative, got {value}")
    if name not in query:
        return value
    try:
        said = int(query[name])
    except ValueError:
        said = -1
    if said < 0:
        _fail(where, f"{name}={query[name]} in the URL is not a number of 0 or more")
    if value not in (-1, said):
        _fail(where, f"{name} is {said} in the URL and {value} as an argument; give one of them")
    return said


def _needed(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name)
    if not value:
        _fail("env://", f"environment variable {name} expected, but not set")
    return value


def _variable(name: str, environ: Mapping[str, str]) -> int:
    value = _needed(name, environ)
    try:
        number = int(value)
    except ValueError:
        number = -1
    if number < 0:
        _fail("env://", f"environment variable {name} must be a number of 0 or more, got {value!r}")
    return number


def _environment_address(environ: Mapping[str, str], starter: Starter) -> str:
    if starter.job and not environ.get("MASTER_PORT"):
        scheme = "mpi" if starter.spans_hosts(environ) else "tcp"
        return f"{scheme}://localhost:0#{urlencode({name: environ[name] for name in starter.job})}"
    host = _needed("MASTER_ADDR", environ)
    port = _variable("MASTER_PORT", environ)
    if port >= 1 << 16:
        _fail("env://", f"environment variable MASTER_PORT must be at most 65535, got {port}")
    job = urlencode({name: environ[name] for name in _JOB_VARIABLES if environ.get(name)})
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    place, scheme = f"{host}:{port}", "tcp"
    if environ.get("CORRAL_STORE"):  # which the launcher of the first host serves
        place, scheme = environ["CORRAL_STORE"], "store"
    elif environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # what listens at MASTER_PORT is a store of torch's
        scheme = "torchrun" if environ.get("GROUP_WORLD_SIZE", "1") != "1" else "tcp"
        if scheme == "tcp":
            place = f"127.0.0.1:{port}"
    return f"{scheme}://{place}" + (f"#{job}" if job else "")


def _is_local(family: int, target: tuple[object, ...]) -> bool:
    """Whether an address belongs to an interface of this host: then, and only then, it can be bound to."""
    with contextlib.closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        try:
            probe.bind((target[0], 0, *target[2:]))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True
