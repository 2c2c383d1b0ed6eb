"""Torch's own tests for backends, with corral as the backend: `torch_suite` says how.

With ``TORCH_SUITE_RANKS=3,4,8`` in the environment they run with other numbers of ranks than three.
"""

from __future__ import annotations

import os

import pytest
import torch_suite

COUNTS = {3: 89, 4: 92, 8: 108}  # of the 91, 94 and 112 that gloo passes on CPU: torch allows some to gloo alone


@pytest.mark.timeout(600)
@pytest.mark.parametrize("world_size", [int(size) for size in os.environ.get("TORCH_SUITE_RANKS", "3").split(",")])
def test_corral_passes_what_gloo_passes(world_size):
    names = torch_suite.expected(world_size)
    assert len(names) == COUNTS[world_size]
    jobs = min(4, len(os.sched_getaffinity(0)))
    results = torch_suite.run(torch_suite.Job(world_size=world_size), names, jobs)
    assert [test.name for test in results] == sorted(names)
    failed = [test for test in results if test.status != "passed"]
    assert not failed, "\n\n".join(f"{test.name}: {test.status}\n{test.message}" for test in failed)
