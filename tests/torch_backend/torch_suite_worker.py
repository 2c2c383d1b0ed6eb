"""A worker of `torch_suite`: runs the tests whose names come in by its standard input, one a line."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import time
import unittest
from typing import Any

HEAVY = (
    *("torch", "torch.distributed", "torch.testing._internal.common_distributed", "torch.nn.parallel"),
    *("torch.distributed.optim", "torch.distributed.algorithms.ddp_comm_hooks"),
)


class Outcome(unittest.TestResult):
    """How one test ended: its status, and what there is to say of it."""

    def __init__(self) -> None:
        super().__init__()
        self.status, self.message = "passed", ""

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.status, self.message = "skipped", reason

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.status, self.message = "failed", without_native_frames(self._exc_info_to_string(err, test))

    addFailure = addError

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.status, self.message = "failed", "it passed, and torch expects that it does not"


def without_native_frames(text: str) -> str:
    """Return what a traceback tells, without the frames of C++."""
    text = re.sub(r"Exception raised from .*?(?=\n\S|\Z)", "", text, flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not re.match(r"^(frame )?#\d+", line.strip()))


def main(answers: int) -> None:
    """Serve until the input ends. Answers are lines of JSON, written to a file descriptor."""
    # The fork server loads what is heavy; the ranks themselves load the backend.
    multiprocessing.set_forkserver_preload(list(HEAVY))
    from torch_suite_case import SuiteCase

    def answer(**fields: Any) -> None:
        os.write(answers, (json.dumps(fields) + "\n").encode())

    answer(names=sorted(name for name in dir(SuiteCase) if name.startswith("test")))
    for line in sys.stdin:
        name = line.strip()
        print(f"\n===== {name}", flush=True)
        start, outcome, case = time.monotonic(), Outcome(), SuiteCase(name)
        unittest.TestSuite([case])(outcome)
        sys.stdout.flush()
        sys.stderr.flush()
        answer(name=name, status=outcome.status, message=outcome.message, seconds=time.monotonic() - start)


if __name__ == "__main__":
    main(int(sys.argv[1]))
