"""From the arguments of collectives to what is carried out.

A rank that cannot use its own arguments makes the call fail on all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from corral import _core
from corral.backends.base import Buffer, Reduction
from corral.backends.messages.exchanges import Exchange, Pattern
from corral.backends.messages.job import Job
from corral.backends.messages.reducing import Reduce, Result
from corral.backends.messages.rounds import Ledger
from corral.backends.shm_names import LABELS, REDUCTIONS

__all__ = ["READ", "UPDATE", "WRITE", "Maker"]

READ, WRITE, UPDATE = range(3)  # as in corral._core.Memory


class Maker:
    """Makes the collectives of one group.

    Parameters
    ----------
    job, ledger
        The job, and the group's collectives.
    refuse
        Called with the name of a call whose arguments this rank refuses, before the error is raised.
    """

    def __init__(self, job: Job, ledger: Ledger, refuse: Callable[[str], None]) -> None:
        self._job = job
        self._ledger = ledger
        self._refuse_call = refuse

    def _memory(self, operation: str, buffers: Sequence[Buffer], access: int) -> _core.Memory:
        """Look at buffers; if this rank cannot use them, the call fails on all ranks."""
        try:
            memory = _core.Memory(buffers, access)
            self._job.strays.check(memory)
            return memory
        except BaseException:
            self._refuse_call(operation)
            raise

    def payload(self, operation: str, payload: Any) -> _core.Memory:
        return self._memory(operation, payload if isinstance(payload, list) else [payload], READ)

    def payloads(self, operation: str, payloads: Sequence[Any] | None) -> list[_core.Memory]:
        self._check_list(operation, payloads)
        return [self.payload(operation, payload) for payload in payloads or ()]

    def _lists(self, operation: str, lists: Sequence[Sequence[Buffer]] | None, access: int) -> list[_core.Memory]:
        self._check_list(operation, lists)
        return [self._memory(operation, buffers, access) for buffers in lists or ()]

    def _check_list(self, operation: str, lists: Sequence[Any] | None) -> None:
        if lists is None or len(lists) != self._ledger.size:
            self._refuse(operation, "a list with an entry for each rank of the group is needed")

    def _refuse(self, operation: str, text: str) -> None:
        self._refuse_call(operation)
        raise ValueError(f"{operation}: {text}")

    def _check_own(self, operation: str, given: _core.Memory, taken: _core.Memory) -> None:
        if given.type != taken.type or given.nbytes != taken.nbytes:
            self._refuse(operation, "this rank's own part does not fit what it is to be received into")

    def barrier(self) -> Exchange:
        return Exchange(self._job, self._ledger, Pattern.NONE, LABELS["barrier"])

    def gather(
        self, buffers: Sequence[Buffer], into: Sequence[Sequence[Buffer]] | None, root: int, operation: str
    ) -> Exchange:
        gives = [self._memory(operation, buffers, READ)]
        takes = self._lists(operation, into, WRITE) if self._ledger.rank == root else []
        return Exchange(self._job, self._ledger, Pattern.TO_ROOT, LABELS[operation], gives, takes, root)

    def broadcast(self, buffers: Sequence[Buffer], root: int, operation: str) -> Exchange:
        memory = [self._memory(operation, buffers, READ if self._ledger.rank == root else WRITE)]
        gives, takes = (memory, []) if self._ledger.rank == root else ([], memory)
        return Exchange(self._job, self._ledger, Pattern.BROADCAST, LABELS[operation], gives, takes, root)

    def scatter(
        self, parts: Sequence[Sequence[Buffer]] | None, into: Sequence[Buffer], root: int, operation: str
    ) -> Exchange:
        gives = self._lists(operation, parts, READ) if self._ledger.rank == root else []
        takes = [self._memory(operation, into, WRITE)]
        if self._ledger.rank == root:
            self._check_own(operation, gives[root], takes[0])
        return Exchange(self._job, self._ledger, Pattern.SCATTER, LABELS[operation], gives, takes, root)

    def all_gather(self, buffers: Sequence[Buffer], into: list[Any] | Buffer, operation: str) -> Exchange:
        gives = self._memory(operation, buffers, READ)
        if isinstance(into, list):
            takes = self._lists(operation, into, WRITE)
        else:
            whole = self._memory(operation, [into], WRITE)
            part = whole.nbytes // self._ledger.size
            if part * self._ledger.size != whole.nbytes:
                self._refuse(operation, "the buffer to fill has no equal part for each rank")
            takes = [whole.part(rank * part, part) for rank in range(self._ledger.size)]
        self._check_own(operation, gives, takes[self._ledger.rank])
        return Exchange(self._job, self._ledger, Pattern.TO_ALL, LABELS[operation], [gives], takes)

    def all_to_all(
        self, parts: Sequence[Sequence[Buffer]], into: Sequence[Sequence[Buffer]], operation: str
    ) -> Exchange:
        takes, gives = self._lists(operation, into, WRITE), self._lists(operation, parts, READ)
        self._check_own(operation, gives[self._ledger.rank], takes[self._ledger.rank])
        return Exchange(self._job, self._ledger, Pattern.PAIRS, LABELS[operation], gives, takes)

    def of_bytes(
        self,
        pattern: Pattern,
        operation: str,
        gives: Sequence[_core.Memory],
        takes: Sequence[None],
        root: int = -1,
    ) -> Exchange:
        return Exchange(self._job, self._ledger, pattern, LABELS[operation], gives, takes, root, makes=True)

    def reduce(
        self, result: Result, buffers: Sequence[Buffer], reduction: Reduction, root: int, operation: str
    ) -> Reduce:
        gets = result == Result.EVERYWHERE or self._ledger.rank == root
        memory = self._memory(operation, buffers, UPDATE if gets else READ)
        self._check_reducible(operation, memory, reduction)
        return self._reduction(result, operation, [memory], memory if gets else None, reduction, root)

    def reduce_scatter(
        self, parts: Sequence[Sequence[Buffer]], into: Sequence[Buffer], reduction: Reduction, operation: str
    ) -> Reduce:
        taken = self._memory(operation, into, WRITE)
        self._check_reducible(operation, taken, reduction)
        given = self._lists(operation, parts, READ)
        self._check_own(operation, given[self._ledger.rank], taken)
        return self._reduction(Result.SCATTERED, operation, given, taken, reduction)

    def _reduction(
        self,
        result: Result,
        operation: str,
        parts: Sequence[_core.Memory],
        into: _core.Memory | None,
        reduction: Reduction,
        root: int = -1,
    ) -> Reduce:
        number = REDUCTIONS[reduction.op]
        label = LABELS[operation]
        return Reduce(self._job, self._ledger, result, label, parts, into, number, reduction.factor, root)

    def _check_reducible(self, operation: str, memory: _core.Memory, reduction: Reduction) -> None:
        if not all(_core.reducible(kind, REDUCTIONS[reduction.op]) for kind, _ in memory.runs):
            self._refuse_call(operation)
            raise TypeError(f"{operation}: the reduction has no meaning for this dtype")
