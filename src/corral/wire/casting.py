"""Which dtypes become which, where a stack's rows or its destination have several."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from corral.arrays.libraries import copy_into, dtype_name, library_of
from corral.distributed.errors import MismatchError
from corral.wire import array_values
from corral.wire.layout import Array, Path, key_text

__all__ = ["check_cast", "promoted"]


def _name(node: Array) -> str:
    return str(node.dtype) if node.library == "torch" else array_values.dtype_from(node.dtype).name


def promoted(path: Path, nodes: Sequence[Array]) -> Array | None:
    """Return what arrays of several dtypes are cast to when they are stacked; ``None`` if they have only one.

    The rule is torch's where one of them is torch's (and torch is loaded), NumPy's otherwise.

    Raises
    ------
    MismatchError
        If they have no dtype in common.
    """
    first = nodes[0]
    if all(node.dtype == first.dtype and node.library == first.library for node in nodes):
        return None
    names = [_name(node) for node in nodes]
    if array_values.is_numeric(names[0]) and len(set(names)) == 1:
        return None
    torch = sys.modules.get("torch")
    try:
        if torch is not None and any(node.library == "torch" for node in nodes):
            kinds = [getattr(torch, name, None) for name in names]
            if all(isinstance(kind, torch.dtype) for kind in kinds):
                common = functools.reduce(torch.promote_types, kinds)
                return Array(str(common).removeprefix("torch."), first.shape, "torch")
        dtypes = [
            array_values.dtype_from(array_values.numpy_form(n.dtype) if n.library == "torch" else n.dtype)
            for n in nodes
        ]
        return Array(array_values.dtype_form(functools.reduce(np.promote_types, dtypes)), first.shape, "numpy")
    except (TypeError, RuntimeError) as error:
        raise MismatchError(
            f"{key_text(path)} has the dtypes {', '.join(sorted(set(names)))} on the senders, which have none "
            f"in common: {error}"
        ) from None


def check_cast(source: Array, target: Any) -> None:
    """Raise `TypeError` unless every value of one array can be copied into the other.

    It must be known before the values move whether they will fit, so what depends on them (text that may or
    may not be a number) is refused.
    """
    name = dtype_name(target)
    kind = target.dtype.kind if library_of(target) == "numpy" else "?"
    if source.library != "torch":
        dtype = array_values.dtype_from(source.dtype)
        if "V" in (kind, dtype.kind) and not array_values.is_numeric(dtype.name) and dtype != target.dtype:
            raise TypeError(f"{dtype} cannot be cast to {name}")
        if kind != dtype.kind and (dtype.kind in "US" or kind in "US"):
            raise TypeError(f"{dtype} cannot be cast to {name}")
    elif kind in "US" or (kind == "V" and not array_values.is_numeric(name)):
        raise TypeError(f"{source.dtype} cannot be cast to {name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts that get lost: the copy itself will warn
        try:
            probe = Array(source.dtype, [1], source.library).zeros()
            if library_of(target) == "torch":
                into = sys.modules["torch"].zeros(1, dtype=target.dtype)
            elif library_of(target) == "numpy":
                into = np.zeros(1, target.dtype)
            else:
                return
            copy_into(into, probe)
        except Exception as error:
            raise TypeError(f"{source.dtype_text} cannot be cast to {name}: {error}") from None
