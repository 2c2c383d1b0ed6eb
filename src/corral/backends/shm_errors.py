"""What the shared-memory engine's failures say to a user: who, what, where, and what to do."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

from corral.arrays.dtypes import name_of
from corral.backends.shm_names import NAMES, reduction_name
from corral.distributed.comm_names import recorded_name
from corral.distributed.errors import DistBackendError, DistTimeoutError, MismatchError, PeerLostError

if TYPE_CHECKING:
    from corral import _core
    from corral.backends.shm import ShmBackend

__all__ = ["Job", "connect_error", "error_of", "verdict_error"]

# As in src/core/failure.h.
TIMEOUT, PEER_LOST, MISMATCH, WRONG_SIZE, WRONG_TYPE, ABORTED, INTERRUPTED = range(1, 8)
CLOSED, CORRUPT, SYSTEM, REFUSED, LATE = range(8, 13)
_CALL_REFUSED = 4  # src/core/shared.h
_COLLECTIVE = 1 << 63


class Job:
    """What the groups of one job share: the engine, and how many groups still use it.

    The engine counts ranks as they were when the job began; once it has shrunk, users count those that remain.
    """

    __slots__ = ("engine", "global_ranks", "open_groups")

    def __init__(self, engine: _core.Engine) -> None:
        self.engine = engine
        self.open_groups = 0
        self.global_ranks = {rank: rank for rank in range(engine.size)}


def _name(code: int) -> str:
    return NAMES[code] if code < len(NAMES) else str(code)


def _call_text(call: tuple[int, int, int, int, int, int, int], backend: ShmBackend) -> str:
    code, root, _, size, kind, detail, state = call
    if state == _CALL_REFUSED:
        return f"{_name(code)} with arguments that it refused itself"
    words = [] if root < 0 else [f"root={_rank(backend, backend.members[root]) if root < backend.size else root}"]
    if kind:
        words.append(name_of(kind))
    if size:
        words.append(f"{size} bytes")
    if detail:
        words.append(reduction_name(detail - 1))
    return f"{_name(code)}({', '.join(words)})"


def _rank(backend: ShmBackend, rank: int) -> int:
    """Return the rank that a user knows the engine's `rank` by."""
    return backend.job.global_ranks.get(rank, rank)


def _exit_text(backend: ShmBackend, rank: int) -> str:
    gone, left, status = backend.job.engine.gone(rank)
    if status is not None:
        number = status & 0x7F
        if number:
            try:
                name = signal.Signals(number).name
            except ValueError:
                name = f"signal {number}"
            return f"was killed by {name}"
        return f"exited with code {status >> 8 & 0xFF}"
    if left:
        return "left the job (destroy_process_group)"
    return "is gone" if gone else "has failed"


def _doing(backend: ShmBackend, rank: int, sequence: int | None) -> str:
    """Say what a rank of the job does instead of taking part in collective `sequence`."""
    engine = backend.job.engine
    gone, _, _ = engine.gone(rank)
    if gone:
        return f"rank {_rank(backend, rank)} {_exit_text(backend, rank)}"
    waiting = engine.waiting(rank)
    if waiting is not None:
        code, peer, context, match, since = waiting
        seconds = max(0.0, (time.monotonic_ns() - since) / 1e9)
        what = _name(code)
        where = "" if context == backend.context else " of another group"
        if match & _COLLECTIVE:
            number = (match & ~_COLLECTIVE) >> 8
            same = context == backend.context and number == sequence
            state = "waiting too, in" if same else "in"
            return f"rank {_rank(backend, rank)} is {state} {what} #{number}{where} for {seconds:.1f} s"
        whom = "anyone" if peer < 0 else f"rank {_rank(backend, peer)}"
        return f"rank {_rank(backend, rank)} is in {what} with {whom} (tag {match}){where} for {seconds:.1f} s"
    last = engine.last_call(rank, backend.context)
    if last is None:
        return f"rank {_rank(backend, rank)} has called no collective of this group and waits for nothing"
    number, call = last
    state = {1: "is in", 2: "has finished", 3: "has failed in", 4: "called"}.get(call[6], "knows")
    return f"rank {_rank(backend, rank)} {state} {_call_text(call, backend)} #{number} and called nothing since"


def _missing(backend: ShmBackend, failure: Any) -> list[int]:
    """List the ranks of the job that the failed operation may have been waiting for."""
    engine = backend.job.engine
    sequence = failure.sequence
    if sequence is None:
        return [failure.rank] if failure.rank >= 0 else [r for r in backend.members if r != engine.rank]
    missing = []
    for rank in backend.members:
        if rank != engine.rank and engine.call(rank, backend.context, sequence) is None:
            missing.append(rank)
    return missing or [r for r in backend.members if r != engine.rank]


def _heading(backend: ShmBackend, failure: Any) -> str:
    code = failure.code
    what = _name(code) if code else "destroy_process_group"
    number = "" if failure.sequence is None else f" #{failure.sequence}"
    titled = recorded_name()
    title = f" for {titled!r}" if titled else ""
    return f"{what}{number}{title} on rank {_rank(backend, backend.job.engine.rank)} (group {backend.group_name!r})"


def _lost_error(heading: str, backend: ShmBackend, rank: int) -> PeerLostError:
    """Name the rank that the operation needed, and any other that was killed: that it went may be a consequence."""
    process = backend.job.engine.pid(rank)
    text = f"{heading}: rank {_rank(backend, rank)} {_exit_text(backend, rank)} (process {process})"
    lost = [_rank(backend, rank)]
    for other in backend.members:
        if other in (rank, backend.job.engine.rank):
            continue
        gone, left, status = backend.job.engine.gone(other)
        if gone and not left and status != 0:
            text += f"; rank {_rank(backend, other)} {_exit_text(backend, other)}"
            lost.append(_rank(backend, other))
    whose = "that rank's" if len(lost) == 1 else "these ranks'"
    return PeerLostError(f"{text}. Look at {whose} own output for the cause.", tuple(lost))


def _lost_member(backend: ShmBackend) -> int | None:
    """Return a member of the group that is gone, one that was killed if there is one."""
    found = None
    for rank in backend.members:
        if rank == backend.job.engine.rank:
            continue
        gone, left, status = backend.job.engine.gone(rank)
        if gone and not left and status != 0:
            return rank
        if gone and found is None:
            found = rank
    return found


def _part_text(failure: Any, backend: ShmBackend) -> str:
    """Describe a collective's message that did not fit what it was to be received into."""
    if WRONG_SIZE in (failure.reason, failure.detail):
        sent, wanted = f"{failure.actual} bytes", f"{failure.expected} bytes"
    else:
        sent, wanted = name_of(failure.actual), name_of(failure.expected)
    sender, receiver = _rank(backend, failure.rank), _rank(backend, failure.finder)
    return f"rank {sender} contributes {sent} where rank {receiver} expects {wanted}"


def _part_of_late(failure: Any, backend: ShmBackend) -> str:
    return f"{_part_text(failure, backend)}. " if failure.detail in (WRONG_SIZE, WRONG_TYPE) else ""


def error_of(failure: Any, backend: ShmBackend, timeout: float) -> DistBackendError:
    """Turn a failure of the engine into the exception that tells the user."""
    heading = _heading(backend, failure)
    reason = failure.reason
    rank = failure.rank
    if reason == TIMEOUT:
        states = "; ".join(_doing(backend, r, failure.sequence) for r in _missing(backend, failure))
        return DistTimeoutError(
            f"{heading} did not complete within its timeout of {timeout:g} s. {states}. "
            "Call the same operation on every rank it needs, or allow more time with timeout=."
        )
    if reason == PEER_LOST and rank < 0:
        lost = [r for r in backend.members if r != backend.job.engine.rank]
        ends = "; ".join(
            f"rank {_rank(backend, r)} {_exit_text(backend, r)} (process {backend.job.engine.pid(r)})" for r in lost
        )
        return PeerLostError(
            f"{heading}: nobody is left who could send: {ends}. Look at their own output for the cause.",
            tuple(_rank(backend, r) for r in lost),
        )
    if reason == PEER_LOST:
        return _lost_error(heading, backend, rank)
    if reason == MISMATCH:
        return MismatchError(
            f"{heading}: the ranks called different operations. {_calls(backend, failure.sequence)} "
            "Call the same operation with fitting arguments on every rank."
        )
    if reason == REFUSED:
        return MismatchError(
            f"{heading}: {_calls(backend, failure.sequence)} That rank's own error says what was wrong with them."
        )
    if reason == LATE:
        return MismatchError(
            f"{heading}: an earlier call, #{failure.call}, did not fit those of other ranks, which showed only after "
            f"it had completed here: {_calls(backend, failure.call)} {_part_of_late(failure, backend)}"
            f"{'' if failure.sequence is None else 'The present call was not carried out.'}".rstrip()
        )
    if reason in (WRONG_SIZE, WRONG_TYPE) and failure.sequence is not None:
        return MismatchError(
            f"{heading}: {_part_text(failure, backend)}. Give the same sizes and dtypes on both ranks."
        )
    if reason in (WRONG_SIZE, WRONG_TYPE):
        if reason == WRONG_SIZE:
            detail = f"holds {failure.actual} bytes, the receiving array {failure.expected} bytes"
        else:
            detail = f"is of {name_of(failure.actual)}, the receiving array of {name_of(failure.expected)}"
        return MismatchError(
            f"{heading}: the message from rank {_rank(backend, rank)} {detail}. The message is consumed; "
            "receive into an array of the sender's dtype and size."
        )
    if reason == ABORTED:
        # A part of a collective may be canceled before word of the loss that is the cause comes in.
        gone = None if failure.detail or failure.sequence is None else _lost_member(backend)
        if gone is not None:
            return _lost_error(heading, backend, gone)
        why = {
            TIMEOUT: "its timeout passed",
            INTERRUPTED: "it was interrupted",
            SYSTEM: "a copy failed",
            LATE: f"it had learned that call #{failure.call} had not fitted",
        }
        cause = why.get(failure.detail, "it aborted the operation")
        text = f"{heading}: rank {_rank(backend, rank)} gave up on this operation because {cause}."
        if failure.detail == TIMEOUT and failure.sequence is not None:
            text += "".join(f" {_doing(backend, r, failure.sequence)}." for r in _missing(backend, failure))
        raised = {TIMEOUT: DistTimeoutError, LATE: MismatchError}
        return raised.get(failure.detail, DistBackendError)(text)
    if reason == CORRUPT:
        return DistBackendError(f"{heading}: the shared memory written by rank {_rank(backend, rank)} makes no sense.")
    if reason == SYSTEM:
        error = os.strerror(failure.actual)
        return DistBackendError(f"{heading}: copying to or from rank {_rank(backend, rank)} failed: {error}.")
    return DistBackendError(f"{heading} failed: the group was closed or interrupted.")


def connect_error(error: RuntimeError, rank: int) -> DistBackendError:
    """Say why a rank could not open the others' segments."""
    gone = re.match(r"rank (\d+) is gone", str(error))
    if gone:
        lost = int(gone[1])
        return PeerLostError(
            f"init_process_group on rank {rank}: rank {lost} ended before this rank could open its memory. "
            "Look at that rank's own output for the cause.",
            (lost,),
        )
    return DistBackendError(
        f"init_process_group on rank {rank}: {error}. Ranks of one job share memory through /proc: they must run "
        "as one user, in one PID namespace, with the same version of corral. Ranks of several hosts need another "
        "backend, such as 'hybrid'."
    )


def _calls(backend: ShmBackend, sequence: int) -> str:
    engine = backend.job.engine
    groups: dict[str, list[int]] = {}
    for rank in backend.members:
        call = engine.call(rank, backend.context, sequence)
        text = "nothing yet" if call is None else _call_text(call, backend)
        groups.setdefault(text, []).append(_rank(backend, rank))
    parts = []
    for text, ranks in groups.items():
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        parts.append(f"{who} called {text}")
    return "; ".join(parts) + "."


def verdict_error(verdict: Any, backend: ShmBackend, operation: str) -> MismatchError:
    """Turn what a gather's root refused into the exception that every rank raises."""
    rank = _rank(backend, backend.members[verdict.rank])
    if verdict.status == 1:
        detail = f"contributes {verdict.actual} bytes, the array prepared for it holds {verdict.expected} bytes"
    else:
        detail = f"contributes {name_of(verdict.actual)}, the array prepared for it is of {name_of(verdict.expected)}"
    here = _rank(backend, backend.job.engine.rank)
    return MismatchError(
        f"{operation} on rank {here} (group {backend.group_name!r}): rank {rank} {detail}. Nothing was written."
    )
