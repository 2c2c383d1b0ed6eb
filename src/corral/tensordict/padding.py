"""Make batches longer, and batches of several lengths into one."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from corral.arrays.libraries import convert, library_of
from corral.arrays.operations import device_of
from corral.arrays.operations import stack as stack_arrays
from corral.arrays.rearranging import pad as pad_array
from corral.tensordict.base import Base
from corral.tensordict.nested_keys import NestedKey, unravel_key
from corral.tensordict.shaping import Shaping
from corral.tensordict.sizes import Size

__all__ = ["Padding", "pad", "pad_sequence"]


class Padding(Shaping):
    """Add rows."""

    __slots__ = ()

    def pad(self, pad_size: Sequence[int], value: float = 0.0, inplace: bool = False, safe: bool = True) -> Self:
        """Return a TensorDict with rows of one value added before and behind, along its batch dimensions.

        Parameters
        ----------
        pad_size : sequence of int
            How many rows before and behind along the first dimension, then along the second, and so on.
        value : number
            The value of the elements that are added.
        inplace : bool
            Give this TensorDict the longer leaves.
        safe : bool
            Accepted for compatibility: what does not fit fails before anything is changed, in any case.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> TensorDict(a=np.arange(3), batch_size=[3]).pad([1, 2], value=-1)["a"]
        array([-1,  0,  1,  2, -1, -1])
        """
        if inplace:
            self._refuse_inplace("pad")
        if len(pad_size) > 2 * len(self._batch_size):
            raise RuntimeError("The length of pad_size must be <= 2 * the number of batch dimensions")
        if len(pad_size) % 2:
            raise RuntimeError("pad_size must have an even number of dimensions")
        pad_size = [operator.index(count) for count in pad_size]
        widths = list(zip(pad_size[::2], pad_size[1::2], strict=True))
        size = list(self._batch_size)
        for dim, (low, high) in enumerate(widths):
            size[dim] += low + high
        result = self._map(lambda leaf: pad_array(leaf, widths, value), Size(size), self._names)
        return self._rebind(result) if inplace else result


def pad(tensordict: Any, pad_size: Sequence[int], value: float = 0.0, inplace: bool = False, safe: bool = True) -> Any:
    """Return a TensorDict with rows added: see `TensorDict.pad`."""
    return tensordict.pad(pad_size, value, inplace, safe)


def pad_sequence(
    list_of_tensordicts: Sequence[Any],
    pad_dim: int = 0,
    padding_value: float | Mapping[NestedKey, float] = 0.0,
    out: Any = None,
    return_mask: bool | NestedKey = False,
    padding_side: str = "right",
) -> Any:
    """Return TensorDicts of several lengths stacked, the shorter ones filled up.

    Parameters
    ----------
    list_of_tensordicts : sequence of TensorDict
        With the same keys, and shapes that differ along one dimension only.
    pad_dim : int
        That dimension of every leaf.
    padding_value : number or dict
        What to fill with; a dict says so for each key, and others get 0.
    out : TensorDict, optional
        Write the result into this one.
    return_mask : bool or key
        Add masks that are true where the result has elements of the arguments, one for each leaf, under the key
        ``"masks"`` or the one given.
    padding_side : {"right", "left"}
        Fill up behind, or before.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict
    >>> tds = [TensorDict(a=np.arange(n) + 1, batch_size=[n]) for n in (2, 3)]
    >>> padded = pad_sequence(tds, return_mask=True)
    >>> padded["a"], padded["masks", "a"]
    (array([[1, 2, 0],
           [1, 2, 3]]), array([[ True,  True, False],
           [ True,  True,  True]]))
    """
    tds = list(list_of_tensordicts)
    if not tds:
        raise RuntimeError("list_of_tensordicts cannot be empty")
    if padding_side not in ("left", "right"):
        raise ValueError(f"padding_side must be 'left' or 'right', got {padding_side!r}.")
    keys = _common_keys(tds)
    values: dict[NestedKey, float] = {}
    if isinstance(padding_value, Mapping):
        values = {unravel_key(key): value for key, value in padding_value.items()}
        missing = [key for key in values if key not in keys]
        if missing:
            raise KeyError(
                f"padding_value has keys {missing} that name no entry of the tensordicts, whose entries are "
                f"{sorted(keys, key=str)}."
            )
    default = 0.0 if isinstance(padding_value, Mapping) else padding_value
    mask_key: Any = None
    if return_mask is not False:
        mask_key = "masks" if return_mask is True else unravel_key(return_mask)
    places = {key: _place(key, tds, pad_dim) for key in keys}
    if out is None:
        out = _shell(tds, keys, places, pad_dim)
    for key in keys:
        leaves = [td.get(key) for td in tds]
        place = places[key]
        try:
            filled = _filled(leaves, place, values.get(key, default), padding_side)
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(f"pad_sequence failed for key {key}: {error}") from error
        out.set(key, filled, inplace=True)
    for key in keys if mask_key is not None else ():
        masks = [_mask(td, td.get(key), places[key]) for td in tds]
        where = min(places[key], len(tds[0].batch_size))
        out.set((mask_key, key), _filled(masks, where, False, padding_side), inplace=True)
    return out


def _common_keys(tds: Sequence[Any]) -> list[NestedKey]:
    keys = list(tds[0].keys(True, True))
    for i, td in enumerate(tds):
        if set(td.keys(True, True)) != set(keys):
            raise KeyError(
                f"tensordict {i} has keys {sorted(td.keys(True, True), key=str)} but tensordict 0 has keys "
                f"{sorted(keys, key=str)}; all tensordicts must have the same keys"
            )
    return keys


def _place(key: NestedKey, tds: Sequence[Any], pad_dim: int) -> int:
    """Return the dimension of an entry that is filled up."""
    place = pad_dim
    for td in tds:
        shape = tuple(td.get(key).shape)
        if not shape:
            raise RuntimeError("Cannot pad scalars")
        place = pad_dim if pad_dim >= 0 else len(shape) + pad_dim
        if not 0 <= place < len(shape):
            raise IndexError(f"pad_dim={pad_dim} is out of range for the entry {key!r} of shape {shape}.")
    return place


def _shell(tds: Sequence[Any], keys: Sequence[NestedKey], places: Mapping[NestedKey, int], pad_dim: int) -> Any:
    """Return the result without leaves: the batch is as long as the longest entry, where it is what is filled up."""
    size = list(tds[0].batch_size)
    inside = {place for place in places.values() if place < len(size)}
    longest = {key: max(td.get(key).shape[places[key]] for td in tds) for key in keys}
    if len(inside) == 1 and all(place < len(size) for place in places.values()):
        size[inside.pop()] = max(longest.values())
    elif pad_dim < 0 and (long := [key for key in keys if places[key] in inside and longest[key] > size[places[key]]]):
        raise ValueError(
            f"pad_dim={pad_dim} counts from the last dim of each entry and lands on several dims of the entries, so "
            f"the batch cannot be padded along it, but the entry {long[0]!r} is longer than the batch of the first "
            f"sample along dim {places[long[0]]}."
        )
    return _resized(tds[0].empty(recurse=True), Size((len(tds), *size)), len(size))


def _resized(td: Any, root: Size, replaced: int) -> Any:
    source = {key: _resized(value, root, replaced) for key, value in td._source.items() if isinstance(value, Base)}
    return td._make(source, Size((*root, *td._batch_size[replaced:])), td._device)


def _filled(leaves: Sequence[Any], dim: int, value: Any, side: str) -> Any:
    """Return arrays stacked, after all have been made as long along one dimension as the longest is."""
    longest = max(leaf.shape[dim] for leaf in leaves)
    padded = []
    for leaf in leaves:
        missing = longest - leaf.shape[dim]
        widths = [*[(0, 0)] * dim, (0, missing) if side == "right" else (missing, 0)]
        padded.append(pad_array(leaf, widths, value) if missing else leaf)
    return stack_arrays(padded, 0)


def _mask(td: Any, leaf: Any, dim: int) -> Any:
    shape = tuple(td.batch_size)
    mask = np.ones((*shape, leaf.shape[dim]) if dim >= len(shape) else shape, np.bool_)
    return mask if library_of(leaf) == "numpy" else convert(mask, library_of(leaf), device_of(leaf))
