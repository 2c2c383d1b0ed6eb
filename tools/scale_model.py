"""Write docs/scale_tables.md: what operations cost against ranks and hosts, and what that comes to on 1,000 hosts.

What was measured is in benchmarks/results/scale.json, which tools/scale_measure.py writes. With --write the page is
written; without, it is compared with what is there. --latency and --gbits say what network to reckon with.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corral.backends.messages.trees import Tree

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "scale.json"
PAGE = ROOT / "docs" / "scale_tables.md"
OPERATIONS = ("barrier", "broadcast", "gather", "all_gather", "all_reduce", "all_to_all")
MIB = 1 << 20
CHUNK = 4 << 20  # of a reduction between hosts, which passes chunks on as they come
AT_ONCE = 16  # ranks up to which small collectives over MPI take one step, and none of the engine's own frames
EXTRAPOLATED = ((1, 8), (10, 8), (100, 8), (1000, 8), (1000, 1))
PEERS = (100, 1000, 8000)


class Network(NamedTuple):
    """What is not measured here: what lies between hosts."""

    latency: float = 20e-6
    gbits: float = 25.0

    def seconds(self, nbytes: float) -> float:
        return nbytes * 8 / (self.gbits * 1e9)


class Shape(NamedTuple):
    """Hosts, and ranks on each."""

    hosts: int
    ranks: int

    @property
    def size(self) -> int:
        return self.hosts * self.ranks


def frames(operation: str, large: bool, shape: Shape) -> int:
    """Return how many frames all ranks send: those of the agreement, and, of what is large, the bodies.

    An agreement goes up a tree and down again. Small data travel in it.
    """
    n, (hosts, ranks) = shape.size, shape
    agreed = 2 * (n - 1)
    if not large or operation == "barrier":
        return agreed
    bodies = {
        "broadcast": n - 1,
        "gather": n - 1,
        "all_gather": hosts * ranks * (ranks - 1) + hosts * (hosts - 1) + hosts * (hosts - 1) * (ranks - 1),
        "all_reduce": 2 * n * (n - 1) if hosts == 1 else 2 * (n - 1),
        "all_to_all": n * (n - 1),
    }
    return agreed + bodies[operation]


def busiest(operation: str, shape: Shape) -> int:
    """Return how many bodies are sent and received one after another; all ranks carry theirs at the same time.

    They are those of the busiest rank, but for reductions between hosts, which wait for one host after another.
    """
    n, (hosts, ranks) = shape.size, shape
    return {
        "barrier": 0,
        "broadcast": math.ceil(math.log2(max(hosts, 2))) + math.ceil(math.log2(max(ranks, 2))),
        "gather": hosts - 1 + ranks - 1,
        "all_gather": 2 * (hosts - 1) + 2 * (ranks - 1) + (hosts - 1) * (ranks - 1),
        "all_reduce": 4 * (n - 1) if hosts == 1 else 2 * (2 * (ranks - 1) + hosts - 1 + math.ceil(math.log2(hosts))),
        "all_to_all": 2 * (n - 1),
    }[operation]


def carried(operation: str, size: int, shape: Shape) -> float:
    """Return the bytes that go over links one after another: the busiest host's, or from host to host."""
    n, (hosts, ranks) = shape.size, shape
    if hosts == 1:
        return 0.0
    return {
        "barrier": 0.0,
        "broadcast": size * math.ceil(math.log2(hosts)),
        "gather": size * (n - ranks),
        "all_gather": size * (n - ranks),
        "all_reduce": min(size, CHUNK) * (hosts - 1) + size * math.ceil(math.log2(hosts)),
        "all_to_all": size * ranks * (n - ranks),
    }[operation]


def agreement(shape: Shape, frame: float, network: Network) -> float:
    """Return the seconds of an agreement: up the deepest way of the engine's own tree, and down again.

    Whoever has children hears them, and later tells them, one after another.
    """
    hosts = [f"host {rank // shape.ranks}" for rank in range(shape.size)]
    seconds, rank = 0.0, hosts.index(hosts[-1])  # the leader of the last host is among the deepest
    tree = Tree(hosts, rank)
    levels = 0
    while True:
        seconds += len(tree.children) * frame
        if tree.parent < 0:
            break
        levels += 1
        tree = Tree(hosts, tree.parent)
    return seconds + 2 * levels * network.latency


def reckoned(operation: str, size: int, shape: Shape, cost: Cost, network: Network) -> float:
    """Return the seconds of an operation where each rank has a core, and each host a link, of its own."""
    large = size >= MIB
    seconds = agreement(shape, cost.frame, network)
    if large:
        # Bodies are announced and asked for: that is two frames more than the one that brings it.
        seconds += network.latency + busiest(operation, shape) * cost.frame / 2
        seconds += max(network.seconds(carried(operation, size, shape)), size * cost.byte)
    return seconds


class Cost(NamedTuple):
    """What a frame costs the two who send and receive it, and a byte, in seconds of a core; and how well that fits."""

    frame: float
    byte: float
    worst: float


def fit(jobs: Sequence[dict[str, Any]]) -> Cost:
    """Fit a cost for each frame, and for each byte of bodies, to the processor's time that all ranks took."""
    rows, seconds = [], []
    for job in jobs:
        if "process" not in job:  # of these, only times are there
            continue
        for name, measured in job["operations"].items():
            if not measured["frames"]:
                continue
            operation, title = name.split(" ", 1)
            moved = _moved(operation, job["ranks"]) * MIB if title == "1 MiB" else 0
            rows.append((measured["frames"], moved))
            seconds.append(measured["work"])
    matrix, wanted = np.array(rows), np.array(seconds)
    weights = 1 / wanted  # errors count in proportion
    scale = matrix.max(0)
    found, *_ = np.linalg.lstsq(matrix / scale * weights[:, None], wanted * weights, rcond=None)
    found = np.maximum(found / scale, 0)
    off = np.maximum(matrix @ found / wanted, wanted / np.maximum(matrix @ found, 1e-12))
    return Cost(float(found[0]), float(found[1]), float(np.median(off)))


def _moved(operation: str, n: int) -> int:
    """Return how many times a rank's size is moved, in all."""
    return {
        "barrier": 0,
        "broadcast": n - 1,
        "gather": n - 1,
        "all_gather": n * (n - 1),
        "all_reduce": 2 * (n - 1),
        "all_to_all": n * (n - 1),
    }[operation]


def check(jobs: Iterable[dict[str, Any]]) -> None:
    """Raise if a job sent another number of frames than the model says."""
    for job in jobs:
        if job["backend"] == "shm":  # which has none
            continue
        shape = Shape(job["hosts"], job["ranks"] // job["hosts"])
        for name, measured in job["operations"].items():
            operation, title = name.split(" ", 1)
            large = title == "1 MiB"
            if job["backend"] == "mpi" and not large and job["ranks"] <= AT_ONCE and not measured["frames"]:
                continue
            said = frames(operation, large, shape)
            if measured["frames"] != said:
                raise ValueError(f"{name} of {shape} on {job['backend']}: {measured['frames']} frames, not {said}")


def time_text(seconds: float) -> str:
    """Return seconds as people read them.

    Examples
    --------
    >>> time_text(0.00001234), time_text(0.0456), time_text(12.3)
    ('12 µs', '46 ms', '12 s')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.2g} {unit}" if seconds * factor < 10 else f"{seconds * factor:.0f} {unit}"
    return ""


def size_text(nbytes: float) -> str:
    """Return bytes as people read them.

    Examples
    --------
    >>> size_text(139), size_text(1 << 20)
    ('139 B', '1 MiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    place = min(int(math.log2(max(nbytes, 1)) // 10), len(units) - 1)
    return f"{nbytes / 1024**place:.3g} {units[place]}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def shape_text(job: dict[str, Any]) -> str:
    return f"{job['ranks']}" if job["hosts"] == 1 else f"{job['hosts']} x {job['ranks'] // job['hosts']}"


def slope(jobs: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> tuple[float, float]:
    """Return what is there with no peer, and what each one adds."""
    each, fixed = np.polyfit([job["ranks"] - 1 for job in jobs], [value(job) for job in jobs], 1)
    return float(fixed), max(float(each), 0.0)


def page(results: dict[str, Any], network: Network) -> str:
    """Return the text of the page."""
    jobs = results["jobs"]
    check(jobs)
    groups = {name: list(of) for name, of in itertools.groupby(jobs, lambda job: job["backend"])}
    lines = ["% tools/scale_model.py writes this.", "", "## Measured", ""]
    about = results["about"]
    runs = "" if about.get("runs", 1) == 1 else f" Times are the better of {about['runs']} runs."
    lines += [f"All ranks on {about['cores']} cores; the machine's load was {about['load']:.0f}.{runs}", ""]
    for title in ("8 B", "1 MiB"):
        lines += [f"### {title} of each rank", ""]
        rows = [
            [f"`{job['backend']}`", shape_text(job)]
            + [
                time_text(job["operations"][f"{op} {title}"]["seconds"])
                for op in OPERATIONS
                if f"{op} {title}" in job["operations"]
            ]
            for job in jobs
        ]
        names = [op for op in OPERATIONS if f"{op} {title}" in jobs[0]["operations"]]
        lines += table(["backend", "ranks", *names], rows)
    costs = {name: fit(of) for name, of in groups.items() if name != "shm"}
    lines += ["## The model", ""]
    lines += table(
        ["backend", "work for a frame", "work for a MiB", "off by, in the median"],
        [[f"`{name}`", time_text(c.frame), time_text(c.byte * MIB), f"x {c.worst:.2f}"] for name, c in costs.items()],
    )
    lines += [
        "## Extrapolated",
        "",
        f"`hybrid`, a core for each rank, a link of {network.gbits:g} Gbit/s and {time_text(network.latency)} for each",
        "host. **None of this was measured.**",
        "",
    ]
    for title, size in (("8 B", 8), ("1 MiB", MIB)):
        rows = []
        for each in EXTRAPOLATED:
            shape = Shape(*each)
            rows.append(
                [f"{shape.hosts:,} x {shape.ranks}"]
                + [time_text(reckoned(op, size, shape, costs["hybrid"], network)) for op in OPERATIONS[size >= MIB :]]
            )
        lines += [f"### {title} of each rank", ""]
        lines += table(["hosts x ranks", *OPERATIONS[size >= MIB :]], rows)
    lines += ["## What grows with the ranks", "", "Of one rank; what each peer adds was measured up to 16 ranks.", ""]
    rows = []
    kinds: list[tuple[str, Callable[[dict[str, Any]], float], Callable[[float], str]]] = [
        ("descriptors", lambda job: job["process"]["descriptors"], lambda x: f"{x:,.0f}"),
        ("threads", lambda job: job["process"]["threads"], lambda x: f"{x:,.0f}"),
        ("memory", lambda job: job["process"]["resident"] + job["process"]["shared"], size_text),
        ("told to it at the start", lambda job: job["met"]["told"], size_text),
    ]
    for name, of in groups.items():
        of = [job for job in of if "process" in job and (name != "hybrid" or job["hosts"] == job["ranks"])]
        for what, value, text in kinds:
            if name == "mpi" and what.startswith("told"):  # MPI brings its ranks together itself
                continue
            fixed, each = slope(of, value)
            shown = f"{each:.1f}" if text(1.4) == "1" else text(each)
            rows.append([f"`{name}`", what, shown, *(text(max(fixed, 0) + each * (n - 1)) for n in PEERS)])
    lines += table(["backend", "", "each peer", *(f"{n:,} ranks" for n in PEERS)], rows)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--latency", type=float, default=20.0, help="of the network, in microseconds")
    parser.add_argument("--gbits", type=float, default=25.0, help="of each host's link, in Gbit/s")
    asked = parser.parse_args()
    network = Network(asked.latency / 1e6, asked.gbits)
    text = page(json.loads(RESULTS.read_text()), network)
    if network != Network():
        print(text)
        return 0
    if asked.write:
        PAGE.write_text(text)
        return 0
    if not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE} is out of date: run python tools/scale_model.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
