"""Process groups: what they are, which exist, and how global ranks translate into theirs."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from corral.backends.base import Backend

__all__ = [
    "GroupMember",
    "ProcessGroup",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "is_initialized",
]

NON_GROUP_MEMBER = -100
"""What `new_group` returns on a rank that is not in the new group."""

world: ProcessGroup | None = None
"""The default group. Functions read it as ``groups.world``; only `set_world` changes it."""


class ProcessGroup:
    """Some of the job's ranks, numbered from 0, that operations can be done in.

    Groups are made by `init_process_group` and `new_group`, not by calling this class.

    Attributes
    ----------
    ranks : tuple of int
        Global rank of each member, in the order of group ranks.
    group_name, group_desc : str
        Name, the same on every member; and what the group is for.
    allow_pickle : bool
        Whether objects that the safe format cannot hold may be pickled.
    backend : Backend
        The engine that carries out the group's operations.
    backend_name : str
        What `get_backend` returns: the name of the engine, or of several for different devices.
    capabilities : Capabilities
        What the engine does by itself: see `corral.backends.capabilities.Capabilities`. Asked when the group was made.
    """

    __slots__ = (
        "__weakref__",
        "_position",
        "_rank",
        "_recv",
        "_send",
        "_size",
        "allow_pickle",
        "backend",
        "backend_name",
        "capabilities",
        "closed",
        "group_desc",
        "group_name",
        "ranks",
    )

    def __init__(
        self,
        backend: Backend,
        ranks: Sequence[int],
        group_name: str,
        group_desc: str | None = None,
        allow_pickle: bool = True,
        backend_name: str = "",
    ) -> None:
        self.backend = backend
        self.backend_name = backend_name or backend.name
        self.capabilities = backend.capabilities()
        self.ranks = tuple(ranks)
        self.group_name = group_name
        self.group_desc = group_desc or "undefined"
        self.allow_pickle = allow_pickle
        self.closed = False
        self._rank = backend.rank
        self._size = backend.size
        self._position = {rank: position for position, rank in enumerate(self.ranks)}
        self._send = backend.send  # looked up once: these two are the calls whose cost shows
        self._recv = backend.recv

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks in the group."""
        return self._size

    def name(self) -> str:
        """Return the name of the group's backend."""
        return self.backend.name

    def __repr__(self) -> str:
        state = ", destroyed" if self.closed else ""
        ranks = list(self.ranks) if len(self.ranks) <= 16 else f"[{self.ranks[0]}, ... {self.ranks[-1]}]"
        return f"<ProcessGroup {self.group_name!r} of ranks {ranks} on {self.backend.name!r}, rank {self._rank}{state}>"


Group: TypeAlias = ProcessGroup | int | None
"""What operations take as ``group``: the integer is `GroupMember.NON_GROUP_MEMBER`."""


class _World(type):
    """Gives `group` and `GroupMember` the attribute ``WORLD``, which follows the default group."""

    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The default group; ``None`` before `init_process_group`."""
        return world


class group(metaclass=_World):
    """Holds the default group as ``group.WORLD``."""


class GroupMember(metaclass=_World):
    """Holds the default group as ``GroupMember.WORLD``, and what non-members get from `new_group`."""

    NON_GROUP_MEMBER: ClassVar[int] = NON_GROUP_MEMBER


def set_world(process_group: ProcessGroup | None) -> None:
    """Make a group the default one."""
    global world
    world = process_group


def default_group() -> ProcessGroup:
    """Return the default group, or raise if there is none yet."""
    if world is None:
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    return world


def member_group(process_group: Group, operation: str, depth: int = 1) -> ProcessGroup | None:
    """Return the group to work in; ``None``, after a warning, where this rank is not in it.

    `depth` is the number of this library's functions between here and the user's call.
    """
    if process_group is None:
        return default_group()
    if isinstance(process_group, ProcessGroup):
        if process_group.closed:
            raise ValueError(f"{operation}: {process_group!r} can no longer be used")
        return process_group
    if type(process_group) is int and process_group == NON_GROUP_MEMBER:
        rank = -1 if world is None else world._rank
        warnings.warn(
            f"Running {operation} on global rank {rank} which does not belong to the given group.",
            stacklevel=depth + 2,
        )
        return None
    raise TypeError(f"{operation}: group must be a ProcessGroup or None, got {type(process_group).__qualname__}")


def resolve_rank(process_group: ProcessGroup, global_rank: Any, group_rank: Any, name: str, operation: str) -> int:
    """Return the group rank that exactly one of two arguments gives.

    Parameters
    ----------
    process_group
        The group.
    global_rank, group_rank
        The arguments called `name` and ``group_`` + `name`.
    name, operation
        For error messages: ``"dst"`` and ``"send"``, for instance.
    """
    if group_rank is not None:
        if global_rank is not None:
            raise ValueError(
                f"{operation}: Can't specify both group_{name} and {name}: {name} is a global rank, "
                f"group_{name} "
                "one in the group"
            )
        rank = _integer(group_rank, f"group_{name}", operation)
        if not 0 <= rank < process_group._size:
            raise ValueError(
                f"{operation}: Group rank {rank} is not part of group {process_group.group_name!r}: "
                f"group_{name} "
                f"must be in 0 to {process_group._size - 1}"
            )
        return rank
    if global_rank is None:
        raise ValueError(f"{operation}: Must specify {name} or group_{name}")
    rank = _integer(global_rank, name, operation)
    position = process_group._position.get(rank)
    if position is None:
        raise ValueError(
            f"{operation}: Global rank {rank}, given as {name}, is not part of group "
            f"{process_group.group_name!r}, whose global ranks are {list(process_group.ranks)}"
        )
    return position


def _integer(value: Any, name: str, operation: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{operation}: {name} must be an integer, got {type(value).__qualname__}") from None


@contextlib.contextmanager
def refusing(process_group: ProcessGroup, operation: str) -> Iterator[None]:
    """Let the other ranks know, at once, if this one's arguments make no sense: the call fails on all of them."""
    try:
        yield
    except BaseException:
        process_group.backend.refuse(operation)
        raise


def is_initialized() -> bool:
    """Whether there is a default group.

    Examples
    --------
    >>> is_initialized()
    False
    """
    return world is not None


def get_rank(group: Group = None) -> int:
    """Return this process's rank in a group.

    Parameters
    ----------
    group
        The default group when ``None``.

    Returns
    -------
    int
        The rank; -1 if this process is not in the group.
    """
    if group is None:
        return default_group()._rank
    found = _known(group)
    return -1 if found is None else found._rank


def get_world_size(group: Group = None) -> int:
    """Return the number of ranks in a group; -1 if this process is not in it."""
    if group is None:
        return default_group()._size
    found = _known(group)
    return -1 if found is None else found._size


def get_backend(group: Group = None) -> str:
    """Return the name of a group's backend, such as ``"shm"``, or ``"cpu:shm,cuda:nccl"`` where it was made so.

    Raises
    ------
    ValueError
        If this process is not in the group.
    """
    found = default_group() if group is None else _known(group)
    if found is None:
        raise ValueError("Invalid process group specified: this rank is not in it")
    return found.backend_name


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """Translate a global rank into a rank in `group`.

    Raises
    ------
    ValueError
        If the rank is not in the group.
    """
    return resolve_rank(_registered(group), global_rank, None, "global_rank", "get_group_rank")


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """Translate a rank in `group` into a global rank.

    Raises
    ------
    ValueError
        If the group has no such rank.
    """
    found = _registered(group)
    rank = _integer(group_rank, "group_rank", "get_global_rank")
    if not 0 <= rank < found._size:
        raise ValueError(f"Group rank {rank} is not part of group {found!r}")
    return found.ranks[rank]


def get_process_group_ranks(group: Group = None) -> list[int]:
    """Return the global ranks of a group, in the order of its group ranks."""
    return list((default_group() if group is None else _registered(group)).ranks)


def _known(process_group: Group) -> ProcessGroup | None:
    """Return an open group, or ``None`` for `NON_GROUP_MEMBER`."""
    if type(process_group) is int and process_group == NON_GROUP_MEMBER:
        return None
    return _registered(process_group)


def _registered(process_group: Any) -> ProcessGroup:
    if not isinstance(process_group, ProcessGroup) or process_group.closed:
        raise ValueError(
            f"Group {process_group} is not registered, please create group with corral.distributed.new_group"
        )
    return process_group
