"""What is measured, against whom, and how fast it has to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.bars import Bar, OverlapBar, Promise
from benchmarks.workloads import WORKLOADS, Workload

__all__ = ["CORRAL", "Case", "all_cases"]

Kind = Literal[
    "gather_and_stack",
    "send_recv",
    "batch_isend_irecv",
    "gather_object",
    "barrier",
    "broadcast",
    "gather",
    "all_reduce",
    "all_gather_into_tensor",
    "overlap",
    "copy",
    "td_construct",
    "td_get",
    "td_set",
    "td_index_row",
    "td_index_slice",
    "td_index_rows",
    "td_stack_32",
    "td_clone",
    "td_apply",
    "td_add",
    "td_consolidate",
    "td_keys",
    "td_iterate",
    "td_memmap",
    "td_load_memmap",
    "td_all_reduce",
    "td_broadcast",
    "ddp",
]

CORRAL = ("corral/numpy", "corral/torch")
"""The two teams that run corral: workers that never import torch, and workers with torch leaves."""


@dataclass(frozen=True)
class Case:
    """One measurement: the same work done by several teams of ranks, in turn."""

    kind: Kind
    workload: Workload
    ranks: int
    teams: tuple[str, ...]
    bars: tuple[Promise, ...]
    brief: bool = False
    """Whether to measure in fewer and shorter rounds."""
    over: str = ""
    """What corral runs on, or under, where that is not shared memory by itself."""

    @property
    def name(self) -> str:
        """Short unique name, as ``--only`` matches it."""
        return self.name_with(self.ranks)

    def name_with(self, ranks: int) -> str:
        """Name of the case of the same work by another number of ranks."""
        what = f"{self.kind}-{self.workload.name}" if self.workload.leaves else self.kind
        over = f"{self.over.replace(' ', '-')}-" if self.over else ""
        return f"{over}{what}-{ranks}ranks"

    @property
    def family(self) -> str:
        """Which of the tables and plots the case belongs to."""
        if self.over:
            return f"corral {self.over}"
        if self.kind.startswith("td_"):
            return "TensorDicts"
        return self.kind if self.kind in ("gather_and_stack", "overlap") else "collectives"

    @property
    def title(self) -> str:
        """What a reader of the table sees."""
        if not self.workload.leaves:
            return self.kind
        if self.kind.startswith("td_"):
            return f"{self.kind[3:]}: {self.workload.title}"
        small = self.kind == "gather_object" and self.workload.name == "small"
        return f"{self.kind}: {'a small dict' if small else self.workload.title}"


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
        bars: list[Promise] = []
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


_OTHERS: tuple[tuple[Kind, str, float, float], ...] = (
    # at 2 ranks: (kind, workload, share of mpi4py's time, speedup over torch with gloo)
    ("send_recv", "bytes8", 1.1, 60),
    ("send_recv", "floats64kb", 1.0, 7),
    ("send_recv", "large", 0.6, 4),
    ("all_reduce", "floats8b", 1.5, 100),
    ("all_reduce", "floats64kb", 1.0, 15),
    ("all_reduce", "floats64mb", 0.6, 3),
    ("broadcast", "floats8b", 1.5, 50),
    ("broadcast", "floats64kb", 1.2, 15),
    ("broadcast", "floats64mb", 0.8, 3.5),
    ("all_gather_into_tensor", "total8b", 1.5, 100),
    ("all_gather_into_tensor", "total64kb", 1.2, 40),
    ("all_gather_into_tensor", "total64mb", 0.9, 5),
    ("barrier", "nothing", 1.5, 150),
    ("gather_object", "small", 1.3, 150),
    ("gather_object", "dict8mb", 0.3, 8),
    ("batch_isend_irecv", "messages64", 1.2, 20),
)

_SMALL = {"bytes8", "floats8b", "total8b", "nothing"}
"""What more ranks than cores have to do in at most this many times mpi4py's time:"""
_SMALL_SHARE = 2.0

_GROWTH = 4.0
"""What 8 ranks may take, in times of 4 ranks."""


def _others(ranks: int) -> list[Case]:
    corral, mpi, gloo = teams = ("corral/numpy", "mpi4py", "torch_gloo")
    cases = []
    for kind, name, share, speedup in _OTHERS:
        bars: list[Promise]
        if ranks == 2:
            bars = [Bar.ratio(corral, mpi, share), Bar(corral, gloo, speedup)]
        else:
            bars = [Bar(corral, gloo, 1.0)]
            if name in _SMALL:
                bars.append(Bar.ratio(corral, mpi, _SMALL_SHARE))
            if ranks == 8:
                bars.append(Bar.ratio(corral, corral, _GROWTH, peer_ranks=4))
        cases.append(Case(kind, WORKLOADS[name], ranks, teams, tuple(bars), brief=ranks > 2))
    return cases


def _overlap() -> Case:
    teams = ("corral/numpy", "torch_gloo")
    return Case("overlap", WORKLOADS["floats64mb"], 2, teams, (OverlapBar(*teams),))


_IN_PROCESS: tuple[Kind, ...] = (
    *("td_construct", "td_get", "td_set", "td_index_row", "td_index_slice", "td_index_rows", "td_stack_32"),
    *("td_clone", "td_apply", "td_add", "td_consolidate", "td_keys", "td_iterate"),
)


def _containers() -> list[Case]:
    """What one process does to TensorDicts: torch leaves in tensordict's time, NumPy leaves in less."""
    teams = (*CORRAL, "tensordict")
    bars = (Bar.ratio("corral/torch", "tensordict", 1.0), Bar.ratio("corral/numpy", "tensordict", 0.7))
    cases = [
        Case(kind, WORKLOADS[name], 1, teams, bars, brief=True)
        for kind in _IN_PROCESS
        for name in ("leaves4", "leaves100")
    ]
    files = tuple(Bar.ratio(team, "tensordict", 1.0) for team in CORRAL)
    kinds: tuple[Kind, ...] = ("td_memmap", "td_load_memmap")
    return [*cases, *(Case(kind, WORKLOADS["saved1gb"], 1, teams, files, brief=True) for kind in kinds)]


def _transfers() -> list[Case]:
    """What moves a whole TensorDict that is no gather."""
    bars = tuple(Bar(team, "tensordict", 100) for team in CORRAL)
    kinds: tuple[Kind, ...] = ("td_all_reduce", "td_broadcast")
    return [Case(kind, WORKLOADS["weights200"], 2, (*CORRAL, "tensordict"), bars) for kind in kinds]


_MPI: tuple[tuple[Kind, str, float], ...] = (
    # (kind, workload, share of the time of mpi4py's own call)
    ("send_recv", "bytes8", 1.5),
    ("send_recv", "large", 1.1),
    ("all_reduce", "floats8b", 1.5),
    ("all_reduce", "floats64mb", 1.1),
    ("broadcast", "floats8b", 1.5),
    ("broadcast", "floats64mb", 1.1),
    ("gather", "floats8b", 1.5),
    ("gather", "floats64mb", 1.1),
    ("all_gather_into_tensor", "total8b", 1.5),
    ("all_gather_into_tensor", "total64mb", 1.1),
    ("barrier", "nothing", 1.5),
)

_UNDER_TORCH: tuple[tuple[str, tuple[Kind, ...], float], ...] = (
    # (size, kinds of operations, speedup over gloo from the same calls)
    ("8b", ("all_reduce", "broadcast", "all_gather_into_tensor", "send_recv"), 5),
    ("64kb", ("all_reduce", "broadcast", "all_gather_into_tensor", "send_recv"), 5),
    ("64mb", ("all_reduce", "broadcast", "all_gather_into_tensor", "send_recv"), 2),
)

_GLOO = {"small": 1.5, "many": 5, "large": 5}
"""How many times faster than tensordict's a `gather_and_stack` over gloo is."""


def _sized(kind: Kind, size: str) -> Workload:
    """Return what an operation moves where that many bytes are asked for."""
    if kind == "all_gather_into_tensor":
        return WORKLOADS[f"total{size}"]
    return WORKLOADS["bytes8" if kind == "send_recv" and size == "8b" else f"floats{size}"]


def _engines(ranks: int) -> list[Case]:
    """Corral over other engines than shared memory, against what these do by themselves; and under torch."""
    mpi, gloo, torch = ("corral/mpi", "mpi4py/beside"), ("corral/gloo", "tensordict"), ("torch_corral", "torch_gloo")
    tensordict = ("tensordict/corral", "tensordict")
    cases = [
        Case(kind, WORKLOADS[name], ranks, mpi, (Bar.ratio(*mpi, at_most=share),), brief=True, over="over mpi")
        for kind, name, share in _MPI
    ]
    cases += [
        Case("gather_and_stack", WORKLOADS[name], ranks, gloo, (Bar(*gloo, speedup),), brief=True, over="over gloo")
        for name, speedup in _GLOO.items()
    ]
    cases += [
        Case(kind, _sized(kind, size), ranks, torch, (Bar(*torch, speedup),), brief=True, over="under torch")
        for size, kinds, speedup in _UNDER_TORCH
        for kind in kinds
    ]
    return [
        *cases,
        Case("ddp", WORKLOADS["nothing"], ranks, torch, (Bar(*torch, 1.0),), over="under torch"),
        Case("gather_and_stack", WORKLOADS["large"], ranks, tensordict, (Bar(*tensordict, 3),), over="under torch"),
    ]


def all_cases() -> list[Case]:
    """Return every case, in the order in which they are run."""
    return [
        *_containers(),
        *_gathers(2),
        *_others(2),
        _overlap(),
        *_transfers(),
        *_engines(2),
        *_gathers(4),
        *_others(4),
        *_engines(4),
        *_others(8),
    ]
