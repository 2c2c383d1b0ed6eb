"""What a row of the table of operations is: see `operations`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from calls import Call

__all__ = ["OPERATIONS", "Operation", "Started", "checks", "pending", "row"]

Started = tuple[list[Any], Callable[[], None]]


@dataclasses.dataclass(frozen=True)
class Operation:
    """A row of the table.

    Attributes
    ----------
    name
        What it is called in messages.
    functions
        Names of the functions that it calls: those of `corral` itself start with "corral.".
    start
        Makes one rank's part of the call.
    needs
        Whom a rank needs: "all" the others, the "root" (which needs nobody), or, where it is "members", the root needs
        all the others and they need nobody. In "pairs" the root and each other need each other.
    arrays, reduces
        Whether it takes arrays, and whether it combines them.
    asynchronous
        Whether it can return a `Work`.
    """

    name: str
    functions: tuple[str, ...]
    start: Callable[[Call], Started]
    needs: str
    arrays: bool = True
    reduces: bool = False
    asynchronous: bool = False

    @property
    def rooted(self) -> bool:
        return self.needs != "all"

    def must_have(self, call: Call, peer: int) -> bool:
        """Whether this rank cannot complete the call without the group rank `peer`."""
        if self.needs == "all":
            return True
        if call.is_root:
            return self.needs in ("members", "pairs")
        return peer == call.root and self.needs in ("root", "pairs")

    def run(self, call: Call) -> None:
        """Call it, wait, and check what this rank has."""
        try:
            works, check = self.start(call)
            for work in works:
                work.wait()
            check()
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error} ({call!r})") from None


OPERATIONS: list[Operation] = []


def row(*functions: str, needs: str, **attributes: Any) -> Callable[[Callable[[Call], Started]], Any]:
    """Make a function the row of the table that is about these functions."""

    def add(start: Callable[[Call], Started]) -> Callable[[Call], Started]:
        name = attributes.pop("name", functions[0])
        OPERATIONS.append(Operation(name, functions, start, needs, **attributes))
        return start

    return add


def pending(*works: Any) -> list[Any]:
    """Return those of the results of calls that are works."""
    return [work for work in works if work is not None]


def checks(pairs: list[tuple[Any, np.ndarray]]) -> Callable[[], None]:
    """Return what checks that arrays have the values that they are paired with."""

    def check() -> None:
        for held, expected in pairs:
            held.check(expected)

    return check
