"""What a run found, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import Bar
from benchmarks.runner import Outcome, Result
from benchmarks.startup import Limit

__all__ = ["as_json", "show", "time_text", "verdicts", "write_json"]

_COLUMNS = ("corral/numpy", "corral/torch", "tensordict", "mpi4py", "mpi4py/in_place", "memcpy")
_VERDICT = {True: "[green]pass[/]", False: "[red]MISS[/]", None: "[yellow]not measured[/]"}


def time_text(seconds: float) -> str:
    """Return `seconds` in the unit that a reader would choose, with three digits."""
    scale, unit = next(((scale, unit) for scale, unit in ((1.0, "s"), (1e-3, "ms")) if seconds >= scale), (1e-6, "µs"))
    value = seconds / scale
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def verdicts(outcomes: Sequence[Outcome], limits: Sequence[Limit]) -> list[bool | None]:
    """Return every bar's verdict: passed, missed, or ``None`` where it could not be measured."""
    speeds = [_passed(outcome, bar) for outcome in outcomes for bar in outcome.case.bars]
    return speeds + [limit.passed for limit in limits]


def _passed(outcome: Outcome, bar: Bar) -> bool | None:
    speedup = outcome.speedup(bar)
    return None if speedup is None else speedup >= bar.speedup


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    return "[yellow]failed[/]" if result.seconds is None else time_text(result.seconds)


def _times(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="Time of one operation: median of the rounds", title_justify="left")
    table.add_column("work")
    table.add_column("ranks", justify="right")
    columns = [name for name in _COLUMNS if any(name in outcome.results for outcome in outcomes)]
    for name in columns:
        table.add_column(name.replace("/in_place", ", in place"), justify="right")
    for outcome in outcomes:
        cells = [_cell(outcome.results.get(name)) for name in columns]
        table.add_row(outcome.case.title, str(outcome.case.ranks), *cells)
    return table


def _bar_texts(bar: Bar, speedup: float | None) -> tuple[str, str]:
    """Return the measured value and the bar, in the terms in which the bar is set."""
    if bar.as_ratio:
        measured = "" if speedup is None else f"{1 / speedup:.2f} of its time"
        return measured, f"at most {1 / bar.speedup:.2g}"
    aim = f", aiming at {bar.aim:g}" if bar.aim else ""
    return "" if speedup is None else f"{speedup:.3g} times as fast", f"at least {bar.speedup:g}{aim}"


def _bars(outcomes: Sequence[Outcome], limits: Sequence[Limit]) -> Table:
    table = Table(title="What is promised", title_justify="left")
    for column in ("work", "ranks", "who", "against", "measured", "bar", ""):
        table.add_column(column, justify="right" if column == "ranks" else "left")
    for outcome in outcomes:
        for bar in outcome.case.bars:
            measured, wanted = _bar_texts(bar, outcome.speedup(bar))
            table.add_row(
                outcome.case.title,
                str(outcome.case.ranks),
                bar.subject,
                bar.peer,
                measured,
                wanted,
                _VERDICT[_passed(outcome, bar)],
            )
    for limit in limits:
        measured = "" if limit.value is None else f"{limit.value:.3g} {limit.unit}"
        wanted = f"at most {limit.at_most:g} {limit.unit}"
        table.add_row(limit.title, "", "corral", "", measured, wanted, _VERDICT[limit.passed])
    return table


def show(console: Console, outcomes: Sequence[Outcome], limits: Sequence[Limit]) -> None:
    """Print the tables, and whatever went wrong."""
    if outcomes:
        console.print(_times(outcomes))
    console.print(_bars(outcomes, limits))
    seen: set[str] = set()
    errors = [(name, r.error) for o in outcomes for name, r in o.results.items()]
    errors += [(limit.title, limit.error) for limit in limits]
    for name, error in errors:
        if error and error not in seen:
            seen.add(error)
            console.print(f"[yellow]{name}[/]", highlight=False)
            console.print(error.rstrip(), markup=False, highlight=False)
    found = verdicts(outcomes, limits)
    console.print(f"{found.count(True)} bars passed, {found.count(False)} missed, {found.count(None)} not measured")


def as_json(outcomes: Sequence[Outcome], limits: Sequence[Limit], machine: dict[str, Any]) -> dict[str, Any]:
    """Return everything that was found as plain data."""
    return {
        "machine": machine,
        "cases": [
            {
                "name": outcome.case.name,
                "title": outcome.case.title,
                "kind": outcome.case.kind,
                "ranks": outcome.case.ranks,
                "bytes_per_rank": outcome.case.workload.nbytes,
                "teams": {
                    name: {
                        "seconds": result.seconds,
                        "rounds": result.rounds,
                        "calls_per_round": result.calls,
                        "error": result.error,
                    }
                    for name, result in outcome.results.items()
                },
                "bars": [
                    {
                        "subject": bar.subject,
                        "against": bar.peer,
                        "speedup": outcome.speedup(bar),
                        "at_least": bar.speedup,
                        "passed": _passed(outcome, bar),
                    }
                    for bar in outcome.case.bars
                ],
            }
            for outcome in outcomes
        ],
        "costs": [
            {
                "title": limit.title,
                "unit": limit.unit,
                "value": limit.value,
                "at_most": limit.at_most,
                "passed": limit.passed,
                "error": limit.error,
            }
            for limit in limits
        ],
    }


def write_json(found: dict[str, Any], path: Path) -> None:
    """Write what :func:`as_json` returned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")
