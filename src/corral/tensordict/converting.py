"""TensorDicts of lists of dicts, of schemas, and of dicts that are like another TensorDict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.tensordict.base import Base
from corral.tensordict.keys import Keys
from corral.tensordict.nested_keys import unravel_key
from corral.tensordict.sizes import Size, as_size

__all__ = ["Converting"]


class Converting(Keys):
    """Make TensorDicts of what is none."""

    __slots__ = ()

    @classmethod
    def from_list(
        cls,
        input: Sequence[Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Any = None,
        lazy: bool | None = None,
    ) -> Any:
        """Return the stack of a list of dicts or TensorDicts.

        Parameters
        ----------
        input : list
            Dicts, of which TensorDicts are made, or TensorDicts.
        auto_batch_size : bool, optional
            Take as batch size of each the leading dimensions that all its leaves share.
        batch_size : sequence of int, optional
            The batch size of the result, which starts with the length of the list.
        device : optional
            Where all leaves shall lie.
        batch_dims : int, optional
            The largest number of batch dimensions of the result.
        names : sequence of str or None, optional
            Names of the batch dimensions of the result.
        lazy : bool, optional
            Whether to return a lazy stack. By default only where the parts differ.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict.from_list([{"a": np.zeros(3)}, {"a": np.ones(3)}], auto_batch_size=True).batch_size
        Size([2, 3])
        """
        if batch_size is not None and batch_dims is not None:
            raise ValueError("from_list: batch_size and batch_dims cannot both be given")
        size = None if batch_size is None else as_size(batch_size)
        if size is not None and (not size or size[0] != len(input)):
            raise ValueError(
                f"The provided batch size ({list(size)}) does not match the length of the list ({len(input)})."
            )
        if not len(input):
            raise RuntimeError("from_list: the list is empty")
        automatic = batch_dims is not None if auto_batch_size is None else auto_batch_size
        options = {
            "auto_batch_size": automatic,
            "batch_size": None if size is None else size[1:],
            "batch_dims": None if batch_dims is None else max(batch_dims - 1, 0),
            "device": device,
        }
        parts = [each if isinstance(each, Base) else cls.from_dict(each, **options) for each in input]  # type: ignore[attr-defined]
        kind: Any = cls
        join = kind.maybe_dense_stack if lazy is None else kind.lazy_stack if lazy else kind.stack
        result = join(parts)
        if names is not None:
            result._set_names(names)
        return result

    def from_dict_instance(
        self,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Any = None,
    ) -> Any:
        """Return the same as `from_dict`, with nested dicts as what this TensorDict has under their keys.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(3), b={"c": np.ones(3)})
        >>> td.from_dict_instance({"b": {"c": np.zeros(2)}}, auto_batch_size=True).batch_size
        Size([2])
        """
        if isinstance(input_dict, Base) and batch_size is None and not auto_batch_size and batch_dims is None:
            batch_size, names = input_dict._batch_size, input_dict._names if names is None else names
        entries = {}
        for key, value in input_dict.items():
            mine = self._peek(key) if isinstance(key, str) and key in self._source else None
            if isinstance(mine, Converting) and not mine._holds_objects and isinstance(value, Mapping):
                value = mine.from_dict_instance(value, auto_batch_size=False)
            entries[key] = value
        return type(self).from_dict(  # type: ignore[attr-defined]
            entries,
            auto_batch_size=batch_dims is not None if auto_batch_size is None else auto_batch_size,
            batch_size=batch_size,
            device=device,
            batch_dims=batch_dims,
            names=names,
        )

    @classmethod
    def from_schema(
        cls,
        schema: Mapping[Any, tuple[Sequence[int], Any]],
        *,
        batch_size: Any = None,
        storage: str | None = None,
        device: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return a TensorDict of zeros, given by the shapes and dtypes of its leaves.

        Parameters
        ----------
        schema : dict
            Pairs of a shape behind the batch and a dtype, by keys. One of torch's dtypes makes a leaf of torch's.
        batch_size : sequence of int, optional
            The batch size.
        storage : {None, "memmap", "h5", "shared"}
            Where the leaves lie: in memory, in the files of a directory ``prefix=``, in an HDF5 file ``filename=``, or
            in shared memory. Nothing of the size of the whole is made in memory first.
        device : optional
            Where all leaves shall lie.
        **kwargs
            Passed to `memmap_like` or `PersistentTensorDict`.

        Raises
        ------
        ValueError
            If there is no such storage.

        Examples
        --------
        >>> from corral import TensorDict
        >>> TensorDict.from_schema({"obs": ([2], "uint8"), "reward": ([], "float32")}, batch_size=[3])
        TensorDict(batch_size=[3], library=numpy, fields={obs: u8[2], reward: f32[]})
        """
        from corral.tensordict.memmap import template

        if storage not in (None, "memmap", "h5", "shared"):
            raise ValueError(f"from_schema: storage must be None, 'memmap', 'h5' or 'shared', not {storage!r}")
        size = as_size(batch_size)
        td: Any = cls._make({}, size)
        for key, (shape, dtype) in schema.items():
            td._put(unravel_key(key), template(dtype, Size((*size, *as_size(shape)))))
        if storage == "memmap":
            return td.memmap_like(**kwargs)
        if storage == "h5":
            from corral.tensordict.persistent import PersistentTensorDict

            return PersistentTensorDict.of_zeros(td, device=device, **kwargs)
        result = td.new_zeros(size)
        if device is not None:
            result = result.to(device)
        return result.share_memory_() if storage == "shared" else result
