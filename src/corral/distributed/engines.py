"""Which engine a group runs on, and how the ranks of a job come together in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from corral import backends
from corral.backends.base import Backend as Instance
from corral.backends.capabilities import check
from corral.distributed import rendezvous
from corral.distributed.backend_config import Backend, BackendConfig
from corral.distributed.errors import DistBackendError
from corral.distributed.host_identity import host_identity

__all__ = ["Meet", "Plan", "join", "meet_at", "meet_in_group", "meet_in_store", "plan_for"]


class Plan(NamedTuple):
    """What a ``backend`` argument asks for.

    Attributes
    ----------
    engine : str or None
        Name of the engine of the group; ``None`` where the hosts of the ranks decide.
    written : str
        The argument, in lower case, as `get_backend` returns it; empty where it is the engine's name.
    """

    engine: str | None
    written: str


class Meet:
    """Exchanges a few bytes between all ranks, as often as they like; see `corral.backends.Engine.create`."""

    def __init__(self, call: Callable[[bytes], list[bytes]], address: str = "") -> None:
        self._call = call
        self.address = address

    def __call__(self, payload: bytes) -> list[bytes]:
        return self._call(payload)


def plan_for(backend: str | None, function: str) -> Plan:
    """Find out which engine a ``backend`` argument asks for.

    Where different devices have different ones, it is that of the host's arrays: arrays of other devices, whose
    engine is named only for compatibility with torch, pass through host memory.

    Raises
    ------
    ValueError
        If there is no such backend.
    ImportError
        If there is one that cannot be used here; the message says how to get it.

    Examples
    --------
    >>> plan_for("shm", "init_process_group"), plan_for(None, "init_process_group")
    (Plan(engine='shm', written=''), Plan(engine=None, written=''))
    >>> plan_for("cpu:shm,cuda:shm", "init_process_group")
    Plan(engine='shm', written='cpu:shm,cuda:shm')
    """
    if backend is None:
        return Plan(None, "")
    written = Backend(backend)
    if written == Backend.UNDEFINED:
        return Plan(None, written)
    if ":" not in written:
        backends.load(written)
        return Plan(written, "")
    devices = BackendConfig(written).get_device_backend_map()
    for name in devices.values():
        backends.load(name)
    if "cpu" in devices:
        return Plan(devices["cpu"], written)
    if len(set(devices.values())) > 1:
        raise ValueError(f"{function}: backend must say which one serves 'cpu', where ranks agree; got {backend!r}")
    return Plan(next(iter(devices.values())), written)


def join(
    engine: str | None, rank: int, world_size: int, meet: Callable[[bytes], list[bytes]], timeout: float
) -> Instance:
    """Make this rank's view of a job's group of all ranks, on the engine named, or on that which its hosts need.

    Raises
    ------
    DistBackendError
        If that engine cannot do what corral's operations are made of.
    """
    made = backends.load(engine or _engine_for_hosts(meet)).create(rank, world_size, meet, timeout)
    reason = check(made.capabilities())
    if reason:
        made.close(0.0)
        raise DistBackendError(
            f"the backend {made.name!r} cannot be used for a group: {reason}. Backends over a "
            "corral.backends.messages.Transport, which only moves bytes, lack nothing."
        )
    return made


def _engine_for_hosts(meet: Callable[[bytes], list[bytes]]) -> str:
    """Choose shared memory for ranks of one host, and a hybrid for those of several."""
    if _is_here(getattr(meet, "address", None)):
        return backends.DEFAULT
    hosts = meet(host_identity().encode())
    if len(set(hosts)) == 1:
        return backends.DEFAULT
    if not backends.available(Backend.HYBRID):
        raise DistBackendError(
            f"the {len(hosts)} ranks run on {len(set(hosts))} hosts, and no engine that reaches from one to another is "
            "installed here: pip install 'corral[torch]' for gloo, or 'corral[mpi]' for MPI"
        )
    return Backend.HYBRID


def _is_here(address: str | None) -> bool:
    """Whether only ranks of one host can meet at an address."""
    if not address:
        return False
    parts = urlsplit(address)
    return parts.scheme == "file" or (parts.scheme == "tcp" and parts.hostname in ("localhost", "127.0.0.1", "::1"))


def meet_at(address: str, rank: int, world_size: int, limit: float) -> Meet:
    """Let ranks meet at an address; see `corral.distributed.rendezvous`."""

    def call(payload: bytes) -> list[bytes]:
        return rendezvous.meet(address, rank, world_size, payload, limit)

    return Meet(call, address)


def meet_in_store(store: Any, rank: int, world_size: int) -> Meet:
    """Let ranks meet in a store that all of them have."""
    counted = itertools.count(1)

    def call(payload: bytes) -> list[bytes]:
        # What an earlier group left in the store must not be taken for what this one's ranks say.
        meeting = store.add(f"corral/meetings/{rank}", 1) if hasattr(store, "add") else next(counted)
        store.set(f"corral/meet/{meeting}/{rank}", payload)
        return [bytes(store.get(f"corral/meet/{meeting}/{other}")) for other in range(world_size)]

    return Meet(call)


def meet_in_group(parent: Instance, positions: Sequence[int], name: str, limit: float | None) -> Meet:
    """Let ranks meet in a group that they are in, `positions` of it; `name` is that of no other meeting there."""
    party = parent.split(positions, f"{name}/meeting", limit)

    def call(payload: bytes) -> list[bytes]:
        return [bytes(told) for told in party.all_gather_bytes(payload, operation="new_group")]

    return Meet(call)
