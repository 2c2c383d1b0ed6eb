"""Lists of Python objects from one rank to another; see :mod:`corral.distributed.objects` for how they travel."""

from __future__ import annotations

from typing import Any

from corral.distributed import groups
from corral.distributed.groups import Group
from corral.distributed.object_messages import check_list, pack, refuse, unpack_list
from corral.distributed.p2p import _check_not_self

__all__ = ["recv_object_list", "send_object_list"]


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send a list of objects to a rank that calls `recv_object_list`.

    Parameters
    ----------
    object_list
        The objects. They travel as one message, with tag 0.
    dst
        Global rank to send to.
    group
        The group; the default one when ``None``.
    device, use_batch
        Accepted for compatibility with torch, and not used: objects come from, and go to, host memory, and one
        connection serves all kinds of messages.
    group_dst
        Rank in the group to send to, in place of `dst`.

    Raises
    ------
    PickleError, ValueError, TypeError
        If an object can be sent in no permitted way, or contains itself, or `object_list` is no list. The receiver
        is told.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> if dist.is_initialized():
    ...     if dist.get_rank() == 0:
    ...         dist.send_object_list([{"step": 10}, "go"], dst=1)
    ...     elif dist.get_rank() == 1:
    ...         orders = [None, None]
    ...         dist.recv_object_list(orders, src=0)
    """
    pg = groups.member_group(group, "send_object_list")
    if pg is None:
        return
    peer = groups.resolve_rank(pg, dst, group_dst, "dst", "send_object_list")
    _check_not_self(pg, peer, "destination", "send_object_list")
    payload: Any
    refusal: BaseException | None
    try:
        check_list(object_list, None, "object_list", "send_object_list")
    except TypeError as error:
        payload, refusal = refuse(error), error
    else:
        payload, refusal = pack(list(object_list), pg)
    pg.backend.send(payload if type(payload) is list else (payload,), peer)
    if refusal is not None:
        raise refusal


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Receive the objects that a rank sends with `send_object_list`.

    Parameters
    ----------
    object_list
        A list as long as the sender's, whose entries become its objects.
    src
        Global rank to receive from; the next message from anyone when neither this nor `group_src` is given.
    group
        The group; the default one when ``None``.
    device, use_batch
        As for `send_object_list`.
    group_src
        Rank in the group to receive from, in place of `src`.

    Returns
    -------
    int
        The sender's global rank; -1 if this process is not in the group.

    Raises
    ------
    DistBackendError
        If the sender could not send its objects.
    MismatchError
        If the sender's list has another length. The message is consumed; the sender is not told.
    CodecError
        If the message holds no objects, but an array. It is consumed.
    """
    pg = groups.member_group(group, "recv_object_list")
    if pg is None:
        return -1
    peer: int | None = None
    if src is not None or group_src is not None:
        peer = groups.resolve_rank(pg, src, group_src, "src", "recv_object_list")
        _check_not_self(pg, peer, "source", "recv_object_list")
    check_list(object_list, None, "object_list", "recv_object_list")
    source, message = pg.backend.recv_bytes(peer)
    object_list[:] = unpack_list(message, source, pg, len(object_list), "recv_object_list")
    return pg.ranks[source]
