"""The launchers of a job on several hosts: they meet, and end together.

The launcher of the first host serves a store, which only processes that know the job's secret can use. In it the
launchers tell each other how many ranks each has, and how the job ended: the first to know sets that, or the store
itself does when a launcher's connection breaks.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from corral.distributed.addresses import listening_address
from corral.distributed.errors import DistError, StoreTimeoutError
from corral.distributed.host_meeting import Party, meet_in, see_off
from corral.distributed.stores import TCPStore
from corral.processes import GRACE, Job, Share, free_port

__all__ = ["End", "Hosts", "parse_address"]

_LAUNCHERS = Party("launchers", "host", "--nnodes", again=False)
_END, _THROUGH, _CLOSED = "launchers/end", "launchers/through", "launchers/closed"
_A_DAY = 86400.0


class End(NamedTuple):
    """How a job ended: with which exit code, and why, if not well."""

    code: int
    why: str

    def encode(self) -> bytes:
        return json.dumps([self.code, self.why]).encode()

    @classmethod
    def decode(cls, said: bytes) -> End:
        code, why = json.loads(said)
        return cls(int(code) & 0xFF, str(why))


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and port of ``HOST:PORT``, where an IPv6 address stands in brackets.

    Examples
    --------
    >>> parse_address("node7:29500"), parse_address("[fd00::1]:29500")
    (('node7', 29500), ('fd00::1', 29500))
    """
    parts = urlsplit(f"tcp://{text}")
    if not parts.hostname or parts.port is None or parts.path or parts.port == 0:
        raise ValueError(f"must be HOST:PORT, with the address or name of the first host, got {text!r}")
    return parts.hostname, parts.port


class Hosts:
    """All launchers of a job, seen from one of them.

    Parameters
    ----------
    node, nodes
        Which of how many hosts this is. The first, 0, serves the store.
    host, port
        Where.
    ranks
        How many ranks this host will have.
    patience
        Seconds to wait for the other launchers.

    Raises
    ------
    DistError
        If they do not come, or this one is not let in.
    """

    def __init__(self, node: int, nodes: int, host: str, port: int, ranks: int, patience: float) -> None:
        self.node = node
        self.end: End | None = None
        self._lost = False  # the store
        at = listening_address(host) if node == 0 else host
        self._store = TCPStore(at, port, is_master=node == 0, timeout=patience)
        try:
            self.job = self._meet(nodes, host, port, ranks, patience)
            self._store.leave_word(_END, End(1, f"the launcher of {self.name} is gone").encode())
        except BaseException:
            if node == 0:
                see_off(self._store, _LAUNCHERS)
            self._store.close()
            raise
        self._nodes = nodes
        self._ready, self._told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._watch = self._store.clone()  # waits for ever, and is hung up to end that
        self._watcher = threading.Thread(target=self._await_end, name="corral-run-hosts", daemon=True)
        self._watcher.start()

    @property
    def name(self) -> str:
        """What messages call this host."""
        return f"host {self.node} ({socket.gethostname()})"

    def _meet(self, nodes: int, host: str, port: int, ranks: int, patience: float) -> Job:
        mine: dict[str, Any] = {"ranks": ranks}
        if self.node == 0:
            mine |= {"port": free_port(listening_address(host)), "token": secrets.token_hex(8)}
        where = f"the launchers of the {nodes} hosts cannot meet at {host}:{port}"
        said = meet_in(self._store, _LAUNCHERS, self.node, nodes, json.dumps(mine).encode(), patience, where)
        all_ = [json.loads(one) for one in said]
        counts = [int(one["ranks"]) for one in all_]
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        share = Share(self.node, nodes, sum(counts[: self.node]), ranks, host, place)
        return Job(sum(counts), int(all_[0]["port"]), str(all_[0]["token"]), share)

    def fileno(self) -> int:
        """Return a descriptor that can be read from when `end` is known."""
        return self._ready

    def _await_end(self) -> None:
        try:
            while True:
                try:
                    self._watch.wait([_END], _A_DAY)
                    break
                except StoreTimeoutError:
                    continue
            self.end = End.decode(self._watch.get(_END))
        except (DistError, ValueError) as error:
            self._lost = True
            self.end = End(1, f"the launcher of host 0 is gone ({error})")
        finally:
            os.write(self._told, b"x")

    def tell(self, end: End) -> None:
        """Tell the others how the job ended, unless that is known."""
        with contextlib.suppress(DistError):  # nobody is there to be told, as the watcher finds
            self._store.compare_set(_END, "", end.encode())

    def through(self) -> None:
        """Say that all ranks of this host have ended well; the last to say so ends the job."""
        with contextlib.suppress(DistError):
            if self._store.add(_THROUGH, 1) == self._nodes:
                self.tell(End(0, ""))

    def close(self) -> None:
        """Leave. The first host's launcher goes last, so that the others have heard how the job ended."""
        if not self._lost:
            with contextlib.suppress(DistError):
                left = self._store.add(_CLOSED, 1)
                deadline = time.monotonic() + GRACE  # for those that are there: some may have been killed
                while self.node == 0 and left < self._nodes and time.monotonic() < deadline:
                    time.sleep(0.02)
                    left = self._store.add(_CLOSED, 0)
        self._watch.close()
        self._watcher.join()
        self._store.close()
        os.close(self._ready)
        os.close(self._told)
