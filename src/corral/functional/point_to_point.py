"""From one rank to another: `send` and `recv`.

A tree is one message with its layout and, if it has arrays, one with these behind it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from corral.distributed import groups
from corral.distributed.errors import DistTimeoutError, MismatchError
from corral.distributed.groups import Group, ProcessGroup
from corral.distributed.p2p import MAX_TAG
from corral.functional.offers import messages_of, prepare_offered, read
from corral.functional.parcels import check_like, pack
from corral.wire.errors import PickleError

__all__ = ["check_tag", "peer_of", "recv", "send", "turn"]

_MAGIC = b"\xc1CT\x01"  # before what is offered: other messages of the same tag do not start like this

_turns: weakref.WeakKeyDictionary[ProcessGroup, dict[tuple[str, int, int], threading.Lock]] = (
    weakref.WeakKeyDictionary()
)
_new_turn = threading.Lock()


def send(tree: Any, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Send a tree of arrays to one rank, which need not know what it is.

    Returns when the arrays' memory may be used again. What is sent by this is received by `corral.recv`, not by
    `corral.distributed.recv`; a tag of their own keeps the two apart.

    Parameters
    ----------
    tree
        An array, a TensorDict, or any nesting of dicts, lists, tuples, namedtuples and dataclasses of them.
    dst
        Global rank to send to.
    group
        The group to send in; the default one when ``None``.
    tag
        The receiver must give the same.
    group_dst
        Rank in the group to send to, in place of `dst`.

    Raises
    ------
    ValueError
        If the destination does not exist or is this rank, or for another tag than 0 to 2**31 - 1.
    PickleError
        If the tree holds an object that can only be pickled, and that is refused. The receiver raises it too.
    MismatchError
        If the tree cannot be sent. The receiver raises it too.

    Examples
    --------
    >>> import numpy as np
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     if dist.get_rank() == 1:
    ...         send({"rows": np.ones((5, 3)), "name": "worker 1"}, dst=0)
    ...     elif dist.get_rank() == 0:
    ...         tree = recv()  # from whoever is first
    """
    name = "corral.send"
    pg = groups.member_group(group, name)
    if pg is None:
        return
    peer = peer_of(pg, dst, group_dst, tag, "dst", "destination", name)
    parcels, (message,) = messages_of(pg, lambda: [pack(tree, pg.allow_pickle)])
    with turn(pg, "send", peer, tag):
        pg.backend.send([_MAGIC + message], peer, tag)
        for parcel in parcels:
            if parcel is not None and parcel.buffers:
                pg.backend.send(parcel.buffers, peer, tag)
    read(name, [message])


def recv(
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
    like: str | None = None,
) -> Any:
    """Receive a tree of arrays that another rank sent by `corral.send`.

    Parameters
    ----------
    src
        Global rank to receive from; the next tree from anyone when neither this nor `group_src` is given.
    group, tag
        As for `send`.
    group_src
        Rank in the group to receive from, in place of `src`.
    like : {"numpy", "torch", "jax", "cupy"}, optional
        Library of the resulting arrays. By default each keeps its own where that is loaded; NumPy's else.

    Returns
    -------
    tree
        The sender's tree; ``None`` if this process is not in the group.

    Raises
    ------
    ValueError
        If the source does not exist or is this rank, or for another tag than 0 to 2**31 - 1.
    PickleError, MismatchError
        If the sender could not send its tree, or this rank cannot make it; or if the message was not sent by
        `corral.send`. It is consumed, and the sender completes.

    Notes
    -----
    Several threads may receive from anyone, or each from a rank of its own; with one tag, not both at once.
    """
    name = "corral.recv"
    pg = groups.member_group(group, name)
    if pg is None:
        return None
    check_like(like)
    peer = None
    if src is not None or group_src is not None:
        peer = peer_of(pg, src, group_src, tag, "src", "source", name)
    else:
        check_tag(tag, name)
    with turn(pg, "recv", -1 if peer is None else peer, tag):
        source, sent = pg.backend.recv_bytes(peer, tag)
        message = bytes(sent)
        rank = pg.ranks[source]
        if not message.startswith(_MAGIC):
            raise MismatchError(
                f"{name}: the message from rank {rank} (tag {tag}) is no tree. It is consumed; use another tag for "
                "what is not sent by corral.send."
            )
        (offered,) = read(name, [message[len(_MAGIC) :]])
        try:
            received = prepare_offered(offered, like, pg.allow_pickle)
        except Exception as error:
            if offered.with_arrays:
                pg.backend.recv_bytes(source, tag)
            raised = PickleError if isinstance(error, PickleError) else MismatchError
            raise raised(f"{name}: the tree from rank {rank} cannot be received: {error}") from error
        if offered.with_arrays:
            pg.backend.recv(received.buffers, source, tag)
    return received.rebuild(like)


def peer_of(
    pg: ProcessGroup, rank: int | None, group_rank: int | None, tag: Any, argument: str, side: str, operation: str
) -> int:
    """Return the group rank of the other side; raise `ValueError` for none, for this rank, or for a wrong tag."""
    peer = groups.resolve_rank(pg, rank, group_rank, argument, operation)
    if peer == pg._rank:
        raise ValueError(f"{operation}: the {side} is this rank itself ({pg.ranks[peer]}): give another one")
    check_tag(tag, operation)
    return peer


def check_tag(tag: Any, operation: str) -> None:
    """Raise `ValueError` unless a message can have the tag."""
    if not isinstance(tag, int) or not 0 <= tag <= MAX_TAG:
        raise ValueError(f"{operation}: tag must be an integer in 0 to {MAX_TAG}, got {tag!r}")


@contextlib.contextmanager
def turn(pg: ProcessGroup, side: str, peer: int, tag: int) -> Iterator[None]:
    """Keep the two messages of a tree together where several threads send or receive the like."""
    key = (side, peer, tag)
    with _new_turn:
        turn = _turns.setdefault(pg, {}).setdefault(key, threading.Lock())
    if not turn.acquire(timeout=min(pg.backend.timeout, threading.TIMEOUT_MAX)):
        raise DistTimeoutError(
            f"corral.{side} on rank {pg.ranks[pg._rank]} (group {pg.group_name!r}): another thread has waited for "
            f"{pg.backend.timeout:g} s in the same call (tag {tag})"
        )
    try:
        yield
    finally:
        turn.release()
