"""Making and ending process groups."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from corral import backends
from corral.digests import digest
from corral.distributed import engines, groups, rendezvous
from corral.distributed.errors import MismatchError
from corral.distributed.groups import NON_GROUP_MEMBER, Group, ProcessGroup
from corral.distributed.work import seconds
from corral.wire.pickles import permitted

if TYPE_CHECKING:
    from corral.backends.base import Backend

__all__ = ["destroy_process_group", "init_process_group", "is_available", "new_group"]

DEFAULT_TIMEOUT = timedelta(minutes=5)
"""How long an operation may take where no timeout is given."""

_subgroups: list[ProcessGroup] = []
_shared_count = 0  # groups made by all ranks: each makes the same ones in the same order
_local_counts: dict[tuple[int, ...], int] = {}  # groups made by their members alone
_store: Any = None  # where the ranks met: others may still read in it when this one's have come


def is_available() -> bool:
    """Whether this module can be used: always true.

    Examples
    --------
    >>> is_available()
    True
    """
    return True


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | float | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any | None = None,
    group_name: str = "",
    pg_options: Any | None = None,
    device_id: Any | None = None,
    *,
    comm: Any | None = None,
    allow_pickle: bool | None = None,
) -> None:
    """Meet the other ranks of the job and make the default group of all of them.

    Parameters
    ----------
    backend
        Name of the engine, or of one for each device: ``"cpu:shm,cuda:nccl"``. When ``None``: ``"shm"``, shared
        memory, if all ranks share a host, and ``"hybrid"`` if they do not.
    init_method
        Where the ranks meet: ``"env://"`` (the default; reads ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
        ``MASTER_PORT``), ``"tcp://host:port"`` or ``"file:///path"``.
    timeout
        How long to wait for the other ranks, and for any operation without a timeout of its own: a
        `datetime.timedelta` or seconds. Five minutes when ``None``.
    world_size, rank
        Number of ranks, and which of them this process is; -1 to read them from the environment.
    store
        A `Store`, or another object with ``set(key, value)`` and ``get(key)`` that waits for the key, such as one
        of torch's stores, to meet in, instead of `init_method`. It is kept until the group is destroyed.
    group_name, pg_options, device_id
        Accepted for compatibility with torch, and not used.
    comm
        A communicator of mpi4py, for the backend ``"mpi"``: its ranks are those of the job. ``MPI.COMM_WORLD`` when
        ``None``. MPI needs no `init_method`, and says itself which rank this is.
    allow_pickle
        Whether the object collectives may pickle what the safe format cannot hold. Yes when ``None``, unless
        the environment has ``CORRAL_PICKLE=deny``, which is obeyed in any case.

    Raises
    ------
    DistTimeoutError
        If some ranks do not come; the message names them.
    """
    global _store
    if groups.world is not None:
        raise ValueError("trying to initialize the default process group twice!")
    if store is not None and init_method is not None:
        raise ValueError("Cannot specify both init_method and store.")
    limit = seconds(DEFAULT_TIMEOUT if timeout is None else timeout)
    assert limit is not None
    plan = engines.plan_for("mpi" if backend is None and comm is not None else backend, "init_process_group")
    if comm is not None and plan.engine != "mpi":
        raise ValueError(f"init_process_group: comm is for the backend 'mpi', got it with {backend!r}")
    engine: Any = None if plan.engine is None else backends.load(plan.engine)
    if engine is not None and not getattr(engine, "meets", True):
        instance = engine.create(-1, -1, None, limit, comm=comm)
        _check_given(instance, rank, world_size)
    else:
        if store is not None:
            if world_size <= 0:
                raise ValueError(f"world_size must be positive if using store, got {world_size}")
            if not 0 <= rank < world_size:
                raise ValueError(f"rank must be in 0 to {world_size - 1} if using store, got {rank}")
            meet = engines.meet_in_store(store, rank, world_size)
        else:
            address, rank, world_size = rendezvous.resolve(init_method, rank, world_size)
            meet = engines.meet_at(address, rank, world_size, limit)
        instance = engines.join(plan.engine, rank, world_size, meet, limit)
    make_world(instance, plan.written, allow_pickle)
    _store = store


def make_world(instance: Backend, written: str = "", allow_pickle: bool | None = None) -> ProcessGroup:
    """Make the default group of all ranks of an engine, whose name as the user wrote it is `written`."""
    global _shared_count
    _come_first_at_exit()
    _shared_count = 1  # the default group is number 0
    pickle = _pickle_allowed(allow_pickle)
    world = ProcessGroup(instance, range(instance.size), "0", "default_pg", pickle, written)
    groups.set_world(world)
    return world


def _check_given(instance: Backend, rank: int, world_size: int) -> None:
    """Raise if an engine that knows better was told another rank or size."""
    for name, given, known in (("rank", rank, instance.rank), ("world_size", world_size, instance.size)):
        if given not in (-1, known):
            instance.close(0.0)
            raise ValueError(f"init_process_group: {name} is {known} in {instance.name!r}, got {given}; leave it out")


def destroy_process_group(group: Group = None) -> None:
    """Deliver what was sent, and end a group.

    Parameters
    ----------
    group
        The group to end; all of them, the default one last, when ``None`` or the default group.
    """
    global _shared_count, _store
    if type(group) is int and group == NON_GROUP_MEMBER:
        return
    if group is None or group is groups.world:
        last = groups.world
        if last is None:
            raise ValueError(
                "Invalid process group specified: there is no default group to destroy; was init_process_group called?"
            )
        ending = [*reversed(_subgroups), last]
        groups.set_world(None)
        _subgroups.clear()
        _local_counts.clear()
        _shared_count = 0
        _store = None
    elif isinstance(group, ProcessGroup) and group in _subgroups:
        ending = [group]
        _subgroups.remove(group)
    else:
        raise ValueError(f"Invalid process group specified: {group}")
    error: BaseException | None = None
    last_ones = _last_of_jobs(ending)  # each waits for what was sent in all groups of its job
    for process_group in ending:
        process_group.closed = True
        try:
            process_group.backend.close(None if process_group in last_ones else 0.0)
        except BaseException as failure:  # the others must be closed all the same
            error = error or failure
    if error is not None:
        raise error


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any | None = None,
    sort_ranks: bool = True,
    *,
    allow_pickle: bool | None = None,
) -> ProcessGroup | int:
    """Make a group of some of the ranks.

    Every rank of the job must call it, with the same ranks, also those that will not be in the group; unless
    `use_local_synchronization` is true: then only the group's members must.

    Parameters
    ----------
    ranks
        Global ranks of the members; all when ``None``.
    timeout
        As for `init_process_group`; the default group's when ``None``.
    backend
        Name of the engine; the default group's when ``None``. With another one than the default group's, the members
        connect by it.
    pg_options, device_id
        Accepted for compatibility with torch, and not used.
    use_local_synchronization
        Whether only the members make the group.
    group_desc
        What the group is for.
    sort_ranks
        Whether group ranks follow the order of global ranks; if not, they follow that of `ranks`.
    allow_pickle
        As for `init_process_group`; as in the default group when ``None``.

    Returns
    -------
    ProcessGroup or int
        The group; `GroupMember.NON_GROUP_MEMBER` on ranks that are not in it.

    Raises
    ------
    MismatchError
        On every rank, if ranks called it with different members.
    """
    global _shared_count
    parent = groups.default_group()
    with contextlib.nullcontext() if use_local_synchronization else groups.refusing(parent, "new_group"):
        limit = seconds(timeout)
        plan = engines.plan_for(backend, "new_group")
        members = _members(parent, ranks, sort_ranks)
        pickle = parent.allow_pickle if allow_pickle is None else _pickle_allowed(allow_pickle)
    if use_local_synchronization:
        if parent._rank not in members:
            return NON_GROUP_MEMBER
        count = _local_counts.get(members, 0)
        _local_counts[members] = count + 1
        name = f"local-{digest(','.join(map(str, members)).encode(), 8).hex()}-{count}"
    else:
        name = str(_shared_count)
        agree(parent, "new_group", name, ",".join(map(str, members)))
        _shared_count += 1  # only now: a call that was refused somewhere has made no group on any rank
        if parent._rank not in members:
            return NON_GROUP_MEMBER
    made = make_subgroup(parent, members, name, limit, group_desc, pickle, plan)
    if use_local_synchronization:
        made.backend.barrier()
    return made


def _members(parent: ProcessGroup, ranks: Sequence[int] | None, sort_ranks: bool) -> tuple[int, ...]:
    """Return the new group's global ranks, checked, in the order of its group ranks."""
    if ranks is None:
        return parent.ranks
    members = [groups._integer(rank, "ranks", "new_group") for rank in ranks]
    if not members:
        raise ValueError("new_group: ranks must not be empty")
    if sort_ranks:
        members.sort()
    if len(set(members)) != len(members):
        raise ValueError(f"ranks list must not contain duplicate entries, got {members}")
    for rank in members:
        if not 0 <= rank < parent._size:
            raise ValueError(
                f"Rank {rank} is out of range. Valid ranks are 0 to {parent._size - 1} (world_size={parent._size})"
            )
    return tuple(members)


def agree(parent: ProcessGroup, operation: str, name: str, members: str) -> None:
    """Wait for every rank of a group, and raise on all of them if they are making different groups."""
    calls = parent.backend.all_gather_bytes(f"{name}:{members}".encode(), operation=operation)
    if any(call != calls[0] for call in calls):
        said = "; ".join(
            f"rank {rank}: group {number} of ranks [{theirs}]"
            for rank, call in zip(parent.ranks, calls, strict=True)
            for number, _, theirs in [bytes(call).decode(errors="replace").partition(":")]
        )
        raise MismatchError(f"{operation} was called differently on different ranks: {said}")


def make_subgroup(
    parent: ProcessGroup,
    positions: Sequence[int],
    name: str,
    limit: float | None,
    group_desc: str | None,
    allow_pickle: bool,
    plan: engines.Plan | None = None,
) -> ProcessGroup:
    """Make a group of this and other ranks of `parent`, given as its group ranks.

    Nobody is talked to, unless `plan` asks for another engine than `parent` has.
    """
    ranks = [parent.ranks[position] for position in positions]
    if plan is None or plan.engine in (None, parent.backend.name):
        instance = parent.backend.split(positions, name, limit)
    else:
        meet = engines.meet_in_group(parent.backend, positions, name, limit)
        place = list(positions).index(parent._rank)
        instance = engines.join(plan.engine, place, len(ranks), meet, limit or parent.backend.timeout)
        instance.renumber(ranks)
        _come_first_at_exit()
    written = parent.backend_name if plan is None else plan.written
    made = ProcessGroup(instance, ranks, name, group_desc, allow_pickle, written)
    _subgroups.append(made)
    return made


def add_group(instance: Backend, ranks: Sequence[int], name: str, allow_pickle: bool | None) -> ProcessGroup:
    """Make a group of an engine that has connected some ranks of the default group by itself."""
    parent = groups.default_group()
    instance.renumber(ranks)
    _come_first_at_exit()
    pickle = parent.allow_pickle if allow_pickle is None else _pickle_allowed(allow_pickle)
    made = ProcessGroup(instance, ranks, name, None, pickle)
    _subgroups.append(made)
    return made


def replace_group(old: ProcessGroup, new: ProcessGroup) -> None:
    """Put a subgroup into the place of another, which ends."""
    _subgroups[_subgroups.index(old)] = new
    old.closed = True
    old.backend.close(0.0)  # what nobody has begun to receive in it, nobody can any more: that is not waited for


def replace_world(new: ProcessGroup) -> None:
    """Make a group the only one there is."""
    ending = open_groups()
    _subgroups.clear()
    _local_counts.clear()
    groups.set_world(new)
    for process_group in reversed(ending):
        process_group.closed = True
        process_group.backend.close(0.0)  # as in `replace_group`


def groups_made() -> int:
    """Return how many groups all ranks have made together, the default one included."""
    return _shared_count


def open_groups() -> list[ProcessGroup]:
    """Return the groups of this rank that can be used, the default one first."""
    return [] if groups.world is None else [groups.world, *_subgroups]


def _last_of_jobs(some: Sequence[ProcessGroup]) -> list[ProcessGroup]:
    """Return those groups after which no other of the same job comes: of a job of its own is who has connected by
    itself, such as a group on another engine than the default group's.
    """
    last = {id(getattr(each.backend, "job", each.backend)): each for each in some}
    return list(last.values())


def _pickle_allowed(allow_pickle: bool | None) -> bool:
    return permitted(True) and allow_pickle is not False


def _come_first_at_exit() -> None:
    """Have what is sent delivered before an engine that has just connected does what it does at exit."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _at_exit() -> None:
    """Deliver what a process that ends without `destroy_process_group` has sent; its exit code tells the rest."""
    if groups.world is None:
        return
    by_an_error = hasattr(sys, "last_value") and sys.last_value is not None and not hasattr(sys, "ps1")
    for process_group in _last_of_jobs(list(reversed(open_groups()))):
        try:
            process_group.backend.abandon(deliver=not by_an_error)
        except Exception as error:  # the process is ending: there is nobody to raise to
            print(f"corral: while ending the process group at exit: {error}", file=sys.stderr)


atexit.register(_at_exit)
