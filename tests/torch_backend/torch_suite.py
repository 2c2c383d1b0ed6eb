"""Torch's own tests for the backends of torch.distributed (`DistributedTest`), run on CPU for any backend.

    python tests/torch_backend/torch_suite.py --world-size 4
    python tests/torch_backend/torch_suite.py --backend gloo --import '' --all

Three layers of processes: this one, which never imports torch; a worker for each of ``--jobs``, which runs one test at
a time and is replaced if it dies or hangs; and one for each rank of each test. What hangs is ended by its own number:
a rank by its worker, a worker and all that it started by this process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
START_LIMIT = 120.0  # seconds for a worker to import torch's tests
END_LIMIT = 60.0  # and for it, and what it has started, to end


class Test(NamedTuple):
    """How one test ended."""

    name: str
    status: str
    message: str
    seconds: float


class Job(NamedTuple):
    """What to run the tests with."""

    backend: str = "corral"
    world_size: int = 3
    modules: str = "corral.integrations.torch"
    limit: float = 60.0


def expected(world_size: int) -> list[str]:
    """Name the tests that a backend like gloo, but not gloo itself, can pass with so many ranks."""
    lines = (FOLDER / "torch_suite_names.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [name for name, *sizes in rows if str(world_size) in sizes]


def run(job: Job, names: Sequence[str] | None = None, jobs: int = 1) -> list[Test]:
    """Run tests, all that there are when `names` is ``None``, and return how each ended."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    results: list[Test] = []
    errors: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="torch-suite-") as folder:
        if names is None:
            with worker(job, Path(folder) / "names") as first:
                names = first.names
        for name in names:
            todo.put(name)

        def work(number: int) -> None:
            try:
                while not todo.empty():
                    with worker(job, Path(folder) / str(number)) as running:
                        serve(running, todo, results, job.limit)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return sorted(results)


class Worker:
    """A process that runs tests, and what it answers."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.reading, writing = os.pipe()
        self.unread = b""
        self.hangs = False
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, FOLDER / "torch_suite_worker.py", str(writing)],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=environment(job, folder),
            pass_fds=(writing,),
            start_new_session=True,
            text=True,
        )
        os.close(writing)
        self.names: list[str] = (self.answer(START_LIMIT) or self._failed_to_start())["names"]

    def _failed_to_start(self) -> Any:
        self.close()
        raise RuntimeError(f"a worker did not start:\n{self.output()}")

    def output(self) -> str:
        """Return the end of what the worker and its ranks have printed."""
        self.log.seek(0)
        return self.log.read()[-4000:]

    def ask(self, name: str) -> None:
        """Let it run a test."""
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()

    def answer(self, limit: float) -> dict[str, Any] | None:
        """Return what it says next; ``None`` if it ends, or says nothing for so long."""
        deadline = time.monotonic() + limit
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.reading], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self.reading, 65536) if ready else b""
            if not chunk:
                self.hangs = not ready
                return None
            self.unread += chunk
        line, _, self.unread = self.unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it, and whatever it has started: all that is in its session."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        deadline = time.monotonic() + (0.0 if self.hangs else END_LIMIT)
        while session(self.process.pid) and time.monotonic() < deadline:
            self.process.poll()
            time.sleep(0.02)
        for pid in session(self.process.pid):
            with contextlib.suppress(OSError):
                # The helper that removes named semaphores ends by itself, after those that use them.
                if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def worker(job: Job, folder: Path) -> Iterator[Worker]:
    """A worker, and its end."""
    folder.mkdir(exist_ok=True)
    running = Worker(job, folder)
    try:
        yield running
    finally:
        running.close()
        running.log.close()
        os.close(running.reading)


def serve(running: Worker, todo: queue.SimpleQueue[str], results: list[Test], limit: float) -> None:
    """Hand tests to a worker until there are none, or it has to be replaced."""
    while True:
        try:
            name = todo.get_nowait()
        except queue.Empty:
            return
        start = time.monotonic()
        running.ask(name)
        answer = running.answer(limit + 30)
        if answer is None:
            text = f"the worker died or hung:\n{running.output()}"
            results.append(Test(name, "failed", text, time.monotonic() - start))
            return
        results.append(Test(**answer))


def session(leader: int) -> list[int]:
    """List the processes of a session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry)) == leader:
                    found.append(int(entry))
    return found


def environment(job: Job, folder: Path) -> dict[str, str]:
    """Return the environment of a worker."""
    defaults = {
        "GLOO_SOCKET_IFNAME": "lo",
        "TP_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return {
        **defaults,
        **os.environ,
        "TORCH_SUITE_BACKEND": job.backend,
        "TORCH_SUITE_IMPORT": job.modules,
        "TORCH_SUITE_LIMIT": str(job.limit),
        "WORLD_SIZE": str(job.world_size),
        "INIT_METHOD": f"file://{folder}/shared_init_file",
        "MASTER_ADDR": "127.0.0.1",
        "TEMP_DIR": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(FOLDER), *sys.path])),
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
    }


def main() -> int:
    """Run from the command line; 1 if a test fails, or one that is expected to pass is skipped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", default=Job.backend)
    parser.add_argument("--world-size", type=int, default=Job.world_size)
    parser.add_argument("--import", dest="modules", default=Job.modules, help="modules that register the backend")
    parser.add_argument("--all", action="store_true", help="all tests, not only those that are expected to pass")
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression for the tests' names")
    parser.add_argument("--jobs", type=int, default=1, help="tests side by side")
    parser.add_argument("--limit", type=float, default=Job.limit, help="seconds for one test")
    options = parser.parse_args()
    job = Job(options.backend, options.world_size, options.modules, options.limit)
    names = None if options.all else [name for name in expected(job.world_size) if re.search(options.only, name)]
    results = run(job, names, options.jobs)
    for test in results:
        last = (test.message.strip().splitlines() or [""])[-1]
        print(f"{test.status:8} {test.seconds:5.1f} s  {test.name}  {last[:160]}".rstrip())
    totals = Counter(test.status for test in results)
    print(", ".join(f"{count} {status}" for status, count in sorted(totals.items())))
    return int(totals["failed"] > 0 or (not options.all and totals["skipped"] > 0))


if __name__ == "__main__":
    sys.exit(main())
