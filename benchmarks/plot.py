"""Draws the gathers of one run: time of one operation, on a logarithmic axis, two ranks beside four."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["draw"]

# Okabe and Ito's palette, which the colour-blind can tell apart.
_TEAMS = {
    "tensordict": ("tensordict over gloo", "#999999"),
    "mpi4py": ("mpi4py, one Gather a leaf", "#56B4E9"),
    "corral/torch": ("corral, torch leaves", "#E69F00"),
    "corral/numpy": ("corral, NumPy leaves", "#D55E00"),
}


def draw(found: dict[str, Any], path: Path) -> bool:
    """Draw `found`, as `benchmarks.report.as_json` returns it; return whether there was anything to draw."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    gathers = [case for case in found["cases"] if case["kind"] == "gather_and_stack"]
    sizes = sorted({case["ranks"] for case in gathers})
    if not sizes:
        return False
    figure, axes = plt.subplots(1, len(sizes), figsize=(6.2 * len(sizes), 5.4), sharey=True, squeeze=False)
    for panel, ranks in zip(axes[0], sizes, strict=True):
        _panel(panel, [case for case in gathers if case["ranks"] == ranks], f"{ranks} ranks")
    machine = found["machine"]
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="upper center", ncols=4, frameon=False)
    figure.supxlabel(
        f"Time of one gather_and_stack, logarithmic; shorter is better. {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['date'][:10]}",
        fontsize=9,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def _panel(panel: Any, cases: list[dict[str, Any]], title: str) -> None:
    from benchmarks.report import time_text

    height = 0.8 / len(_TEAMS)
    for index, (team, (label, color)) in enumerate(_TEAMS.items()):
        for row, case in enumerate(reversed(cases)):
            seconds = (case["teams"].get(team) or {}).get("seconds")
            if not seconds:
                continue
            place = row + 0.4 - height * (index + 0.5)
            panel.barh(place, seconds * 1e6, height * 0.92, color=color, label=label if row == 0 else None)
            note = time_text(seconds)
            slow = (case["teams"].get("tensordict") or {}).get("seconds")
            if team.startswith("corral") and slow:
                note += f"  ({slow / seconds:.0f}x)"
            panel.text(seconds * 1e6 * 1.15, place, note, va="center", fontsize=8)
    panel.set_xscale("log")
    panel.set_xlim(left=0.5)
    panel.set_xlim(right=panel.get_xlim()[1] * 12)
    panel.set_yticks(range(len(cases)), [case["title"].partition(": ")[2] for case in reversed(cases)])
    panel.set_xlabel("µs")
    panel.set_title(title)
    panel.spines[["top", "right"]].set_visible(False)
