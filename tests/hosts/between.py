"""What the ranks of several hosts do in `tests.hosts.test_backends`: ``between.py FUNCTION BACKEND ARGUMENTS``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "cases"), str(TESTS / "distributed")]

import corral  # noqa: E402
import corral.distributed as dist  # noqa: E402

HOST = int(os.environ.get("NODE_RANK", "0"))


def traffic() -> np.ndarray:
    """Return the bytes and packets that have gone out over this host's link, and those that have come in."""
    with open("/proc/self/net/dev") as file:
        (line,) = [line for line in file if line.strip().startswith("eth0:")]
    numbers = [int(word) for word in line.partition(":")[2].split()]
    return np.array([numbers[8], numbers[9], numbers[0], numbers[1]])


def all_operations() -> None:
    """Run every operation of corral once with each of two roots, and check what it gives."""
    from calls import Call
    from operations import OPERATIONS

    size = dist.get_world_size()
    for number, operation in enumerate(OPERATIONS):
        for root in (0, size - 1):
            operation.run(Call(None, range(size), root, number=number))
    print("ran", len(OPERATIONS), "operations")


def many_bytes(rounds: str = "20", size: str = "1_000_000") -> None:
    """Gather, broadcast and reduce arrays of many bytes, and check each of them."""
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), int(size)
    for turn in range(int(rounds)):
        mine = np.arange(count, dtype="f8") * (rank + 1) + turn
        gathered = corral.gather(mine, dst=turn % ranks)
        if gathered is not None:
            for other, part in enumerate(gathered):
                assert np.array_equal(part, np.arange(count) * (other + 1.0) + turn)
        assert np.array_equal(corral.broadcast(mine, src=ranks - 1), np.arange(count) * float(ranks) + turn)
        total = corral.all_reduce(mine)
        assert np.array_equal(total, np.arange(count) * (ranks * (ranks + 1) / 2) + ranks * turn)
    print("ran", rounds, "rounds")


def measured(kind: str, size: str, rounds: str) -> None:
    """Do one operation several times; show what has gone out of, and come into, this host by it."""
    rank = dist.get_rank()
    mine = np.full(int(size), rank, "u1")

    def once() -> None:
        if kind == "gather":
            corral.gather(mine, dst=0)
        elif kind == "broadcast":
            corral.broadcast(mine, src=0)
        else:
            corral.reduce(mine, dst=0, op="max")

    once()  # what is made at the first call is made
    dist.barrier()
    before = traffic()
    for _ in range(int(rounds)):
        once()
    dist.barrier()
    if os.environ["LOCAL_RANK"] == "0":
        time.sleep(0.3)  # for what other hosts have yet to acknowledge
        print("traffic", HOST, *(traffic() - before))


def until_cut(size: str) -> None:
    """Gather for ever; tell how that ended, and when."""
    mine = np.ones(int(size))
    turn = 0
    while True:
        began = time.monotonic()
        try:
            corral.gather(mine, dst=0)
        except dist.DistBackendError as error:
            text = str(error).replace("\n", " ")
            print("ended", dist.get_rank(), f"{time.monotonic() - began:.1f}", type(error).__name__, text)
            sys.stdout.flush()
            os._exit(0)  # in good order nobody can leave who cannot be reached
        turn += 1
        if turn == 3:
            print("gathering")


if __name__ == "__main__":
    function, backend, *arguments = sys.argv[1:]
    dist.init_process_group(backend, timeout=8 if function == "until_cut" else 60)
    globals()[function](*arguments)
    dist.destroy_process_group()
