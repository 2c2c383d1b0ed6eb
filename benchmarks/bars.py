"""What a team took, and what is promised about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

__all__ = ["Bar", "OverlapBar", "Promise", "Result"]


@dataclass
class Result:
    """What one team took, in seconds for each operation, one number for each round."""

    calls: int = 0
    parts: dict[str, list[float]] = field(default_factory=dict)
    error: str | None = None

    @property
    def rounds(self) -> list[float]:
        """The rounds of what is reported as the time: the first part."""
        return next(iter(self.parts.values()), [])

    @property
    def seconds(self) -> float | None:
        """The median round, or ``None`` if the team failed."""
        return median(self.rounds) if self.rounds and self.error is None else None

    @property
    def medians(self) -> dict[str, float]:
        """The median round of every part, if the team did not fail."""
        return {part: median(rounds) for part, rounds in self.parts.items() if rounds and self.error is None}

    @property
    def overlap(self) -> float | None:
        """Which share of the shorter of two things is hidden when both are done at once; ``None`` if unknown."""
        took = self.medians
        if not {"both", "communicate", "compute"} <= took.keys():
            return None
        alone = took["communicate"], took["compute"]
        return (sum(alone) - took["both"]) / min(alone)


class Promise:
    """Something that `subject` has to reach, measured against `peer`."""

    subject: str
    peer: str
    peer_ranks: int | None = None
    """With how many ranks the peer did the same work, where not with as many as the subject."""

    @property
    def against(self) -> str:
        """The peer, in a reader's words."""
        return self.peer if self.peer_ranks is None else f"{self.peer}, {self.peer_ranks} ranks"

    def measured(self, subject: Result, peer: Result) -> float | None:
        """What the bar is about, or ``None`` if one of the two has no result."""
        raise NotImplementedError

    @property
    def at_least(self) -> float:
        """The bar itself."""
        raise NotImplementedError

    def texts(self, measured: float | None) -> tuple[str, str]:
        """Return the measured value and the bar, in the terms in which the bar is set."""
        raise NotImplementedError

    def as_json(self, measured: float | None) -> dict[str, Any]:
        """Return the bar and what was measured as plain data."""
        raise NotImplementedError

    def passed(self, measured: float | None) -> bool | None:
        """Whether the bar is reached; ``None`` if that is not known."""
        return None if measured is None else measured >= self.at_least


@dataclass(frozen=True)
class Bar(Promise):
    """`subject` is at least `speedup` times as fast as `peer`.

    A limit on a ratio of times, "at most 0.6 of its time", is the same promise with ``speedup=1 / 0.6``.
    """

    subject: str
    peer: str
    speedup: float
    as_ratio: bool = False
    aim: float | None = None
    peer_ranks: int | None = None

    @classmethod
    def ratio(cls, subject: str, peer: str, at_most: float, peer_ranks: int | None = None) -> Bar:
        """Promise that `subject` takes at most this share of `peer`'s time."""
        return cls(subject, peer, 1 / at_most, as_ratio=True, peer_ranks=peer_ranks)

    @property
    def at_least(self) -> float:
        """The speedup."""
        return self.speedup

    def measured(self, subject: Result, peer: Result) -> float | None:
        """How many times as fast the subject was."""
        return peer.seconds / subject.seconds if subject.seconds and peer.seconds else None

    def texts(self, measured: float | None) -> tuple[str, str]:
        """Return both as a speedup, or as a share of the peer's time."""
        if self.as_ratio:
            return "" if measured is None else f"{1 / measured:.2f} of its time", f"at most {1 / self.speedup:.2g}"
        aim = f", aiming at {self.aim:g}" if self.aim else ""
        return "" if measured is None else f"{measured:.3g} times as fast", f"at least {self.speedup:g}{aim}"

    def as_json(self, measured: float | None) -> dict[str, Any]:
        """Return both as speedups."""
        return {"speedup": measured, "at_least": self.speedup}


@dataclass(frozen=True)
class OverlapBar(Promise):
    """`subject` hides at least as large a share of its communication behind a computation as `peer`."""

    subject: str
    peer: str

    @property
    def at_least(self) -> float:
        """No advantage is needed, but no disadvantage either."""
        return 0.0

    def measured(self, subject: Result, peer: Result) -> float | None:
        """By how much the subject's share is larger."""
        mine, its = subject.overlap, peer.overlap
        return None if mine is None or its is None else mine - its

    def texts(self, measured: float | None) -> tuple[str, str]:
        """Return both as differences of the shares."""
        return "" if measured is None else f"{measured:+.2f} to its overlap", "at least as large"

    def as_json(self, measured: float | None) -> dict[str, Any]:
        """Return both as differences of the shares."""
        return {"overlap_advantage": measured, "at_least": self.at_least}
