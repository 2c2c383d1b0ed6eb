"""Arithmetic of TensorDicts with numbers, arrays and each other, by torch's names, and the same in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeVar

import numpy as np

from corral.arrays.arithmetic import SCALARS, combine, combine_, number_like, pairwise
from corral.arrays.libraries import library_of
from corral.arrays.operations import expand, unbind
from corral.tensordict.base import Base
from corral.tensordict.leaves import Path, leaves_like, leaves_of, rebuilt, rewrite, slots, zipped

__all__ = ["Arithmetic", "aligned", "broadcast", "operands_of"]

T = TypeVar("T", bound=Base)


class Arithmetic(Base):
    """Functions of a TensorDict and other operands.

    An operand is a number; an array, whose dimensions are those of the batch and which is repeated along those that
    only leaves have; or a TensorDict with the same leaves. Batches broadcast. A result has no nested TensorDict
    without leaves, unless the operand is an array. With ``default=``, the keys of two TensorDicts may differ: the
    result has all of them, and `default` is the operand that is not there; or, with ``default="intersection"``,
    only those that both have.

    Those with an underscore behind their names write into the leaves' own memory, and raise `RuntimeError` where the
    values do not fit its shape or dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from corral import TensorDict
    >>> td = TensorDict(a=np.arange(3), b={"c": np.ones((3, 2))}, batch_size=[3])
    >>> td.add(np.array([10, 20, 30]))["a"], td.clamp(max=1)["a"]
    (array([10, 21, 32]), array([0, 1, 1]))
    >>> td.mul_(2)["b", "c"][0]
    array([2., 2.])
    >>> td.sub(TensorDict(a=np.ones(3)), default="intersection").to_dict()
    {'a': array([-1.,  1.,  3.])}
    """

    __slots__ = ()

    def add(self, other: Any, *, alpha: Any = None, default: Any = None) -> Self:
        """Return the sums ``self + alpha * other``, as `torch.add` does."""
        return self._combine("add", other, default, alpha)

    def add_(self, other: Any, *, alpha: Any = None) -> Self:
        """Add ``alpha * other`` in place."""
        return self._combine_("add", other, alpha)

    def sub(self, other: Any, *, alpha: Any = None, default: Any = None) -> Self:
        """Return the differences ``self - alpha * other``, as `torch.sub` does."""
        return self._combine("sub", other, default, alpha)

    def sub_(self, other: Any, alpha: Any = None) -> Self:
        """Subtract ``alpha * other`` in place."""
        return self._combine_("sub", other, alpha)

    def rsub(self, other: Any, *, alpha: Any = None, default: Any = None) -> Self:
        """Return the differences ``other - alpha * self``, as `torch.rsub` does."""
        return self._combine("rsub", other, default, alpha)

    def mul(self, other: Any, *, default: Any = None) -> Self:
        """Return the products, as `torch.mul` does."""
        return self._combine("mul", other, default)

    def mul_(self, other: Any) -> Self:
        """Multiply in place."""
        return self._combine_("mul", other)

    def div(self, other: Any, *, default: Any = None) -> Self:
        """Return the quotients, which are floats, as `torch.div` does."""
        return self._combine("div", other, default)

    def div_(self, other: Any) -> Self:
        """Divide in place."""
        return self._combine_("div", other)

    def mod(self, other: Any) -> Self:
        """Return the remainders, which have the sign of `other`, as `torch.remainder` does."""
        return self._combine("mod", other)

    def pow(self, other: Any, *, default: Any = None) -> Self:
        """Return the powers, as `torch.pow` does."""
        return self._combine("pow", other, default)

    def pow_(self, other: Any) -> Self:
        """Raise to a power in place."""
        return self._combine_("pow", other)

    def maximum(self, other: Any, *, default: Any = None) -> Self:
        """Return the larger of two elements, as `torch.maximum` does."""
        return self._combine("maximum", other, default)

    def maximum_(self, other: Any) -> Self:
        """Replace elements by larger ones in place."""
        return self._combine_("maximum", other)

    def minimum(self, other: Any, *, default: Any = None) -> Self:
        """Return the smaller of two elements, as `torch.minimum` does."""
        return self._combine("minimum", other, default)

    def minimum_(self, other: Any) -> Self:
        """Replace elements by smaller ones in place."""
        return self._combine_("minimum", other)

    def clamp_min(self, other: Any, default: Any = None) -> Self:
        """Return the elements, or bounds where those are larger, as `torch.clamp_min` does."""
        return self._combine("clamp_min", other, default)

    def clamp_min_(self, other: Any) -> Self:
        """Replace elements by larger bounds in place."""
        return self._combine_("clamp_min", other)

    def clamp_max(self, other: Any, *, default: Any = None) -> Self:
        """Return the elements, or bounds where those are smaller, as `torch.clamp_max` does."""
        return self._combine("clamp_max", other, default)

    def clamp_max_(self, other: Any) -> Self:
        """Replace elements by smaller bounds in place."""
        return self._combine_("clamp_max", other)

    def clamp(self, min: Any = None, max: Any = None, *, out: Any = None) -> Self:
        """Return the elements within bounds, as `torch.clamp` does.

        Parameters
        ----------
        min, max : number, array or TensorDict, optional
            The bounds; both are TensorDicts or none is.
        out : TensorDict, optional
            Written and returned; it has the keys and dtypes of the result.
        """
        if min is None and max is None:
            raise TypeError("clamp: neither min nor max was given: give at least one of the bounds")
        if isinstance(min, Base) != isinstance(max, Base) and min is not None and max is not None:
            raise ValueError("clamp: min and max must both be TensorDicts, or none of them")
        if min is None:
            result = self.clamp_max(max)
        elif max is None:
            result = self.clamp_min(min)
        else:
            result = self._several("clamp", (min, max), {}, propagate_lock=False)
        return result if out is None else _written(out, result)

    def lerp(self, end: Any, weight: Any) -> Self:
        """Return ``self + weight * (end - self)``, as `torch.lerp` does."""
        return self._several("lerp", (end, weight), {})

    def lerp_(self, end: Any, weight: Any) -> Self:
        """Go towards `end` in place."""
        return self._several_("lerp", (end, weight), {})

    def addcmul(self, other1: Any, other2: Any, *, value: Any = 1) -> Self:
        """Return ``self + value * other1 * other2``, as `torch.addcmul` does."""
        return self._several("addcmul", (other1, other2), {"value": value})

    def addcmul_(self, other1: Any, other2: Any, *, value: Any = 1) -> Self:
        """Add ``value * other1 * other2`` in place."""
        return self._several_("addcmul", (other1, other2), {"value": value})

    def addcdiv(self, other1: Any, other2: Any, value: Any = 1) -> Self:
        """Return ``self + value * other1 / other2``, as `torch.addcdiv` does."""
        return self._several("addcdiv", (other1, other2), {"value": value})

    def addcdiv_(self, other1: Any, other2: Any, *, value: Any = 1) -> Self:
        """Add ``value * other1 / other2`` in place."""
        return self._several_("addcdiv", (other1, other2), {"value": value})

    def bitwise_and(self, other: Any, *, default: Any = None) -> Self:
        """Return the bits that both have, as `torch.bitwise_and` does."""
        return self._combine("bitwise_and", other, default)

    def logical_and(self, other: Any, *, default: Any = None) -> Self:
        """Return whether both are true, as `torch.logical_and` does."""
        return self._combine("logical_and", other, default)

    def _combine(self, name: str, other: Any, default: Any = None, alpha: Any = None) -> Self:
        options = {} if alpha is None else {"alpha": alpha}
        td, (other,), spread = broadcast(self, name, other)
        if not options and isinstance(other, Base) and (quick := zipped(td, other, pairwise(name))) is not None:
            return quick
        leaves = leaves_of(td)
        if spread and not isinstance(other, Base):
            twos = operands_of(td, other)
            result = rebuilt(td, {path: combine(name, leaf, twos[path], **options) for path, leaf in leaves.items()})
            if result._locked:
                result._lock(False)
            return result
        if isinstance(other, Base):
            ones, twos = _paired(leaves, leaves_like(td, other), default)
        else:
            ones, twos = leaves, dict.fromkeys(leaves, other)
        if not ones:
            return td._map(lambda leaf: leaf)
        found = {path: combine(name, *_arrays(ones[path], twos[path]), **options) for path in ones}
        return rebuilt(td, found, drop=True)

    def _combine_(self, name: str, other: Any, alpha: Any = None) -> Self:
        return self._several_(name, (other,), {} if alpha is None else {"alpha": alpha})

    def _several(self, name: str, others: Any, options: dict[str, Any], propagate_lock: bool = True) -> Self:
        td, others, spread = broadcast(self, name, *others)
        operands = _operands(td, others)
        leaves = leaves_of(td)
        if not leaves:
            return td._map(lambda leaf: leaf)
        found = {path: combine(name, leaf, *operands(path, leaf), **options) for path, leaf in leaves.items()}
        result = rebuilt(td, found)
        if result._locked and (spread or not propagate_lock):
            result._lock(False)
        return result

    def _several_(self, name: str, others: Any, options: dict[str, Any]) -> Self:
        td, others, _ = broadcast(self, name, *others)
        operands = _operands(td, others)
        for parent, path in slots(td):  # before anything is written
            operands(path, parent._source[path[-1]])
        paths = iter([path for _, path in slots(td)])

        def write(leaf: Any, label: str) -> Any:
            return combine_(name, leaf, *operands(next(paths), leaf), label=label, **options)

        return rewrite(td, write)


def broadcast(td: T, name: str, *others: Any) -> tuple[T, tuple[Any, ...], bool]:
    """Return a TensorDict and its operands with batches of one shape, and whether any operand had a batch for that."""
    for other in others:
        if not isinstance(other, (Base, *SCALARS)) and library_of(other) == "other" and other is not None:
            raise TypeError(
                f"{name}: an operand must be a number, an array or a TensorDict, not {type(other).__name__}: {other!r}"
            )
    size: tuple[int, ...] = td._batch_size
    shapes = [tuple(other.shape) for other in others if not isinstance(other, SCALARS)]
    if not any(shape and (shape != size or not isinstance(o, Base)) for o, shape in _shaped(others)):
        return td, others, False
    try:
        size = np.broadcast_shapes(size, *shapes)
    except ValueError as error:
        raise RuntimeError(
            f"{name}: the batch size {list(size)} does not broadcast with operands of shapes {shapes}: an array's "
            "dimensions must be those of the batch"
        ) from error
    spread = tuple(_expanded(other, size) if isinstance(other, Base) else other for other in others)
    return _expanded(td, size), spread, True


def _expanded(td: Any, size: tuple[int, ...]) -> Any:
    if td._batch_size == size:
        return td
    expanded = td.expand(*size)
    if td._locked:
        expanded._lock(True)
    return expanded


def _shaped(others: Any) -> Any:
    return ((other, tuple(other.shape)) for other in others if not isinstance(other, SCALARS))


def aligned(leaf: Any, other: Any, batch_dims: int) -> Any:
    """Return an array of the batch's shape with the leaf's further dimensions, so that the batches meet."""
    if isinstance(other, SCALARS) or not other.shape:
        return other
    extra = len(leaf.shape) - batch_dims
    return other.reshape((*other.shape, *(1,) * extra)) if extra else other


def _operands(td: Base, others: Any) -> Any:
    """Return a function of a nested key and a leaf, which gives the leaf's operands."""
    found = [other if isinstance(other, SCALARS) else operands_of(td, other) for other in others]
    paths = {path for _, path in slots(td)}
    for other in found:
        if isinstance(other, Mapping) and not paths <= other.keys():
            raise _keys_differ(paths, other.keys())

    def operands(path: Path, leaf: Any) -> list[Any]:
        return [other[path] if isinstance(other, Mapping) else other for other in found]

    return operands


def operands_of(td: Base, other: Any, path: Path = ()) -> dict[Path, Any]:
    """Return what an array or a TensorDict is for each leaf; of an array, members of lazy stacks get their parts."""
    if isinstance(other, Base):
        return leaves_like(td, other)
    if other is None:
        return {path: None for _, path in slots(td)}
    return dict(_spread(td, other if not other.shape else expand(other, td._batch_size), path))


def _spread(td: Base, array: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    members = td._members()
    if members is not None:
        dim = td.stack_dim  # type: ignore[attr-defined]
        pieces = unbind(array, dim) if dim < len(array.shape) else [array] * len(members)
        for number, (member, piece) in enumerate(zip(members, pieces, strict=True)):
            yield from _spread(member, piece, (*path, str(number)))
        return
    for key, value in td._source.items():
        if isinstance(value, Base):
            yield from _spread(value, array, (*path, key))
        else:
            yield (*path, key), aligned(value, array, len(array.shape))


def _paired(ones: dict[Path, Any], twos: dict[Path, Any], default: Any) -> tuple[dict[Path, Any], dict[Path, Any]]:
    """Return the leaves of two TensorDicts for the keys that the result has."""
    if ones.keys() == twos.keys():
        return ones, twos
    if default is None:
        raise _keys_differ(ones.keys(), twos.keys())
    if isinstance(default, str):
        if default != "intersection":
            raise ValueError(f"default must be 'intersection' or an operand, not {default!r}")
        return {path: leaf for path, leaf in ones.items() if path in twos}, twos
    everything = dict.fromkeys([*ones, *twos], default)
    return {**everything, **ones}, {**everything, **twos}


def _arrays(one: Any, two: Any) -> tuple[Any, Any]:
    """Return operands of which the first is an array: a number that stands for a leaf has no library of its own."""
    return (number_like(two, one) if isinstance(one, SCALARS) else one), two


def _keys_differ(ones: Any, twos: Any) -> KeyError:
    missing, extra = (sorted(a - b) for a, b in ((set(ones), set(twos)), (set(twos), set(ones))))
    return KeyError(
        "the keys of two TensorDicts differ: "
        f"the first has {missing} that the second has not, the second has {extra} that the first has not"
    )


def _written(out: Any, result: Any) -> Any:
    found, wanted = leaves_of(out), leaves_of(result)
    if found.keys() != wanted.keys():
        raise _keys_differ(found, wanted)
    for path, leaf in wanted.items():
        if found[path].dtype != leaf.dtype:
            raise RuntimeError(f"clamp: out has dtype {found[path].dtype} at {path!r}, but the result {leaf.dtype}")
    return out.update_(result)
