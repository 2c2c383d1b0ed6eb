"""Runs the cases: in every round each team does the same work, one team after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.bars import Promise, Result
from benchmarks.cases import Case
from benchmarks.team import Team, TeamError, processes_of

__all__ = ["Outcome", "Settings", "Teams", "measure"]


@dataclass(frozen=True)
class Settings:
    """How long and how often to measure."""

    rounds: int = 5
    seconds: float = 0.3
    teams: tuple[str, ...] | None = None

    def brief(self) -> Settings:
        """Return the same with as few rounds as make a median, and short ones."""
        return replace(self, rounds=min(self.rounds, 3), seconds=self.seconds / 2)


@dataclass
class Outcome:
    """The results of every team at one case, and at the same work with fewer ranks."""

    case: Case
    results: dict[str, Result]
    earlier: dict[int, dict[str, Result]] = field(default_factory=dict)

    def measured(self, bar: Promise) -> float | None:
        """What `bar` is about, as it defines it; ``None`` if one of its sides has no result."""
        peers = self.results if bar.peer_ranks is None else self.earlier.get(bar.peer_ranks, {})
        subject, peer = self.results.get(bar.subject), peers.get(bar.peer)
        return None if subject is None or peer is None else bar.measured(subject, peer)

    def passed(self, bar: Promise) -> bool | None:
        """Whether `bar` is reached; ``None`` if that could not be measured."""
        return bar.passed(self.measured(bar))

    def link(self, earlier: Sequence[Outcome]) -> None:
        """Keep those of the `earlier` outcomes that are of the same work."""
        for other in earlier:
            if other.case.name == self.case.name_with(other.case.ranks):
                self.earlier[other.case.ranks] = other.results


class Teams:
    """Starts teams when they are first needed and keeps them until the number of ranks changes."""

    def __init__(self) -> None:
        self._teams: dict[str, Team] = {}
        self._failed: dict[str, str] = {}
        self._ranks = 0

    def get(self, name: str, ranks: int) -> Team:
        """Return a running team, or raise why there is none."""
        name = processes_of(name)
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
        team = self._teams.pop(processes_of(name), None)
        if team is not None:
            team.close(force=True)

    def close(self) -> None:
        """End all teams."""
        while self._teams:
            self._teams.popitem()[1].close()
        self._failed.clear()


def _time(team: Team, name: str, part: str, calls: int) -> float:
    """Return the seconds that the slowest rank took for `calls` steps."""
    return max(float(answer["seconds"]) for answer in team.ask("time", team=name, part=part, calls=calls))


def _calibrate(team: Team, name: str, part: str, seconds: float) -> int:
    """Warm the team up and return how many calls fill `seconds`."""
    calls, took = 1, _time(team, name, part, 1)
    while took < seconds / 4:
        calls = max(calls + 1, min(calls * 10, int(calls * seconds / 2 / max(took, 1e-7))))
        took = _time(team, name, part, calls)
    return max(2, round(calls * seconds / took))


def measure(case: Case, teams: Teams, settings: Settings, tell: Callable[[str], None] = lambda text: None) -> Outcome:
    """Measure every team at `case`, in turn, round after round."""
    settings = settings.brief() if case.brief else settings
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
        first, *_ = team.ask("prepare", team=name, kind=case.kind, workload=case.workload.name)
        steps[name] = first["steps"]
        results[name].parts = {part: [] for part in first["parts"]}
        results[name].calls = _calibrate(team, name, first["parts"][0], settings.seconds)

    def one_round(name: str, team: Team) -> None:
        calls = results[name].calls
        for part, rounds in results[name].parts.items():
            rounds.append(_time(team, name, part, calls) / (calls * steps[name]))

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
