"""Where the rows of a gathered stack go: into the arrays that a tree has, in place, or into new ones."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from corral.arrays.buffers import writable
from corral.arrays.libraries import convert, copy_into, dtype_name, is_array, library_of, to_numpy
from corral.distributed.errors import MismatchError
from corral.wire import array_values, codec, trees
from corral.wire.layout import Array, Branch, Layout, Path, Value, key_text

__all__ = ["Plan", "plan_rows"]


class Plan(NamedTuple):
    """What the destination does: receive into `into`, one list for each rank, then call `finish`."""

    into: list[list[Any]]
    finish: Callable[[], Any]


class _Senders(NamedTuple):
    layouts: list[Layout]
    ranks: list[int]  # global
    positions: list[int]  # in the group


def plan_rows(tree: Any, layouts: list[Layout | None], ranks: tuple[int, ...], root: int, allow_pickle: bool) -> Plan:
    """Decide where each sender's leaves go.

    Parameters
    ----------
    tree
        The destination's tree, or ``None`` to make one.
    layouts
        Every rank's; the destination's is not looked at.
    ranks
        Global rank of each.
    root
        Rank in the group of the destination.
    allow_pickle
        Whether senders' objects that are not arrays may be unpickled.

    Raises
    ------
    MismatchError
        If the senders' trees do not fit together or into the destination's.
    """
    positions = [i for i in range(len(ranks)) if i != root]
    found: list[Layout] = []
    for i in positions:
        layout = layouts[i]
        if layout is None:
            raise MismatchError(f"rank {ranks[i]} passed None, which only the destination may (rank {ranks[root]})")
        found.append(layout)
    senders = _Senders(found, [ranks[i] for i in positions], positions)
    _check_senders(senders)
    planner = _Planner(senders, ranks[root], len(ranks), allow_pickle)
    if tree is None:
        return planner.new_tree()
    return planner.in_place(tree)


def _check_senders(senders: _Senders) -> None:
    """Raise unless all senders have the same keys and shapes."""
    if not senders.layouts:
        return
    first = {entry.path: entry.node for entry in senders.layouts[0].entries()}
    there = senders.ranks[0]
    for layout, rank in zip(senders.layouts[1:], senders.ranks[1:], strict=True):
        other = {entry.path: entry.node for entry in layout.entries()}
        for one, two, having, lacking in ((first, other, there, rank), (other, first, rank, there)):
            for path, node in one.items():
                if path not in two:
                    raise MismatchError(
                        f"rank {lacking} has no array {key_text(path)}, which rank {having} has{_of_shape(node)}"
                    )
        for path, node in first.items():
            theirs = other[path]
            if type(node) is not type(theirs):
                raise MismatchError(f"{key_text(path)} is an array on only one of the ranks {there} and {rank}")
            if isinstance(node, Array) and isinstance(theirs, Array) and node.shape != theirs.shape:
                raise MismatchError(
                    f"{key_text(path)} has shape {tuple(theirs.shape)} on rank {rank}, but "
                    f"{tuple(node.shape)} "
                    f"on rank {there}"
                )


def _of_shape(node: Array | Value) -> str:
    return f" (shape {tuple(node.shape)})" if isinstance(node, Array) else ""


class _Planner:
    def __init__(self, senders: _Senders, here: int, size: int, allow_pickle: bool) -> None:
        self.senders = senders
        self.here = here
        self.count = size - 1
        self.size = size
        self.allow_pickle = allow_pickle
        self.nodes = [{entry.path: entry.node for entry in layout.entries()} for layout in senders.layouts]
        self.buffers: list[dict[Path, Any]] = [{} for _ in senders.layouts]
        self.finishes: list[Callable[[], Any]] = []

    def plan(self, result: Callable[[], Any]) -> Plan:
        into: list[list[Any]] = [[] for _ in range(self.size)]
        for position, layout, buffers in zip(self.senders.positions, self.senders.layouts, self.buffers, strict=True):
            into[position] = [buffers[path] for path, _ in layout.arrays()]

        def finish() -> Any:
            for each in self.finishes:
                each()
            return result()

        return Plan(into, finish)

    # Into new arrays -----------------------------------------------------------------------------------

    def new_tree(self) -> Plan:
        if not self.senders.layouts:
            raise MismatchError(f"rank {self.here} passed None, and there is no other rank to take a structure from")
        return self.plan(self.build(self.senders.layouts[0].root, ()))

    def build(self, node: Array | Value | Branch, path: Path) -> Callable[[], Any]:
        """Allocate the stack of a part of the senders' trees; return what makes the tree when it is full."""
        layout = Layout(node)
        leaves = {at: self.allocate((*path, *at)) for at, _ in layout.arrays()}
        values = {at: self.values((*path, *at)) for at, each in layout.entries() if isinstance(each, Value)}

        def make(node: Array | Value | Branch, at: Path) -> Any:
            if isinstance(node, Array):
                library = node.library
                array = leaves[at]
                return convert(array, library) if library in ("jax", "cupy") and library in sys.modules else array
            if isinstance(node, Value):
                return values[at]
            names = node.names()
            children = [make(child, (*at, key)) for key, child in zip(names, node.children, strict=True)]
            batch_size = None if node.batch_size is None else [self.count, *node.batch_size]
            return trees.construct(node.kind, node.name, batch_size, names, children, {})

        return lambda: make(node, ())

    def values(self, path: Path) -> list[Any]:
        """Return the senders' objects under one key."""
        found = []
        for nodes in self.nodes:
            node = nodes[path]
            assert isinstance(node, Value)
            found.append(codec.loads(node.data, self.allow_pickle))
        return found

    def promoted(self, path: Path) -> Array | None:
        """Return what senders of several dtypes are cast to, as `torch.stack` does; or ``None``."""
        nodes = [nodes[path] for nodes in self.nodes]
        arrays = [node for node in nodes if isinstance(node, Array)]
        first = arrays[0]
        if all(each.dtype == first.dtype and each.library == first.library for each in arrays):
            return None
        torch = sys.modules.get("torch")
        if torch is not None and all(each.library == "torch" for each in arrays):
            dtype = functools.reduce(torch.promote_types, [each.empty((0,)).dtype for each in arrays])
            return Array(str(dtype).removeprefix("torch."), first.shape, "torch")
        dtypes = [
            array_values.dtype_from(array_values.numpy_form(n.dtype) if n.library == "torch" else n.dtype)
            for n in arrays
        ]
        try:
            common = functools.reduce(np.promote_types, dtypes)
        except TypeError as error:
            raise MismatchError(f"the dtypes of {key_text(path)} on the senders have none in common: {error}") from None
        return Array(array_values.dtype_form(common), first.shape, "numpy")

    def allocate(self, path: Path) -> Any:
        """Make the array that the senders' arrays of one key are stacked in."""
        node = self.nodes[0][path]
        assert isinstance(node, Array)
        stack = (self.promoted(path) or node).empty((self.count,))
        self.fill(path, stack, None)
        return stack

    def fill(self, path: Path, stack: Any, promoted: Array | None) -> None:
        """Receive one key of all senders into the rows of an array, casting where that is needed."""
        host = stack.detach() if library_of(stack) == "torch" else stack
        if library_of(host) == "other":
            host = to_numpy(host)
        for number in range(self.count):
            row = host[number : number + 1].reshape(host.shape[1:]) if host.ndim == 1 else host[number]
            self.receive(number, path, row, promoted)

    def receive(self, number: int, path: Path, row: Any, promoted: Array | None) -> None:
        node = self.nodes[number][path]
        assert isinstance(node, Array)
        model = node.empty()
        if promoted is None and dtype_name(model) == dtype_name(row) and library_of(row) in ("numpy", "torch"):
            buffer, finish = writable(row, key_text(path))
            self.buffers[number][path] = buffer
            if finish is not None:
                self.finishes.append(finish)
            return
        buffer, finish = writable(model, key_text(path))
        self.buffers[number][path] = buffer

        def cast() -> None:
            if finish is not None:
                finish()
            value = model
            if promoted is not None:
                value = promoted.empty()
                copy_into(value, model)
            copy_into(row, value)

        self.finishes.append(cast)

    # Into a tree that exists ---------------------------------------------------------------------------

    def in_place(self, tree: Any) -> Plan:
        kind = trees.kind_of(tree)
        if kind in ("T", "R") and len(tree.batch_size) and tree.batch_size[0] != self.count:
            row = (
                next(
                    (
                        f"; rank {self.senders.ranks[0]} sends {key_text(p)} of shape {tuple(n.shape)}"
                        for p, n in self.senders.layouts[0].arrays()
                    ),
                    "",
                )
                if self.senders.layouts
                else ""
            )
            raise MismatchError(
                f"the batch size on rank {self.here} is {tuple(tree.batch_size)}: its first dimension "
                f"must be "
                f"{self.count}, a row for each other rank{row}"
            )
        if not self.senders.layouts:
            return self.plan(lambda: tree)
        holder = [tree]
        self.visit(self.senders.layouts[0].root, (), tree, lambda value: holder.__setitem__(0, value))
        return self.plan(lambda: holder[0])

    def visit(self, node: Array | Value | Branch, path: Path, target: Any, replace: Callable[[Any], Any]) -> None:
        there = self.senders.ranks[0]
        kind = trees.kind_of(target)
        if not isinstance(node, Branch):
            if kind is not None:
                raise MismatchError(
                    f"{key_text(path)} is a {type(target).__qualname__} on rank {self.here}, but no "
                    f"container on "
                    f"rank {there}{_of_shape(node)}"
                )
            if isinstance(node, Value):
                values = self.values(path)
                self.finishes.append(lambda: replace(values))
            else:
                self.leaf(node, path, target, replace)
            return
        if kind is None:
            shape = f" of shape {tuple(target.shape)}" if hasattr(target, "shape") else ""
            raise MismatchError(
                f"{key_text(path)} is an array{shape} on rank {self.here}, but a container on rank {there}"
            )
        keys, children, _, _ = trees.parts(kind, target)
        entries = dict(zip(keys, children, strict=True))
        for key, child in zip(node.names(), node.children, strict=True):
            if key in entries:
                self.visit(child, (*path, key), entries[key], functools.partial(_replace, target, key))
            else:
                self.add(child, (*path, key), target, kind)

    def leaf(self, node: Array, path: Path, target: Any, replace: Callable[[Any], Any]) -> None:
        there = self.senders.ranks[0]
        if not is_array(target):
            raise MismatchError(
                f"{key_text(path)} is a {type(target).__qualname__} on rank {self.here}, but an array of "
                f"shape "
                f"{tuple(node.shape)} on rank {there}"
            )
        shape = tuple(target.shape) if hasattr(target, "shape") else to_numpy(target).shape
        if not shape or shape[0] != self.count:
            raise MismatchError(
                f"{key_text(path)} has shape {shape} on rank {self.here}: its first dimension must be "
                f"{self.count}, "
                f"a row for each other rank; rank {there} sends {tuple(node.shape)}"
            )
        if shape[1:] != tuple(node.shape):
            raise MismatchError(
                f"{key_text(path)} has shape {tuple(node.shape)} on rank {there}, but rows of shape "
                f"{shape[1:]} on "
                f"rank {self.here} (shape {shape})"
            )
        if library_of(target) == "jax":  # can only be replaced
            stack = self.allocate(path)
            self.finishes.append(lambda: replace(convert(stack, "jax")))
            return
        try:
            writable(target, key_text(path))
        except (ValueError, TypeError) as error:
            raise MismatchError(
                f"rank {self.here}: {error}; rank {there} sends shape {tuple(node.shape)} for the rows of {shape}"
            ) from None
        self.fill(path, target, self.promoted(path))

    def add(self, node: Array | Value | Branch, path: Path, target: Any, kind: str) -> None:
        """Plan a new entry of a container."""
        there = self.senders.ranks[0]
        if kind in ("T", "R"):
            if target.is_locked:
                shape = "" if isinstance(node, Branch) else _of_shape(node)
                raise MismatchError(
                    f"rank {there} sends {key_text(path)}{shape}, which "
                    f"rank {self.here} lacks, and its TensorDict is locked: it cannot be given new keys"
                )
            batch = tuple(target.batch_size)
            for at, each in Layout(node).arrays():
                if (self.count, *each.shape)[: len(batch)] != batch:
                    raise MismatchError(
                        f"{key_text((*path, *at))} has shape {tuple(each.shape)} on rank {there}, and its "
                        f"stack would "
                        f"have {(self.count, *each.shape)}, which does not fit the batch size {batch} on "
                        f"rank "
                        f"{self.here}"
                    )
        elif kind not in ("d", "c"):
            raise MismatchError(
                f"rank {there} sends {key_text(path)}, but the {type(target).__qualname__} on rank "
                f"{self.here} has no "
                "such entry, and cannot be given one"
            )
        make = self.build(node, path)
        self.finishes.append(lambda: trees.assign(target, path[-1], make()))


def _replace(container: Any, key: Any, value: Any) -> None:
    trees.assign(container, key, value)
