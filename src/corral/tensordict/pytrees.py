"""Make TensorDicts nodes of the trees of optree, torch and JAX, once these are loaded; corral imports none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from corral.tensordict.base import Base, Size
from corral.tensordict.names import Names

__all__ = ["register", "register_kind", "seen"]

seen = [0]
"""How many modules were loaded when `register` was last called: with as many, no library can be new."""

_kinds: list[type[Any]] = []
_done: set[tuple[str, type[Any]]] = set()


class _Context:
    """What of a TensorDict is not in its leaves.

    As the shape of a leaf is no part of a tree's structure, neither are the lengths of the batch: two contexts are
    equal if the batches have as many dimensions.
    """

    __slots__ = ("device", "keys", "kind", "names", "size")

    def __init__(self, kind: type[Any], keys: tuple[str, ...], size: Size, device: str | None, names: Names) -> None:
        self.kind = kind
        self.keys = keys
        self.size = size
        self.device = device
        self.names = names

    def _facts(self) -> tuple[Any, ...]:
        return self.kind, self.keys, len(self.size), self.device, self.names

    def __eq__(self, other: object) -> bool:
        return self._facts() == other._facts() if isinstance(other, _Context) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._facts())

    def __repr__(self) -> str:
        return f"{self.kind.__name__}(batch_size={list(self.size)}, keys={list(self.keys)})"


def _flatten(td: Any) -> tuple[list[Any], _Context]:
    items = dict(td._source.items())
    return list(items.values()), _Context(type(td), tuple(items), td._batch_size, td._device, td._names)


def _unflatten(context: _Context, values: Iterable[Any]) -> Any:
    """Return a TensorDict of leaves that a function may have made into anything."""
    leaves = list(values)
    if any(leaf is None for leaf in leaves):
        return None
    shapes = [tuple(leaf.shape) for leaf in leaves if hasattr(leaf, "shape")]
    size, dims, names = context.size, len(context.size), context.names
    if any(shape[:dims] != size for shape in shapes):
        # A dimension was added in front, as by vmap, or the shapes share what they share.
        added = all(shape[1 : dims + 1] == size for shape in shapes)
        common: list[int] = []
        for lengths in zip(*shapes, strict=False):
            if len(set(lengths)) > 1 or len(common) == dims + added:
                break
            common.append(lengths[0])
        size, names = Size(common), None
    device = context.device
    if any(str(getattr(leaf, "device", device)) != device for leaf in leaves if not isinstance(leaf, Base)):
        device = None
    return context.kind._make(dict(zip(context.keys, leaves, strict=True)), size, device, names)


def _with_optree(optree: Any, kind: type[Any]) -> None:
    def flatten(td: Any) -> tuple[list[Any], _Context, tuple[str, ...]]:
        values, context = _flatten(td)
        return values, context, context.keys

    everywhere = optree.registry.__dict__["__GLOBAL_NAMESPACE"]
    optree.register_pytree_node(kind, flatten, _unflatten, namespace=everywhere)


def _with_torch(pytree: Any, kind: type[Any]) -> None:
    def with_keys(td: Any) -> tuple[list[Any], _Context]:
        values, context = _flatten(td)
        return [(pytree.MappingKey(key), value) for key, value in zip(context.keys, values, strict=True)], context

    pytree.register_pytree_node(
        kind, _flatten, lambda values, context: _unflatten(context, values), flatten_with_keys_fn=with_keys
    )


def _with_jax(tree_util: Any, kind: type[Any]) -> None:
    def with_keys(td: Any) -> tuple[list[Any], _Context]:
        values, context = _flatten(td)
        return [(tree_util.DictKey(key), value) for key, value in zip(context.keys, values, strict=True)], context

    tree_util.register_pytree_with_keys(kind, with_keys, _unflatten, _flatten)


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


def _is_loading(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
