"""Where the rows of a gathered stack go: into the arrays that a tree has, in place, or into new ones."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from corral.arrays.buffers import sharing, writable
from corral.arrays.libraries import convert, copy_into, dtype_name, is_array, library_of, to_numpy
from corral.distributed.errors import MismatchError
from corral.wire import codec, trees
from corral.wire import entries as entries_of
from corral.wire.casting import check_cast, promoted
from corral.wire.layout import Array, Branch, Layout, Path, Value, key_text
from corral.wire.lazy_rows import check_columns, plan_lazy, refuse_lazy
from corral.wire.senders import Senders, check_senders, of_shape

__all__ = ["Plan", "plan_rows"]


class Plan(NamedTuple):
    """What the destination does: receive into `into`, one list for each rank, then call `finish`."""

    into: list[list[Any]]
    finish: Callable[[], Any]


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
    senders = Senders(found, [ranks[i] for i in positions], positions)
    if trees.kind_of(tree) in ("L", "K") and tree.stack_dim == 0:
        return Plan(*plan_lazy(tree, senders, ranks[root], len(ranks), allow_pickle))
    check_senders(senders)
    refuse_lazy(senders, ranks[root])
    planner = _Planner(senders, ranks[root], len(ranks), allow_pickle)
    if tree is None:
        return planner.new_tree()
    return planner.in_place(tree)


class _Planner:
    def __init__(self, senders: Senders, here: int, size: int, allow_pickle: bool) -> None:
        self.senders = senders
        self.here = here
        self.count = size - 1
        self.size = size
        self.allow_pickle = allow_pickle
        self.nodes = [{entry.path: entry.node for entry in layout.entries()} for layout in senders.layouts]
        self.buffers: list[dict[Path, Any]] = [{} for _ in senders.layouts]
        self.finishes: list[Callable[[], Any]] = []
        self.written: list[tuple[Path, Any]] = []  # of the destination's own arrays

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
        make = self.build(self.senders.layouts[0].root, ())
        return self.plan(lambda: trees.plain(make()))

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
            dim_names = trees.led(self.dim_names(node, (*path, *at)), 1, node.kind)
            return trees.construct(node.kind, node.name, batch_size, names, children, {}, dim_names, node.device)

        return lambda: make(node, ())

    def dim_names(self, node: Branch, path: Path) -> list[Any] | None:
        """Return the names of dimensions that all senders' TensorDicts under one key have; ``None`` if they differ."""
        if node.dim_names is None:
            return None
        others = [dict(layout.branches()).get(path) for layout in self.senders.layouts]
        return node.dim_names if all(each and each.dim_names == node.dim_names for each in others) else None

    def values(self, path: Path) -> trees.Rows:
        """Return the senders' objects under one key."""
        found = trees.Rows()
        for nodes in self.nodes:
            node = nodes[path]
            assert isinstance(node, Value)
            found.append(codec.loads(node.data, self.allow_pickle))
        return found

    def promoted(self, path: Path) -> Array | None:
        """Return what senders of several dtypes are cast to; or ``None``."""
        arrays = [nodes[path] for nodes in self.nodes]
        return promoted(path, [each for each in arrays if isinstance(each, Array)])

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
        try:
            check_cast(promoted or node, row)
        except TypeError as error:
            shape = (self.count, *node.shape)
            raise MismatchError(
                f"{key_text(path)} of rank {self.senders.ranks[number]} (shape {tuple(node.shape)}) does not fit the "
                f"array of rank {self.here} (shape {shape}): {error}"
            ) from None
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
                f"the batch size on rank {self.here} is {tuple(tree.batch_size)}: its first dimension must be "
                f"{self.count}, a row for each other rank{row}"
            )
        if not self.senders.layouts:
            return self.plan(lambda: tree)
        holder = [tree]
        self.visit(self.senders.layouts[0].root, (), tree, lambda value: holder.__setitem__(0, trees.plain(value)))
        self.check_apart()
        return self.plan(lambda: holder[0])

    def visit(
        self, node: Array | Value | Branch, path: Path, target: Any, replace: Callable[[Any], Any] | None
    ) -> None:
        there = self.senders.ranks[0]
        kind = trees.kind_of(target)
        if not isinstance(node, Branch):
            if kind is not None and not (isinstance(node, Value) and type(target) is list):
                raise MismatchError(
                    f"{key_text(path)} is a {type(target).__qualname__} on rank {self.here}, but no container on "
                    f"rank {there}{of_shape(node)}"
                )
            if isinstance(node, Value):
                self.value(path, target, replace)
            else:
                self.leaf(node, path, target, replace)
            return
        if kind is None:
            shape = f" of shape {tuple(target.shape)}" if hasattr(target, "shape") else ""
            raise MismatchError(
                f"{key_text(path)} is an array{shape} on rank {self.here}, but a container on rank {there}"
            )
        if kind in ("L", "K"):  # whose entries are its members, not what the senders have
            check_columns(target, node, path, self.senders, self.here, self.size)
            make = self.build(node, path)
            self.finishes.append(lambda: target.update(make(), inplace=True))
            return
        in_file = bool(getattr(target, "_in_file", False))
        if in_file:
            entries = target._places()
        else:
            keys, children, _, _ = trees.parts(kind, target)
            entries = dict(zip(keys, children, strict=True))
        for key, child in zip(node.names(), node.children, strict=True):
            if in_file and not isinstance(child, Branch):
                self.in_file(child, (*path, key), entries.get(key), target)
            elif key in entries:
                fixed = not trees.can_assign(target) and entries_of.parts(entries[key]) is None
                replace = None if fixed else functools.partial(trees.assign, target, key)
                self.visit(child, (*path, key), entries[key], replace)
            else:
                self.add(child, (*path, key), target, kind)

    def in_file(self, node: Array | Value, path: Path, like: Any, target: Any) -> None:
        """Plan an entry that lies in a file, or will: it is written there when all rows have come."""
        if target.mode == "r":
            raise MismatchError(
                f"{key_text(path)} lies in a file on rank {self.here} that is open for reading only: open it with "
                'mode="r+" there'
            )
        if isinstance(node, Value):
            self.objects_in_file(path, like, target)
            return
        if like is None:
            self.add(node, path, target, "T")
            return
        if not is_array(like):
            raise MismatchError(
                f"{key_text(path)} is {_a(like)} in the file on rank {self.here}, but an array of shape "
                f"{tuple(node.shape)} on rank {self.senders.ranks[0]}"
            )
        self.check_shape(path, like, tuple(node.shape))
        row = np.empty(like.shape[1:], like.dtype)
        for rank, nodes in zip(self.senders.ranks, self.nodes, strict=True):
            sent = nodes[path]
            assert isinstance(sent, Array)
            try:
                check_cast(self.promoted(path) or sent, row)
            except TypeError as error:
                raise MismatchError(
                    f"{key_text(path)} of rank {rank} (shape {tuple(node.shape)}) does not fit the array in the file "
                    f"of rank {self.here} (shape {_shape(like)}): {error}"
                ) from None
        stack = self.allocate(path)
        self.finishes.append(lambda: target.set_(path[-1], stack))

    def objects_in_file(self, path: Path, like: Any, target: Any) -> None:
        """Plan objects, one for each row, that a file gets."""
        values = self.values(path)
        if is_array(like):
            numbers = _numbers(values)
            if numbers is None:
                raise MismatchError(
                    f"{key_text(path)} is an array in the file on rank {self.here}, but {_a(values[0])} on rank "
                    f"{self.senders.ranks[0]}"
                )
            self.check_shape(path, like, ())
            self.finishes.append(lambda: target.set_(path[-1], numbers))
            return
        if like is None and target.is_locked:
            self.add(self.nodes[0][path], path, target, "T")  # raises
        stack = entries_of.of_rows(values, target.batch_size, True)
        try:
            target._check_objects(path[-1], stack)
        except (TypeError, ValueError) as error:
            raise MismatchError(f"{key_text(path)} does not fit the file on rank {self.here}: {error}") from None
        self.finishes.append(lambda: target._put_objects(path[-1], stack))

    def value(self, path: Path, target: Any, replace: Callable[[Any], Any] | None) -> None:
        """Plan the place of objects that are not arrays."""
        there = self.senders.ranks[0]
        values = self.values(path)
        if is_array(target):
            numbers = _numbers(values)
            if numbers is None:
                raise MismatchError(
                    f"{key_text(path)} is an array of shape {_shape(target)} on rank {self.here}, but "
                    f"{_a(values[0])} on rank {there}"
                )
            self.check(path, target, ())
            if library_of(target) != "jax":
                self.finishes.append(lambda: copy_into(target, numbers))
                return
            values = convert(numbers, "jax")
        if replace is None:
            raise MismatchError(
                f"{key_text(path)} is {_a(values[0])} on rank {there}, but on rank {self.here} it is in a container "
                "whose entries cannot be replaced"
            )
        self.finishes.append(lambda: replace(values))

    def check_shape(self, path: Path, target: Any, row: tuple[int, ...]) -> None:
        """Raise unless an array has rows of a shape, one for each sender."""
        there = self.senders.ranks[0]
        shape = _shape(target)
        if not shape or shape[0] != self.count:
            raise MismatchError(
                f"{key_text(path)} has shape {shape} on rank {self.here}: its first dimension must be {self.count}, "
                f"a row for each other rank; rank {there} sends {row}"
            )
        if shape[1:] != row:
            raise MismatchError(
                f"{key_text(path)} has shape {row} on rank {there}, but rows of shape {shape[1:]} on "
                f"rank {self.here} (shape {shape})"
            )

    def check(self, path: Path, target: Any, row: tuple[int, ...]) -> None:
        """Raise unless rows of a shape can be written into an array."""
        there = self.senders.ranks[0]
        if library_of(target) == "torch" and target.is_nested:
            from corral.arrays.torch_buffers import nested_error

            raise MismatchError(f"rank {self.here}: {nested_error(key_text(path))}")
        self.check_shape(path, target, row)
        shape = _shape(target)
        if library_of(target) == "jax":  # can only be replaced
            return
        self.written.append((path, target))
        try:
            writable(target, key_text(path))
        except (ValueError, TypeError) as error:
            raise MismatchError(
                f"rank {self.here}: {error}; rank {there} sends shape {row} for the rows of {shape}"
            ) from None

    def check_apart(self) -> None:
        """Raise if two of the arrays that are written share memory."""
        found = sharing([array for _, array in self.written])
        if found is not None:
            one, other = (key_text(self.written[i][0]) for i in found)
            raise MismatchError(
                f"{one} and {other} share memory on rank {self.here}, so that one would overwrite the other: give each "
                "an array of its own"
            )

    def leaf(self, node: Array, path: Path, target: Any, replace: Callable[[Any], Any] | None) -> None:
        there = self.senders.ranks[0]
        if not is_array(target):
            raise MismatchError(
                f"{key_text(path)} is {_a(target)} on rank {self.here}, but an array of shape {tuple(node.shape)} "
                f"on rank {there}"
            )
        self.check(path, target, tuple(node.shape))
        if library_of(target) != "jax":
            self.fill(path, target, self.promoted(path))
            return
        if replace is None:
            raise MismatchError(
                f"rank {self.here}: {key_text(path)} is a JAX array of shape {_shape(target)}, which cannot be "
                f"written, in a container whose entries cannot be replaced; rank {there} sends {tuple(node.shape)}"
            )
        stack = self.allocate(path)
        self.finishes.append(lambda: replace(convert(stack, "jax")))

    def add(self, node: Array | Value | Branch, path: Path, target: Any, kind: str) -> None:
        """Plan a new entry of a container."""
        there = self.senders.ranks[0]
        if kind in ("T", "R"):
            if target.is_locked:
                shape = "" if isinstance(node, Branch) else of_shape(node)
                raise MismatchError(
                    f"rank {there} sends {key_text(path)}{shape}, which "
                    f"rank {self.here} lacks, and its TensorDict is locked: it cannot be given new keys"
                )
            batch = tuple(target.batch_size)
            for at, each in Layout(node).arrays():
                if (self.count, *each.shape)[: len(batch)] != batch:
                    raise MismatchError(
                        f"{key_text((*path, *at))} has shape {tuple(each.shape)} on rank {there}, and its stack "
                        f"would have {(self.count, *each.shape)}, which does not fit the batch size {batch} on "
                        f"rank {self.here}"
                    )
        elif kind == "c" or not trees.can_assign(target, new=True):
            raise MismatchError(
                f"rank {there} sends {key_text(path)}{'' if isinstance(node, Branch) else of_shape(node)}, but the "
                f"{type(target).__qualname__} on rank {self.here} has no such entry, and cannot be given one"
            )
        make = self.build(node, path)
        self.finishes.append(lambda: trees.assign(target, path[-1], make()))


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(array.shape) if hasattr(array, "shape") else to_numpy(array).shape


def _a(value: Any) -> str:
    """Name what kind of object something is."""
    if isinstance(value, np.ndarray):
        return "an array of Python objects"
    return "None" if value is None else f"a {type(value).__qualname__}"


def _numbers(values: list[Any]) -> np.ndarray[Any, Any] | None:
    """Return numbers as an array; ``None`` if they are something else."""
    if not all(type(value) in (bool, int, float, complex) for value in values):
        return None
    try:
        return np.array(values, None if values else np.float64)
    except OverflowError:
        return None
