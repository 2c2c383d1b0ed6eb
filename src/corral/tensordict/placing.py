"""Where torch's leaves lie: pinned memory and streams; and what leaves lie at which address."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from corral.arrays.libraries import library_of
from corral.arrays.operations import device_of
from corral.tensordict.indexing import Indexing
from corral.tensordict.sizes import Size

__all__ = ["Placing"]


class Placing(Indexing):
    """Memory of leaves."""

    __slots__ = ()

    @property
    def is_cpu(self) -> bool:
        """Whether the device of the TensorDict is the host; ``False`` if it has none."""
        return self._device is not None and self._device.partition(":")[0] == "cpu"

    @property
    def is_cuda(self) -> bool:
        """Whether the device of the TensorDict is a CUDA device; ``False`` if it has none."""
        return self._device is not None and self._device.partition(":")[0] == "cuda"

    @property
    def is_meta(self) -> bool:
        """Whether the device of the TensorDict is torch's meta device; ``False`` if it has none."""
        return self._device is not None and self._device.partition(":")[0] == "meta"

    def pin_memory(self, num_threads: int | None = None, inplace: bool = False) -> Self:
        """Return a TensorDict whose leaves, which must be torch's, lie in pinned memory of the host.

        Parameters
        ----------
        num_threads : int, optional
            How many threads copy.
        inplace : bool
            Give this TensorDict the pinned leaves.

        Raises
        ------
        NotImplementedError
            If a leaf is not torch's.
        RuntimeError
            If torch has no accelerator.
        """
        for key, leaf in self.items(True, True):
            if library_of(leaf) != "torch":
                raise NotImplementedError(
                    f"pin_memory: the entry {key!r} is an array of {library_of(leaf)}, and torch alone pins memory: "
                    "convert the TensorDict with .torch() first"
                )
        leaves = list(self._leaves())
        if num_threads:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(num_threads) as pool:
                pinned = iter(list(pool.map(lambda leaf: leaf.pin_memory(), leaves)))
        else:
            pinned = iter([leaf.pin_memory() for leaf in leaves])
        result = self._map(lambda _: next(pinned))
        if not inplace:
            return result
        self._refuse_if_locked()
        self._adopt(result)  # type: ignore[attr-defined]
        return self

    def pin_memory_(self, num_threads: int = 0) -> Self:
        """Do the same as ``pin_memory(num_threads, inplace=True)``."""
        return self.pin_memory(num_threads, inplace=True)

    def record_stream(self, stream: Any) -> Self:
        """Let torch's memory of leaves on CUDA devices be used again only after what is queued on a stream now."""
        for leaf in self._leaves():
            if library_of(leaf) == "torch" and device_of(leaf) != "cpu":
                leaf.record_stream(stream)
        return self

    def data_ptr(self, *, storage: bool = False) -> Any:
        """Return the address of each leaf, in a TensorDict without batch dimensions.

        Parameters
        ----------
        storage : bool
            Give the address of the memory that a leaf is a view of, which others may be views of, too.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(2), batch_size=[2])
        >>> bool((td.data_ptr() == td[:1].data_ptr()).all())
        True
        """
        source: dict[str, Any] = {}
        for key, value in self._source.items():
            if isinstance(value, Placing):
                if not value._holds_objects:
                    source[key] = value.data_ptr(storage=storage)
            else:
                source[key] = _like(value, _address(value, storage))
        return self._make(source, Size(), "cpu")

    def as_tensor(self) -> Self:
        """Return a TensorDict of the same leaves."""
        result = self._map(_same)
        return result.lock_() if self.is_locked else result


def _same(leaf: Any) -> Any:
    return leaf


def _address(leaf: Any, storage: bool) -> int:
    library = library_of(leaf)
    if library == "torch":
        return int(leaf.untyped_storage().data_ptr() if storage else leaf.data_ptr())
    if library == "numpy":
        base = leaf
        while storage and isinstance(base.base, np.ndarray):
            base = base.base
        return int(base.__array_interface__["data"][0])
    if library == "jax":
        return int(leaf.unsafe_buffer_pointer())
    return int(leaf.data.ptr)


def _like(leaf: Any, number: int) -> Any:
    if library_of(leaf) == "torch":
        import torch

        return torch.tensor(number)
    return np.asarray(number)
