"""Trees of several ranks that must be alike, and what to say where they are not."""

from __future__ import annotations

from collections.abc import Sequence

from corral.distributed.errors import MismatchError
from corral.functional.parcels import dtype_of
from corral.wire import codec
from corral.wire.layout import Array, Layout, Path, Value, key_text

__all__ = ["check_alike", "kind_of_value", "where"]


def check_alike(layouts: Sequence[Layout], ranks: Sequence[int], rows: bool = False) -> None:
    """Raise `MismatchError` unless trees have the same keys, and arrays of the same dtypes and shapes there.

    The order of keys does not matter, nor do libraries and byte orders.

    Parameters
    ----------
    layouts
        One for each rank.
    ranks
        Their global ranks, for the message.
    rows
        Whether the first dimension may differ.
    """
    first = {entry.path: entry.node for entry in layouts[0].entries()}
    for layout, rank in zip(layouts[1:], ranks[1:], strict=True):
        other = {entry.path: entry.node for entry in layout.entries()}
        _check_keys(first, other, ranks[0], rank)
        _check_keys(other, first, rank, ranks[0])
        for path, node in first.items():
            _check_leaf(path, node, other[path], ranks[0], rank, rows)


def _check_keys(one: dict[Path, Array | Value], other: dict[Path, Array | Value], having: int, lacking: int) -> None:
    for path, node in one.items():
        if path not in other:
            raise MismatchError(f"{where(path)} is {_kind(node)} on rank {having}, but rank {lacking} has no such key")


def _check_leaf(path: Path, one: Array | Value, other: Array | Value, first: int, rank: int, rows: bool) -> None:
    if isinstance(one, Array) and isinstance(other, Array):
        if dtype_of(one) != dtype_of(other):
            raise MismatchError(f"{where(path)} is {_kind(other)} on rank {rank}, but {_kind(one)} on rank {first}")
        if one.shape[rows:] != other.shape[rows:] or len(one.shape) != len(other.shape):
            hint = ": only the first dimension may differ" if rows else ""
            raise MismatchError(
                f"{where(path)} has shape {tuple(other.shape)} on rank {rank}, but {tuple(one.shape)} on "
                f"rank {first}{hint}"
            )
    elif type(one) is not type(other):
        raise MismatchError(f"{where(path)} is {_kind(other)} on rank {rank}, but {_kind(one)} on rank {first}")


def where(path: Path) -> str:
    """Return a path as error messages give it, of what may not be an array."""
    return key_text(path) if path else "the tree"


def _kind(node: Array | Value) -> str:
    if isinstance(node, Array):
        return f"an array of dtype {dtype_of(node)} and shape {tuple(node.shape)}"
    return kind_of_value(node)


def kind_of_value(node: Value) -> str:
    """Say what kind of object is encoded, without opening a pickle."""
    try:
        value = codec.loads(node.data, False)
    except codec.PickleError:
        return "an object"
    return "None" if value is None else f"a {type(value).__qualname__}"
