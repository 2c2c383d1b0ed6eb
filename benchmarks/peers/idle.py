"""How much shared memory idle ranks hold: ``python -m benchmarks.peers.idle RANKS`` prints bytes.

Pages, not sizes: a segment costs what has been touched. A page may be seen in two ways, through an open
file (``fstat`` counts the blocks of the whole segment) and through a mapping (``smaps`` shares each page out
among the processes that have it mapped); the larger of the two sums counts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

__all__ = ["main"]


def _is_segment(path: str) -> bool:
    return path.startswith(("/memfd:", "/dev/shm/"))


def _open_segments() -> dict[str, int]:
    """Return the bytes behind every segment that this process has open, by device and inode."""
    blocks = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if _is_segment(os.readlink(entry)):
                status = os.stat(entry)
                blocks[f"{status.st_dev}:{status.st_ino}"] = status.st_blocks * 512
        except FileNotFoundError:
            continue  # the descriptor of this listing itself
    return blocks


def _mapped_share() -> int:
    """Return this process's share of the resident pages of all mapped segments."""
    share, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            inside = len(fields) > 5 and _is_segment(fields[5])
        elif inside and fields[0] == "Pss:":
            share += int(fields[1]) * 1024
    return share


def _rank(rank: int, world_size: int) -> tuple[dict[str, int], int]:
    import corral.distributed as dist

    dist.barrier()
    held = _open_segments(), _mapped_share()
    dist.barrier()  # nobody leaves, and nothing is released, before everybody has counted
    return held


def main(ranks: int) -> int:
    """Start `ranks` ranks that do nothing and return the bytes that their segments occupy."""
    import corral

    held: list[tuple[dict[str, int], int]] = corral.launch(_rank, ranks)
    blocks: dict[str, int] = {}
    for opened, _ in held:
        blocks |= opened
    return max(sum(blocks.values()), sum(share for _, share in held))


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
