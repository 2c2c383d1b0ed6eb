"""Let torch's functions take TensorDicts. torch calls this; corral never imports torch for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from corral.arrays.functions import FUNCTIONS, PREDICATES
from corral.arrays.operations import cast, fill_like
from corral.tensordict import assembling
from corral.tensordict.base import Base
from corral.tensordict.torch_losses import GRADIENT, LOSSES

__all__ = ["TorchInterop"]


class TorchInterop(Base):
    """Implement torch's protocol of overriding functions."""

    __slots__ = ()

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        table = _TABLES.get(getattr(function, "__module__", None) or "", _HANDLERS)
        handler = table.get(getattr(function, "__name__", ""))
        if handler is None:
            return NotImplemented
        return handler(*args, **(kwargs or {}))


def _stack(tensors: Any, dim: int = 0, *, out: Any = None) -> Any:
    return assembling.stack(tensors, dim, out=out)


def _cat(tensors: Any, dim: int = 0, *, out: Any = None) -> Any:
    return assembling.cat(tensors, dim, out=out)


def _filler(value: Any) -> Callable[..., Any]:
    def fill(input: Any, *, dtype: Any = None, device: Any = None, **ignored: Any) -> Any:
        return _filled(input, value, dtype, device)

    return fill


def _full_like(input: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, **ignored: Any) -> Any:
    return _filled(input, fill_value, dtype, device)


def _filled(input: Any, value: Any, dtype: Any, device: Any) -> Any:
    def fill(leaf: Any) -> Any:
        new = fill_like(leaf, value)
        return new if dtype is None else cast(new, dtype)

    result = input._map(fill)
    return result if device is None else result.to(device)


def _random(name: str) -> Callable[..., Any]:
    def fill(input: Any, **kwargs: Any) -> Any:
        import torch

        from corral.arrays.libraries import convert, library_of

        def leaf_like(leaf: Any) -> Any:
            new = getattr(torch, name)(convert(leaf, "torch"), **kwargs)
            return convert(new, library_of(leaf))

        return input._map(leaf_like)

    return fill


def _method(name: str) -> Callable[..., Any]:
    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, Base):  # a tensor's operator, which leaves the operation to the TensorDict's
            return NotImplemented
        return getattr(input, name)(*args, **kwargs)

    return call


def _allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Compare leaf by leaf, which tensordict does not; objects that are no arrays must be equal."""
    import numpy as np

    from corral.arrays.libraries import to_numpy

    found: list[bool] = []

    def compare(one: Any, two: Any) -> Any:
        found.append(bool(np.allclose(to_numpy(one), to_numpy(two), rtol, atol, equal_nan)))
        return one

    input._zip(compare, other)
    for key, entry in input.items(True):
        if isinstance(entry, Base) and entry._holds_objects:
            found.append(bool(np.all(entry == other.get(key))))
    return all(found)


def _where(condition: Any, input: Any, other: Any, *, out: Any = None) -> Any:
    if isinstance(input, Base):
        return input.where(condition, other, out=out)  # type: ignore[attr-defined]
    return other.where(~condition, input, out=out)


def _equal(input: Any, other: Any) -> bool:
    return bool((input == other).all())


_HANDLERS: dict[str, Callable[..., Any]] = {
    "stack": _stack,
    "cat": _cat,
    "concat": _cat,
    "concatenate": _cat,
    "zeros_like": _filler(0),
    "ones_like": _filler(1),
    "empty_like": _filler(None),
    "full_like": _full_like,
    "rand_like": _random("rand_like"),
    "randn_like": _random("randn_like"),
    "allclose": _allclose,
    "equal": _equal,
    "where": _where,
    **{
        name: _method(name)
        for name in (
            *("split", "chunk", "unbind", "reshape", "flatten", "unflatten", "permute", "transpose", "squeeze"),
            *("gather", "masked_select", "narrow", "tensor_split", "movedim", "moveaxis", "swapaxes", "swapdims"),
            *("flip", "fliplr", "flipud", "roll", "rot90", "tile", "repeat_interleave", "broadcast_to"),
            *("atleast_1d", "atleast_2d", "atleast_3d"),
            *("unsqueeze", "clone", "all", "any", "sum", "mean", "std", "var", "maximum", "minimum", "clamp"),
            *("add", "sub", "rsub", "mul", "div", "pow", "clamp_min", "clamp_max", "clamp_min_", "clamp_max_"),
            *("addcmul", "addcdiv", "lerp", "bitwise_and", "logical_and", *FUNCTIONS, *PREDICATES),
            *(f"{name}_" for name in FUNCTIONS),
        )
    },
}
_TABLES: dict[str, dict[str, Callable[..., Any]]] = {
    "torch.nn.functional": LOSSES,
    "torch.autograd": {"grad": GRADIENT},
}
