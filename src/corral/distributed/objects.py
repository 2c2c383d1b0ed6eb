"""Collective operations on Python objects.

Plain data, arrays and TensorDicts travel in a safe format, arrays in memory that the receiver's arrays then keep.
Any other object is pickled, unless that is denied: see :mod:`corral.wire.codec`. Received arrays can be written, and
belong to the receiver. Where an operation raises, the lists that it was given are as they were.
"""

from __future__ import annotations

from typing import Any

from corral.distributed import groups
from corral.distributed.groups import Group
from corral.distributed.object_messages import check_list, pack, root_of, unpack, unpack_list

__all__ = ["all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"]


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
) -> None:
    """Bring every rank's object to one rank.

    Parameters
    ----------
    obj
        This rank's object.
    object_gather_list
        On the destination, a list as long as the group, whose entry *i* becomes the object of group rank *i*;
        ``None`` elsewhere.
    dst
        Global rank of the destination; 0 when neither this nor `group_dst` is given.
    group
        The group; the default one when ``None``.
    group_dst
        Rank in the group of the destination, in place of `dst`.

    Raises
    ------
    PickleError, ValueError
        On the sender, if the object can be sent in no permitted way, or contains itself.
    DistBackendError
        On the destination, if some rank could not send its object.
    MismatchError
        On every other rank, if one called this with arguments that make no sense.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    >>> reports = [None]
    >>> dist.gather_object({"worker": 0, "returns": (1.5, 2.0)}, reports)
    >>> reports
    [{'worker': 0, 'returns': (1.5, 2.0)}]
    >>> dist.destroy_process_group()
    """
    pg = groups.member_group(group, "gather_object")
    if pg is None:
        return
    try:
        root = root_of(pg, dst, group_dst, "dst", "gather_object")
        if root == pg._rank:
            _check_gather_list(object_gather_list, pg._size)
        elif object_gather_list is not None:
            raise ValueError(
                "gather_object: Argument ``object_gather_list`` must NOT be specified on non-destination ranks: "
                f"expected None, got {type(object_gather_list).__qualname__}."
            )
    except (TypeError, ValueError):
        pg.backend.refuse("gather_object")
        raise
    payload, refusal = pack(obj, pg)
    parts = pg.backend.gather_bytes(payload, root)
    if refusal is not None:
        raise refusal
    if parts is not None:
        assert object_gather_list is not None
        object_gather_list[:] = [unpack(part, i, pg, "gather_object") for i, part in enumerate(parts)]


def all_gather_object(object_list: list[Any], obj: Any, group: Group = None) -> None:
    """Bring every rank's object to every rank.

    Parameters
    ----------
    object_list
        A list as long as the group, whose entry *i* becomes the object of group rank *i*.
    obj
        This rank's object.
    group
        The group; the default one when ``None``.

    Raises
    ------
    PickleError, ValueError
        If this rank's object can be sent in no permitted way, or contains itself.
    DistBackendError
        If another rank could not send its object.
    MismatchError
        If another rank called this with arguments that make no sense.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    >>> hosts = [None]
    >>> dist.all_gather_object(hosts, ("node7", 4))
    >>> hosts
    [('node7', 4)]
    >>> dist.destroy_process_group()
    """
    pg = groups.member_group(group, "all_gather_object")
    if pg is None:
        return
    try:
        check_list(object_list, pg._size, "object_list", "all_gather_object")
    except (TypeError, ValueError):
        pg.backend.refuse("all_gather_object")
        raise
    payload, refusal = pack(obj, pg)
    parts = pg.backend.all_gather_bytes(payload)
    if refusal is not None:
        raise refusal
    object_list[:] = [unpack(part, i, pg, "all_gather_object") for i, part in enumerate(parts)]


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Bring one rank's list of objects to every rank.

    Parameters
    ----------
    object_list
        On the source, the objects. Elsewhere a list as long as the source's, whose entries become them.
    src
        Global rank of the source; 0 when neither this nor `group_src` is given.
    group
        The group; the default one when ``None``.
    device
        Accepted for compatibility with torch, and not used: objects come from, and go to, host memory.
    group_src
        Rank in the group of the source, in place of `src`.

    Raises
    ------
    PickleError, ValueError
        On the source, if an object can be sent in no permitted way, or contains itself.
    DistBackendError
        On the other ranks, if the source could not send its objects.
    MismatchError
        On a rank whose list is not as long as the source's; and on every other rank, if one called this with
        arguments that make no sense.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    >>> settings = [{"lr": 3e-4}, "run-7"] if dist.get_rank() == 0 else [None, None]
    >>> dist.broadcast_object_list(settings, src=0)
    >>> settings
    [{'lr': 0.0003}, 'run-7']
    >>> dist.destroy_process_group()
    """
    pg = groups.member_group(group, "broadcast_object_list")
    if pg is None:
        return
    try:
        root = root_of(pg, src, group_src, "src", "broadcast_object_list")
        check_list(object_list, None, "object_list", "broadcast_object_list")
    except (TypeError, ValueError):
        pg.backend.refuse("broadcast_object_list")
        raise
    if root == pg._rank:
        payload, refusal = pack(list(object_list), pg)
        pg.backend.broadcast_bytes(payload, root)
        if refusal is not None:
            raise refusal
        return
    message = pg.backend.broadcast_bytes(None, root)
    object_list[:] = unpack_list(message, root, pg, len(object_list), "broadcast_object_list")


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
) -> None:
    """Give each rank one object of a list that one rank has.

    Parameters
    ----------
    scatter_object_output_list
        A list that is not empty. Its first entry becomes this rank's object.
    scatter_object_input_list
        On the source, a list as long as the group: entry *i* goes to group rank *i*. Not looked at elsewhere.
    src
        Global rank of the source; 0 when neither this nor `group_src` is given.
    group
        The group; the default one when ``None``.
    group_src
        Rank in the group of the source, in place of `src`.

    Raises
    ------
    PickleError, ValueError
        On the source, if some object can be sent in no permitted way, or contains itself: then nobody gets any.
    DistBackendError
        On the other ranks, if the source could not send its objects.
    MismatchError
        On every other rank, if one called this with arguments that make no sense.

    Examples
    --------
    >>> import corral.distributed as dist
    >>> dist.init_process_group("shm", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    >>> mine = [None]
    >>> dist.scatter_object_list(mine, [{"seed": 7}] if dist.get_rank() == 0 else None, src=0)
    >>> mine
    [{'seed': 7}]
    >>> dist.destroy_process_group()
    """
    operation = "scatter_object_list"
    pg = groups.member_group(group, operation)
    if pg is None:
        return
    try:
        root = root_of(pg, src, group_src, "src", operation)
        if not isinstance(scatter_object_output_list, list) or len(scatter_object_output_list) < 1:
            raise ValueError(
                f"{operation}: Expected argument scatter_object_output_list to be a list of size at least 1, got "
                f"{scatter_object_output_list!r:.40}."
            )
        if root == pg._rank:
            if scatter_object_input_list is None:
                raise ValueError(f"{operation}: source rank must provide non-None scatter_object_input_list")
            check_list(scatter_object_input_list, pg._size, "scatter_object_input_list", operation)
    except (TypeError, ValueError):
        pg.backend.refuse(operation)
        raise
    payloads: list[Any] | None = None
    refusal: BaseException | None = None
    if root == pg._rank:
        assert scatter_object_input_list is not None
        payloads = []
        for obj in scatter_object_input_list:
            payload, refusal = pack(obj, pg)
            if refusal is not None:
                payloads = [payload] * pg._size
                break
            payloads.append(payload)
    message = pg.backend.scatter_bytes(payloads, root)
    if refusal is not None:
        raise refusal
    scatter_object_output_list[0] = unpack(message, root, pg, operation)


def _check_gather_list(object_gather_list: Any, size: int) -> None:
    if object_gather_list is None:
        raise ValueError(
            "gather_object: Argument ``object_gather_list`` must be specified on destination rank: expected a list of "
            f"{size}."
        )
    check_list(object_gather_list, size, "object_gather_list", "gather_object")
