"""What the failures of operations say to a user: who, what, where, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.arrays.dtypes import name_of
from corral.backends.messages.calls import call_text
from corral.backends.messages.inquiries import label_text
from corral.backends.messages.operations import ANYONE, Failure, Operation, Reason
from corral.distributed.comm_names import recorded_name
from corral.distributed.errors import DistBackendError, DistTimeoutError, MismatchError, PeerLostError

if TYPE_CHECKING:
    from corral.backends.messages.backend import MessageBackend

__all__ = ["error_of"]


def error_of(operation: Operation, backend: MessageBackend, timeout: float) -> DistBackendError:
    """Turn the failure of an operation into the exception that tells the user."""
    error = _error_of(operation, backend, timeout)
    if operation.loose:
        error.args = (
            f"{error} Bytes are still on their way into, or out of, its memory: do not use that before the rank at the "
            "other end has gone on, or is gone.",
        )
    return error


def _error_of(operation: Operation, backend: MessageBackend, timeout: float) -> DistBackendError:
    failure = operation.failure
    assert failure is not None
    heading = _heading(operation, backend)
    reason = failure.reason
    if reason is Reason.TIMEOUT:
        return DistTimeoutError(
            f"{heading} did not complete within {timeout:g} s. {failure.text}. "
            "Call the same operation on every rank it needs, or allow more time with timeout=."
        )
    if reason is Reason.LOST:
        return _lost_error(heading, backend, failure.rank)
    if reason is Reason.DIFFERENT:
        return MismatchError(
            f"{heading}: the ranks called different operations. {_calls(failure, backend)} "
            "Call the same operation with fitting arguments on every rank."
        )
    if reason is Reason.REFUSED:
        return MismatchError(
            f"{heading}: {_calls(failure, backend)} That rank's own error says what was wrong with them."
        )
    if reason in (Reason.SIZE, Reason.TYPE):
        return MismatchError(f"{heading}: {_misfit(operation, failure, backend)}")
    rank = backend.job.global_rank(failure.rank)
    if reason is Reason.GAVE_UP:
        return _gave_up_error(heading, failure, rank)
    if reason is Reason.ABORTED:
        return DistBackendError(f"{heading}: rank {rank} aborted all operations of the group: {failure.text}.")
    if reason is Reason.SYSTEM:
        return DistBackendError(f"{heading}: {failure.text}.")
    return DistBackendError(f"{heading} failed: the group was closed or interrupted.")


def _heading(operation: Operation, backend: MessageBackend) -> str:
    number = "" if operation.sequence is None else f" #{operation.sequence}"
    titled = recorded_name()
    title = f" for {titled!r}" if titled else ""
    here = backend.job.global_rank(backend.job.rank)
    return f"{label_text(operation.label)}{number}{title} on rank {here} (group {backend.group_name!r})"


def _lost_error(heading: str, backend: MessageBackend, rank: int) -> PeerLostError:
    """Name the rank that the operation needed, and any other that was killed: that it went may be a consequence."""
    job = backend.job
    peers, user = job.peers, job.global_rank
    others = [each for each in backend.members if each != job.rank]
    if rank == ANYONE:
        ends = "; ".join(f"rank {user(r)} {peers.end_text(r)}{peers.process_text(r)}" for r in others)
        return PeerLostError(
            f"{heading}: nobody is left who could send: {ends}. Look at their own output for the cause.",
            tuple(map(user, others)),
        )
    text = f"{heading}: rank {user(rank)} {peers.end_text(rank)}{peers.process_text(rank)}"
    lost = [rank]
    for other in others:
        if other != rank and peers.failed(other):
            text += f"; rank {user(other)} {peers.end_text(other)}"
            lost.append(other)
    whose = "that rank's" if len(lost) == 1 else "these ranks'"
    return PeerLostError(f"{text}. Look at {whose} own output for the cause.", tuple(map(user, lost)))


def _misfit(operation: Operation, failure: Failure, backend: MessageBackend) -> str:
    """Describe what did not fit what it was to be received into."""
    user = backend.job.global_rank
    by_type = failure.reason is Reason.TYPE
    sender = user(failure.rank)
    sent = name_of(failure.actual) if by_type else f"{failure.actual} bytes"
    wanted = name_of(failure.expected) if by_type else f"{failure.expected} bytes"
    if operation.sequence is None:
        is_, of = ("is", "of ") if by_type else ("holds", "")
        return (
            f"the message from rank {sender} {is_} {of}{sent}, the receiving array {of}{wanted}. The message is "
            "consumed; receive into an array of the sender's dtype and size."
        )
    if backend.is_gather(operation):
        holds = f"is of {wanted}" if by_type else f"holds {wanted}"
        return f"rank {sender} contributes {sent}, the array prepared for it {holds}. Nothing was written."
    return (
        f"rank {sender} contributes {sent} where rank {user(failure.finder)} expects {wanted}. "
        "Give the same sizes and dtypes on both ranks."
    )


def _gave_up_error(heading: str, failure: Failure, rank: int) -> DistBackendError:
    why = {
        Reason.TIMEOUT: "its timeout passed",
        Reason.INTERRUPTED: "it was interrupted",
        Reason.CLOSED: "it closed the group",
    }
    cause = why.get(Reason(failure.detail), "it aborted the operation")
    text = f"{heading}: rank {rank} gave up on this operation because {cause}."
    if failure.detail == Reason.TIMEOUT:
        return DistTimeoutError(f"{text} {failure.text}." if failure.text else text)
    return DistBackendError(text)


def _calls(failure: Failure, backend: MessageBackend) -> str:
    user, members = backend.job.global_rank, backend.members

    def member(rank: int) -> int:
        return user(members[rank]) if 0 <= rank < len(members) else rank

    groups: dict[str, list[int]] = {}
    for rank, call in failure.calls:
        groups.setdefault(call_text(call, member), []).append(member(rank))
    parts = []
    for text, ranks in groups.items():
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        parts.append(f"{who} called {text}")
    return "; ".join(parts) + "."
