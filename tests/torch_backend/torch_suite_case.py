"""Torch's own test class for backends, as one that runs for the backend that the environment names.

Imported by the workers of `torch_suite` and by the ranks that they start, not by pytest.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

import torch
import torch.testing._internal.common_distributed as common

BACKEND = os.environ["TORCH_SUITE_BACKEND"]
LIMIT = float(os.environ["TORCH_SUITE_LIMIT"])
MODEL = "gloo"  # the backend whose tests are to run

for module in filter(None, os.environ["TORCH_SUITE_IMPORT"].split(",")):
    importlib.import_module(module)

# Most tests are chosen by decorators that compare a global of the module, taken from the environment, while the class
# is being defined: those see the model's name. The tests themselves see the real one.
os.environ["BACKEND"] = MODEL
import torch.testing._internal.distributed.distributed_test as torch_tests  # noqa: E402

torch_tests.BACKEND = BACKEND
common.get_timeout = lambda _: LIMIT


class TestTimedOut(Exception):
    """Ranks had not ended in time."""


class RanksDiffer(Exception):
    """Ranks ended in different ways."""


class OutsideTest(Exception):
    """A rank raised before or after the test itself."""


class SuiteCase(torch_tests.TestDistBackend, torch_tests.DistributedTest._DistTestBase):
    """One test of torch's in processes of its own, one for each rank."""

    def setUp(self) -> None:
        super().setUp()
        self.exit_codes: list[int | None] = []
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        # A fork server keeps the environment that it was started with.
        Path(self.file_name + ".env").write_text(json.dumps(dict(os.environ)))
        self._start_processes(torch.multiprocessing.get_context("forkserver").Process)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **keywords: Any) -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive who started it
        os.environ.update(json.loads(Path(file_name + ".env").read_text()))
        torch_tests.INIT_METHOD = os.environ["INIT_METHOD"]
        try:
            super()._run(rank, test_name, file_name, pipe, **keywords)
        except Exception:  # outside the test's body, of which torch would show the exit code alone
            Path(f"{file_name}.error{rank}").write_text(traceback.format_exc())
            raise

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        # These have a branch for gloo, one for nccl, and none for other names.
        if test_name.startswith("test_accumulate_gradients_no_sync"):
            torch_tests.BACKEND = MODEL
        super().run_test(test_name, parent_pipe)

    def _join_processes(self, fn: Any) -> None:
        start = time.monotonic()
        hung = self._wait_for_ranks(start + LIMIT)
        for process in self.processes:
            end(process)
        self.exit_codes = [process.exitcode for process in self.processes]
        try:
            if hung:
                raise TestTimedOut(f"ranks {hung} had not ended after {LIMIT:g} s")
            for rank in range(len(self.processes)):
                report = Path(f"{self.file_name}.error{rank}")
                if report.exists():
                    raise OutsideTest(f"rank {rank}, before or after the test:\n{report.read_text()}")
            self._check_return_codes(fn, time.monotonic() - start)
            # Torch looks at rank 0's exit code alone. Here the others must agree with it.
            if fn not in self.skip_return_code_checks and fn not in self.special_return_code_checks:
                self._check_agreement()
        except unittest.SkipTest:
            self._check_agreement()
            raise
        finally:
            for pipe in self.pid_to_pipe.values():
                pipe.close()

    def _wait_for_ranks(self, deadline: float) -> list[int]:
        """Wait until all ranks have ended, or one has failed; return those that have not ended in time."""
        while any(process.exitcode is None for process in self.processes):
            if any(process.exitcode == self.TEST_ERROR_EXIT_CODE for process in self.processes):
                deadline = min(deadline, time.monotonic() + 1.0)  # for the others that fail to say why
                if time.monotonic() >= deadline:
                    return []
            elif time.monotonic() > deadline:
                return [rank for rank, process in enumerate(self.processes) if process.exitcode is None]
            time.sleep(0.01)
        return []

    def _check_agreement(self) -> None:
        if len(set(self.exit_codes)) != 1:
            raise RanksDiffer(f"exit codes differ by rank: {self.exit_codes}")

    def tearDown(self) -> None:
        for process in self.processes:
            end(process)
        super().tearDown()
        for path in Path(self.file_name).parent.glob(Path(self.file_name).name + "*"):
            path.unlink()


def end(process: Any) -> None:
    """End one rank that was started here, and wait for it."""
    for stop in (process.terminate, process.kill):
        if process.exitcode is None:
            stop()
            process.join(5)
