"""TensorDicts from one rank to another, into the very leaves that are there.

A TensorDict is two messages: a record of what it is like, and all leaves as one; and one of the objects that are no
arrays, if it has any. The second begins with nothing, of a
type that no array has: a seal, by which the engine itself refuses what does not fit before any of it is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from corral.arrays.buffers import wrap
from corral.backends.base import Operation, Request
from corral.distributed import groups
from corral.distributed.errors import MismatchError
from corral.distributed.groups import Group, ProcessGroup
from corral.distributed.work import Work
from corral.functional.point_to_point import check_tag, peer_of, turn
from corral.tensordict.moving import records
from corral.tensordict.moving.leaves import Leaves, leaves_of
from corral.tensordict.moving.objects import TAG, decode, encode, put, take
from corral.tensordict.moving.requests import Recorded
from corral.wire.errors import CodecError, PickleError

__all__ = ["irecv", "isend", "recv", "send"]

_NOTHING = np.empty(0, np.uint8)


def send(td: Any, dst: int | None, group: Group, group_dst: int | None, tag: int) -> None:
    """Send a TensorDict; see `TensorDict.send`."""
    name = "TensorDict.send"
    pg = groups.member_group(group, name, 2)
    if pg is None:
        return
    peer = peer_of(pg, dst, group_dst, tag, "dst", "destination", name)
    record, buffers, sent, objects = _outgoing(td, pg)
    with turn(pg, "send", peer, tag):
        pg.backend.send([record], peer, tag)
        if objects is not None:
            pg.backend.send([objects], peer, tag + TAG)
        pg.backend.send(buffers, peer, tag)
    if isinstance(sent, Exception):
        raise sent


def isend(td: Any, dst: int | None, group: Group, group_dst: int | None, tag: int) -> tuple[Work | None, int]:
    """Start to send a TensorDict; return the operation, and how many leaves it has."""
    name = "TensorDict.isend"
    pg = groups.member_group(group, name, 2)
    if pg is None:
        return None, 0
    peer = groups.resolve_rank(pg, dst, group_dst, "dst", name)
    check_tag(tag, name)
    record, buffers, sent, objects = _outgoing(td, pg)
    operations = [Operation("send", [record], peer, tag), Operation("send", buffers, peer, tag)]
    if objects is not None:
        operations.insert(1, Operation("send", [objects], peer, tag + TAG))
    with turn(pg, "send", peer, tag):
        first, *others = pg.backend.batch(operations)
    if isinstance(sent, Exception):
        raise sent
    request: Request = others[-1] if objects is None else Recorded(others[0], others[1], _nothing)
    return Work(Recorded(first, request, _nothing), sent.arrays, timeout=pg.backend.timeout), sent.count


def recv(td: Any, src: int | None, group: Group, group_src: int | None, tag: int) -> int:
    """Receive into a TensorDict; return how many leaves it has."""
    name = "TensorDict.recv"
    pg = groups.member_group(group, name, 2)
    if pg is None:
        return 0
    peer = peer_of(pg, src, group_src, tag, "src", "source", name)
    leaves = leaves_of(td, writes=True)
    buffers, finish = leaves.fill()
    record = np.empty(records.SIZE, np.uint8)
    with turn(pg, "recv", peer, tag):
        try:
            pg.backend.recv([record], peer, tag)
        except MismatchError:
            raise _no_tensordict(name, pg, peer, tag, "its dtype or size differs from theirs") from None
        try:
            entries = _check(name, pg, peer, tag, record, leaves)
        except (MismatchError, PickleError) as error:
            if not isinstance(error.__cause__, CodecError):
                pg.backend.recv_bytes(peer, tag)  # nobody can use it
            raise
        pg.backend.recv([_seal(leaves.fingerprint), *buffers], peer, tag)
    if finish is not None:
        finish()
    put(leaves.objects, entries)
    return leaves.count


def irecv(td: Any, src: int | None, group: Group, group_src: int | None, tag: int) -> tuple[Work | None, int]:
    """Start to receive into a TensorDict; return the operation, and how many leaves it has."""
    name = "TensorDict.irecv"
    pg = groups.member_group(group, name, 2)
    if pg is None:
        return None, 0
    peer = groups.resolve_rank(pg, src, group_src, "src", name)
    check_tag(tag, name)
    leaves = leaves_of(td, writes=True)
    buffers, finish = leaves.fill()
    record = np.empty(records.SIZE, np.uint8)
    operations = [
        Operation("recv", [record], peer, tag),
        Operation("recv", [_seal(leaves.fingerprint), *buffers], peer, tag),
    ]
    with turn(pg, "recv", peer, tag):
        first, second = pg.backend.batch(operations)
    entries: list[Any] = []

    def complete() -> None:
        if finish is not None:
            finish()
        put(leaves.objects, entries)

    request = Recorded(first, second, lambda: entries.extend(_check(name, pg, peer, tag, record, leaves)))
    last = complete if leaves.objects else finish
    return Work(request, leaves.arrays, last, pg.backend.timeout), leaves.count


def _outgoing(
    td: Any, pg: ProcessGroup
) -> tuple[np.ndarray[Any, Any], list[Any], Leaves | Exception, np.ndarray[Any, Any] | None]:
    """Return the two messages to send, the leaves, and the message of objects, if there are any.

    Where that fails, messages that say so, and the error in the place of the leaves.
    """
    record = np.zeros(records.SIZE, np.uint8)
    try:
        leaves = leaves_of(td)
        buffers = [_seal(leaves.fingerprint), *leaves.buffers()]
        number, message = encode(leaves.objects, pg.allow_pickle)
        records.write(records.record_of(leaves, objects=number), record)
        return record, buffers, leaves, np.frombuffer(message, np.uint8) if number else None
    except Exception as error:
        records.write(records.refused(error, pg.ranks[pg._rank]), record)
        return record, [_seal(b"")], error, None


def _seal(fingerprint: bytes) -> Any:
    """Return nothing, of a type that only TensorDicts of this fingerprint begin with."""
    return wrap(_NOTHING, f"structure {fingerprint.hex()}")


def _check(
    operation: str, pg: ProcessGroup, peer: int, tag: int, record: np.ndarray[Any, Any], leaves: Leaves
) -> list[Any]:
    """Return the objects that a rank sends; raise `MismatchError` unless all fits the leaves that are to receive it."""
    sender = pg.ranks[peer]
    try:
        sent = records.read(record)
    except CodecError as error:
        raise _no_tensordict(operation, pg, peer, tag, str(error)) from error
    if sent.refusal:
        raise MismatchError(f"{operation}: rank {sender} could not send its TensorDict: {sent.refusal}")
    message = take(pg, peer, tag, sent.objects) if sent.objects else b""
    try:
        records.check_same(sent, records.record_of(leaves), (sender, pg.ranks[pg._rank]))
        return decode(message, leaves.objects, pg.allow_pickle) if sent.objects else []
    except (MismatchError, PickleError) as error:
        raise type(error)(
            f"{operation}: {error}. The TensorDict from rank {sender} (tag {tag}) is consumed, and nothing was written."
        ) from None


def _no_tensordict(operation: str, pg: ProcessGroup, peer: int, tag: int, reason: str) -> MismatchError:
    return MismatchError(
        f"{operation}: the message from rank {pg.ranks[peer]} (tag {tag}) is not one that TensorDict.send or "
        f"TensorDict.isend has sent: {reason}. It is consumed; use another tag for other messages."
    )


def _nothing() -> None:
    """Nothing needs to be checked."""
