"""Gradients of torch's leaves. Arrays of other libraries have none: they are what they are when detached."""

from __future__ import annotations

import sys
from typing import Any, Self

from corral.arrays.libraries import library_of
from corral.tensordict.base import Base
from corral.tensordict.leaves import leaves_of, rebuilt, slots

__all__ = ["Gradients"]


class Gradients(Base):
    """What torch's tensors know of gradients, for all leaves at once.

    Examples
    --------
    >>> import torch
    >>> from corral import TensorDict
    >>> td = TensorDict(a=torch.ones(2), b={"c": torch.ones(2)}, batch_size=[2]).requires_grad_()
    >>> td.mul(3).sum(reduce=True).backward()
    >>> td.grad["b", "c"], td.zero_grad().grad
    (tensor([3., 3.]), None)
    """

    __slots__ = ()

    @property
    def requires_grad(self) -> bool:
        """Whether a leaf requires a gradient."""
        return any(getattr(leaf, "requires_grad", False) for leaf in self._leaves())

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set for all leaves whether they require a gradient.

        Raises
        ------
        NotImplementedError
            If a leaf shall require one and is not torch's.
        """
        for parent, path in slots(self):
            leaf = parent._source[path[-1]]
            if library_of(leaf) == "torch":
                leaf.requires_grad_(requires_grad)
            elif requires_grad:
                raise NotImplementedError(
                    f"requires_grad_: the entry {path!r} is an array of {library_of(leaf)}, which has no gradients: "
                    "convert the TensorDict with .torch() first"
                )
        return self

    def detach(self) -> Self:
        """Return a TensorDict with the same values in the same memory, without their history of gradients."""
        return self._without_history(lambda leaf: leaf.detach())

    def detach_(self) -> Self:
        """Take the history of gradients from all leaves, in place."""
        for leaf in self._leaves():
            if library_of(leaf) == "torch":
                leaf.detach_()
        return self

    @property
    def data(self) -> Self:
        """The same values in the same memory, without their history of gradients."""
        return self._without_history(lambda leaf: leaf.data)

    @data.setter
    def data(self, value: Base) -> None:
        if value._batch_size != self._batch_size:
            raise RuntimeError(
                f"cannot assign .data of batch size {value._batch_size} to a TensorDict of {self._batch_size}"
            )
        places = {path: parent for parent, path in slots(self)}
        found = leaves_of(value)
        missing = [path for path in found if path not in places]
        if missing:
            raise KeyError(f"cannot assign .data: the entries {missing} of the source are not in the destination")
        for path, new in found.items():
            leaf = places[path]._source[path[-1]]
            if library_of(leaf) == "torch":
                leaf.data = new
            else:
                places[path]._put(path[-1], new)

    def _without_history(self, function: Any) -> Self:
        result = self._map(lambda leaf: function(leaf) if library_of(leaf) == "torch" else leaf)
        if self._locked:
            result._lock(True)
        return result

    @property
    def grad(self) -> Self | None:
        """The gradients of the leaves that have one; ``None`` if none has."""
        found = {path: getattr(leaf, "grad", None) for path, leaf in leaves_of(self).items()}
        found = {path: grad for path, grad in found.items() if grad is not None}
        return rebuilt(self, found, drop=True) if found else None

    @grad.setter
    def grad(self, grad: Base) -> None:
        theirs = leaves_of(grad)
        for path, leaf in leaves_of(self).items():
            if leaf.grad is None:
                leaf.grad = theirs[path]
            else:
                leaf.grad.copy_(theirs[path])

    def zero_grad(self, set_to_none: bool = True) -> Self:
        """Take the gradients from all leaves; set them to zero, in place, if not `set_to_none`."""
        for leaf in self._leaves():
            if library_of(leaf) != "torch":
                continue
            if set_to_none:
                leaf.grad = None
            elif leaf.grad is not None:
                leaf.grad.zero_()
        return self

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Compute gradients of all leaves that require one, as `torch.autograd.backward` does.

        Parameters
        ----------
        gradient : TensorDict, optional
            What the leaves' own gradients are; needed for those of more than one element.
        retain_graph, create_graph : bool
            As in torch.
        inputs : TensorDict or sequence of tensors, optional
            Where gradients are added up; by default, wherever the leaves have been calculated from.

        Raises
        ------
        RuntimeError
            If no leaf requires a gradient, a leaf of several elements has none in `gradient`, or shapes differ.
        """
        leaves = {path: leaf for path, leaf in leaves_of(self).items() if getattr(leaf, "requires_grad", False)}
        if not leaves:
            raise RuntimeError("backward: no leaf of the tensordict requires a gradient: call requires_grad_() before")
        gradients = None
        if gradient is None:
            for path, leaf in leaves.items():
                if leaf.numel() != 1:
                    raise RuntimeError(
                        f"backward: the entry {path!r} has shape {tuple(leaf.shape)}, but only that of a single number "
                        "is known to be 1: give gradient=, a TensorDict of the leaves' gradients"
                    )
        else:
            if not isinstance(gradient, Base):
                raise TypeError(f"backward: gradient must be a TensorDict, not {type(gradient).__name__}")
            found = leaves_of(gradient)
            for path, leaf in leaves.items():
                if path not in found:
                    raise KeyError(f"backward: gradient has no entry {path!r}")
                if found[path].shape != leaf.shape:
                    raise RuntimeError(
                        f"backward: gradient has shape {tuple(found[path].shape)} at {path!r}, but the leaf "
                        f"{tuple(leaf.shape)}"
                    )
            gradients = [found[path] for path in leaves]
        if isinstance(inputs, Base):
            inputs = tuple(leaf for leaf in inputs._leaves() if library_of(leaf) == "torch")
        sys.modules["torch"].autograd.backward(
            list(leaves.values()), gradients, retain_graph=retain_graph, create_graph=create_graph, inputs=inputs
        )
