"""Make TensorDicts nodes of the trees of optree, torch and JAX, once these are loaded; corral imports none of them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from corral.tensordict import torch_vmap
from corral.tensordict.base import Base
from corral.tensordict.object_arrays import equal
from corral.tensordict.sizes import Size

__all__ = ["register", "register_kind", "seen"]

seen = [0]
"""How many modules were loaded when `register` was last called: with as many, no library can be new."""

_kinds: list[type[Any]] = []
_done: set[tuple[str, type[Any]]] = set()


class _Dict:
    """What of a TensorDict is not in its leaves.

    As the shape of a leaf is no part of a tree's structure, neither are the lengths of the batch: two contexts are
    equal if the batches have as many dimensions. The order in which keys were set is kept, and not compared.

    For JAX, `counts` are the numbers of dimensions of the children: its transformations map over a dimension of all
    leaves, or add one. As trees of axes or shardings are made by mapping over a TensorDict, and are compared with it,
    a child that is no array, which has no such number, counts as equal to any.
    """

    __slots__ = ("counts", "device", "keys", "kind", "names", "order", "size")

    def __init__(self, td: Any, keys: tuple[str, ...], order: tuple[str, ...], counts: tuple[Any, ...] = ()) -> None:
        self.counts = counts
        self.kind = type(td)
        self.keys = keys
        self.order = order
        self.size = td._batch_size
        self.device = td._device
        self.names = td._names

    def _facts(self) -> tuple[Any, ...]:
        return self.kind, self.keys, len(self.size), self.device, self.names

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Dict):
            return NotImplemented
        pairs = zip(self.counts, other.counts, strict=False)
        return self._facts() == other._facts() and all(m == n or m is None or n is None for m, n in pairs)

    def __hash__(self) -> int:
        return hash(self._facts())

    def __repr__(self) -> str:
        return f"{self.kind.__name__}(batch_size={list(self.size)}, keys={list(self.keys)})"

    def unflatten(self, values: Iterable[Any]) -> Any:
        """Return a TensorDict of leaves that a function may have made into anything."""
        leaves = list(values)
        if any(leaf is None for leaf in leaves):
            return None
        size, dims = self.size, len(self.size)
        names = self.names
        more = self._more(leaves)
        follow = [isinstance(leaf, Base) and (leaf._fits_any or bool(more and _is_bare(leaf))) for leaf in leaves]
        shapes = [
            tuple(leaf.shape)
            for leaf, follows in zip(leaves, follow, strict=True)
            if hasattr(leaf, "shape") and not follows
        ]
        if more or any(shape[:dims] != size for shape in shapes):
            # A dimension was added in front, as by vmap, or the shapes share what they share.
            added = all(shape[1 : dims + 1] == size for shape in shapes)
            wanted = max(dims + more, 0) if more else dims + added
            common: list[int] = []
            for lengths in zip(*shapes, strict=False):
                if len(set(lengths)) > 1 or len(common) == wanted:
                    break
                common.append(lengths[0])
            size = Size(common)
            names = None
        device = self.device
        if any(str(getattr(leaf, "device", device)) != device for leaf in leaves if not isinstance(leaf, Base)):
            device = None
        entries = {
            key: leaf._resized(size) if follows else leaf
            for key, leaf, follows in zip(self.keys, leaves, follow, strict=True)
        }
        return self.kind._make({key: entries[key] for key in self.order}, size, device, names)

    def _more(self, leaves: list[Any]) -> int:
        """Return how many dimensions all children have more than they had: 0 if that differs, or is not known."""
        pairs = [(_count(leaf), count) for leaf, count in zip(leaves, self.counts, strict=False)]
        more = {now - before for now, before in pairs if now is not None and before is not None}
        return int(more.pop()) if len(more) == 1 else 0


def _count(leaf: Any) -> int | None:
    """Return the number of dimensions of a child; ``None`` if it has none, or has those of what it is in."""
    if not hasattr(leaf, "shape") or (isinstance(leaf, Base) and (leaf._fits_any or _is_bare(leaf))):
        return None
    return len(leaf.shape)


def _is_bare(td: Base) -> bool:
    """Whether a TensorDict has nothing that has dimensions, so that its batch can be any."""
    return not td._holds_objects and all(
        isinstance(child, Base) and (child._fits_any or _is_bare(child)) for child in td._children()
    )


class _Stack(NamedTuple):
    """What of a lazy stack is not in its members."""

    kind: type[Any]
    stack_dim: int
    name: str | None

    def unflatten(self, values: Iterable[Any]) -> Any:
        """Return a lazy stack; its dimension is the last possible one where members have lost dimensions."""
        members = list(values)
        if any(member is None for member in members):
            return None
        for member in members:
            if not isinstance(member, Base):
                raise TypeError(
                    f"a {self.kind.__name__} cannot be made of a {type(member).__name__} in the place of a member: "
                    "map over its leaves, or over its list of `tensordicts`"
                )
        counts = {len(member._batch_size) for member in members}
        if len(counts) > 1:
            raise RuntimeError(
                f"a {self.kind.__name__} cannot be made of members with {sorted(counts)} batch dimensions: a function "
                "that is mapped over its leaves must leave all members as many"
            )
        result = self.kind._of(members, min(self.stack_dim, *counts))
        result._stack_name = self.name
        return result


class _Objects:
    """Objects that are no arrays: part of the structure, so that functions are compiled for each of them anew.

    JAX keeps contexts for as long as what it has compiled, and compares them by value: objects that can change are
    copied for it, lest what was compiled for their old value be taken for compiled for the new one.
    """

    __slots__ = ("copies", "device", "kind", "objects", "size")

    def __init__(self, entry: Any, kept: bool) -> None:
        self.kind = type(entry)
        self.size = entry._batch_size
        self.device = entry._device
        self.objects = (entry._unwrapped(),) if entry._fits_any else tuple(entry.flat())
        self.copies = tuple(map(_frozen, self.objects)) if kept else self.objects

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Objects):
            return NotImplemented
        mine, theirs = (
            (each.kind, each.device, len(each.size) if each.kind._fits_any else each.size) for each in (self, other)
        )
        return mine == theirs and _alike(self.copies, other.copies)

    def __hash__(self) -> int:
        return hash((self.kind, *(each if _has_hash(each) else type(each) for each in self.copies)))

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({list(self.copies)})"

    def unflatten(self, values: Iterable[Any]) -> Any:
        """Return an entry of the objects as they were."""
        objects = [
            one if one is copied or _alike(one, copied) else copy.deepcopy(copied)
            for one, copied in zip(self.objects, self.copies, strict=True)
        ]
        if self.kind._fits_any:
            return self.kind(objects[0], self.size, self.device)
        entry = self.kind.from_flat(objects, self.size)
        entry._device = self.device
        return entry


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _frozen(value: Any) -> Any:
    """Return a copy of an object that can change, as its lack of a hash tells."""
    if _has_hash(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # it cannot be copied: what it is now cannot be kept
        return value


def _alike(one: Any, other: Any) -> bool:
    """Whether two objects are equal, arrays in them by their values."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    try:
        return getattr(one, "shape", None) == getattr(other, "shape", None) and equal(one, other)
    except Exception:  # objects that refuse to be compared are not known to be equal
        return False


_Context = _Dict | _Stack | _Objects


def _flatten(td: Any, sort: bool, kept: bool = False) -> tuple[list[Any], _Context, tuple[Any, ...]]:
    """Return the children of a TensorDict, all else, and what each is found by.

    Children are in the order of their keys' names if `sort`, else in that of the keys. What else there is shall stay
    as it is if `kept`.
    """
    if td._holds_objects:
        return [], _Objects(td, kept), ()
    members = td._members()
    if members is not None:
        return list(members), _Stack(type(td), td.stack_dim, td._stack_name), tuple(range(len(members)))
    items = dict(td._source.items())
    order = tuple(items)
    keys = tuple(sorted(items)) if sort else order
    values = [items[key] for key in keys]
    return values, _Dict(td, keys, order, tuple(map(_count, values)) if kept else ()), keys


def _unflatten(context: _Context, values: Iterable[Any]) -> Any:
    return context.unflatten(values)


def _with_optree(optree: Any, kind: type[Any]) -> None:
    def flatten(td: Any) -> tuple[list[Any], _Context, tuple[Any, ...]]:
        return _flatten(td, True)

    everywhere = optree.registry.__dict__["__GLOBAL_NAMESPACE"]
    optree.register_pytree_node(kind, flatten, _unflatten, namespace=everywhere)


def _with_torch(pytree: Any, kind: type[Any]) -> None:
    def flatten(td: Any) -> tuple[list[Any], _Context]:
        values, context, _ = _flatten(td, False)  # in the order of the keys, as torch has it for dicts
        return values, context

    def with_keys(td: Any) -> tuple[list[Any], _Context]:
        values, context, names = _flatten(td, False)
        step = pytree.SequenceKey if isinstance(context, _Stack) else pytree.MappingKey
        return [(step(name), value) for name, value in zip(names, values, strict=True)], context

    pytree.register_pytree_node(
        kind, flatten, lambda values, context: _unflatten(context, values), flatten_with_keys_fn=with_keys
    )


def _with_jax(tree_util: Any, kind: type[Any]) -> None:
    def flatten(td: Any) -> tuple[list[Any], _Context]:
        values, context, _ = _flatten(td, True, True)
        return values, context

    def with_keys(td: Any) -> tuple[list[Any], _Context]:
        values, context, names = _flatten(td, True, True)
        step = tree_util.SequenceKey if isinstance(context, _Stack) else tree_util.DictKey
        return [(step(name), value) for name, value in zip(names, values, strict=True)], context

    tree_util.register_pytree_with_keys(kind, with_keys, _unflatten, flatten)


_LIBRARIES: dict[str, Callable[[Any, type[Any]], None]] = {
    "optree": _with_optree,
    "torch.utils._pytree": _with_torch,
    "jax.tree_util": _with_jax,
}


def register_kind(kind: type[Any]) -> None:
    """Let a class of TensorDicts be known to the libraries that are loaded, and to those that will be."""
    _kinds.append(kind)
    register()


def register() -> None:
    """Tell the libraries that have been loaded what TensorDicts are made of."""
    seen[0] = len(sys.modules)
    for name, tell in _LIBRARIES.items():
        module = sys.modules.get(name)
        package = sys.modules.get(name.partition(".")[0])
        if module is None or _is_loading(module) or _is_loading(package):
            continue
        for kind in _kinds:
            if (name, kind) not in _done:
                _done.add((name, kind))
                tell(module, kind)
    apis = sys.modules.get("torch._functorch.apis")
    if apis is not None and not _is_loading(apis) and not _is_loading(sys.modules.get("torch")):
        torch_vmap.hook(apis)


def _is_loading(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
