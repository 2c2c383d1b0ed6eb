"""The numbers by which :mod:`corral._core` knows what the user called, and how elements are combined."""

from __future__ import annotations

__all__ = ["LABELS", "NAMES", "REDUCTIONS", "reduction_name"]

NAMES = (
    "nothing",
    # As in src/core/operations.h.
    "send",
    "recv",
    "barrier",
    # The core only hands these through: they go into the logs that ranks read of each other.
    "gather",
    "gather_object",
    "gather_and_stack",
    "broadcast_object_list",
    "broadcast",
    "scatter",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter_object_list",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "split_group",
    "monitored_barrier",
    "shrink_group",
    "corral.gather",
    "corral.all_gather",
    "corral.broadcast",
    "corral.scatter",
    "corral.all_to_all",
    "corral.reduce",
    "corral.all_reduce",
    "TensorDict.broadcast",
    "TensorDict.scatter",
    "TensorDict.reduce",
    "TensorDict.all_reduce",
    "init_process_group",
)

LABELS = {name: number for number, name in enumerate(NAMES)}

# As in src/core/reduce.h.
REDUCTIONS = {
    "sum": 0,
    "avg": 1,
    "product": 2,
    "min": 3,
    "max": 4,
    "band": 5,
    "bor": 6,
    "bxor": 7,
    "premul_sum": 8,
}
_REDUCTION_NAMES = tuple(REDUCTIONS)


def reduction_name(number: int) -> str:
    """Name a reduction that the engine knows by `number`.

    Examples
    --------
    >>> reduction_name(1)
    'AVG'
    """
    return _REDUCTION_NAMES[number].upper() if number < len(_REDUCTION_NAMES) else str(number)
