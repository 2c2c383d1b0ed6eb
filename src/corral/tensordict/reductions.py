"""Reductions of all leaves: over all elements, batch dimensions, what only leaves have, or all leaves together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, TypeAlias

from corral.arrays import reductions
from corral.arrays.operations import cat
from corral.arrays.reductions import Extremes
from corral.tensordict.base import Base
from corral.tensordict.errors import DimensionError
from corral.tensordict.leaves import mapped, renamed
from corral.tensordict.sizes import Size

__all__ = ["Reductions"]

Reduce: TypeAlias = Callable[..., Any]
_KeyTransform: TypeAlias = Callable[[Any], Any] | None
_ALL_WHERE_EMPTY = frozenset({"sum", "nansum", "mean", "nanmean", "std", "var", "prod", "amin", "amax"})
_ONE_DIMENSION = frozenset({"prod", "quantile", "amin", "amax", "min", "max", "cummin", "cummax"})


class Reductions(Base):
    """Reductions by torch's names.

    Parameters
    ----------
    dim : int, tuple of int or ``"feature"``, optional
        Batch dimensions to reduce, or with ``"feature"`` the dimensions that only leaves have. By default, every leaf
        becomes one number. ``prod``, ``quantile`` and the extremes take one dimension: the first of a tuple.
    keepdim : bool
        Keep the dimensions, of length 1.
    reduce : bool, optional
        Reduce all leaves together, and return an array: leaves are joined along `dim`, which counts the dimensions of
        the leaves.
    key_transform : callable, optional
        Takes each key, and returns the key that the result has.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict
    >>> td = TensorDict(a=np.arange(6.0).reshape(2, 3), b={"c": np.ones((2, 3, 4))}, batch_size=[2, 3])
    >>> td.sum()["a"], td.sum(dim=0)["a"], td.mean(reduce=True)
    (array(15.), array([3., 5., 7.]), array(1.3))
    >>> td.sum("feature")["b", "c"].shape, td.amax(0, keepdim=True).batch_size
    ((2, 3), Size([1, 3]))
    >>> values, indices = td.max(dim=1)
    >>> values["a"], indices["a"]
    (array([2., 5.]), array([2, 2]))
    """

    __slots__ = ()

    def all(self, dim: int | None = None) -> Any:
        """Return whether all elements are true, or a TensorDict of that along one batch dimension."""
        if dim is None:
            return all(bool(reductions.reduce("all", leaf)) for leaf in self._leaves())
        return self._truth("all", dim)

    def any(self, dim: int | None = None) -> Any:
        """Return whether any element is true, or a TensorDict of that along one batch dimension."""
        if dim is None:
            return any(bool(reductions.reduce("any", leaf)) for leaf in self._leaves())
        return self._truth("any", dim)

    def sum(
        self,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: Any = None,
        reduce: bool | None = None,
        key_transform: _KeyTransform = None,
    ) -> Any:
        """Return the sums, as `torch.sum` does; `dtype` is what elements are cast to first."""
        return self._reduce("sum", dim, keepdim, reduce, key_transform, dtype=dtype)

    def nansum(self, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, reduce: bool | None = None) -> Any:
        """Return the sums without the elements that are not a number, as `torch.nansum` does."""
        return self._reduce("nansum", dim, keepdim, reduce, dtype=dtype)

    def mean(
        self,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: Any = None,
        reduce: bool | None = None,
        key_transform: _KeyTransform = None,
    ) -> Any:
        """Return the means, as `torch.mean` does; `dtype` is what elements are cast to first."""
        return self._reduce("mean", dim, keepdim, reduce, key_transform, dtype=dtype)

    def nanmean(self, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, reduce: bool | None = None) -> Any:
        """Return the means without the elements that are not a number, as `torch.nanmean` does."""
        return self._reduce("nanmean", dim, keepdim, reduce, dtype=dtype)

    def prod(self, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, reduce: bool | None = None) -> Any:
        """Return the products, as `torch.prod` does; `dtype` is what elements are cast to first."""
        result = self._reduce("prod", dim, keepdim and dim is not None, reduce, dtype=dtype)
        if not keepdim or dim is not None:
            return result
        shape = (1,) * len(self._batch_size)
        if reduce:
            return result.reshape(shape)
        return mapped(result, lambda leaf, _: leaf.reshape(shape), lambda _: Size(shape))

    def std(
        self,
        dim: Any = None,
        keepdim: bool = False,
        *,
        correction: int = 1,
        reduce: bool | None = None,
        key_transform: _KeyTransform = None,
    ) -> Any:
        """Return the standard deviations, as `torch.std` does."""
        return self._reduce("std", dim, keepdim, reduce, key_transform, correction=correction)

    def var(
        self,
        dim: Any = None,
        keepdim: bool = False,
        *,
        correction: int = 1,
        reduce: bool | None = None,
        key_transform: _KeyTransform = None,
    ) -> Any:
        """Return the variances, as `torch.var` does."""
        return self._reduce("var", dim, keepdim, reduce, key_transform, correction=correction)

    def quantile(
        self,
        q: Any,
        dim: Any = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        reduce: bool | None = None,
        key_transform: _KeyTransform = None,
    ) -> Any:
        """Return the quantiles, as `torch.quantile` does; a vector `q` gives results a first dimension."""

        def function(leaf: Any, dim: Any = None, keepdim: bool = False) -> Any:
            return reductions.quantile(leaf, q, dim, keepdim, interpolation)

        first = tuple(q.shape) if hasattr(q, "shape") else ()
        if not reduce:
            self._refuse_objects("quantile")
        return self._reduced("quantile", function, dim, keepdim, reduce, key_transform, first=first)

    def amin(self, dim: Any = None, keepdim: bool = False, *, reduce: bool | None = None) -> Any:
        """Return the smallest elements, as `torch.amin` does."""
        return self._reduce("amin", dim, keepdim, reduce)

    def amax(self, dim: Any = None, keepdim: bool = False, *, reduce: bool | None = None) -> Any:
        """Return the largest elements, as `torch.amax` does."""
        return self._reduce("amax", dim, keepdim, reduce)

    def min(
        self, dim: Any = None, keepdim: bool = False, *, reduce: bool | None = None, return_indices: bool = True
    ) -> Any:
        """Return the smallest elements; along a dimension also their indices, unless not `return_indices`."""
        return self._extreme("min", dim, keepdim, reduce, return_indices)

    def max(
        self, dim: Any = None, keepdim: bool = False, *, reduce: bool | None = None, return_indices: bool = True
    ) -> Any:
        """Return the largest elements; along a dimension also their indices, unless not `return_indices`."""
        return self._extreme("max", dim, keepdim, reduce, return_indices)

    def cummin(self, dim: int, *, reduce: bool | None = None, return_indices: bool = True) -> Any:
        """Return the smallest elements up to each one, and their indices, as `torch.cummin` does."""
        return self._cumulate("cummin", dim, reduce, return_indices)

    def cummax(self, dim: int, *, reduce: bool | None = None, return_indices: bool = True) -> Any:
        """Return the largest elements up to each one, and their indices, as `torch.cummax` does."""
        return self._cumulate("cummax", dim, reduce, return_indices)

    def logsumexp(self, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:
        """Return the logarithms of sums of exponentials, as `torch.logsumexp` does; by default over the whole batch."""
        count = len(self._batch_size)
        dims = tuple(range(count)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
        if any(not -count <= d < count for d in dims):
            raise DimensionError(
                f"logsumexp: the dimension {dim} is incompatible with a tensordict with batch_size {self._batch_size}"
            )
        dims = tuple(d % count for d in dims)
        result = mapped(
            self,
            lambda leaf, _: reductions.logsumexp(leaf, dims, keepdim) if dims else leaf,
            lambda size: _resized(size, dims, keepdim),
            rename=lambda names: _left(names, dims, keepdim),
        )
        return result if out is None else out.update(result, inplace=True)

    def softmax(self, dim: int, dtype: Any = None) -> Self:
        """Return exponentials that add up to 1 along a batch dimension, as `torch.softmax` does."""
        if not isinstance(dim, int):
            raise ValueError(f"softmax: dim must be an int, not {type(dim).__name__}")
        (axis,) = self._dims("softmax", dim)
        return self._map(lambda leaf: reductions.softmax(leaf, axis, dtype))

    def norm(self, *, out: Any = None, dtype: Any = None, key_transform: _KeyTransform = None) -> Any:
        """Return each leaf's norm: the square root of the sum of its elements' squares."""
        result = mapped(self, lambda leaf, _: reductions.norm(leaf, dtype), lambda _: Size())
        if key_transform is not None:
            return renamed(result, key_transform)
        if out is not None:
            return out.update(result, inplace=True)
        if self._locked:
            result._lock(True)
        return result

    def _truth(self, name: str, dim: int) -> Self:
        count = len(self._batch_size)
        if not -count <= dim < count:
            raise DimensionError(
                "dim must be greater than or equal to -tensordict.batch_dims and smaller than tensordict.batch_dims"
            )
        axis = dim % count
        return mapped(
            self,
            lambda leaf, _: reductions.reduce(name, leaf, axis),
            lambda size: _resized(size, (axis,), False),
            rename=lambda names: _left(names, (axis,), False),
        )

    def _reduce(
        self,
        name: str,
        dim: Any,
        keepdim: bool,
        reduce: bool | None,
        key_transform: _KeyTransform = None,
        **options: Any,
    ) -> Any:
        if not reduce and (dim is None or name not in ("amin", "amax")):
            self._refuse_objects(name)

        def function(leaf: Any, dim: Any = None, keepdim: bool = False) -> Any:
            return reductions.reduce(name, leaf, dim, keepdim, **options)

        return self._reduced(name, function, dim, keepdim, reduce, key_transform)

    def _refuse_objects(self, name: str) -> None:
        """Raise if there are objects that differ from row to row."""
        for key, value in self._source.items() if self._members() is None else ():
            if isinstance(value, Reductions):
                if value._holds_objects and not value._fits_any:
                    raise RuntimeError(
                        f"{name}: the entry {key!r} has an object for each row, which cannot be reduced: exclude() it"
                    )
                value._refuse_objects(name)

    def _extreme(self, name: str, dim: Any, keepdim: bool, reduce: bool | None, indices: bool) -> Any:
        if dim is None:
            if keepdim and not reduce and any(True for _ in self._leaves()):
                raise TypeError(f"{name}: keepdim=True needs a dim; a{name} keeps all dimensions without one")
            return self._reduce(f"a{name}", None, keepdim, reduce)

        def function(leaf: Any, dim: Any = None, keepdim: bool = False) -> Any:
            return reductions.extreme(name, leaf, dim, keepdim)

        result = self._reduced(name, function, dim, keepdim, reduce)
        return result if reduce else _separated(result, indices)

    def _cumulate(self, name: str, dim: Any, reduce: bool | None, indices: bool) -> Any:
        if reduce:
            return self._reduced(
                name, lambda leaf, dim, keepdim: reductions.cumulate(name, leaf, dim), dim, False, True
            )
        (axis,) = self._dims(name, dim)
        result = mapped(
            self,
            lambda leaf, _: reductions.cumulate(name, leaf, axis),
            lambda _: self._batch_size,
            rename=lambda names: names,
        )
        return _separated(result, indices)

    def _reduced(
        self,
        name: str,
        function: Reduce,
        dim: Any,
        keepdim: bool,
        together: bool | None,
        key_transform: _KeyTransform = None,
        first: tuple[int, ...] = (),
    ) -> Any:
        """Reduce by a function of a leaf, ``dim`` and ``keepdim``; `first` are dimensions that results get in front."""
        if together:
            return self._together(name, function, dim, keepdim)
        if isinstance(dim, str):
            result = self._features(name, function, dim, keepdim, first)
        elif dim is None or (dim == () and name in _ALL_WHERE_EMPTY):
            rename = None
            if keepdim:
                # the extremes give all parts the batch of the whole, as tensordict's do
                kept = len(self._batch_size) if name in ("amin", "amax") else None
                resize = lambda size: Size((*first, *(1,) * len((*size,)[:kept])))  # noqa: E731
                rename = lambda names: (*(None,) * len(first), *names[:kept])  # noqa: E731
            else:
                resize = lambda _: Size()  # noqa: E731
            result = mapped(self, lambda leaf, _: function(leaf, None, keepdim), resize, rename=rename)
        else:
            dims = self._dims(name, dim)
            axis: Any = dims[0] if name in _ONE_DIMENSION else dims
            root_size = Size((*first, *_resized(self._batch_size, dims, keepdim)))
            if name in ("amin", "amax", "min", "max"):
                resize = lambda _: root_size  # noqa: E731
            else:
                resize = lambda size: Size((*first, *_resized(size, dims, keepdim)))  # noqa: E731
            result = mapped(
                self,
                lambda leaf, _: function(leaf, axis, keepdim),
                resize,
                rename=lambda names: (*(None,) * len(first), *_left(names, dims, keepdim)),
            )
        return result if key_transform is None else renamed(result, key_transform)

    def _features(self, name: str, function: Reduce, dim: str, keepdim: bool, first: tuple[int, ...]) -> Self:
        if dim != "feature":
            raise ValueError(f"{name}: dim must be an int, a tuple of int or 'feature', not {dim!r}")
        if keepdim:
            raise TypeError(f"{name}: dim='feature' is incompatible with keepdim=True")
        if name in ("amin", "amax", "min", "max"):
            raise RuntimeError(f"{name}: dim='feature' is not possible without reduce=True")
        return mapped(
            self,
            lambda leaf, td: function(_features_last(leaf, len(td._batch_size)), -1, False),
            lambda size: Size((*first, *size)),
            rename=lambda names: (*(None,) * len(first), *names),
        )

    def _together(self, name: str, function: Reduce, dim: Any, keepdim: bool) -> Any:
        leaves = list(self._leaves())
        if not leaves:
            raise ValueError(f"{name}: reduce=True reduces the leaves together, and this tensordict has none")
        if dim is None or (dim == () and name in _ALL_WHERE_EMPTY):
            return function(cat([leaf.reshape(-1) for leaf in leaves], 0), None, False)
        if dim == "feature":
            count = len(self._batch_size)
            return function(cat([_features_last(leaf, count) for leaf in leaves], -1), -1, False)
        dims = (dim,) if isinstance(dim, int) else tuple(dim)
        if self._members() is not None:
            leaves = list(_stacked_leaves(self))
        return function(cat(leaves, dims[0]), dims[0] if name in _ONE_DIMENSION else dims, keepdim)

    def _dims(self, name: str, dim: Any) -> tuple[int, ...]:
        """Return batch dimensions counted from the first; a single one where a reduction takes no more."""
        count = len(self._batch_size)
        dims = (dim,) if isinstance(dim, int) else tuple(dim)
        if name in _ONE_DIMENSION:
            if not dims:
                raise IndexError(f"{name}: dim is empty, but one dimension is needed")
            dims = dims if name == "quantile" else dims[:1]
        for d in dims:
            if not isinstance(d, int):
                raise TypeError(f"{name}: dim must be an int, a tuple of int or 'feature', not {dim!r}")
            if not -count <= d < count:
                raise DimensionError(
                    f"{name}: there is no dimension {d} in a batch of {count} dimensions: {self._batch_size}"
                )
        return tuple(d % count for d in (dims[:1] if name in _ONE_DIMENSION else dims))


def _stacked_leaves(td: Base) -> Iterator[Any]:
    """Yield the leaves as they are read: those of the members of a lazy stack are stacked."""
    for value in td._source.values():
        if isinstance(value, Base):
            yield from _stacked_leaves(value)
        else:
            yield value


def _resized(size: Size, dims: tuple[int, ...], keepdim: bool) -> Size:
    if keepdim:
        return Size(1 if i in dims else length for i, length in enumerate(size))
    return Size(length for i, length in enumerate(size) if i not in dims)


def _left(names: tuple[Any, ...], dims: tuple[int, ...], keepdim: bool) -> tuple[Any, ...]:
    """Return the names of the dimensions that a reduction leaves."""
    return tuple(name for i, name in enumerate(names) if keepdim or i not in dims)


def _features_last(leaf: Any, batch_dims: int) -> Any:
    """Return a leaf with all its dimensions behind the batch's made into one."""
    size = 1
    for length in leaf.shape[batch_dims:]:
        size *= length
    return leaf.reshape((*leaf.shape[:batch_dims], size))


def _separated(pairs: Any, indices: bool) -> Any:
    """Return the values of a TensorDict of `Extremes`, or both parts as TensorDicts."""
    if not indices:
        return mapped(pairs, lambda pair, _: pair.values)
    return Extremes(
        mapped(pairs, lambda pair, _: pair.values, drop=True), mapped(pairs, lambda pair, _: pair.indices, drop=True)
    )
