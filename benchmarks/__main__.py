"""``python -m benchmarks``: measure, print, write, draw."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks.cases import Case, all_cases
from benchmarks.machine import describe
from benchmarks.plot import draw, draw_collectives
from benchmarks.record import as_json, write_json
from benchmarks.report import show, verdicts
from benchmarks.runner import Outcome, Settings, Teams, measure
from benchmarks.startup import Limit, startup

_RESULTS = Path(__file__).parent / "results"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three short rounds; for trying things out")
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name contains, or matches, this")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds for each case (5; at least 3)")
    parser.add_argument("--teams", metavar="A,B", help="only these teams, such as corral/numpy,mpi4py")
    parser.add_argument("--strict", action="store_true", help="exit code 1 unless every bar is passed")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--output", type=Path, default=_RESULTS, help="where the JSON and the plot go")
    options = parser.parse_args(argv)
    if options.rounds is not None and options.rounds < 3:
        parser.error("--rounds: a median needs at least 3 rounds")
    return options


def _selected(pattern: str | None, names: list[str]) -> set[str]:
    if pattern is None:
        return set(names)
    return {name for name in names if pattern in name or fnmatch.fnmatch(name, pattern)}


def _run(
    cases: list[Case], settings: Settings, with_startup: bool, console: Console
) -> tuple[list[Outcome], list[Limit]]:
    outcomes: list[Outcome] = []
    teams = Teams()
    with console.status("starting") as status:
        try:
            limits = startup(7, status.update) if with_startup else []
            for number, case in enumerate(cases, 1):
                place = f"[{number}/{len(cases)}] {case.title}, {case.ranks} ranks"

                def tell(text: str, place: str = place) -> None:
                    status.update(f"{place}: {text}")

                outcome = measure(case, teams, settings, tell)
                outcome.link(outcomes)
                outcomes.append(outcome)
        finally:
            teams.close()
    return outcomes, limits


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    options = _arguments(argv)
    names = _selected(options.only, [*(case.name for case in all_cases()), "startup"])
    cases = [case for case in all_cases() if case.name in names]
    if options.list:
        print("\n".join([*(case.name for case in cases), *(names & {"startup"})]))
        return 0
    if not names:
        print(f"no case matches {options.only!r}; see --list", file=sys.stderr)
        return 2
    settings = Settings(
        rounds=options.rounds or (3 if options.quick else 5),
        seconds=0.1 if options.quick else 0.3,
        teams=tuple(options.teams.split(",")) if options.teams else None,
    )
    console = Console(width=None if sys.stdout.isatty() else 160)
    machine, start = describe(), time.monotonic()
    outcomes, limits = _run(cases, settings, "startup" in names, console)
    show(console, outcomes, limits)
    found = as_json(outcomes, limits, machine | {"seconds": round(time.monotonic() - start, 1)})
    # A part of the cases, or a hurried run, must not replace the results that are kept.
    name = "latest" if options.only is None and options.teams is None and not options.quick else "partial"
    write_json(found, options.output / f"{name}.json")
    written = [f"{name}.json"]
    for picture, plot in ((f"{name}.png", draw), (f"{name}-collectives.png", draw_collectives)):
        if plot(found, options.output / picture):
            written.append(picture)
    console.print(f"written to {options.output}: {', '.join(written)}")
    failed = any(verdict is not True for verdict in verdicts(outcomes, limits))
    return 1 if options.strict and failed else 0


if __name__ == "__main__":
    sys.exit(main())
