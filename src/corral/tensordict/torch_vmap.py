"""Let torch.vmap map over a dimension of the batch of TensorDicts, lazy stacks and nested ones among them.

torch would map over that dimension of each leaf. The leaves of a lazy stack lack the one that it is stacked along, and
negative dimensions of a batch are not those of its leaves. So TensorDicts are taken apart here: what torch maps over
are lists of tensors, each with the dimension that is meant, and rows are put together of what it gives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from corral.tensordict.base import Base
from corral.tensordict.errors import DimensionError
from corral.tensordict.names import Names, some_names
from corral.tensordict.sizes import Size

__all__ = ["hook"]


def hook(apis: Any) -> None:
    """Let torch.vmap, whose module is given, take TensorDicts; all else goes the way that it went before."""
    before = getattr(apis, "vmap_impl", None)
    if before is None or getattr(before, "of_corral", False):
        return

    @functools.wraps(before)
    def vmap_impl(
        func: Any, in_dims: Any, out_dims: Any, randomness: Any, chunk_size: Any, *args: Any, **kwargs: Any
    ) -> Any:
        from torch.utils import _pytree as pytree

        flat, spec = pytree.tree_flatten(args, is_leaf=_is_whole)
        dims = pytree._broadcast_to_and_flatten(in_dims, spec) if any(map(_is_whole, flat)) else None
        if dims is None:  # no TensorDict, dimensions for single leaves, or an error that torch describes
            return before(func, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)
        return _mapped(before, func, (flat, spec, dims), out_dims, (randomness, chunk_size), kwargs)

    vmap_impl.of_corral = True  # type: ignore[attr-defined]
    apis.vmap_impl = vmap_impl


def _is_whole(value: Any) -> bool:
    return isinstance(value, Base)


class _Row:
    """A TensorDict that is mapped over: its leaves, the dimension of each, and how to make rows of theirs."""

    def __init__(self, td: Any, dim: int | None) -> None:
        self.td = td
        self.leaves: list[Any] = []
        self.dims: list[int | None] = []
        count = len(td._batch_size)
        if dim is not None and not -count <= dim < count:
            raise DimensionError(
                f"vmap: in_dim={dim} is given for a TensorDict of batch size {td._batch_size}, and -{count} <= in_dim "
                f"< {count} is expected"
            )
        self.row = self._collect(td, dim if dim is None else dim % count)

    def length(self) -> int | None:
        """Return how many rows there are, as far as leaves tell."""
        pairs = zip(self.leaves, self.dims, strict=True)
        return next((int(leaf.shape[dim]) for leaf, dim in pairs if dim is not None), None)

    def _collect(self, td: Any, dim: int | None) -> Callable[[Any], Any]:
        """Note the leaves of a TensorDict, and return what makes a row of an iterator over theirs."""
        if td._holds_objects:
            return lambda _: td if dim is None or not td._fits_any else td._resized(_without(td._batch_size, dim))
        members = td._members()
        if members is not None and dim == td.stack_dim:
            return self._collect(_dense(td), dim)
        if members is not None:
            stack_dim, name = td.stack_dim, td._stack_name
            inner = None if dim is None else dim - (dim > stack_dim)
            parts = [self._collect(each, inner) for each in members]

            def stacked(leaves: Any) -> Any:
                result = type(td)._of(
                    [part(leaves) for part in parts], stack_dim - (dim is not None and dim < stack_dim)
                )
                result._stack_name = name
                return result

            return stacked
        entries: list[tuple[str, Any]] = []
        for key, value in td._source.items():
            if isinstance(value, Base):
                entries.append((key, self._collect(value, dim)))
            else:
                self.leaves.append(value)
                self.dims.append(dim)
                entries.append((key, next))
        size, names = td._batch_size, td._names
        if dim is not None:
            size, names = _without(size, dim), names and some_names((*names[:dim], *names[dim + 1 :]))
        return lambda leaves: td._make({key: make(leaves) for key, make in entries}, size, td._device, names)


def _without(size: Size, dim: int) -> Size:
    return Size((*size[:dim], *size[dim + 1 :]))


def _dense(td: Any) -> Any:
    try:
        return td._dense()
    except RuntimeError as error:
        raise RuntimeError(
            f"vmap: along the stack dimension {td.stack_dim} of a lazy stack, its members must have the same keys and "
            f"shapes: {error}. Map over another dimension, or call the function for each member."
        ) from error


def _mapped(before: Any, func: Any, inputs: tuple[Any, Any, Any], out_dims: Any, options: Any, kwargs: Any) -> Any:
    """Map over inputs: TensorDicts and other values, how they are nested, and a dimension for each."""
    from torch.utils import _pytree as pytree

    flat, spec, dims = inputs
    rows = [_Row(arg, dim) if isinstance(arg, Base) else None for arg, dim in zip(flat, dims, strict=True)]
    lists = [arg if row is None else row.leaves for arg, row in zip(flat, rows, strict=True)]
    list_dims = tuple(dim if row is None else row.dims for dim, row in zip(dims, rows, strict=True))
    results: list[Any] = []

    def call(*parts: Any, **more: Any) -> Any:
        given = [part if row is None else row.row(iter(part)) for part, row in zip(parts, rows, strict=True)]
        result = func(*pytree.tree_unflatten(given, spec), **more)
        made, made_spec = pytree.tree_flatten(result, is_leaf=_is_whole)
        places = _output_dims(out_dims, made_spec, pytree)
        found = [_Row(each, None) if isinstance(each, Base) else None for each in made]
        for each, row, place in zip(made, found, places, strict=True):
            if place is None:
                _refuse_batched([each] if row is None else row.leaves)
        results[:] = [(made_spec, found, places)]
        return tuple(each if row is None else tuple(row.leaves) for each, row in zip(made, found, strict=True))

    functools.update_wrapper(call, func, updated=())  # errors say its name
    mapped = before(call, list_dims, 0, *options, *lists, **kwargs)
    made_spec, found, places = results[0]
    lengths = (
        int(arg.shape[dim]) if row is None else row.length()
        for arg, dim, row in zip(flat, dims, rows, strict=True)
        if dim is not None
    )
    length = next(each for each in lengths if each is not None)
    outputs = [_output(each, row, dim, length) for each, row, dim in zip(mapped, found, places, strict=True)]
    return pytree.tree_unflatten(outputs, made_spec)


def _output_dims(out_dims: Any, spec: Any, pytree: Any) -> list[int | None]:
    """Return where the dimension goes for each output, of which there is one alone for a TensorDict."""
    if spec.is_leaf() and isinstance(out_dims, tuple) and len(out_dims) == 1:
        (out_dims,) = out_dims
    dims: list[int | None] | None = pytree._broadcast_to_and_flatten(out_dims, spec)
    if dims is None:
        raise ValueError(f"vmap: out_dims is not compatible with the structure of the outputs: {out_dims} for {spec}")
    return dims


def _refuse_batched(leaves: list[Any]) -> None:
    from torch._C import _functorch as functorch

    level = functorch.maybe_current_level()
    if any(functorch.is_batchedtensor(leaf) and functorch.maybe_get_level(leaf) == level for leaf in leaves):
        raise ValueError("vmap: an output depends on what is mapped over, and None is given as its out_dim")


def _output(mapped: Any, row: _Row | None, dim: int | None, length: int) -> Any:
    if row is None:
        return mapped[0] if dim is None else mapped.movedim(0, dim)
    if dim is None:
        first = iter([leaf[0] for leaf in mapped])
        return _Row(row.td, None).row(first)
    return _joined(row.td, iter(mapped), dim, length)


def _joined(td: Any, leaves: Any, out_dim: int, length: int) -> Any:
    """Return a TensorDict like a row, of leaves with a dimension more in front, which becomes one of the batch."""
    count = len(td._batch_size) + 1
    if not -count <= out_dim < count:
        raise DimensionError(
            f"vmap: out_dims={out_dim} is given for a TensorDict of batch size {td._batch_size}, and -{count} <= "
            f"out_dims < {count} is expected"
        )
    return _with_dim(td, leaves, out_dim % count, length)


def _with_dim(td: Any, leaves: Any, dim: int, length: int) -> Any:
    size = Size((*td._batch_size[:dim], length, *td._batch_size[dim:]))
    if td._holds_objects:
        return td if not td._fits_any else td._resized(size)
    members = td._members()
    if members is not None:
        stack_dim = td.stack_dim
        inner = dim - (dim > stack_dim)
        parts = [_with_dim(each, leaves, inner, length) for each in members]
        result = type(td)._of(parts, stack_dim + (dim <= stack_dim))
        result._stack_name = td._stack_name
        return result
    source = {
        key: _with_dim(value, leaves, dim, length) if isinstance(value, Base) else next(leaves).movedim(0, dim)
        for key, value in td._source.items()
    }
    names: Names = td._names and (*td._names[:dim], None, *td._names[dim:])
    return td._make(source, size, td._device, names)
