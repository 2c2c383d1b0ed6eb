"""A run as plain data, for the JSON file and the plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars import Result
from benchmarks.runner import Outcome
from benchmarks.startup import Limit

__all__ = ["as_json", "write_json"]


def _team(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seconds": result.seconds,
        "rounds": result.rounds,
        "calls_per_round": result.calls,
        "error": result.error,
    }
    if len(result.parts) > 1:
        found |= {"parts": result.medians, "overlap": result.overlap}
    return found


def as_json(outcomes: Sequence[Outcome], limits: Sequence[Limit], machine: dict[str, Any]) -> dict[str, Any]:
    """Return everything that was found as plain data."""
    return {
        "machine": machine,
        "cases": [
            {
                "name": outcome.case.name,
                "title": outcome.case.title,
                "kind": outcome.case.kind,
                "family": outcome.case.family,
                "over": outcome.case.over,
                "ranks": outcome.case.ranks,
                "bytes_per_rank": outcome.case.workload.nbytes,
                "teams": {name: _team(result) for name, result in outcome.results.items()},
                "bars": [
                    {
                        "subject": bar.subject,
                        "against": bar.against,
                        **bar.as_json(outcome.measured(bar)),
                        "passed": outcome.passed(bar),
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
