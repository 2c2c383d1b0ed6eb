"""The state dicts of torch's modules, to and from TensorDicts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Self

from corral.arrays.libraries import library_of
from corral.tensordict.base import Base, device_name
from corral.tensordict.keys import Keys
from corral.tensordict.sizes import Size

__all__ = ["State"]


class State(Keys):
    """Leaves in an `OrderedDict`, with the batch sizes and devices in its attribute ``_metadata``."""

    __slots__ = ()

    def state_dict(
        self, destination: Any = None, prefix: str = "", keep_vars: bool = False, flatten: bool = True
    ) -> Any:
        """Return the leaves in an `OrderedDict`, as ``torch.nn.Module.state_dict`` does it.

        Parameters
        ----------
        destination : OrderedDict, optional
            Where to put the entries.
        prefix : str
            What all keys start with.
        keep_vars : bool
            Keep the history of gradients of torch's tensors.
        flatten : bool
            Join the parts of nested keys with dots, instead of nesting an `OrderedDict` for each TensorDict.

        Raises
        ------
        KeyError
            If two entries would have one key.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> state = TensorDict(a=np.arange(2), b={"c": np.ones(1)}).state_dict()
        >>> list(state), state._metadata["b"]
        (['a', 'b.c'], {'batch_size': Size([]), 'device': None})
        """
        out: Any = OrderedDict() if destination is None else destination
        if not hasattr(out, "_metadata"):
            out._metadata = OrderedDict()
        self._to_state(out, out._metadata, prefix, keep_vars, flatten)
        return out

    def _to_state(self, out: Any, metadata: Any, prefix: str, keep_vars: bool, flatten: bool) -> None:
        name = prefix.removesuffix(".")
        if flatten and name in metadata:
            raise KeyError(f"two entries would have the key {name!r} in the state dict: pass flatten=False")
        metadata[name] = {"batch_size": self._batch_size, "device": self.device}
        for key, value in self._source.items():
            where = prefix + key
            if isinstance(value, Base) and value._holds_objects:
                objects = value.tolist() if value._batch_size and not value._fits_any else value._unwrapped()  # type: ignore[attr-defined]
                metadata[where] = {
                    "batch_size": value._batch_size,
                    "device": value.device,
                    "_type": type(value).__name__,
                    "_non_tensor": {"data": objects, "_metadata": None, "_is_non_tensor": True},
                }
            elif isinstance(value, State) and flatten:
                value._to_state(out, metadata, where + ".", keep_vars, flatten)
            elif isinstance(value, State):
                out[where] = value.state_dict(keep_vars=keep_vars, flatten=False)
            elif where in out:
                raise KeyError(f"two entries would have the key {where!r} in the state dict: pass flatten=False")
            else:
                out[where] = value.detach() if library_of(value) == "torch" and not keep_vars else value

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False, from_flatten: Any = None
    ) -> Self:
        """Take over the values and the batch size of a state dict.

        Parameters
        ----------
        state_dict : dict
            What `state_dict` has returned, with flat or nested keys.
        strict : bool
            Require that the keys are those of this TensorDict.
        assign : bool
            Take over the arrays themselves, instead of writing into the present ones.
        from_flatten : bool, optional
            Whether keys are flat. By default they are if the state dict says so, or has dots where this TensorDict has
            nested entries.

        Raises
        ------
        RuntimeError
            If the keys differ and `strict` is set, or a value does not fit.

        Examples
        --------
        >>> import numpy as np
        >>> from corral import TensorDict
        >>> td = TensorDict(a=np.zeros(2), b={"c": np.zeros(1)})
        >>> td.load_state_dict(TensorDict(a=np.arange(2), b={"c": np.ones(1)}).state_dict())["b", "c"]
        array([1.])
        """
        metadata: Mapping[str, Any] = getattr(state_dict, "_metadata", None) or {}
        flat = from_flatten
        if flat is None:
            flat = hasattr(state_dict, "_metadata") and set(state_dict) != set(self._source)
        found, sizes = self._of_state(state_dict, metadata, flat)
        if "" in sizes and sizes[""] is not None and device_name(sizes[""][1]) != self._device:
            raise RuntimeError(
                f"load_state_dict: the state dict is of device {sizes[''][1]}, and the TensorDict of {self.device}"
            )
        if strict:
            mine, theirs = set(self.keys(True, True)), set(found.keys(True, True))
            if mine != theirs:
                raise RuntimeError(
                    f"load_state_dict: the keys do not match: the state dict alone has {theirs - mine}, the TensorDict "
                    f"alone has {mine - theirs}"
                )
        if self._members() is not None:
            found.batch_size = self._batch_size  # which stays, as that of its members
        elif "" in sizes:
            self.batch_size = ()
        self.update(found, inplace=not assign)
        for key, facts in sizes.items():
            node = self if not key else self.get(tuple(key.split(".")) if "." in key else key)
            if isinstance(node, Base) and facts is not None and not node._holds_objects:
                node.batch_size = facts[0]
        return self

    def _of_state(self, state: Mapping[str, Any], metadata: Mapping[str, Any], flat: bool) -> tuple[Any, Any]:
        """Return a TensorDict of what a state dict holds, and batch sizes and devices by keys."""
        found: Any = self._make({}, Size())
        sizes = {key: (facts["batch_size"], facts["device"]) for key, facts in metadata.items() if "_type" not in facts}
        for key, value in state.items():
            if isinstance(value, Mapping) and not flat:
                nested, more = self._of_state(value, getattr(value, "_metadata", {}) or {}, False)
                found._put(key, nested)
                sizes.update({f"{key}.{name}" if name else key: facts for name, facts in more.items()})
            elif not (key.startswith("__") and key in ("__batch_size", "__device")):
                found._put(tuple(key.split(".")) if flat and "." in key else key, value)
        for key, facts in metadata.items():
            if "_type" in facts:
                found.set_non_tensor(tuple(key.split(".")) if "." in key else key, facts["_non_tensor"]["data"])
        return found, sizes
