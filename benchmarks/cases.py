"""What is measured, against whom, and how fast it has to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.workloads import WORKLOADS, Workload

__all__ = ["CORRAL", "Bar", "Case", "all_cases"]

Kind = Literal["gather_and_stack", "send_recv", "gather_object", "copy"]

CORRAL = ("corral/numpy", "corral/torch")
"""The two teams that run corral: workers that never import torch, and workers with torch leaves."""


@dataclass(frozen=True)
class Bar:
    """A promise: `subject` is at least `speedup` times as fast as `peer`.

    A limit on a ratio of times, "at most 0.6 of its time", is the same promise with ``speedup=1 / 0.6``.
    """

    subject: str
    peer: str
    speedup: float
    as_ratio: bool = False
    aim: float | None = None

    @classmethod
    def ratio(cls, subject: str, peer: str, at_most: float) -> Bar:
        """Promise that `subject` takes at most this share of `peer`'s time."""
        return cls(subject, peer, 1 / at_most, as_ratio=True)


@dataclass(frozen=True)
class Case:
    """One measurement: the same work done by several teams of ranks, in turn."""

    kind: Kind
    workload: Workload
    ranks: int
    teams: tuple[str, ...]
    bars: tuple[Bar, ...]

    @property
    def name(self) -> str:
        """Short unique name, as ``--only`` matches it."""
        return f"{self.kind}-{self.workload.name}-{self.ranks}ranks"

    @property
    def title(self) -> str:
        """What a reader of the table sees."""
        what = "a small dict" if self.kind == "gather_object" else self.workload.title
        return f"{self.kind}: {what}"


_TABLE = {
    # workload: (speedup over tensordict at 2 ranks, aim, at 4 ranks, share of mpi4py's time at 2 ranks)
    "small": (200, None, 300, 1.0),
    "many": (60, None, 60, 0.5),
    "frames": (22, 40, 18, 0.6),
    "large": (60, 100, 60, 0.3),
}


def _gathers(ranks: int) -> list[Case]:
    cases = []
    for name, (two, aim, four, share) in _TABLE.items():
        bars: list[Bar] = []
        teams = [*CORRAL, "tensordict", "mpi4py", "mpi4py/in_place"]
        for subject in CORRAL:
            if ranks == 2:
                bars.append(Bar(subject, "tensordict", two, aim=aim))
                bars.append(Bar.ratio(subject, "mpi4py", share))
            else:
                bars.append(Bar(subject, "tensordict", four))
                if name == "small":
                    bars.append(Bar.ratio(subject, "mpi4py", 1.0))
            if name == "large" and ranks == 2:
                bars.append(Bar(subject, "memcpy", 1.5))
        if name == "large" and ranks == 2:
            teams.append("memcpy")
        cases.append(Case("gather_and_stack", WORKLOADS[name], ranks, tuple(teams), tuple(bars)))
    return cases


def _pair(kind: Kind, workload: str, at_most: float) -> Case:
    teams = ("corral/numpy", "mpi4py")
    return Case(kind, WORKLOADS[workload], 2, teams, (Bar.ratio(*teams, at_most),))


def all_cases() -> list[Case]:
    """Return every case, in the order in which they are run."""
    return [
        *_gathers(2),
        _pair("send_recv", "bytes8", 1.2),
        _pair("send_recv", "large", 0.6),
        _pair("gather_object", "small", 2.0),
        *_gathers(4),
    ]
