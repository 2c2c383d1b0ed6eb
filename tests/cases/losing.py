"""Ranks that are lost one after the other, each in another operation, under the eyes of the same three survivors.

This module is apart from its tests, so that the many ranks start without pytest.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import numpy as np
from calls import Call
from engines import waited
from operations import OPERATIONS, Operation

import corral.distributed as dist

__all__ = ["SURVIVORS", "lose", "victims"]

SURVIVORS = 3
LARGE = (300, 40)  # of float64: more than fits in what a rank holds for another
_THROUGH = 1  # tag of what a rank says that waits to be killed


def victims(how: str) -> list[tuple[Operation, bool, bool]]:
    """List whom to lose: in which operation, whether as its root, and whether in its asynchronous form."""
    listed = []
    for operation in OPERATIONS:
        roles = [True, False] if operation.needs in ("root", "members") else [True]
        if how != "before":  # a root that others need, or a member that the root needs
            roles = [operation.needs != "members"]
        # In pairs, a root that has lost one peer raises and leaves the others without what they wait for.
        listed += [(operation, role, operation.asynchronous and how == "waiting") for role in roles]
    return listed


def lose(rank: int, size: int, how: str) -> list[str]:
    """Go through all victims as a survivor, or be one of them."""
    steps = victims(how)
    assert size == SURVIVORS + len(steps)
    if rank >= SURVIVORS:
        _be_lost(rank, steps[rank - SURVIVORS], how)
        return []
    told = []
    for number, step in enumerate(steps):
        victim = SURVIVORS + number
        told.append(_survive(victim, step, how))
    dist.shrink_group([*range(SURVIVORS, size)])
    for operation in OPERATIONS:
        operation.run(Call(None, range(SURVIVORS), number=SURVIVORS))
    return told


def _group(victim: int) -> tuple[Any, list[int]]:
    """Make the group of the survivors and a victim, which is another one of its ranks each time."""
    ranks = [*range(SURVIVORS)]
    ranks.insert(victim % (SURVIVORS + 1), victim)
    group = dist.new_group(ranks, use_local_synchronization=True, sort_ranks=False)
    return group, ranks


def _call(group: Any, ranks: list[int], victim: int, step: tuple[Operation, bool, bool], how: str) -> Call:
    _, as_root, asynchronous = step
    place = ranks.index(victim)
    root = place if as_root else (place + 1) % len(ranks)
    return Call(group, ranks, root, LARGE if how == "copying" else (3,), number=victim, asynchronous=asynchronous)


def _be_lost(rank: int, step: tuple[Operation, bool, bool], how: str) -> None:
    group, ranks = _group(rank)
    operation = step[0]
    if how == "leaves":
        return
    if how == "waiting":
        dist.send_object_list([os.getpid()], dst=0)
        operation.run(_call(group, ranks, rank, step, how))
        dist.send(np.ones(1), 0, tag=_THROUGH)
        signal.pause()  # it needed nobody
    elif how == "copying":
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, random.Random(rank).uniform(0.001, 0.02))
        while True:  # until the timer hits, at whatever point
            operation.run(_call(group, ranks, rank, step, how))
    os.kill(os.getpid(), signal.SIGKILL)


def _survive(victim: int, step: tuple[Operation, bool, bool], how: str) -> str:
    """Return what the error said, after the others have gone on without the victim."""
    group, ranks = _group(victim)
    operation = step[0]
    label = f"{operation.name} without {'its root' if step[1] else 'a member'} ({how})"
    if how == "waiting" and dist.get_rank() == 0:
        pid = [None]
        dist.recv_object_list(pid, src=victim)
        _until_it_waits(victim)
        os.kill(pid[0], signal.SIGKILL)
    call = _call(group, ranks, victim, step, how)
    # One that was killed while it waited may have given all that the others needed of it.
    must = how != "waiting" and operation.must_have(call, ranks.index(victim))
    told = "completed"
    while told == "completed":
        try:
            operation.run(_call(group, ranks, victim, step, how))
        except dist.PeerLostError as error:
            told, lost = str(error), error.ranks
        else:
            if how != "copying":
                assert not must, f"{label}: rank {dist.get_rank()} completed it"
                break
    if told != "completed":
        assert lost == (victim,), f"{label}: {told}"
        assert f"rank {victim} " in told, f"{label}: {told}"
    left = dist.shrink_group([ranks.index(victim)], group)
    others = [each for each in ranks if each != victim]
    operation.run(Call(left, others, root=1, number=victim))
    return f"{label}: {told}"


def _until_it_waits(rank: int) -> None:
    """Return when a rank is asleep in an operation, or is through with one that needed nobody."""
    through = dist.irecv(np.zeros(1), rank, tag=_THROUGH)
    deadline = time.monotonic() + 0.2  # some engines do not tell
    while waited(rank) is None and not through.is_completed() and time.monotonic() < deadline:
        os.sched_yield()
