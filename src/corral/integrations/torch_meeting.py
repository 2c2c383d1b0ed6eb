"""How the ranks of a group of torch's come to share an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from corral.distributed.engines import join
from corral.distributed.errors import DistTimeoutError

if TYPE_CHECKING:
    from corral.backends.base import Backend

__all__ = ["Descent", "meet"]


class Descent:
    """The groups that are split from one engine, each with a name that none had before.

    Parameters
    ----------
    backend
        The engine of all ranks.
    ranks
        Their global ranks.
    """

    def __init__(self, backend: Backend, ranks: Sequence[int]) -> None:
        self.backend = backend
        self.position = {rank: position for position, rank in enumerate(ranks)}
        self._made: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def covers(self, ranks: Sequence[int]) -> bool:
        """Whether a group of these ranks can be split off: all are in it, and it has not ended."""
        return all(rank in self.position for rank in ranks)

    def split(self, ranks: Sequence[int], name: str, timeout: float) -> Backend:
        """Make the engine of some of the ranks, without talking to anyone.

        Torch gives a name anew once its group is destroyed. As all members destroy and make the same groups, each
        counts the same.
        """
        key = (name, tuple(ranks))
        count = self._made[key]
        self._made[key] += 1
        return self.backend.split([self.position[rank] for rank in ranks], f"torch {name} {count}", timeout)


def meet(store: Any, ranks: Sequence[int], rank: int, timeout: float) -> Backend:
    """Make an engine of ranks that meet in a store: shared memory where all are on one host, else a hybrid.

    Parameters
    ----------
    store
        The one that torch made for the group.
    ranks
        The members' global ranks.
    rank
        Which of them this process is.
    timeout
        Seconds to wait for the others, and for operations later.
    """

    def exchange(payload: bytes) -> list[bytes]:
        # What an earlier group of the same name left in the store must not be taken for what this one's ranks say.
        meeting = store.add(f"corral/meetings/{rank}", 1)
        keys = [f"corral/meeting/{meeting}/{other}" for other in range(len(ranks))]
        store.set(keys[rank], payload)
        try:
            store.wait(keys, timedelta(seconds=timeout))
        except dist.DistStoreError as error:
            missing = [ranks[i] for i, key in enumerate(keys) if not store.check([key])]
            raise DistTimeoutError(
                f"init_process_group on rank {ranks[rank]}: ranks {missing} have not come to make a group of torch's "
                f"backend 'corral' within {timeout:g} s. Start them, or allow more time with timeout=."
            ) from error
        return [bytes(store.get(key)) for key in keys]

    backend = join(None, rank, len(ranks), exchange, timeout)
    job: Any = backend.job  # type: ignore[attr-defined]
    job.global_ranks = dict(enumerate(ranks))  # what errors call them
    return backend
