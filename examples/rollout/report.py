"""What the demonstration prints."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rollout.settings import Settings, row_bytes
from rollout.timing import Timing
from rollout.with_corral import Learned

__all__ = ["show"]


def show(console: Console, settings: Settings, learned: Learned, pipes: Timing | None) -> int:
    """Print the table and the verdict; return the exit code."""
    timings = {"corral": learned.timing} | ({"pipes (pickle)": pipes} if pipes else {})
    console.print(_table(settings, timings))
    found = learned.comparison
    what = f"{found.bytes / 1e6:.1f} MB, {settings.batches} batches of {settings.workers} workers"
    if found.differences:
        console.print(f"[red]WRONG[/]: {len(found.differences)} leaves of {what} differ:")
        console.print("\n".join(found.differences[:10]), markup=False)
        return 1
    console.print(
        f"[green]equal, bit for bit[/], to one process with the same seeds: {what}, {found.episodes} episodes ended"
    )
    return 0


def _table(settings: Settings, timings: dict[str, Timing]) -> Table:
    title = (
        f"{settings.workers} workers, each {settings.envs} CartPole, {settings.envs} Pendulum, "
        f"{settings.pixel_envs} CartPole from 4x84x84 frames; a gather every {settings.every} steps"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in timings:
        table.add_column(name, justify="right")
    size = settings.workers * row_bytes(settings)
    rows = {
        "simulator steps/s": lambda t: f"{settings.simulator_steps / t.seconds:,.0f}",
        "MB/s received, simulation included": lambda t: f"{size * settings.batches / t.seconds / 1e6:,.1f}",
        "time to gather a batch, once the last worker is ready": lambda t: f"{t.delay * 1e3:.2f} ms",
        "share of the time spent gathering": lambda t: f"{t.delay * settings.batches / t.seconds:.2%}",
        "the same, workers waiting for each other included": lambda t: f"{t.share:.2%}",
        f"MB/s while gathering, {size / 1e6:.2f} MB each time": lambda t: f"{size / t.delay / 1e6:,.0f}",
    }
    for label, text in rows.items():
        table.add_row(label, *(text(timing) for timing in timings.values()))
    return table
