"""Measure what operations cost against ranks and hosts, for tools/scale_model.py: benchmarks/results/scale.json.

All ranks run on this machine. Hosts are told apart by CORRAL_HOST_ID alone: what goes between them takes the way that
it takes between hosts, without the network's own latency.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import corral
import corral.distributed as dist
from corral.distributed import rendezvous

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "scale.json"
SIZES = {"8 B": 8, "1 MiB": 1 << 20}
ROUNDS = {"8 B": 30, "1 MiB": 7}
# backend, hosts, ranks of each
JOBS = [
    *(("shm", 1, ranks) for ranks in (2, 4, 8, 16)),
    *(("gloo", 1, ranks) for ranks in (2, 4, 8, 16)),
    *(("mpi", 1, ranks) for ranks in (2, 4, 8, 16)),
    *(("hybrid", hosts, 2) for hosts in (2, 4, 8)),
    *(("hybrid", hosts, 1) for hosts in (2, 4, 8, 16)),
]


def operations(size: int) -> dict[str, Any]:
    """Return what is measured, of as many bytes for each rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = np.full(size // 8, float(rank))
    rows = [np.empty_like(mine) for _ in range(world)]
    return {
        "barrier": dist.barrier,
        "broadcast": lambda: dist.broadcast(mine, 0),
        "gather": lambda: dist.gather(mine, rows if rank == 0 else None, 0),
        "all_gather": lambda: dist.all_gather(rows, mine),
        "all_reduce": lambda: dist.all_reduce(mine),
        "all_to_all": lambda: dist.all_to_all(rows, [mine] * world),
    }


class Counter:
    """Counts the frames that a rank sends, by whether they leave its host."""

    def __init__(self, backend: Any) -> None:
        self.frames = self.away = self.bytes_away = 0
        transport = getattr(getattr(backend, "job", None), "transport", None)
        if transport is None:  # shared memory's engine has none
            return
        send = transport.send

        def counted(dst: int, head: bytes, body: Any = ()) -> Any:
            self.frames += 1
            if transport.hosts[dst] != transport.hosts[transport.rank]:
                self.away += 1
                self.bytes_away += len(head) + sum(map(len, body))
            return send(dst, head, body)

        transport.send = counted

    def take(self) -> tuple[int, int, int]:
        """Return what was counted since the last time."""
        counted = self.frames, self.away, self.bytes_away
        self.frames = self.away = self.bytes_away = 0
        return counted


def of_process() -> dict[str, int]:
    """Return what this process has open, and holds."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "resident": int(status["RssAnon"].split()[0]) << 10,
        "shared": int(status["RssShmem"].split()[0]) << 10,
    }


def work(backend: str, folder: str) -> None:
    """Be one rank: measure, and write down what was measured."""
    meet, met = rendezvous.meet, {"meetings": 0, "said": 0, "told": 0}

    def counted(address: Any, rank: int, size: int, payload: bytes, limit: float) -> list[bytes]:
        told = meet(address, rank, size, payload, limit)
        met["meetings"] += 1
        met["said"] += len(payload)
        met["told"] += sum(map(len, told))
        return told

    rendezvous.meet = counted
    if backend in ("gloo", "hybrid"):
        import torch

        torch.set_num_threads(1)
    before = of_process()
    start = time.perf_counter()
    if backend == "mpi":
        dist.init_process_group("mpi", timeout=240)
    else:
        where = {"init_method": f"file://{folder}/meet", "rank": int(os.environ["RANK"])}
        dist.init_process_group(backend, world_size=int(os.environ["WORLD_SIZE"]), timeout=240, **where)
    dist.barrier()
    started = time.perf_counter() - start
    counter = Counter(dist.group.WORLD.backend)
    measured: dict[str, Any] = {}
    after: dict[str, int] = {}
    for title, size in SIZES.items():
        for name, once in operations(size).items():
            if name == "barrier" and title != "8 B":
                continue
            once()
            dist.barrier()
            counter.take()
            times = []
            used = time.process_time()
            for _ in range(ROUNDS[title]):
                begin = time.perf_counter()
                once()
                times.append(time.perf_counter() - begin)
            used = (time.process_time() - used) / ROUNDS[title]
            frames, away, size_away = (number / ROUNDS[title] for number in counter.take())
            dist.barrier()
            measured[f"{name} {title}"] = {
                "seconds": statistics.median(times),
                "work": used,
                "frames": frames,
                "away": away,
                "bytes_away": size_away,
            }
        after = after or of_process()  # before there are large arrays of this program's own
    outcome = {"start": started, "met": met, "before": before, "after": after, "operations": measured}
    Path(folder, str(dist.get_rank())).write_text(json.dumps(outcome))
    dist.destroy_process_group()


def job(backend: str, hosts: int, ranks: int) -> dict[str, Any]:
    """Run a job, and return what its ranks measured."""
    size = hosts * ranks
    here = [sys.executable, str(Path(__file__)), "--rank", backend]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        if backend == "mpi":
            start = Path(sysconfig.get_path("scripts")) / "mpirun"
            options = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
            subprocess.run([str(start), *options, "-n", str(size), *here, folder], env=environ, check=True, timeout=580)
        else:
            processes = []
            for rank in range(size):
                place = {"RANK": str(rank), "WORLD_SIZE": str(size), "CORRAL_HOST_ID": f"host {rank // ranks}"}
                processes.append(subprocess.Popen([*here, folder], env=environ | place))
            for process in processes:
                if process.wait(timeout=580):
                    raise RuntimeError(f"a rank of {backend} ended with {process.returncode}")
        told = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(size)]
    operations = {
        name: {
            "seconds": max(rank["operations"][name]["seconds"] for rank in told),
            "work": sum(rank["operations"][name]["work"] for rank in told),
            "frames": sum(rank["operations"][name]["frames"] for rank in told),
            "busiest": max(rank["operations"][name]["frames"] for rank in told),
            "away": sum(rank["operations"][name]["away"] for rank in told),
            "bytes_away": sum(rank["operations"][name]["bytes_away"] for rank in told),
        }
        for name in told[0]["operations"]
    }
    grown = {name: max(rank["after"][name] - rank["before"][name] for rank in told) for name in told[0]["after"]}
    return {
        "backend": backend,
        "hosts": hosts,
        "ranks": size,
        "start": min(rank["start"] for rank in told),  # of the rank that came last, and waited for nobody
        "met": {name: max(rank["met"][name] for rank in told) for name in told[0]["met"]},
        "process": grown,
        "operations": operations,
    }


def main(only: Sequence[str] = ()) -> None:
    """Run all jobs, or those of some backends; what was measured of the others before stays."""
    before = json.loads(RESULTS.read_text())["jobs"] if only else []
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    jobs = []
    about = {"cores": os.cpu_count(), "corral": corral.__version__, "load": os.getloadavg()[0]}
    for backend, hosts, ranks in JOBS:
        if only and backend not in only:
            jobs += [
                each
                for each in before
                if (each["backend"], each["hosts"], each["ranks"]) == (backend, hosts, hosts * ranks)
            ]
        else:
            jobs.append(job(backend, hosts, ranks))
            print(f"{backend}, {hosts} hosts, {hosts * ranks} ranks", flush=True)
        RESULTS.write_text(json.dumps({"about": about, "jobs": jobs}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        work(*sys.argv[2:4])
    else:
        main(sys.argv[1:])
