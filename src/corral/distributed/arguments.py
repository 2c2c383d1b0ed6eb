"""What the collectives check of their arguments, and how they turn them into what a backend takes.

All of this happens before anything moves. A rank that finds its arguments to make no sense tells the backend
(`Backend.refuse`), so that the others fail, too, and later calls meet the right ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from corral.arrays.buffers import describe, readable, writable
from corral.arrays.parts import count, dtype_of
from corral.distributed import groups
from corral.distributed.groups import ProcessGroup

__all__ = ["array_list", "check_fit", "check_total", "inputs", "outputs", "root_rank", "together"]

Finish: TypeAlias = Callable[[], None]


def root_rank(pg: ProcessGroup, rank: int | None, group_rank: Any, name: str, operation: str) -> int:
    """Return the group rank that exactly one of two arguments gives: `groups.resolve_rank`, quick where it can be."""
    if group_rank is None and pg is groups.world and rank.__class__ is int and 0 <= rank < pg._size:
        return rank
    return groups.resolve_rank(pg, rank, group_rank, name, operation)


def array_list(arrays: Any, size: int, name: str, operation: str) -> list[Any]:
    """Return a list of arrays, one for each rank."""
    if not isinstance(arrays, (list, tuple)):
        raise TypeError(f"{operation}: {name} must be a list of arrays, got {type(arrays).__qualname__}")
    if len(arrays) != size:
        raise ValueError(
            f"{operation}: {name} must have one array for each of the {size} ranks of the group, got {len(arrays)}"
        )
    return list(arrays)


def inputs(arrays: Sequence[Any], name: str) -> list[list[Any]]:
    """Return the buffers of arrays to be read, one list for each rank."""
    return [[readable(array, f"{name}[{i}]")] for i, array in enumerate(arrays)]


def outputs(arrays: Sequence[Any], name: str) -> tuple[list[list[Any]], Finish | None]:
    """Return the buffers of arrays to be filled, one list for each rank, and what to call once they are filled."""
    into: list[list[Any]] = []
    finishes: list[Finish | None] = []
    for i, array in enumerate(arrays):
        buffer, finish = writable(array, f"{name}[{i}]")
        into.append([buffer])
        if finish is not None:
            finishes.append(finish)
    return into, together(finishes) if finishes else None


def together(finishes: Sequence[Finish | None]) -> Finish | None:
    """Return one function that calls those that there are."""
    present = [finish for finish in finishes if finish is not None]
    if len(present) < 2:
        return present[0] if present else None

    def finish_all() -> None:
        for finish in present:
            finish()

    return finish_all


def check_fit(output: Any, output_name: str, input_: Any, input_name: str, operation: str) -> None:
    """Raise `ValueError` if what a rank receives from itself differs in dtype or size from what it contributes."""
    if dtype_of(output) != dtype_of(input_) or count(output) != count(input_):
        raise ValueError(
            f"{operation}: {output_name}, for this rank's own part, must be of the dtype and size of {input_name}: "
            f"got {describe(output)} for {describe(input_)}"
        )


def check_total(whole: Any, whole_name: str, part: Any, part_name: str, size: int, operation: str) -> None:
    """Raise `ValueError` if an array is not as long as the group's number of others, or of another dtype."""
    if dtype_of(whole) != dtype_of(part) or count(whole) != size * count(part):
        raise ValueError(
            f"{operation}: {whole_name} must be of the dtype of {part_name} and have {size} times (the group's size) "
            f"its elements, {size * count(part)}: got {describe(whole)} for {describe(part)}"
        )
