"""A transport within one process, whose frames a test can look at, hold back, make up and lose."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from corral.backends.messages import Arrival, MessageBackend, Transport
from corral.backends.messages.frames import Frame, decode

__all__ = ["Net", "run"]


class _Done:
    def done(self):
        return True

    def error(self):
        return None


class Net:
    """What connects the ranks.

    Attributes
    ----------
    log : list of (int, int, Frame, int)
        Every frame sent: from whom, to whom, its head, and the size of its body.
    holds : callable
        Given sender, receiver and head, whether a frame is to wait until `release`; and all that follow it with it.
    """

    def __init__(self, hosts: list[str]) -> None:
        self.hosts = hosts
        self.change = threading.Condition()
        self.inboxes: list[deque[Arrival]] = [deque() for _ in hosts]
        self.rings = [False] * len(hosts)
        self.lost: dict[int, str] = {}
        self.log: list[tuple[int, int, Frame, int]] = []
        self.held: list[tuple[int, Arrival]] = []
        self.holds: Callable[[int, int, Frame], bool] = lambda source, target, frame: False

    def put(self, source: int, target: int, head: bytes, body: bytes = b"") -> None:
        """Bring a frame to a rank."""
        arrival = Arrival(source, bytes(head), len(body), body)
        with self.change:
            try:
                frame = decode(arrival.head)
            except ValueError:
                frame = None
            if frame is not None:
                self.log.append((source, target, frame, len(body)))
                follows = any(arrival.source == source and to == target for to, arrival in self.held)
                if follows or self.holds(source, target, frame):
                    self.held.append((target, arrival))
                    return
            self.inboxes[target].append(arrival)
            self.change.notify_all()

    def release(self) -> None:
        """Let go of what was held back, and hold nothing any more."""
        with self.change:
            self.holds = lambda source, target, frame: False
            for target, arrival in self.held:
                self.inboxes[target].append(arrival)
            self.held.clear()
            self.change.notify_all()

    def lose(self, rank: int, how: str) -> None:
        """Make a rank unreachable."""
        with self.change:
            self.lost = {**self.lost, rank: how}
            self.change.notify_all()


class Wire(Transport):
    """One rank's end."""

    name, head_limit = "wire", 4096

    def __init__(self, net: Net, rank: int) -> None:
        self.net, self.rank, self.size, self.hosts = net, rank, len(net.hosts), net.hosts

    def send(self, dst, head, body=()):
        self.net.put(self.rank, dst, head, b"".join(body))
        return _Done()

    def arrivals(self):
        with self.net.change:
            inbox = self.net.inboxes[self.rank]
            arrived = list(inbox)
            inbox.clear()
        return arrived

    def receive(self, arrival, into):
        start = 0
        assert sum(map(len, into)) == arrival.body_size
        for piece in into:
            piece[:] = arrival.handle[start : start + len(piece)]
            start += len(piece)
        return _Done()

    def wait(self, seconds):
        with self.net.change:
            known = len(self.net.lost)
            self.net.change.wait_for(
                lambda: self.net.inboxes[self.rank] or self.net.rings[self.rank] or len(self.net.lost) != known,
                seconds,
            )
            self.net.rings[self.rank] = False

    def wake(self):
        with self.net.change:
            self.net.rings[self.rank] = True
            self.net.change.notify_all()

    def lost(self):
        return {rank: how for rank, how in self.net.lost.items() if rank != self.rank}

    def close(self, timeout):
        pass


def run(function: Callable[..., Any], hosts: list[str], timeout: float = 20.0) -> list[Any]:
    """Call ``function(backend, net)`` for each rank, in a thread of its own; return what each returned."""
    net = Net(hosts)
    results: list[Any] = [None] * len(hosts)
    errors: list[BaseException] = []

    def rank_thread(rank: int) -> None:
        try:
            backend = MessageBackend.over(Wire(net, rank), timeout)
            results[rank] = function(backend, net)
            if rank not in net.lost:
                backend.close()
        except BaseException as error:
            errors.append(error)
            net.lose(rank, "has failed in the test")

    threads = [threading.Thread(target=rank_thread, args=(rank,), daemon=True) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * timeout)
        assert not thread.is_alive(), errors
    if errors:
        raise errors[0]
    return results
