"""Trees whose leaves are rows: gathered in one call where they fit as they are."""

from __future__ import annotations

from typing import Any

from corral import _core
from corral.backends.messages.exchanges import Exchange, Pattern
from corral.backends.messages.job import Job
from corral.backends.messages.rounds import Ledger
from corral.backends.shm_names import LABELS

__all__ = ["Rows"]

_MOST_SENDERS = 256  # trees whose senders' batch sizes are remembered
_STRUCTURE = 8  # bytes of a fingerprint that say nothing of batch sizes


class Rows:
    """The gathers of rows of one group."""

    def __init__(self, job: Job, ledger: Ledger) -> None:
        self._job = job
        self._ledger = ledger
        self._senders: dict[bytes, bytes] = {}

    def round(self, tree: Any, root: int, operation: str) -> Exchange:
        """Return the gather of a tree's leaves, or into its rows.

        What this rank cannot read or write as it is goes by a fingerprint that fits nobody's: all ranks then learn that
        they must negotiate, where errors have names.
        """
        size, rank = self._ledger.size, self._ledger.rank
        print_ = b"\xff" * 8 + (rank + 1).to_bytes(8, "little")
        gives: list[_core.Memory] = []
        takes: list[_core.Memory | None] = []
        structure = b""
        if rank == root:
            takes = [None] * size
            rows = _core.flatten_rows(tree, size - 1)
            if rows is not None:
                takes = [*rows[0][:root], None, *rows[0][root:]]
                structure = rows[1][:_STRUCTURE]
                print_ = self._senders.get(structure, rows[2])
        else:
            flat = _core.flatten(tree)
            if flat is None:
                gives = [_core.Memory([], 0)]
            else:
                gives, print_ = [flat[0]], flat[1]
        label = LABELS[operation]
        round_ = Exchange(self._job, self._ledger, Pattern.TO_ROOT, label, gives, takes, root, print=print_)
        round_.structure = structure
        return round_

    def fitted(self, round_: Exchange) -> bool:
        """Whether the rows have been gathered.

        If not, the senders' batch sizes are learned from them: the next time they need not negotiate.
        """
        if not round_.fit and round_.structure:
            first = round_.prints[0]
            if first.startswith(round_.structure) and all(each == first for each in round_.prints):
                if len(self._senders) >= _MOST_SENDERS:
                    self._senders.clear()
                self._senders[round_.structure] = first
        return round_.fit
