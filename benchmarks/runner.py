"""Runs the cases: in every round each team does the same work, one team after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from benchmarks.cases import Bar, Case
from benchmarks.team import Team, TeamError

__all__ = ["Outcome", "Result", "Settings", "Teams", "measure"]


@dataclass(frozen=True)
class Settings:
    """How long and how often to measure."""

    rounds: int = 5
    seconds: float = 0.3
    teams: tuple[str, ...] | None = None


@dataclass
class Result:
    """What one team took, in seconds for each operation, one number for each round."""

    calls: int = 0
    rounds: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def seconds(self) -> float | None:
        """The median round, or ``None`` if the team failed."""
        return median(self.rounds) if self.rounds and self.error is None else None


@dataclass
class Outcome:
    """The results of every team at one case."""

    case: Case
    results: dict[str, Result]

    def speedup(self, bar: Bar) -> float | None:
        """How many times as fast the bar's subject was as its peer; ``None`` if one of them has no result."""
        subject, peer = (self.results.get(name) for name in (bar.subject, bar.peer))
        if subject is None or peer is None or not subject.seconds or not peer.seconds:
            return None
        return peer.seconds / subject.seconds


class Teams:
    """Starts teams when they are first needed and keeps them until the number of ranks changes."""

    def __init__(self) -> None:
        self._teams: dict[str, Team] = {}
        self._failed: dict[str, str] = {}
        self._ranks = 0

    def get(self, name: str, ranks: int) -> Team:
        """Return a running team, or raise why there is none."""
        if ranks != self._ranks:
            self.close()
            self._ranks = ranks
        if name in self._failed:
            raise TeamError(self._failed[name])
        if name not in self._teams:
            try:
                self._teams[name] = Team(name, ranks)
            except TeamError as error:
                self._failed[name] = str(error)
                raise
        return self._teams[name]

    def drop(self, name: str) -> None:
        """End a team that failed: its ranks may be anywhere. It is started anew when it is next needed."""
        team = self._teams.pop(name, None)
        if team is not None:
            team.close(force=True)

    def close(self) -> None:
        """End all teams."""
        while self._teams:
            self._teams.popitem()[1].close()
        self._failed.clear()


def _time(team: Team, calls: int) -> float:
    """Return the seconds that the slowest rank took for `calls` steps."""
    return max(float(answer["seconds"]) for answer in team.ask("time", calls=calls))


def _calibrate(team: Team, seconds: float) -> int:
    """Warm the team up and return how many calls fill `seconds`."""
    calls, took = 1, _time(team, 1)
    while took < seconds / 4:
        calls = max(calls + 1, min(calls * 10, int(calls * seconds / 2 / max(took, 1e-7))))
        took = _time(team, calls)
    return max(2, round(calls * seconds / took))


def measure(case: Case, teams: Teams, settings: Settings, tell: Callable[[str], None] = lambda text: None) -> Outcome:
    """Measure every team at `case`, in turn, round after round."""
    wanted = [name for name in case.teams if settings.teams is None or name in settings.teams]
    results = {name: Result() for name in wanted}
    steps: dict[str, int] = {}

    def attempt(name: str, act: Callable[[Team], None]) -> None:
        if results[name].error is not None:
            return
        try:
            act(teams.get(name, case.ranks))
        except TeamError as error:
            results[name].error = str(error)
            teams.drop(name)

    def prepare(name: str, team: Team) -> None:
        answers = team.ask("prepare", kind=case.kind, workload=case.workload.name)
        steps[name] = answers[0]["steps"]
        results[name].calls = _calibrate(team, settings.seconds)

    def one_round(name: str, team: Team) -> None:
        calls = results[name].calls
        results[name].rounds.append(_time(team, calls) / (calls * steps[name]))

    for name in wanted:
        tell(f"{name} prepares")
        attempt(name, lambda team, name=name: prepare(name, team))  # type: ignore[misc]
    for number in range(settings.rounds):
        for name in _turn(wanted, number):
            tell(f"round {number + 1} of {settings.rounds}: {name}")
            attempt(name, lambda team, name=name: one_round(name, team))  # type: ignore[misc]
    return Outcome(case, results)


def _turn(names: Iterable[str], number: int) -> list[str]:
    """Return `names` beginning with another one in every round: nobody always runs first."""
    names = list(names)
    start = number % max(1, len(names))
    return names[start:] + names[:start]
