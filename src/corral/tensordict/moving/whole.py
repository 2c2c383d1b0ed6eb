"""Whole TensorDicts, of which the receivers know nothing: new ones are made of what comes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from corral import functional
from corral.arrays.operations import clone
from corral.distributed import groups
from corral.distributed.errors import MismatchError
from corral.distributed.groups import Group
from corral.tensordict.base import Base

__all__ = ["all_gather", "broadcast", "from_remote_init", "gather", "init_remote", "own_rank", "scatter"]


@contextlib.contextmanager
def _method(name: str, function: str) -> Iterator[str]:
    """Let errors name the method that the user called.

    Ranks know what they do by the function's name, so that some can call it where others call the method.
    """
    method = f"TensorDict.{name}"
    try:
        yield method
    except Exception as error:
        text = error.args[0] if error.args else None
        if isinstance(text, str) and text.startswith(f"corral.{function}"):
            error.args = (method + text.removeprefix(f"corral.{function}"), *error.args[1:])
        raise


def _is_outside(group: Group, operation: str) -> bool:
    return group is not None and groups.member_group(group, operation, 3) is None


def init_remote(td: Any, dst: int | None, group: Group, group_dst: int | None) -> None:
    """Send a TensorDict to a rank that does not know its structure."""
    with _method("init_remote", "send") as name:
        if not _is_outside(group, name):
            functional.send(td, dst, group, group_dst=group_dst)


def from_remote_init(kind: type[Any], src: int | None, group: Group, group_src: int | None, device: Any) -> Any:
    """Receive what `init_remote` has sent."""
    with _method("from_remote_init", "recv") as name:
        if _is_outside(group, name):
            return None
        received = functional.recv(src, group, group_src=group_src)
    if not isinstance(received, Base):
        raise MismatchError(
            f"TensorDict.from_remote_init: received a {type(received).__qualname__}, where a TensorDict was expected: "
            "send one with init_remote, or receive with corral.recv"
        )
    return _on(device, received)


def broadcast(td: Any, src: int | None, group: Group, group_src: int | None, device: Any) -> Any:
    """Return one rank's TensorDict on every rank."""
    with _method("broadcast", "broadcast") as name:
        if _is_outside(group, name):
            return None
        received = functional.broadcast(td, src, group, group_src)
    return _on(device, _copied(received) if received is td else received)


def _copied(td: Any) -> Any:
    """Return the source's own: consolidated, but for leaves that libraries have no bytes of, or do not copy."""
    try:
        return td.consolidate()
    except (RuntimeError, TypeError):
        return td.apply(_copy_of)


def _copy_of(leaf: Any) -> Any:
    try:
        return clone(leaf)
    except NotImplementedError:  # torch's integers of less than a byte
        return clone(leaf.view(sys.modules["torch"].uint8)).view(leaf.dtype)


def own_rank(group: Group, operation: str) -> int | None:
    """Return this rank's number in a group; ``None`` where it is not in it."""
    pg = groups.member_group(group, operation, 2)
    return None if pg is None else pg._rank


def all_gather(td: Any, group: Group) -> Any:
    """Return every rank's TensorDict on every rank."""
    with _method("all_gather", "all_gather") as name:
        return None if _is_outside(group, name) else functional.all_gather(td, group)


def gather(td: Any, dst: int | None, group: Group, group_dst: int | None, like: str | None) -> Any:
    """Return every rank's TensorDict on one rank."""
    with _method("gather", "gather") as name:
        return None if _is_outside(group, name) else functional.gather(td, dst, group, group_dst, like)


def scatter(src: int | None, tensordicts: Any, group: Group, group_src: int | None, device: Any) -> Any:
    """Return to each rank a TensorDict of one rank's."""
    if tensordicts is not None:
        pg = group if isinstance(group, groups.ProcessGroup) else groups.world
        if pg is not None and pg._rank != _position(pg, src, group_src):
            tensordicts = None  # not looked at elsewhere than on the source
    with _method("scatter", "scatter") as name:
        if _is_outside(group, name):
            return None
        received = functional.scatter(tensordicts, src, group, group_src)
    return _on(device, received)


def _position(pg: groups.ProcessGroup, src: Any, group_src: Any) -> Any:
    return group_src if group_src is not None else pg._position.get(0 if src is None else src)


def _on(device: Any, td: Any) -> Any:
    return td if device is None else td.to(device)
