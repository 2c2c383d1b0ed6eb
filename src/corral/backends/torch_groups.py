"""Groups of torch's for the transport over them, made without touching the state of ``torch.distributed``."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec
import torch
import torch.distributed as torch_dist

from corral.distributed.errors import DistBackendError, DistNetworkError

__all__ = ["exchange_hosts", "gloo_group", "gloo_of"]

_NAME_BYTES = 512


class _MeetingStore(torch_dist.Store):  # type: ignore[misc]
    """A store in which each rank says something once and then reads what the others said: a meeting of all ranks.

    No port is opened for it, and nobody can take part who is not let into the meeting.
    """

    def __init__(self, meet: Callable[[bytes], list[bytes]]) -> None:
        super().__init__()
        self._meet = meet
        self._said: dict[str, bytes] = {}
        self._known: dict[str, bytes] = {}
        self.error: BaseException | None = None

    def set(self, key: str, value: bytes | str) -> None:
        self._said[key] = value.encode() if isinstance(value, str) else bytes(value)

    def wait(self, keys: Iterable[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    def get(self, key: str) -> bytes:
        for known in (self._said, self._known):
            if key in known:
                return known[key]
        try:
            for told in self._meet(msgspec.msgpack.encode(self._said)):
                self._known.update(msgspec.msgpack.decode(told, type=dict[str, bytes]))
        except BaseException as error:  # gloo turns it into one of its own
            self.error = error
            raise
        self._said = {}
        if key not in self._known:
            self.error = DistNetworkError(f"gloo waits for {key!r}, which no rank has set: do all use the same torch?")
            raise self.error
        return self._known[key]


def gloo_group(rank: int, size: int, meet: Callable[[bytes], list[bytes]], hosts: Sequence[str], timeout: float) -> Any:
    """Connect the ranks of a job by gloo and return the group: one of torch's engines that torch knows nothing of.

    Gloo listens on loopback where all ranks share a host. Otherwise on the interface that ``GLOO_SOCKET_IFNAME``
    names, as in torch; or on that which leads to where the ranks met.

    Raises
    ------
    DistNetworkError
        If the ranks cannot be connected.
    """
    if not torch_dist.is_available() or not torch_dist.is_gloo_available():
        raise ImportError("this build of torch has no gloo")
    store = _MeetingStore(meet)
    options = torch_dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=min(timeout, 1e8))
    try:
        options._devices = [_device(hosts, getattr(meet, "address", ""))]
        return torch_dist.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        if store.error is not None:
            raise store.error from None
        raise DistNetworkError(
            f"init_process_group on rank {rank}: gloo could not connect the ranks: {error}. Ranks of several hosts "
            "must reach each other by TCP; GLOO_SOCKET_IFNAME names the interface to use."
        ) from error


def _device(hosts: Sequence[str], met_at: str) -> Any:
    make = torch_dist.ProcessGroupGloo.create_device
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        return make(interface=interface.split(",")[0], lazy_init=False)
    if len(set(hosts)) == 1:
        return make(hostname="127.0.0.1", lazy_init=False)
    address = _address_towards(urlsplit(met_at).hostname or os.environ.get("MASTER_ADDR", ""))
    if address is not None:
        return make(hostname=address, lazy_init=False)
    return torch_dist.ProcessGroupGloo.create_default_device(lazy_init=False)


def _address_towards(host: str) -> str | None:
    """Return this host's address on the way to another, or to itself; ``None`` if there is no way."""
    try:
        for family, kind, protocol, _, target in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM) if host else ():
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # of datagrams: nothing is sent
                address: str = probe.getsockname()[0]
                return None if address.startswith("127.") or address == "::1" else address
    except OSError:
        pass
    return None


def gloo_of(group: Any) -> Any:
    """Return the engine that serves CPU tensors in a group of torch's.

    Raises
    ------
    ValueError
        If it has none, or another one than gloo.
    """
    if isinstance(group, torch_dist.ProcessGroupGloo):
        return group
    if not isinstance(group, torch_dist.ProcessGroup):
        raise TypeError(
            f"from_torch: group must be a ProcessGroup of torch.distributed, got {type(group).__qualname__}"
        )
    try:
        engine = group._get_backend(torch.device("cpu"))
    except RuntimeError as error:
        raise ValueError(
            "from_torch: this group of torch's takes no CPU tensors, by which corral talks in it; make it with "
            f"backend='gloo' or 'cpu:gloo,cuda:nccl' ({error})"
        ) from error
    if not isinstance(engine, torch_dist.ProcessGroupGloo):
        raise ValueError(
            f"from_torch: corral talks by gloo in groups of torch's, but CPU tensors of this one go by "
            f"{engine.name()!r}; make it with backend='gloo' or 'cpu:gloo,cuda:nccl'"
        )
    return engine


def exchange_hosts(engine: Any, mine: str, timeout: float) -> list[str]:
    """Tell all ranks of a group of torch's the name of this one's host; return the names of all."""
    data = mine.encode()
    if len(data) > _NAME_BYTES - 2:
        raise DistBackendError(f"from_torch: the name of this host is too long: {mine!r}")
    sent = torch.zeros(_NAME_BYTES, dtype=torch.uint8)
    sent[: len(data) + 2] = torch.frombuffer(bytearray(len(data).to_bytes(2, "little") + data), dtype=torch.uint8)
    got = [torch.empty_like(sent) for _ in range(engine.size())]
    engine.allgather([got], [sent]).wait(timedelta(seconds=min(timeout, 1e8)))
    told = [tensor.numpy().tobytes() for tensor in got]
    return [data[2 : 2 + int.from_bytes(data[:2], "little")].decode() for data in told]
