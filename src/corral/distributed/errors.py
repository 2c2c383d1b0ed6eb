"""The exceptions of :mod:`corral.distributed`, named after those of torch."""

from __future__ import annotations

__all__ = [
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "DistTimeoutError",
    "MismatchError",
    "PeerLostError",
    "QueueEmptyError",
    "StoreTimeoutError",
]


class DistError(RuntimeError):
    """Base of every error that a distributed operation raises."""


class DistBackendError(DistError):
    """An operation failed in the engine that carries it out."""


class DistNetworkError(DistError):
    """A connection between ranks could not be made, or broke."""


class DistStoreError(DistError):
    """A store refused a request, or could not answer it in time."""


class StoreTimeoutError(DistStoreError, TimeoutError):
    """A store did not have what was waited for within the timeout."""


class QueueEmptyError(DistStoreError):
    """A queue of a store has nothing to pop, and the caller would not wait."""


class PeerLostError(DistBackendError):
    """A rank that the operation needs is gone.

    Attributes
    ----------
    ranks : tuple of int
        Global ranks of the lost processes.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks

    def __reduce__(self) -> tuple[type[PeerLostError], tuple[str, tuple[int, ...]]]:
        return type(self), (str(self), self.ranks)


class MismatchError(DistBackendError, ValueError):
    """Ranks called different operations, or one with arguments that do not fit together."""


class DistTimeoutError(DistBackendError, TimeoutError):
    """An operation did not complete within its timeout."""
