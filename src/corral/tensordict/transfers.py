"""Moving TensorDicts among all ranks of a group: tensordict's methods, each of one operation for all leaves."""

from __future__ import annotations

from typing import Any, Self

from corral.arrays.libraries import is_array
from corral.tensordict.point_to_point import PointToPoint, moving, wait, works
from corral.tensordict.selecting import Selecting

__all__ = ["Transfers"]


class Transfers(PointToPoint, Selecting):
    """Move and combine TensorDicts."""

    __slots__ = ()

    def broadcast(
        self,
        src: int | None = None,
        *,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        inplace: bool = False,
    ) -> Self:
        """Bring one rank's TensorDict to every rank.

        Parameters
        ----------
        src : int
            Global rank of the source.
        group : ProcessGroup, optional
            The group; the default one by default.
        device : optional
            Where the result's leaves shall lie.
        group_src : int, optional
            Rank in the group of the source, in place of `src`.
        inplace : bool
            Write into the leaves that each rank has, which must be alike in keys, dtypes and shapes; every rank gives
            the same. `device` is not looked at.

        Returns
        -------
        TensorDict
            As in tensordict a new one, on the source a consolidated copy; this one if `inplace`.

        Raises
        ------
        MismatchError
            On every rank, if `inplace` and leaves do not fit; nothing is written.

        Examples
        --------
        >>> import numpy as np
        >>> import corral.distributed as dist
        >>> from corral import TensorDict
        >>> if dist.is_initialized():
        ...     td = TensorDict(a=np.arange(3.0)) if dist.get_rank() == 0 else TensorDict()
        ...     td = td.broadcast(src=0)
        """
        if inplace:
            return moving().broadcast_into(self, src, group, group_src)  # type: ignore[no-any-return]
        return moving().broadcast(self, src, group, group_src, device)  # type: ignore[no-any-return]

    def scatter(
        self,
        src: int | None = None,
        tensordicts: Any = None,
        *,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        inplace: bool = False,
    ) -> Self:
        """Bring each rank a TensorDict of its own from one rank; they may differ in structure.

        Parameters
        ----------
        src : int
            Global rank of the source.
        tensordicts : list of TensorDict, optional
            On the source one for each rank of the group; not looked at elsewhere.
        group, device, group_src
            As for `broadcast`.
        inplace : bool
            Write into the leaves that this TensorDict has; every rank gives the same. Otherwise it is not looked at.

        Returns
        -------
        TensorDict
            A new one; this one if `inplace`.

        Raises
        ------
        ValueError
            If there is not one for each rank; other ranks raise `MismatchError`.
        MismatchError
            On every rank, if `inplace` and leaves do not fit; nothing is written.
        """
        if inplace:
            return moving().scatter_into(self, src, tensordicts, group, group_src)  # type: ignore[no-any-return]
        return moving().scatter(src, tensordicts, group, group_src, device)  # type: ignore[no-any-return]

    def all_gather(self, *, group: Any = None) -> list[Self]:
        """Return every rank's TensorDict on every rank, in rank order; they may differ in structure.

        Nothing is padded. See `corral.all_gather`, which can also join them.
        """
        return moving().all_gather(self, group)  # type: ignore[no-any-return]

    def gather(  # type: ignore[override]  # two methods of one name: see below
        self,
        dst: Any = None,
        group: Any = None,
        out: Any = None,
        *,
        group_dst: int | None = None,
        like: str | None = None,
        **indexing: Any,
    ) -> Any:
        """Bring every rank's TensorDict to one rank, as `corral.gather` does; they may differ in structure.

        With an index, as in tensordict, this is another method: ``td.gather(dim, index)`` picks values along a
        dimension.

        Parameters
        ----------
        dst : int, optional
            Global rank of the destination; 0 when neither this nor `group_dst` is given.
        group : ProcessGroup, optional
            The group; the default one by default.
        out, **indexing
            For the other method only.
        group_dst : int, optional
            Rank in the group of the destination, in place of `dst`.
        like : {"numpy", "torch", "jax", "cupy"}, optional
            Library of the resulting arrays.

        Returns
        -------
        list of TensorDict or None
            On the destination each rank's TensorDict in rank order, its own included; ``None`` elsewhere.

        Examples
        --------
        >>> import numpy as np
        >>> import corral.distributed as dist
        >>> from corral import TensorDict
        >>> if dist.is_initialized():
        ...     tds = TensorDict(rows=np.zeros((dist.get_rank(), 3))).gather(dst=0)
        """
        if is_array(group):
            indexing["index"], group = group, None
        if indexing or out is not None:
            if dst is not None:
                indexing.setdefault("dim", dst)
            return super().gather(out=out, **indexing)
        return moving().gather(self, dst, group, group_dst, like)

    def reduce(
        self,
        dst: int | None = None,
        op: Any = None,
        async_op: bool = False,
        return_premature: bool = False,
        group: Any = None,
        *,
        bucket_bytes: int | None = None,
        group_dst: int | None = None,
    ) -> list[Any] | None:
        """Combine the ranks' leaves, element by element, into those of one rank; the others' stay as they are.

        Parameters
        ----------
        dst : int
            Global rank of the destination.
        op : ReduceOp, optional
            One of `corral.distributed` or of torch; a sum by default.
        async_op, return_premature : bool
            With both, return at once.
        group : ProcessGroup, optional
            The group; the default one by default.
        bucket_bytes : int, optional
            Accepted for compatibility: all leaves are one operation in any case, and none is copied for it.
        group_dst : int, optional
            Rank in the group of the destination, in place of `dst`.

        Returns
        -------
        list of Work or None
            With `async_op` and `return_premature`, a list of one `Work`, for all leaves.

        Raises
        ------
        MismatchError
            On every rank, if keys, dtypes or shapes differ, or `dst` or `op` does. Nothing is written, unless
            `async_op` was given.
        TypeError
            If the op has no meaning for a leaf's dtype.
        """
        work = moving().reduce(self, dst, op, group, async_op, bucket_bytes, group_dst)
        if async_op and return_premature:
            return works(work)
        wait(work)
        return None

    def all_reduce(
        self, op: Any = None, *, group: Any = None, async_op: bool = False, bucket_bytes: int | None = None
    ) -> list[Any] | None:
        """Combine the ranks' leaves, element by element, in place: every rank gets the same bits.

        Parameters
        ----------
        op, group, bucket_bytes
            As for `reduce`.
        async_op : bool
            Return at once, with a list of one `Work`, for all leaves.

        Raises
        ------
        MismatchError, TypeError
            As for `reduce`.

        Examples
        --------
        >>> import numpy as np
        >>> import corral.distributed as dist
        >>> from corral import TensorDict
        >>> if dist.is_initialized():
        ...     gradients = TensorDict(weight=np.ones((4, 2)), bias=np.ones(2))
        ...     gradients.all_reduce(dist.ReduceOp.AVG)
        """
        work = moving().all_reduce(self, op, group, async_op, bucket_bytes)
        return works(work) if async_op else None
