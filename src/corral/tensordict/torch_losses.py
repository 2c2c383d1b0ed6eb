"""torch's losses between TensorDicts, and gradients of TensorDicts with respect to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.arrays.libraries import convert, library_of
from corral.tensordict.base import Base
from corral.tensordict.leaves import leaves_of, rebuilt

__all__ = ["GRADIENT", "LOSSES"]


def _loss(name: str) -> Callable[..., Any]:
    def call(input: Any, target: Any, *args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
        import torch

        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f"{name}: reduction must be 'none', 'mean' or 'sum', not {reduction!r}")
        kwargs = {key: value for key, value in kwargs.items() if value is not None}
        function = getattr(torch.nn.functional, name)

        def loss(leaf: Any, other: Any) -> Any:
            value = function(convert(leaf, "torch"), convert(other, "torch"), *args, reduction=reduction, **kwargs)
            return convert(value, library_of(leaf))

        return input.apply(loss, target, batch_size=None if reduction == "none" else ())

    return call


def _only(values: Any, name: str) -> Any:
    """Return the TensorDict that is given as one, or as the only one of a tuple."""
    found = values[0] if isinstance(values, (list, tuple)) and len(values) == 1 else values
    if not isinstance(found, Base):
        raise ValueError(f"torch.autograd.grad takes one TensorDict as {name}, not a {type(found).__name__}")
    return found


def _grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
    import torch

    results = tuple(leaves_of(_only(outputs, "outputs")).values())
    source = _only(inputs, "inputs")
    leaves = leaves_of(source)
    weights = None if grad_outputs is None else tuple(leaves_of(_only(grad_outputs, "grad_outputs")).values())
    found = torch.autograd.grad(results, tuple(leaves.values()), weights, *args, **kwargs)
    return rebuilt(source, {key: grad for key, grad in zip(leaves, found, strict=True) if grad is not None})


LOSSES: dict[str, Callable[..., Any]] = {name: _loss(name) for name in ("l1_loss", "mse_loss", "smooth_l1_loss")}
GRADIENT = _grad
