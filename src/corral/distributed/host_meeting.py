"""How ranks of several hosts find each other, and exchange a few bytes: in a store that one process serves.

Rank 0 serves it for as long as the meeting lasts; or, where `corral run` started the ranks, its launcher on the first
host does. Only processes that know the job's secret come in, see :mod:`corral.distributed.stores.tcp_wire`.

Each comer leaves its bytes in the store and waits for the verdict on the meeting, of which there is one for all: the
last to come, whoever finds that something is wrong, or the store itself, when the connection of one that has come
breaks, is the first to set it.
"""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from typing import NamedTuple
from urllib.parse import urlsplit

from corral.distributed import meeting_wire as wire
from corral.distributed.addresses import listening_address
from corral.distributed.errors import (
    DistBackendError,
    DistNetworkError,
    DistTimeoutError,
    MismatchError,
    PeerLostError,
    StoreTimeoutError,
)
from corral.distributed.meeting_wire import Malformed
from corral.distributed.mpi_meeting import meet_by_mpi
from corral.distributed.stores import TCPStore

__all__ = ["Party", "meet_in", "meet_over_hosts", "see_off"]

_PAUSE = 0.02  # seconds before another attempt to come to a meeting that has not begun
_LAST_WORDS = 5.0  # seconds that the server of a meeting waits for the others to hear the verdict
_AT_A_TIME = 32  # payloads in one answer of the store
_ALL_CAME = b"all"  # as a verdict; any other is an error


class Party(NamedTuple):
    """What those who meet are called in messages, and under which name they do in the store."""

    name: str
    noun: str = "rank"
    size: str = "world_size"
    again: bool = True
    """Whether they may meet again in the same store."""


def meet_over_hosts(address: str, rank: int, world_size: int, payload: bytes, timeout: float) -> list[bytes]:
    """Wait for all ranks of a job on several hosts and return the bytes that each of them brought.

    Parameters
    ----------
    address
        ``tcp://host:port``, where rank 0 serves the store, or ``store://host:port``, where there is one; or
        ``torchrun://host:port``, where there is one of torch's; or ``mpi://...``, where MPI has started the ranks.
    rank, world_size, payload, timeout
        As for `corral.distributed.rendezvous.meet`, which also says what is raised.
    """
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or 0
    party = Party(f"ranks{parts.fragment}")
    deadline = time.monotonic() + timeout
    where = f"cannot meet at {address}"
    if parts.scheme == "mpi":
        return meet_by_mpi(rank, world_size, payload, timeout, where)
    if parts.scheme == "torchrun":
        return _meet_in_torchs(host, port, party, rank, world_size, payload, timeout, where)
    if parts.scheme == "store":
        store = TCPStore(host, port, timeout=timeout)
        with contextlib.closing(store):
            return meet_in(store, party, rank, world_size, payload, timeout, where)
    if rank == 0:
        try:
            store = TCPStore(listening_address(host), port, is_master=True, timeout=timeout)
        except DistNetworkError as error:
            raise DistNetworkError(f"{where}: {error}") from error
        with contextlib.closing(store):
            try:
                return meet_in(store, party, rank, world_size, payload, timeout, where)
            finally:
                see_off(store, party)
    while True:
        with contextlib.closing(_reach(host, port, deadline, timeout, where, world_size)) as store:
            if _is_over(store, party):
                time.sleep(_PAUSE)
                continue
            try:
                return meet_in(store, party, rank, world_size, payload, timeout, where)
            except _Ended as error:
                raise PeerLostError(f"{where}: rank 0 was gone before all had come ({error})", (0,)) from error


def meet_in(
    store: TCPStore, party: Party, number: int, size: int, payload: bytes, timeout: float, where: str
) -> list[bytes]:
    """Come to a meeting in a store as number `number` of `size`; return everyone's payloads, in their order.

    Parameters
    ----------
    store
        A store of this meeting's alone: it is used to tell the others when this process is gone.
    party
        What meets there.
    number, size, payload, timeout
        Which of how many this is, what it brings, and how many seconds it waits for the others.
    where
        How messages begin.
    """
    meeting = store.add(f"{party.name}/{number}", 1)
    before = _verdict(party, meeting - 1)
    if meeting > 1 and not (party.again and store.check([before])):
        store.add(f"{party.name}/{number}", -1)
        raise MismatchError(
            f"{where}: {party.noun} {number} has already come; were two processes given the same number, or does "
            "another job use the same address?"
        )
    try:
        return _Meeting(store, party, meeting, size, where).attend(number, payload, timeout)
    except StoreTimeoutError as error:
        raise DistTimeoutError(f"{where}: {error}") from error
    except DistBackendError:  # the verdict
        raise
    except DistNetworkError as error:
        raise _Ended(f"{where}: {error}") from error
    except (Malformed, ValueError) as error:
        raise DistNetworkError(f"{where}: what is in the store does not speak as a corral job ({error})") from error


class _Ended(DistNetworkError):
    """The store is gone."""


class _Meeting:
    """One of the meetings of a party in a store."""

    def __init__(self, store: TCPStore, party: Party, meeting: int, size: int, where: str) -> None:
        self.store = store
        self.party = party
        self.size = size
        self.where = where
        self.name = f"{party.name}.{meeting}"
        self.verdict = _verdict(party, meeting)

    def attend(self, number: int, payload: bytes, timeout: float) -> list[bytes]:
        noun, store = self.party.noun, self.store
        who = f"{noun} {number}"
        gone = PeerLostError(f"{self.where}: {who} came, and was gone before all had come", (number,))
        store.leave_word(self.verdict, wire.failure_body(gone))
        store.add(f"{self.name}/arrived", 1)
        first, size = store.compare_set(f"{self.name}/size", "", f"{number} {self.size}").split()
        if int(size) != self.size:  # said before this one is counted among those that have come
            called = self.party.size
            ours, theirs = f"{who} has {called}={self.size}", f"{noun} {int(first)} has {called}={int(size)}"
            self._conclude(wire.failure_body(MismatchError(f"{self.where}: {ours}, {theirs}")))
        store.set(self._place(number), payload)
        if store.add(f"{self.name}/come", 1) == self.size:
            self._conclude(_ALL_CAME)
        try:
            store.wait([self.verdict], timeout)
        except StoreTimeoutError:
            self._conclude(wire.failure_body(self._missing(f"after {timeout:g} s, the timeout of {who}")))
        store.leave_word(None)
        verdict = store.get(self.verdict)
        payloads = self._payloads() if verdict == _ALL_CAME else []
        if store.add(f"{self.name}/heard", 1) == self.size:
            for other in range(self.size):
                store.delete_key(self._place(other))
        store.add(f"{self.name}/left", 1)
        if verdict != _ALL_CAME:
            raise wire.parse_failure(verdict)
        return payloads

    def _place(self, number: int) -> str:
        return f"{self.name}/{number}"

    def _conclude(self, verdict: bytes) -> None:
        """Set the verdict, unless there is one."""
        self.store.compare_set(self.verdict, "", verdict)

    def _missing(self, when: str) -> DistTimeoutError:
        there = set(self.store.list_keys())
        missing = [number for number in range(self.size) if self._place(number) not in there]
        what = f"{wire.ranks_text(missing, self.party.noun)} of {self.size} never came"
        return DistTimeoutError(f"{self.where}: the meeting timed out {when}: {what}")

    def _payloads(self) -> list[bytes]:
        payloads: list[bytes] = []
        for start in range(0, self.size, _AT_A_TIME):
            some = range(start, min(start + _AT_A_TIME, self.size))
            payloads += self.store.multi_get([self._place(number) for number in some])
        return payloads


def _meet_in_torchs(
    host: str, port: int, party: Party, rank: int, size: int, payload: bytes, timeout: float, where: str
) -> list[bytes]:
    """Meet in the store that torchrun serves for its ranks; who gets in there is torch's affair."""
    from torch.distributed import TCPStore as TorchStore

    deadline = time.monotonic() + timeout
    try:
        store = TorchStore(host, port, None, False, timedelta(seconds=timeout))
        name = f"corral/{party.name}.{store.add(f'corral/{party.name}/{rank}', 1)}"
        store.set(f"{name}/{rank}", payload)
        keys = [f"{name}/{other}" for other in range(size)]
        try:
            store.wait(keys, timedelta(seconds=max(0.001, deadline - time.monotonic())))
        except RuntimeError as error:
            missing = [other for other in range(size) if not store.check([keys[other]])]
            what = f"{wire.ranks_text(missing)} of {size} never came"
            raise DistTimeoutError(f"{where}: the meeting timed out after {timeout:g} s: {what}") from error
        return [bytes(store.get(key)) for key in keys]
    except DistTimeoutError:
        raise
    except RuntimeError as error:
        raise DistNetworkError(f"{where}: torchrun's store failed: {error}") from error


def _verdict(party: Party, meeting: int) -> str:
    return f"{party.name}.{meeting}/verdict"


def see_off(store: TCPStore, party: Party, limit: float = _LAST_WORDS) -> None:
    """Wait, as the process that serves the store of a party's only meeting, until all who came have left."""
    name = f"{party.name}.1"
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if store.add(f"{name}/left", 0) >= store.add(f"{name}/arrived", 0):
            return
        time.sleep(_PAUSE)


def _is_over(store: TCPStore, party: Party) -> bool:
    """Whether a store is that of an earlier meeting, which rank 0 keeps until all have heard the verdict."""
    try:
        return store.check([_verdict(party, 1)])
    except DistNetworkError:  # they just have
        return True


def _reach(host: str, port: int, deadline: float, timeout: float, where: str, size: int) -> TCPStore:
    """Connect to the store that rank 0 serves."""
    try:
        return TCPStore(host, port, timeout=max(0.0, deadline - time.monotonic()))
    except DistNetworkError as error:
        if time.monotonic() < deadline:
            raise DistNetworkError(f"{where}: {error}") from error
        what = f"rank 0 of {size} never came, or could not be reached ({error})"
        raise DistTimeoutError(f"{where}: the meeting timed out after {timeout:g} s: {what}") from error
