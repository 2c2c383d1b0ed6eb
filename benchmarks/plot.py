"""Draws the times of one run on logarithmic axes: the gathers in one picture, all other operations in another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import time_text

__all__ = ["draw", "draw_collectives"]

_Teams = Mapping[str, tuple[str, str]]
"""Label and color of each team, from the top to the bottom."""

# Okabe and Ito's palette, which the colour-blind can tell apart.
_GATHERERS: _Teams = {
    "tensordict": ("tensordict over gloo", "#999999"),
    "mpi4py": ("mpi4py, one Gather a leaf", "#56B4E9"),
    "corral/torch": ("corral, torch leaves", "#E69F00"),
    "corral/numpy": ("corral, NumPy leaves", "#D55E00"),
}
_COMMUNICATORS: _Teams = {
    "torch_gloo": ("torch over gloo", "#999999"),
    "mpi4py": ("mpi4py", "#56B4E9"),
    "corral/numpy": ("corral, NumPy arrays", "#D55E00"),
}

_ROWS = (
    ("send_recv",),
    ("all_reduce",),
    ("broadcast",),
    ("all_gather_into_tensor",),
    ("barrier", "gather_object", "batch_isend_irecv"),
)


def draw(found: dict[str, Any], path: Path) -> bool:
    """Draw the gathers of `found`, as `benchmarks.record.as_json` returns it; return whether there were any."""
    gathers = [case for case in found["cases"] if case["family"] == "gather_and_stack"]
    return _grid([gathers], _GATHERERS, (6.2, 5.4), "Time of one gather_and_stack", found["machine"], path)


def draw_collectives(found: dict[str, Any], path: Path) -> bool:
    """Draw the other operations, a row of panels for each kind; return whether there were any."""
    collectives = [case for case in found["cases"] if case["family"] == "collectives"]
    rows = [[case for case in collectives if case["kind"] in kinds] for kinds in _ROWS]
    return _grid(rows, _COMMUNICATORS, (5.0, 2.6), "Time of one operation", found["machine"], path)


def _grid(
    rows: Sequence[list[dict[str, Any]]],
    teams: _Teams,
    size: tuple[float, float],
    what: str,
    machine: dict[str, Any],
    path: Path,
) -> bool:
    """Draw a panel for each of `rows` and each number of ranks."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = [cases for cases in rows if cases]
    columns = sorted({case["ranks"] for cases in rows for case in cases})
    if not columns:
        return False
    width, height = size[0] * len(columns), size[1] * len(rows)
    figure, axes = plt.subplots(len(rows), len(columns), figsize=(width, height), sharey="row", squeeze=False)
    for panels, cases in zip(axes, rows, strict=True):
        titles = list(dict.fromkeys(case["title"] for case in cases))
        for panel, ranks in zip(panels, columns, strict=True):
            _panel(panel, {case["title"]: case for case in cases if case["ranks"] == ranks}, titles, teams)
    for panel, ranks in zip(axes[0], columns, strict=True):
        panel.set_title(f"{ranks} ranks")
    for panel in axes[-1]:
        panel.set_xlabel("µs")
    labels = {label: plt.Rectangle((0, 0), 1, 1, color=color) for label, color in reversed(teams.values())}
    figure.legend(labels.values(), labels, loc="upper center", ncols=len(teams), frameon=False)
    figure.supxlabel(
        f"{what}, logarithmic; shorter is better. {machine['cpu']}, {machine['cores']} cores, {machine['date'][:10]}",
        fontsize=9,
    )
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.32 / height))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def _panel(panel: Any, cases: Mapping[str, dict[str, Any]], titles: Sequence[str], teams: _Teams) -> None:
    height = 0.8 / len(teams)
    slowest = next(iter(teams))
    for row, title in enumerate(reversed(titles)):
        results = cases[title]["teams"] if title in cases else {}
        times = {team: (results.get(team) or {}).get("seconds") for team in teams}
        for index, (team, (_, color)) in enumerate(teams.items()):
            seconds = times[team]
            if not seconds:
                continue
            place = row + 0.4 - height * (index + 0.5)
            panel.barh(place, seconds * 1e6, height * 0.92, color=color)
            note = time_text(seconds)
            if team.startswith("corral") and times[slowest]:
                note += f"  ({times[slowest] / seconds:.3g}x)"
            panel.text(seconds * 1e6 * 1.15, place, note, va="center", fontsize=8)
    panel.set_xscale("log")
    panel.set_xlim(left=0.1 if teams is _COMMUNICATORS else 0.5)
    panel.set_xlim(right=panel.get_xlim()[1] * 12)
    panel.set_yticks(range(len(titles)), [_label(title) for title in reversed(titles)])
    panel.spines[["top", "right"]].set_visible(False)


def _label(title: str) -> str:
    kind, _, what = title.partition(": ")
    return what if kind == "gather_and_stack" else "\n".join(filter(None, (kind, what)))
