"""What ranks do with a transport alone, apart from the tests so that ranks start without pytest."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np

from tests.backends.jobs import finish, take, until


def bytes_of(sender: int, receiver: int, number: int, size: int) -> np.ndarray:
    """Bytes that both ends can compute, others for each frame and place."""
    seed = (sender * 31 + receiver) * 1009 + number
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def pieces_of(data: np.ndarray, bounds: list[int]) -> list[memoryview]:
    """Cut an array at some places."""
    return [memoryview(part) for part in np.split(data, bounds)]


def others(transport: Any) -> list[int]:
    return [rank for rank in range(transport.size) if rank != transport.rank]


def heads(transport: Any, count: int) -> None:
    """Send heads of all sizes to everyone, and check that theirs come complete and in order."""
    sizes = [(number * 997) % 5000 for number in range(count)]
    sizes[3], sizes[4] = 0, transport.head_limit
    assert transport.head_limit >= 4096
    transfers = [
        transport.send(rank, bytes_of(transport.rank, rank, number, sizes[number]).tobytes())
        for number in range(count)
        for rank in others(transport)
    ]
    got: dict[int, list[bytes]] = {rank: [] for rank in others(transport)}
    for arrival in take(transport, count * (transport.size - 1)):
        assert arrival.body_size == 0
        got[arrival.source].append(arrival.head)
    for rank, theirs in got.items():
        assert theirs == [bytes_of(rank, transport.rank, n, sizes[n]).tobytes() for n in range(count)]
    finish(transport, transfers)
    transport.close(10.0)


BODIES = [
    (1, [], []),
    (10, [3, 3, 4], [5]),
    (100_000, [1, 1000, 99_999], []),
    (3_000_000, [], [1_000_000, 1_500_000]),
    (5_000_000, [100, 200, 2_000_000, 4_999_999], [150, 2_000_000, 3_000_000]),
    (1_000_000, list(range(1000, 1_000_000, 1000)), list(range(1000, 1_000_000, 1000))),
    (8_000_000, list(range(20_000, 8_000_000, 20_000)), [7]),
]
"""Sizes of bodies, where the sender's memory is cut, and where the receiver's is."""


def bodies(transport: Any) -> None:
    """Send bodies of all sizes, differently cut at both ends, from memory of which every other is read-only."""
    transfers = []
    for number, (size, bounds, _) in enumerate(BODIES):
        for rank in others(transport):
            data = bytes_of(transport.rank, rank, number, size)
            data.flags.writeable = number % 2 == 0
            transfers.append(transport.send(rank, b"%d" % number, pieces_of(data, bounds)))
    arrivals = take(transport, len(BODIES) * (transport.size - 1))
    taken = []
    for arrival in reversed(arrivals):  # in whatever order the receiver likes
        number = int(arrival.head)
        size, _, bounds = BODIES[number]
        assert arrival.body_size == size
        memory = np.zeros(size + 2, np.uint8)
        transfers.append(transport.receive(arrival, pieces_of(memory[1:-1], bounds)))
        taken.append((arrival.source, number, memory))
    finish(transport, transfers)
    for source, number, memory in taken:
        assert np.array_equal(memory[1:-1], bytes_of(source, transport.rank, number, BODIES[number][0]))
        assert memory[0] == memory[-1] == 0
    transport.close(10.0)


def lose_one(transport: Any) -> str:
    """Rank 2 is killed; the others are told which, of what, and go on."""
    if transport.rank == 2:
        take(transport, 2)  # all are at work
        os.kill(os.getpid(), signal.SIGKILL)
    transport.send(2, b"at work")
    pending = transport.send(2, b"big", [memoryview(np.ones(1 << 24, np.uint8))])
    until(transport, lambda: 2 in transport.lost())
    assert sorted(transport.lost()) == [2]
    how = transport.lost()[2]
    until(transport, pending.done)
    assert pending.error() is not None
    late = transport.send(2, b"too late")
    until(transport, late.done)
    assert late.error() is not None
    peer = 1 - transport.rank
    data = bytes_of(transport.rank, peer, 0, 100_000)
    sent = transport.send(peer, b"still here", [memoryview(data)])
    (arrival,) = take(transport, 1)
    assert (arrival.source, arrival.head) == (peer, b"still here")
    memory = np.zeros(arrival.body_size, np.uint8)
    finish(transport, [sent, transport.receive(arrival, [memoryview(memory)])])
    assert np.array_equal(memory, bytes_of(peer, transport.rank, 0, 100_000))
    transport.close(10.0)
    return how


def say_and_leave(transport: Any, count: int) -> None:
    """Rank 1 sends and closes at once; rank 0 gets everything, then learns that it has left."""
    if transport.rank == 1:
        for number in range(count):
            transport.send(0, b"%d" % number)
        transport.close(10.0)
        return
    until(transport, lambda: 1 in transport.lost())
    assert "left the job" in transport.lost()[1]
    assert [int(arrival.head) for arrival in take(transport, count)] == list(range(count))
    transport.close(10.0)


def wake(transport: Any) -> None:
    """A wait ends when another thread says so, even if it said so before; one of no one's ends by itself."""
    if transport.rank == 0:
        transport.wake()
        before = time.monotonic()
        transport.wait(60.0)
        threading.Timer(0.2, transport.wake).start()
        transport.wait(60.0)
        assert time.monotonic() - before < 50.0
        used = time.process_time()
        deadline = time.monotonic() + 1.0
        while (left := deadline - time.monotonic()) > 0:
            transport.wait(left)
        assert time.process_time() - used < 0.5  # it sleeps
        transport.send(1, b"enough")
    else:
        take(transport, 1)
    transport.close(10.0)


def no_hosts_differ(transport: Any) -> list[str]:
    """Return the names of all ranks' hosts."""
    hosts = list(transport.hosts)
    transport.close(10.0)
    return hosts


def huge(transport: Any, size: int) -> None:
    """Move a body of more than 2 GiB, in two pieces."""
    if transport.rank == 0:
        data = np.zeros(size, np.uint8)
        data[:: 1 << 20] = np.arange(len(data[:: 1 << 20])) % 251
        data[-1] = 77
        finish(transport, [transport.send(1, b"huge", [memoryview(data[:100]), memoryview(data[100:])])])
    else:
        (arrival,) = take(transport, 1)
        assert arrival.body_size == size
        memory = np.empty(size, np.uint8)
        finish(transport, [transport.receive(arrival, [memoryview(memory)])])
        marks = memory[:: 1 << 20]
        assert np.array_equal(marks, (np.arange(len(marks)) % 251).astype(np.uint8))
        assert memory[-1] == 77
        assert np.count_nonzero(memory[1 : 1 << 20]) == 0
    transport.close(60.0)


def exit_without_a_word(transport: Any) -> dict[int, str]:
    """All but rank 0 end without closing, and what they sent arrives; rank 0 sees that they have ended."""
    if transport.rank != 0:
        transport.send(0, b"last words")
        return {}
    arrivals = take(transport, transport.size - 1)
    assert sorted(arrival.source for arrival in arrivals) == others(transport)
    assert all(arrival.head == b"last words" for arrival in arrivals)
    until(transport, lambda: sorted(transport.lost()) == others(transport))
    lost = dict(transport.lost())
    transport.close(10.0)
    return lost
