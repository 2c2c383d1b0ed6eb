"""Tensorclasses that corral's and tensordict's suites have in common."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

import corral

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict

__all__ = ["Inner", "Outer", "TheirInner", "TheirOuter", "inner", "outer"]


class Inner(corral.TensorClass):
    """One that is nested."""

    q: Any


class Outer(corral.TensorClass):
    """Arrays, a nested tensorclass, a TensorDict, and what may be missing."""

    x: Any
    y: Any
    inner: Inner | None = None
    more: corral.TensorDict | None = None
    extra: Any = None

    def total(self) -> Any:
        return self.x.sum() + self.y.sum()

    @property
    def double(self) -> Any:
        return self.x * 2


class TheirInner(tensordict.TensorClass):
    q: Any


class TheirOuter(tensordict.TensorClass):
    x: Any
    y: Any
    inner: TheirInner | None = None
    more: tensordict.TensorDict | None = None
    extra: Any = None

    def total(self) -> Any:
        return self.x.sum() + self.y.sum()

    @property
    def double(self) -> Any:
        return self.x * 2


def _array(batch: tuple[int, ...], shape: tuple[int, ...], start: int, make: Any) -> Any:
    count = int(np.prod((*batch, *shape)))
    return make(np.arange(start, start + count, dtype="float32").reshape(*batch, *shape))


def inner(batch: tuple[int, ...], theirs: bool = False, make: Any = torch.from_numpy) -> Any:
    """Return the same nested instance in corral or in tensordict."""
    kind: Any = TheirInner if theirs else Inner
    return kind(q=_array(batch, (2,), 100, make), batch_size=list(batch))


def outer(batch: tuple[int, ...], full: bool = True, theirs: bool = False, make: Any = torch.from_numpy) -> Any:
    """Return the same instance in corral or in tensordict; only its required fields if not `full`."""
    kind: Any = TheirOuter if theirs else Outer
    library: Any = tensordict if theirs else corral
    fields = {"x": _array(batch, (3,), 0, make), "y": _array(batch, (), 50, make)}
    if full:
        fields["inner"] = inner(batch, theirs, make)
        fields["more"] = library.TensorDict({"z": _array(batch, (1,), 200, make)}, batch_size=list(batch))
    return kind(**fields, batch_size=list(batch))
