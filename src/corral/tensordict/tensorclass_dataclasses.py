"""Tensorclasses of dataclasses."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any

from corral.tensordict.tensorclass_base import TensorClass, is_tensorclass
from corral.tensordict.tensorclass_building import copied_field

__all__ = ["from_dataclass"]


def from_dataclass(
    obj: Any,
    *,
    dest_cls: Any = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    batch_size: Sequence[int] | None = None,
    frozen: bool = False,
    autocast: bool = False,
    nocast: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    device: Any = None,
) -> Any:
    """Return a tensorclass with the fields of a dataclass, or an instance with the values of an instance.

    Parameters
    ----------
    obj
        A dataclass, or an instance of one.
    dest_cls : type, optional
        The tensorclass of the instance; by default a new one, named as the dataclass with ``_tc`` behind.
    auto_batch_size : bool
        Take as batch size the leading dimensions that all fields share, `batch_dims` of them at most.
    batch_size : sequence of int, optional
        The batch size.
    frozen, autocast, nocast, shadow, tensor_only : bool
        Options of the new class: see `tensorclass`.
    device : optional
        Where all arrays shall lie.

    Raises
    ------
    TypeError
        If `obj` is neither.

    Examples
    --------
    >>> import dataclasses, numpy as np
    >>> from corral import from_dataclass
    >>> @dataclasses.dataclass
    ... class Step:
    ...     obs: np.ndarray
    ...     reward: np.ndarray
    >>> from_dataclass(Step(np.zeros((2, 3)), np.ones(2)), auto_batch_size=True, batch_dims=1)
    Step_tc(batch_size=[2], library=numpy, fields={obs: f64[3], reward: f64[]})
    """
    options = {
        "frozen": frozen,
        "autocast": autocast,
        "nocast": nocast,
        "shadow": shadow,
        "tensor_only": tensor_only,
    }
    if isinstance(obj, type):
        return obj if is_tensorclass(obj) else _class_of(obj, options)
    if not dataclasses.is_dataclass(obj):
        raise TypeError(f"Expected a obj input, got a {type(obj)} input instead.")
    if auto_batch_size and batch_size is not None:
        raise TypeError("from_dataclass: batch_size and auto_batch_size cannot both be given")
    cls = _class_of(type(obj), options) if dest_cls is None else dest_cls
    values = {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}
    nested = {
        name: dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
        for name, value in values.items()
        if not is_tensorclass(value)
    }
    result = cls(**{**values, **nested}, batch_size=batch_size, device=device)
    return result.auto_batch_size_(batch_dims) if auto_batch_size else result


def _class_of(cls: Any, options: dict[str, bool]) -> Any:
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"Expected a obj input, got a {cls} input instead.")
    name = cls.__name__  # type: ignore[union-attr]
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, TypeError):
        hints = {}
    body: dict[str, Any] = {
        "__annotations__": {field.name: hints.get(field.name, field.type) for field in dataclasses.fields(cls)},
        "__module__": cls.__module__,
    }
    for field in dataclasses.fields(cls):
        body[field.name] = copied_field(field)
    return types.new_class(f"{name}_tc", (TensorClass,), options, lambda names: names.update(body))
