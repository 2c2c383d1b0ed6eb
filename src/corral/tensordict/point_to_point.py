"""Moving TensorDicts from one rank to another: tensordict's methods, each of one operation for all leaves."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Self

from corral.tensordict.base import Base
from corral.tensordict.sizes import Size

__all__ = ["PointToPoint", "moving", "wait", "works"]


class PointToPoint(Base):
    """Send and receive TensorDicts."""

    __slots__ = ()

    def _slots(self, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Base, str, bool]]:
        """Yield each leaf's path, the TensorDict that holds it, its key there, and whether it is objects, no array.

        Members of a lazy stack are on the path by their number.
        """
        members = self._members()
        if members is not None:
            for number, member in enumerate(members):
                yield from member._slots((*path, number))
            return
        for key, value in self._source.items():
            if not isinstance(value, PointToPoint):
                yield (*path, key), self, key, False
            elif value._holds_objects:
                yield (*path, key), self, key, True
            else:
                yield from value._slots((*path, key))

    def send(
        self,
        dst: int | None = None,
        *,
        group: Any = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
    ) -> None:
        """Send the leaves to a rank that calls `recv` or `irecv`, and return when their memory may be used again.

        All leaves are one message. The receiver's keys may be in another order, and its arrays of another library.

        Parameters
        ----------
        dst : int
            Global rank of the receiver.
        group : ProcessGroup, optional
            The group; the default one by default.
        group_dst : int, optional
            Rank in the group of the receiver, in place of `dst`.
        init_tag : int
            The receiver must give the same.
        pseudo_rand, consolidated : bool
            Accepted for compatibility: there is one message, with one tag, in any case.

        Raises
        ------
        ValueError
            If not exactly one receiver is given, that exists and is not this rank.

        Examples
        --------
        >>> import numpy as np
        >>> import corral.distributed as dist
        >>> from corral import TensorDict
        >>> if dist.is_initialized():
        ...     td = TensorDict(obs=np.zeros((2, 4)), reward=np.zeros(2), batch_size=[2])
        ...     if dist.get_rank() == 0:
        ...         td.send(dst=1)
        ...     elif dist.get_rank() == 1:
        ...         td.recv(src=0)
        """
        moving().send(self, dst, group, group_dst, init_tag)

    def recv(
        self,
        src: int | None = None,
        *,
        group: Any = None,
        group_src: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
    ) -> int | None:
        """Receive what `send` or `isend` sends, into the leaves that are here.

        Parameters
        ----------
        src : int
            Global rank of the sender.
        group, init_tag, pseudo_rand, consolidated
            As for `send`. Nothing needs to be consolidated.
        group_src : int, optional
            Rank in the group of the sender, in place of `src`.

        Returns
        -------
        int or None
            As in tensordict, the tag that the last leaf would have if each had its own; ``None`` if `consolidated`.

        Raises
        ------
        MismatchError
            If keys, dtypes or shapes are not those of the sender. Nothing is written, the message is consumed, and
            the sender is not told.
        ValueError
            If a leaf is read-only, or two of them share memory.
        """
        count = moving().recv(self, src, group, group_src, init_tag)
        return None if consolidated else init_tag - 1 + count

    def isend(
        self,
        dst: int | None = None,
        *,
        group: Any = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        return_early: bool = False,
        consolidated: bool = False,
    ) -> int | list[Any] | None:
        """Do the same as `send`; with `return_early`, return at once.

        Returns
        -------
        list of Work, int or None
            With `return_early`, a list of one `Work`, for all leaves; else what `recv` returns. The leaves must not
            change until it has been waited for.

        Examples
        --------
        >>> import numpy as np
        >>> import corral.distributed as dist
        >>> from corral import TensorDict
        >>> if dist.is_initialized() and dist.get_world_size() == 2:
        ...     other = 1 - dist.get_rank()
        ...     mine, theirs = TensorDict(a=np.ones(3)), TensorDict(a=np.empty(3))
        ...     works = mine.isend(other, return_early=True) + theirs.irecv(other, return_premature=True)
        ...     for work in works:
        ...         work.wait()
        """
        work, count = moving().isend(self, dst, group, group_dst, init_tag)
        if return_early:
            return works(work)
        wait(work)
        return None if consolidated else init_tag - 1 + count

    def irecv(
        self,
        src: int | None = None,
        *,
        group: Any = None,
        group_src: int | None = None,
        return_premature: bool = False,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
    ) -> list[Any] | None:
        """Do the same as `recv`; with `return_premature`, return at once.

        Returns
        -------
        list of Work or None
            With `return_premature`, a list of one `Work`, for all leaves, whose ``wait()`` raises what `recv` would.
            The leaves must not be used before.
        """
        work, _ = moving().irecv(self, src, group, group_src, init_tag)
        if return_premature:
            return works(work)
        wait(work)
        return None

    def init_remote(
        self,
        dst: int | None = None,
        group: Any = None,
        device: Any = None,
        use_broadcast: bool = False,
        *,
        group_dst: int | None = None,
    ) -> None:
        """Send the TensorDict to a rank that does not know its structure, and calls `from_remote_init`.

        Parameters
        ----------
        dst : int, optional
            Global rank of the receiver.
        group : ProcessGroup, optional
            The group; the default one by default.
        device : optional
            Accepted for compatibility: each leaf is sent from where it lies.
        use_broadcast : bool
            Send it to all ranks of the group.
        group_dst : int, optional
            Rank in the group of the receiver, in place of `dst`.

        Examples
        --------
        >>> import numpy as np
        >>> import corral.distributed as dist
        >>> from corral import TensorDict
        >>> if dist.is_initialized():
        ...     if dist.get_rank() == 0:
        ...         td = TensorDict(obs=np.ones((2, 84)), batch_size=[2])
        ...         td.init_remote(dst=1)
        ...         td.send(dst=1)
        ...     elif dist.get_rank() == 1:
        ...         td = TensorDict.from_remote_init(src=0)
        ...         td.recv(src=0)
        """
        if not use_broadcast:
            moving().init_remote(self, dst, group, group_dst)
            return
        rank = moving().own_rank(group, "TensorDict.init_remote")
        if rank is not None:
            moving().broadcast(self, None, group, rank, None)

    @classmethod
    def from_remote_init(
        cls,
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        use_broadcast: bool = False,
        *,
        group_src: int | None = None,
    ) -> Self:
        """Return the TensorDict that another rank sends by `init_remote`: nothing of it need be known here.

        Parameters
        ----------
        src : int, optional
            Global rank of the sender; the next one from anyone when neither this nor `group_src` is given.
        group : ProcessGroup, optional
            The group; the default one by default.
        device : optional
            Where the leaves shall lie; by default in host memory.
        use_broadcast : bool
            As the sender's.
        group_src : int, optional
            Rank in the group of the sender, in place of `src`.
        """
        if use_broadcast:
            result = moving().broadcast(cls._make({}, Size()), src, group, group_src, device)
        else:
            result = moving().from_remote_init(cls, src, group, group_src, device)
        return result  # type: ignore[no-any-return]


@functools.cache
def moving() -> Any:
    """Load what moves TensorDicts when one is first moved: a container by itself needs no process groups."""
    from corral.tensordict import moving as package

    return package


def works(work: Any) -> list[Any]:
    """Return a list of an operation, if there is one: not on ranks outside of the group."""
    return [] if work is None else [work]


def wait(work: Any) -> None:
    """Wait for an operation, if there is one."""
    if work is not None:
        work.wait()
