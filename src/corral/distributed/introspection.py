"""What a program asks about its job and its process, beyond a group's ranks and size."""

from __future__ import annotations

import os
from typing import Any

from corral.distributed import setup
from corral.distributed.starters import starter_of

__all__ = ["default_pg_timeout", "get_node_local_rank", "get_pg_count", "is_torchelastic_launched", "supports_complex"]

default_pg_timeout = setup.DEFAULT_TIMEOUT
"""How long an operation may take in a group that was made without a timeout; a `datetime.timedelta`."""

_WITHOUT_COMPLEX = frozenset({"MIN", "MAX", "BAND", "BOR", "BXOR"})


def get_pg_count() -> int:
    """Return how many groups all ranks have made together since `init_process_group`.

    Mirrors ``torch.distributed.get_pg_count``: the default group counts, groups that have been destroyed and
    groups without this rank count, and groups made by their members alone do not.

    Examples
    --------
    >>> get_pg_count()
    0
    """
    return setup.groups_made()


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return which of its host's ranks this process is, as its launcher says in the environment.

    Mirrors ``torch.distributed.get_node_local_rank``.

    Parameters
    ----------
    fallback_rank
        What to return if the environment does not say it.

    Raises
    ------
    RuntimeError
        If the environment does not say it, and no `fallback_rank` is given.

    Examples
    --------
    >>> get_node_local_rank(fallback_rank=0)
    0
    """
    written = os.environ.get("LOCAL_RANK") or os.environ.get(starter_of(os.environ).local_rank)
    if written is not None:
        return int(written)
    if fallback_rank is not None:
        return int(fallback_rank)
    raise RuntimeError(
        "get_node_local_rank: LOCAL_RANK is not in the environment. Start the process by `corral run`, torchrun, "
        "mpirun or srun, which set it or the like of it, or pass fallback_rank."
    )


def is_torchelastic_launched() -> bool:
    """Whether torchrun started this process; mirrors ``torch.distributed.is_torchelastic_launched``.

    Examples
    --------
    >>> is_torchelastic_launched()
    False
    """
    return "TORCHELASTIC_RUN_ID" in os.environ


def supports_complex(reduceOp: Any) -> bool:
    """Whether complex numbers can be reduced by an operation.

    Mirrors ``torch.distributed.supports_complex``, for what corral can do: unlike torch, it multiplies them.

    Parameters
    ----------
    reduceOp
        A member of `ReduceOp`, of this library or of torch.
    """
    kind = getattr(reduceOp, "op", reduceOp)  # an operation with a factor has its kind in there
    name = getattr(kind, "name", None) or str(kind).rpartition(".")[2]
    return str(name).upper() not in _WITHOUT_COMPLEX
