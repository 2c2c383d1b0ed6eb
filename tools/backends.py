"""Write docs/backends_table.md: the backends there are, by what groups of them say that they can do.

With --write the page is written; without, it is compared with what is there.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import corral.distributed as dist
from corral import backends
from corral.backends.capabilities import REDUCIBLE, TRAVELING, Capabilities

PAGE = Path(__file__).parent.parent / "docs" / "backends_table.md"

# What is asked for, and what the environment must say to get it.
ROWS = {
    "shm": ("shm", {}),
    "gloo": ("gloo", {}),
    "mpi": ("mpi", {}),
    "hybrid, over gloo": ("hybrid", {"CORRAL_HYBRID": "gloo"}),
    "hybrid, over mpi": ("hybrid", {"CORRAL_HYBRID": "mpi"}),
}
DEVICES = ("nccl", "xccl", "ucc")  # which torch has where it is built for their devices, and here not
COLUMNS = ("backend", "hosts", "arrays of", "moves", "reduces", "from anyone", "apart in memory", "to get it")


def capabilities(name: str, environment: dict[str, str]) -> Capabilities:
    """Make a group of one rank, and return what it says."""
    os.environ.update(environment)
    with tempfile.TemporaryDirectory() as folder:
        where = {} if name == "mpi" else {"init_method": f"file://{folder}/meet", "rank": 0, "world_size": 1}
        dist.init_process_group(name, **where)
        try:
            return dist.group.WORLD.capabilities
        finally:
            dist.destroy_process_group()
            for each in environment:
                del os.environ[each]


def row(title: str, name: str, can: Capabilities) -> str:
    """Return a row of the table."""
    staged = [device for device in dist.Backend.backend_capability[name] if device not in can.devices]
    cells = (
        re.sub(r"^\w+", r"`\g<0>`", title),
        "several" if can.several_hosts else "one",
        f"{', '.join(can.devices)}; {', '.join(staged)} staged",
        "all" if can.dtypes == TRAVELING else ", ".join(sorted(can.dtypes)),
        "all but float8" if can.reducible == REDUCIBLE else ", ".join(sorted(can.reducible)),
        "native" if can.any_source else "derived",
        "native" if can.vectors else "derived",
        "is always there" if name == "shm" else re.sub("'([^']+)'", r"`\1`", backends.hint(name)),
    )
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Return the text of the page."""
    found = {title: (name, capabilities(name, environment)) for title, (name, environment) in ROWS.items()}
    rows = [row(title, name, can) for title, (name, can) in found.items()]
    rows += [row(name, name, found["gloo"][1]) for name in DEVICES]  # which carry data by gloo
    lines = [
        "% tools/backends.py writes this, from what groups of these backends say.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
        *rows,
        "",
        f"*All* dtypes are {', '.join(sorted(TRAVELING))}; what has other elements, such as dates and texts, moves as",
        "well.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    missing = [name for name, _ in ROWS.values() if not backends.available(name)]
    if missing:
        print(f"tools/backends.py asks the backends themselves, and {', '.join(missing)} cannot be used here")
        return 1
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page())
        return 0
    if not PAGE.exists() or PAGE.read_text() != page():
        print(f"{PAGE} is out of date: run python tools/backends.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
