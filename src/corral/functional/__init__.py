"""Moving arrays, TensorDicts and nestings of them without preparing anything: results are returned."""

from corral.functional.broadcasting import broadcast, scatter
from corral.functional.exchanging import all_to_all
from corral.functional.gathering import all_gather, gather
from corral.functional.point_to_point import recv, send
from corral.functional.reducing import all_reduce, reduce
from corral.tensordict.communication import gather_and_stack

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "gather_and_stack",
    "recv",
    "reduce",
    "scatter",
    "send",
]
