"""TensorDicts in zarr stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corral.tensordict.base import Base
from corral.tensordict.sizes import Size

__all__ = ["Stores"]


class Stores(Base):
    """To and from zarr stores, which tensordict reads, and which it may have written."""

    __slots__ = ()

    @classmethod
    def from_zarr(
        cls,
        filename: str | Path | Any,
        *,
        mode: str = "r",
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        batch_size: Any = None,
        non_tensor_as_stack: bool = False,
        allow_pickle: bool | None = None,
        library: str = "numpy",
    ) -> Any:
        """Open a zarr store as a `corral.PersistentTensorDict`.

        Parameters
        ----------
        filename : path or zarr.abc.store.Store
            The store: a directory, or an object of zarr's, as a ``zarr.storage.ZipStore``.
        mode : str
            See `zarr.open_group`.
        auto_batch_size, batch_dims, batch_size : optional
            See `Interchange`; without any, batch sizes and names are those that were written, or if a store has none,
            each TensorDict has the largest batch size that there can be.
        non_tensor_as_stack : bool
            Accepted for compatibility.
        allow_pickle : bool, optional
            Whether pickled values are read, which can run any code; by default they are, with a warning.
        library : {"numpy", "torch", "jax", "cupy"}
            Library of the arrays that are read.

        Raises
        ------
        ModuleNotFoundError
            If zarr is not installed.
        ValueError
            If an array does not have the batch size.
        """
        from corral.tensordict.persistent import PersistentTensorDict

        if auto_batch_size and batch_size is not None:
            raise TypeError("from_zarr: batch_size and auto_batch_size cannot both be given")
        td = PersistentTensorDict(
            filename=filename,
            mode=mode,
            batch_size=batch_size,
            backend="zarr",
            allow_pickle=allow_pickle,
            library=library,
        )
        facts = td._source.group.facts
        if batch_size is None and "batch_size" in facts:
            size = Size(facts["batch_size"])
            td._validate(size)
            td._source.nested.clear()  # those without a batch size of their own have that of this one
            td._resize(size)
            if facts.get("names"):
                td._set_names(facts["names"])
        elif batch_size is None:
            td.auto_batch_size_()
        if auto_batch_size:
            td.auto_batch_size_(batch_dims)
        return td

    def to_zarr(self, filename: str | Path | Any, *, allow_pickle: bool | None = None, **kwargs: Any) -> Any:
        """Write a new zarr store, and return the `corral.PersistentTensorDict` of it.

        Parameters
        ----------
        filename : path or zarr.abc.store.Store
            The store: a directory, or an object of zarr's; one that exists is replaced.
        allow_pickle : bool, optional
            Whether what is returned reads pickled values; by default it does, as they were written here.
        **kwargs
            What arrays are made with: see `zarr.Group.create_array`. By default each is one chunk that is not
            compressed; ``chunks=(100,)`` makes chunks of 100 rows.

        Examples
        --------
        >>> import tempfile, numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(obs=np.zeros((4, 2)), info={"step": np.arange(4)}, batch_size=[4])
        >>> with tempfile.TemporaryDirectory() as path:
        ...     _ = td.to_zarr(f"{path}/steps.zarr", chunks=(2,))
        ...     TensorDict.from_zarr(f"{path}/steps.zarr")[1]["info", "step"]
        array(1)
        """
        from corral.tensordict.persistent import PersistentTensorDict

        return PersistentTensorDict.from_dict(self, filename, backend="zarr", allow_pickle=allow_pickle, **kwargs)
