"""The cases that every communicator does alike, written over the operations that it prepares."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from benchmarks.peers.contender import ROOT, Communicator, Job, Jobs, Message
from benchmarks.workloads import Leaf, Workload

__all__ = ["JOBS"]


def _same(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    if not np.array_equal(got, expected):
        raise AssertionError(f"{what}: wrong values arrived")


class PingPong(Job):
    """`send` and `recv` of one array, there and back, between each even rank and the next one."""

    steps_per_call = 2

    def __init__(self, ranks: Communicator, workload: Workload) -> None:
        self.rank, self.workload, self.peer = ranks.rank, workload, ranks.rank ^ 1
        self.out, self.into = workload.rows(self.rank), workload.stack(1)
        (sent,), ((received,),) = self.out.values(), self.into.values()
        send, receive = ranks.sending(sent, self.peer), ranks.receiving(received, self.peer)

        def first() -> None:
            send()
            receive()

        def second() -> None:
            receive()
            send()

        self.step = first if self.rank < self.peer else second

    def verify(self, version: int) -> None:
        """Compare what came with what the peer sends."""
        self.workload.fill(self.out, self.rank, version)
        self.step()
        self.workload.check(self.into, range(self.peer, self.peer + 1), version)


class Ring(Job):
    """A batch of tagged messages from every rank to the next one, one for each leaf."""

    def __init__(self, ranks: Communicator, workload: Workload) -> None:
        self.rank, self.workload = ranks.rank, workload
        self.before, after = (ranks.rank - 1) % ranks.size, (ranks.rank + 1) % ranks.size
        self.out, self.into = workload.rows(self.rank), workload.stack(1)
        sent: list[Message] = [(array, after, tag) for tag, array in enumerate(self.out.values())]
        received: list[Message] = [(row[0], self.before, tag) for tag, row in enumerate(self.into.values())]
        self.step = ranks.exchanging(sent, received)

    def verify(self, version: int) -> None:
        """Compare every message with what the rank before sends under its tag."""
        self.workload.fill(self.out, self.rank, version)
        self.step()
        self.workload.check(self.into, range(self.before, self.before + 1), version)


class GatherObject(Job):
    """`gather_object` of a dict: of a small one, or with the workload's arrays in it."""

    def __init__(self, ranks: Communicator, workload: Workload) -> None:
        self.ranks = ranks
        self.arrays = workload if workload.name.startswith("dict") else None
        self.step = ranks.gathering_objects(self._object(ranks.rank, 0))

    def _object(self, rank: int, version: int) -> dict[str, Any]:
        """Return the kind of thing that workers report beside their arrays."""
        report: dict[str, Any] = {
            "worker": rank,
            "episode": 1000 * version + rank,
            "return": 12.5 * (rank + 1) + version,
            "environment": "CartPole-v1",
            "lengths": [17 + rank, 230, 9 + version],
        }
        if self.arrays is not None:
            report |= {key[-1]: self.ranks.leaf(array) for key, array in self.arrays.rows(rank, version).items()}
        return report

    def verify(self, version: int) -> None:
        """Compare every object."""
        got = self.ranks.gather_objects(self._object(self.ranks.rank, version))
        if self.ranks.rank != ROOT:
            return
        assert got is not None
        expected = [self._object(rank, version) for rank in range(self.ranks.size)]
        if self.arrays is not None:
            for mine, theirs in zip(expected, got, strict=True):
                for *_, name in self.arrays.leaves:
                    # As bytes: the arrays' random values include NaNs.
                    values, came = (np.asarray(report.pop(name)).view(np.uint8) for report in (mine, theirs))
                    _same(came, values, f"gather_object, {name!r} of rank {mine['worker']}")
        assert got == expected


class Barrier(Job):
    """`barrier`."""

    def __init__(self, ranks: Communicator, workload: Workload) -> None:
        self.ranks, self.step = ranks, ranks.waiting()

    def verify(self, version: int) -> None:
        """Let one rank come late: nobody may leave before it came. All ranks read the same clock."""
        if self.ranks.rank == version % self.ranks.size:
            time.sleep(0.02)
        came = time.monotonic()
        self.step()
        times = self.ranks.gather_objects((came, time.monotonic()))
        if times is not None:
            assert max(came for came, _ in times) <= min(left for _, left in times), "a rank left before all had come"


class Broadcast(Job):
    """`broadcast` of one array, from the first and the last rank in turn.

    A root may return as soon as it has handed its data over. Were it always the same one, it would run ahead, and
    the time would be that of many broadcasts in flight; as it is, the next root has to receive first.
    """

    def __init__(self, ranks: Communicator, workload: Workload) -> None:
        self.rank, self.roots = ranks.rank, (0, ranks.size - 1)
        (self.leaf,) = workload.leaves.values()
        self.array = np.zeros(self.leaf.shape, self.leaf.dtype)
        turns = itertools.cycle([ranks.broadcasting(self.array, root) for root in self.roots])
        self.step = lambda: next(turns)()

    def verify(self, version: int) -> None:
        """Compare what came from each root."""
        for root in self.roots:
            self.array[...] = self.leaf.numbers(version, self.rank)
            self.step()
            _same(self.array, self.leaf.numbers(version, root), f"broadcast from rank {root}")


class Gather(Job):
    """`gather` of one array from each rank, to the first and the last rank in turn, as for a broadcast."""

    def __init__(self, ranks: Communicator, workload: Workload) -> None:
        self.rank, self.roots = ranks.rank, (0, ranks.size - 1)
        (self.leaf,) = workload.leaves.values()
        self.array = np.zeros(self.leaf.shape, self.leaf.dtype)
        self.rows = np.zeros((ranks.size, *self.leaf.shape), self.leaf.dtype)
        turns = itertools.cycle([ranks.gathering(self.rows, self.array, root) for root in self.roots])
        self.step = lambda: next(turns)()

    def verify(self, version: int) -> None:
        """Compare what came to each root."""
        for root in self.roots:
            self.array[...] = self.leaf.numbers(version, self.rank)
            self.rows[...] = 0
            self.step()
            for rank, row in enumerate(self.rows) if self.rank == root else ():
                _same(row, self.leaf.numbers(version, rank), f"gather to rank {root}, array of rank {rank}")


class AllReduce(Job):
    """`all_reduce` of one array, by SUM, in place."""

    def __init__(self, ranks: Communicator, workload: Workload) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        (self.leaf,) = workload.leaves.values()
        self.array = np.zeros(self.leaf.shape, self.leaf.dtype)
        self.step = ranks.all_reducing(self.array)

    def verify(self, version: int) -> None:
        """Compare with the sum, which is exact in any order: the values are small whole numbers."""
        self.array[...] = self.leaf.numbers(version, self.rank)
        self.step()
        _same(self.array, self.leaf.total(version, self.size), "all_reduce")
        self.array[...] = 0  # or repeating it would overflow


class AllGather(Job):
    """`all_gather_into_tensor` of equal shares of one array."""

    def __init__(self, ranks: Communicator, workload: Workload) -> None:
        (whole,) = workload.leaves.values()
        self.rank, self.size = ranks.rank, ranks.size
        self.share = Leaf((whole.shape[0] // ranks.size,), whole.dtype)
        self.into = np.zeros(whole.shape, whole.dtype)
        self.out = np.zeros(self.share.shape, whole.dtype)
        self.step = ranks.all_gathering(self.into, self.out)

    def verify(self, version: int) -> None:
        """Compare every rank's share."""
        self.out[...] = self.share.numbers(version, self.rank)
        self.step()
        for rank, row in enumerate(self.into.reshape(self.size, -1)):
            _same(row, self.share.numbers(version, rank), f"all_gather_into_tensor, share of rank {rank}")


JOBS: Jobs = {
    "send_recv": PingPong,
    "batch_isend_irecv": Ring,
    "gather_object": GatherObject,
    "barrier": Barrier,
    "broadcast": Broadcast,
    "gather": Gather,
    "all_reduce": AllReduce,
    "all_gather_into_tensor": AllGather,
}
"""The kinds of case that need no more than a :class:`Communicator`."""
