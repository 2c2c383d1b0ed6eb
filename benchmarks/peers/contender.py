"""What a contender is to the cases: its ranks, and its operations, each prepared as a call without arguments."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from benchmarks.workloads import Workload

__all__ = ["ROOT", "Communicator", "Contender", "Job", "Jobs", "Message", "Step"]

ROOT = 0

Step: TypeAlias = Callable[[], Any]

Message: TypeAlias = tuple[np.ndarray, int, int]
"""An array, the rank on the other side, and the tag."""


class Job(abc.ABC):
    """One rank's part of a case: its arrays are allocated once, then `step` is repeated."""

    steps_per_call = 1
    """How many of what is reported one call of `step` does (2 for a round trip)."""

    step: Step

    @property
    def parts(self) -> dict[str, Step]:
        """What is timed, one after the other in every round; the first is what is reported as the time."""
        return {"step": self.step}

    @abc.abstractmethod
    def verify(self, version: int) -> None:
        """Do one step with the values of `version`, and raise unless all of them arrived."""


Jobs: TypeAlias = Mapping[str, Callable[[Any, Workload], Job]]
"""How to prepare each kind of case, from a contender and what travels."""


class Contender(abc.ABC):
    """A library at work in this rank."""

    rank: int
    size: int

    jobs: ClassVar[Jobs] = {}
    """The kinds of case that this contender does in a way of its own."""

    @property
    def senders(self) -> range:
        """The ranks whose rows the root receives."""
        return range(1, self.size)

    @abc.abstractmethod
    def barrier(self) -> None:
        """Wait for every rank."""

    def close(self) -> None:  # noqa: B027 - not every library has something to end
        """Leave the group."""


class Communicator(Contender):
    """A contender with the operations that `benchmarks.peers.jobs` is made of.

    Arrays are given as NumPy's; a contender that sends another kind wraps their memory. What is returned is
    called many times, so it should be the library's own function with its arguments bound.
    """

    def leaf(self, array: np.ndarray) -> Any:
        """Return `array` as the kind of array that this contender sends, in the same memory."""
        return array

    @abc.abstractmethod
    def sending(self, array: np.ndarray, peer: int) -> Step:
        """Prepare to send `array` to `peer`."""

    @abc.abstractmethod
    def receiving(self, array: np.ndarray, peer: int) -> Step:
        """Prepare to receive from `peer` into `array`."""

    @abc.abstractmethod
    def exchanging(self, sent: Sequence[Message], received: Sequence[Message]) -> Step:
        """Prepare to start all these transfers at once, and to wait for them."""

    @abc.abstractmethod
    def waiting(self) -> Step:
        """Prepare a barrier."""

    @abc.abstractmethod
    def broadcasting(self, array: np.ndarray, root: int) -> Step:
        """Prepare to send `array` from `root` to everyone, into everyone's `array`."""

    @abc.abstractmethod
    def all_reducing(self, array: np.ndarray) -> Step:
        """Prepare to replace everyone's `array` by the sum of all of them."""

    @abc.abstractmethod
    def all_gathering(self, out: np.ndarray, array: np.ndarray) -> Step:
        """Prepare to fill everyone's `out` with all ranks' `array` in rank order."""

    @abc.abstractmethod
    def gathering(self, out: np.ndarray, array: np.ndarray, root: int) -> Step:
        """Prepare to fill the rows of `out` on `root` with all ranks' `array`."""

    @abc.abstractmethod
    def gathering_objects(self, obj: Any) -> Step:
        """Prepare to bring every rank's `obj` to the root."""

    @abc.abstractmethod
    def gather_objects(self, obj: Any) -> list[Any] | None:
        """Return, at the root, the `obj` of every rank."""
