"""A rank that is lost in an operation, whichever it is and at whatever point, is named; the survivors go on."""

from __future__ import annotations

import os
import re
import signal

import numpy as np
import pytest
from engines import patience
from losing import SURVIVORS, lose, victims
from ranks import run

import corral.distributed as dist


@pytest.mark.parametrize("how", ["before", "waiting", "copying", "leaves"])
def test_the_lost_rank_is_named_and_the_survivors_go_on(how):
    count = len(victims(how))
    killed = {} if how == "leaves" else dict.fromkeys(range(SURVIVORS, SURVIVORS + count), -signal.SIGKILL)
    patient = 60 * patience()  # the last to be lost is waiting while all others are
    told = run(lose, SURVIVORS + count, how, exits=killed, timeout=120, group_timeout=patient)
    # How one has ended is not known to kernels that forget it once its parent has asked.
    ends = f"{'left the job|exited with code 0' if how == 'leaves' else 'was killed by SIGKILL'}|is gone"
    for texts in told[:SURVIVORS]:
        for text in texts:
            assert re.search(f"completed$|{ends}", text), text


def _offered_in_vain(rank, size):
    """Rank 0 has offered rank 1 an array in a call that rank 1 never makes, as it knows of the loss already."""
    group = dist.new_group([0, 1, 2])
    pids = [None] * size if rank == 0 else None
    dist.gather_object(os.getpid(), pids)
    if rank == 2:
        signal.pause()
    if rank == 0:
        work = dist.all_gather(list(np.zeros((3, 100_000))), np.ones(100_000), group, async_op=True)
        os.kill(pids[2], signal.SIGKILL)
        with pytest.raises(dist.PeerLostError):
            work.wait()
    with pytest.raises(dist.PeerLostError):
        dist.recv(np.zeros(1), 2)
    if rank == 0:
        dist.recv(np.zeros(1), 1)
        job = group.backend.job
        settled = getattr(job, "engine", job).flush(1.0)  # as at the end of a group
        dist.send(np.zeros(1), 1)
        return settled
    dist.send(np.zeros(1), 0)
    dist.recv(np.zeros(1), 0)  # alive, and at work on what comes in
    return None


def test_what_was_offered_in_a_call_that_failed_is_not_waited_for():
    assert run(_offered_in_vain, 3, exits={2: -signal.SIGKILL})[0]
