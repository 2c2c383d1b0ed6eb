"""TensorDicts in one piece of memory, in shared memory, and in pickles."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from corral.arrays.libraries import dtype_name, library_of
from corral.arrays.mapped import InFile, in_file
from corral.tensordict.base import Base
from corral.tensordict.choosing import Choosing
from corral.tensordict.names import Names
from corral.tensordict.relocating import ALIGNMENT, Relocation, as_leaf, grad_of, on_host, with_grad
from corral.tensordict.sizes import Size

__all__ = ["Sharing"]


class Sharing(Choosing):
    """Place all leaves in one buffer, and let other processes see it."""

    __slots__ = ()

    def consolidate(self, *, inplace: bool = False, share_memory: bool = False) -> Self:
        """Return a TensorDict whose leaves are views of one buffer, one behind the other.

        Parameters
        ----------
        inplace : bool
            Replace this TensorDict's leaves.
        share_memory : bool
            Allocate the buffer in shared memory.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(3), b={"c": np.ones(2)}).consolidate()
        >>> td["b", "c"].__array_interface__["data"][0] - td["a"].__array_interface__["data"][0]
        64
        """
        if inplace:
            self._refuse_if_locked()
        allocate = _shared_bytes if share_memory else _bytes
        return self._relocated(allocate, inplace)

    def _relocated(self, allocate: Callable[[int], Any], inplace: bool, grad: bool = False) -> Self:
        """Copy all leaves in host memory into one buffer; those on devices stay where they are.

        With `grad`, copies require it where the leaves do, and those of torch's parameters are parameters.
        """
        self._refuse_nested()
        places = Relocation(self._leaves(), allocate, grad)
        result = self._map(places.move)
        places.copy()
        if not inplace:
            return result
        self._adopt(result)
        return self

    def _refuse_nested(self, path: tuple[str, ...] = ()) -> None:
        if "torch" not in sys.modules:
            return
        for key, leaf in self._source.items():
            if isinstance(leaf, Sharing):
                leaf._refuse_nested((*path, key))
            elif library_of(leaf) == "torch" and leaf.is_nested:
                from corral.arrays.torch_buffers import nested_error

                raise nested_error(repr((*path, key) if path else key))

    def _adopt(self, other: Base) -> None:
        for key, value in other._source.items():
            mine = self._source[key]
            if isinstance(mine, Sharing):
                mine._adopt(value)
            else:
                self._source[key] = value

    def share_(self) -> Self:
        """Move all leaves in host memory into one piece of shared memory, and lock the TensorDict.

        Transfers to other ranks of the host then move no byte through the kernel, and a process that is started
        with the TensorDict as an argument, or gets it through a queue, sees the same memory. The leaves are new
        arrays; those that were there before keep their memory. Torch's leaves require grad if they did before, and
        its parameters stay parameters.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.arange(3)).share_()
        >>> td.is_shared(), td.is_locked, td["a"]
        (True, True, array([0, 1, 2]))
        """
        if not self.is_shared():
            self._relocated(_shared_bytes, inplace=True, grad=True)
        _pass_handles(type(self))
        return self.lock_()

    def share_memory_(self) -> Self:
        """Do the same as `share_`."""
        return self.share_()

    def is_shared(self) -> bool:
        """Whether all leaves lie in memory that other processes can see."""
        leaves = [leaf for leaf in self._leaves() if 0 not in leaf.shape]
        return bool(leaves) and all(_place(leaf) is not None or _is_torch_shared(leaf) for leaf in leaves)

    def __reduce__(self) -> tuple[Any, ...]:
        source = {key: in_file(value) for key, value in self._source.items()}
        parts = (type(self), source, tuple(self._batch_size), self._device, self.is_locked)
        return _rebuild, parts if self._names is None else (*parts, self._names)


def _bytes(count: int) -> Any:
    spare = np.empty(count + ALIGNMENT, np.uint8)
    start = -spare.__array_interface__["data"][0] % ALIGNMENT
    return spare[start : start + count]


def _shared_bytes(count: int) -> Any:
    from corral.backends.shm_arrays import empty

    return empty((max(count, 1),), "uint8")


def _place(leaf: Any) -> tuple[int, int, int, int] | None:
    if not on_host(leaf) or 0 in leaf.shape:
        return None
    from corral.backends.shm_arrays import place_of

    # The first element's bytes are enough to find the memory, whatever the dtype and the strides.
    if library_of(leaf) == "torch":
        if leaf.layout is not sys.modules["torch"].strided:
            return None
        first = leaf.detach().as_strided((1,), (1,)).view(sys.modules["torch"].uint8).numpy()
    else:
        first = np.lib.stride_tricks.as_strided(leaf, (1,), (leaf.itemsize,)).view(np.uint8)
    return place_of(first)


def _is_torch_shared(leaf: Any) -> bool:
    return library_of(leaf) == "torch" and bool(leaf.is_shared())


def _rebuild(
    kind: type[Any],
    source: dict[str, Any],
    batch_size: tuple[int, ...],
    device: str | None,
    locked: bool,
    names: Names = None,
) -> Any:
    source = {key: value.attach() if isinstance(value, InFile) else value for key, value in source.items()}
    td = kind._make(source, Size(batch_size), device, names)
    if locked:
        td._lock(True)
    return td


def _pass_handles(kind: type) -> None:
    """Make `multiprocessing` send TensorDicts in shared memory by name; other pickles hold the values."""
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.register(kind, _reduce_shared)


def _reduce_shared(td: Any) -> tuple[Any, ...]:
    source = {key: value if isinstance(value, Base) else _handle(value) for key, value in td._source.items()}
    return _attach_td, (type(td), source, tuple(td._batch_size), td._device, td.is_locked, td._names)


class _Handle:
    """Names a leaf in shared memory."""

    def __init__(self, place: tuple[int, int, int, int], leaf: Any) -> None:
        owner, fd, inode, offset = place
        library = library_of(leaf)
        steps = tuple(leaf.strides) if library == "numpy" else tuple(s * leaf.itemsize for s in leaf.stride())
        below = sum((n - 1) * step for n, step in zip(leaf.shape, steps, strict=True) if step < 0 and n)
        above = sum((n - 1) * step for n, step in zip(leaf.shape, steps, strict=True) if step > 0 and n)
        self.memory = owner, fd, inode, offset + below
        self.span = above - below + leaf.itemsize if 0 not in leaf.shape else 0
        self.layout = tuple(leaf.shape), steps, -below
        self.library = library
        self.dtype = leaf.dtype if library == "numpy" else dtype_name(leaf)
        self.grad = grad_of(leaf)

    def attach(self) -> Any:
        from corral.backends.shm_arrays import attach

        dtype = self.dtype
        if self.library == "torch":
            import torch

            dtype = getattr(torch, dtype)
        piece = attach(*self.memory, (self.span,), "uint8")
        shape, steps, start = self.layout
        return with_grad(as_leaf(piece, dtype, shape, self.library, steps, start), *self.grad)


def _handle(leaf: Any) -> Any:
    place = _place(leaf)
    return in_file(leaf) if place is None else _Handle(place, leaf)


def _attach_td(
    kind: type[Any],
    source: dict[str, Any],
    batch_size: tuple[int, ...],
    device: str | None,
    locked: bool,
    names: Names = None,
) -> Any:
    _pass_handles(kind)
    attached = {key: value.attach() if isinstance(value, _Handle) else value for key, value in source.items()}
    return _rebuild(kind, attached, batch_size, device, locked, names)
