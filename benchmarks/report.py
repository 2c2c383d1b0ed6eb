"""What a run found, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.bars import Result
from benchmarks.runner import Outcome
from benchmarks.startup import Limit

__all__ = ["show", "time_text", "verdicts"]

_COLUMNS = (
    *("corral/numpy", "corral/torch", "corral/mpi", "corral/gloo", "torch_corral", "tensordict/corral"),
    *("tensordict", "mpi4py", "mpi4py/in_place", "mpi4py/beside", "torch_gloo", "memcpy"),
)
_NAMES = {
    "mpi4py/in_place": "mpi4py, in place",
    "mpi4py/beside": "mpi4py",
    "corral/mpi": "corral over mpi",
    "corral/gloo": "corral over gloo",
    "torch_gloo": "torch over gloo",
    "torch_corral": "torch over corral",
    "tensordict/corral": "tensordict over corral",
}
_VERDICT = {True: "[green]pass[/]", False: "[red]MISS[/]", None: "[yellow]not measured[/]"}


def time_text(seconds: float) -> str:
    """Return `seconds` in the unit that a reader would choose, with three digits."""
    scale, unit = next(((scale, unit) for scale, unit in ((1.0, "s"), (1e-3, "ms")) if seconds >= scale), (1e-6, "µs"))
    value = seconds / scale
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def verdicts(outcomes: Sequence[Outcome], limits: Sequence[Limit]) -> list[bool | None]:
    """Return every bar's verdict: passed, missed, or ``None`` where it could not be measured."""
    speeds = [outcome.passed(bar) for outcome in outcomes for bar in outcome.case.bars]
    return speeds + [limit.passed for limit in limits]


def _named(against: str) -> str:
    team, comma, rest = against.partition(",")
    return _NAMES.get(team, team) + comma + rest


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    return "[yellow]failed[/]" if result.seconds is None else time_text(result.seconds)


def _times(outcomes: Sequence[Outcome], family: str) -> Table:
    table = Table(title=f"Time of one operation, {family}: median of the rounds", title_justify="left")
    table.add_column("work")
    table.add_column("ranks", justify="right")
    columns = [name for name in _COLUMNS if any(name in outcome.results for outcome in outcomes)]
    for name in columns:
        table.add_column(_NAMES.get(name, name), justify="right")
    for outcome in outcomes:
        cells = [_cell(outcome.results.get(name)) for name in columns]
        table.add_row(outcome.case.title, str(outcome.case.ranks), *cells)
    return table


def _overlaps(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="Computing while an all_reduce of 64 MB is under way", title_justify="left")
    for column in ("who", "communication alone", "computation alone", "both at once", "overlap"):
        table.add_column(column, justify="left" if column == "who" else "right")
    for outcome in outcomes:
        for name, result in outcome.results.items():
            took, overlap = result.medians, result.overlap
            times = [time_text(took[part]) if took else "failed" for part in ("communicate", "compute", "both")]
            table.add_row(_NAMES.get(name, name), *times, "" if overlap is None else f"{overlap:.2f}")
    return table


def _bars(outcomes: Sequence[Outcome], limits: Sequence[Limit]) -> Table:
    table = Table(title="What is promised", title_justify="left")
    for column in ("work", "ranks", "who", "against", "measured", "bar", ""):
        table.add_column(column, justify="right" if column == "ranks" else "left")
    for outcome in outcomes:
        for bar in outcome.case.bars:
            measured, wanted = bar.texts(outcome.measured(bar))
            table.add_row(
                outcome.case.title,
                str(outcome.case.ranks),
                _named(bar.subject),
                _named(bar.against),
                measured,
                wanted,
                _VERDICT[outcome.passed(bar)],
            )
    for limit in limits:
        measured = "" if limit.value is None else f"{limit.value:.3g} {limit.unit}"
        wanted = f"at most {limit.at_most:g} {limit.unit}"
        table.add_row(limit.title, "", "corral", "", measured, wanted, _VERDICT[limit.passed])
    return table


def show(console: Console, outcomes: Sequence[Outcome], limits: Sequence[Limit]) -> None:
    """Print the tables, and whatever went wrong."""
    kinds = ("TensorDicts", "gather_and_stack", "collectives")
    for family in (*kinds, "corral over mpi", "corral over gloo", "corral under torch"):
        if members := [outcome for outcome in outcomes if outcome.case.family == family]:
            console.print(_times(members, family))
    if overlaps := [outcome for outcome in outcomes if outcome.case.family == "overlap"]:
        console.print(_overlaps(overlaps))
    console.print(_bars(outcomes, limits))
    seen: set[str] = set()
    errors = [(f"{name}, {o.case.name}", r.error) for o in outcomes for name, r in o.results.items()]
    errors += [(limit.title, limit.error) for limit in limits]
    for name, error in errors:
        if error and error not in seen:
            seen.add(error)
            console.print(f"[yellow]{name}[/]", highlight=False)
            console.print(error.rstrip(), markup=False, highlight=False)
    found = verdicts(outcomes, limits)
    console.print(f"{found.count(True)} bars passed, {found.count(False)} missed, {found.count(None)} not measured")
