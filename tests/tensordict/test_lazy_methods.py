"""Methods of lazy stacks of all kinds, called on corral's and on tensordict's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import corral

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict


class Mine(corral.TensorClass):
    a: Any
    b: Any = None
    n: Any = None


class Theirs(tensordict.TensorClass):
    a: Any
    b: Any = None
    n: Any = None


def values(start: int, *shape: int) -> torch.Tensor:
    return torch.arange(start, start + int(np.prod(shape)), dtype=torch.float32).reshape(shape)


def stack(library: Any, kind: str) -> Any:
    """Return one of the kinds below."""

    def row(i: int, length: int = 3, **more: Any) -> Any:
        nested = {"c": values(100 + 10 * i, 2, 1)}
        return library.TensorDict({"a": values(10 * i, 2, length), "n": nested, **more}, batch_size=[2])

    def typed(i: int, **more: Any) -> Any:
        nested = library.TensorDict({"c": values(7 + i, 2)}, batch_size=[2])
        return (Mine if library is corral else Theirs)(a=values(10 * i, 2, 3), n=nested, batch_size=[2], **more)

    join = library.lazy_stack
    made: dict[str, Callable[[], Any]] = {
        "even": lambda: join([row(0), row(1)]),
        "second dimension": lambda: join([row(0), row(1)], 1),
        "ragged": lambda: join([row(0), row(1, 4)]),
        "other keys": lambda: join([row(0), row(1, b=values(50, 2))]),
        "tensorclasses": lambda: join([typed(0), typed(1, b=values(50, 2))]),
        "stacks": lambda: join([join([row(0), row(1)]), join([row(2), row(3)])]),
        "ragged stacks": lambda: join([join([row(0), row(1, 4)]), join([row(2), row(3, 5)])]),
        "with objects": lambda: join([row(0, s="hi"), row(1, 4, s="hi")]),
    }
    return made[kind]()


KINDS = (
    *("even", "second dimension", "ragged", "other keys"),
    *("tensorclasses", "stacks", "ragged stacks", "with objects"),
)
CALLS: dict[str, Callable[[Any], Any]] = {}
for _name in (
    "abs",
    "neg",
    "exp",
    "sqrt",
    "sigmoid",
    "sign",
    "floor",
    "cos",
    "tanh",
    "isfinite",
    "isnan",
    "double",
    "half",
    "int",
    "int64",
    "bool",
    "zero_",
    "abs_",
    "exp_",
    "neg_",
):
    CALLS[_name] = lambda td, name=_name: getattr(td, name)()
for _name in (
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "maximum",
    "minimum",
    "clamp_max",
    "add_",
    "mul_",
    "sub_",
    "div_",
):
    CALLS[_name] = lambda td, name=_name: getattr(td, name)(td.clone())
    CALLS[f"{_name} number"] = lambda td, name=_name: getattr(td, name)(torch.tensor(2.0) if "imum" in name else 2.0)
for _name in ["sum", "mean", "prod", "amax", "std", "var", "nansum", "logsumexp", "any", "all"]:
    for _dim in (0, 1, -1):
        CALLS[f"{_name} {_dim}"] = lambda td, name=_name, dim=_dim: getattr(td, name)(dim=dim)
CALLS |= {
    f"{name} of {key!r}": lambda td, name=name, key=key: getattr(td, name)(key)
    for name in (
        "entry_class",
        "get_item_shape",
        "get",
        "is_non_tensor",
        "pop",
        "del_",
        "exclude",
        "select",
        "setdefault",
    )
    for key in ("a", "n", ("n", "c"), "b", "s", "missing")
    if not (name == "setdefault" or (name == "is_non_tensor" and key in ("missing", "b")))
}
CALLS |= {
    "apply": lambda td: td.apply(lambda x: x + 1),
    "apply with another": lambda td: td.apply(lambda x, y: x * y, td),
    "apply in place": lambda td: td.apply_(lambda x: x + 1),
    "apply to nothing": lambda td: td.apply(lambda x: None),
    "apply with a batch": lambda td: td.apply(lambda x: x.sum(), batch_size=[]),
    "named_apply": lambda td: td.named_apply(lambda key, x: x + len(key), nested_keys=True),
    "auto_batch_size_": lambda td: td.auto_batch_size_(),
    "chunk": lambda td: td.chunk(2, 1),
    "clone": lambda td: td.clone(),
    "contiguous": lambda td: td.contiguous(),
    "copy_": lambda td: td.copy_(td + 1),
    "depth": lambda td: td.depth,
    "empty": lambda td: td.empty(),
    "empty, nested": lambda td: td.empty(recurse=True),
    "expand": lambda td: td.expand(3, *td.batch_size),
    "fill_": lambda td: td.fill_(("n", "c"), 3.0),
    "filter_empty_": lambda td: td.filter_empty_(),
    "filter_empty_ of nothing": lambda td: td.del_(("n", "c")).filter_empty_(),
    "filter_non_tensor_data": lambda td: td.filter_non_tensor_data(),
    "flatten": lambda td: td.flatten(0, 1),
    "flip": lambda td: td.flip(0),
    "flip 1": lambda td: td.flip((0, 1)),
    "from_dict_instance": lambda td: td.from_dict_instance({"a": values(0, 2, 2)}, batch_size=[2]),
    "gather": lambda td: td.gather(0, torch.zeros(1, *td.batch_size[1:], dtype=torch.int64)),
    "get as list": lambda td: td.get("a", as_list=True),
    "get padded": lambda td: td.get("a", as_padded_tensor=True),
    "get padded left": lambda td: td.get("a", as_padded_tensor=True, padding_side="left", padding_value=-1),
    "get_at": lambda td: td.get_at(("n", "c"), 0),
    "insert": lambda td: td.insert(0, td[0].clone()),
    "is_empty": lambda td: td.is_empty(),
    "keys": lambda td: sorted(td.keys()),
    "all keys": lambda td: sorted(map(str, td.keys(True))),
    "leaves": lambda td: sorted(map(str, td.keys(True, True))),
    "sorted leaves": lambda td: list(map(str, td.keys(True, True, sort=True))),
    "has": lambda td: ["a" in td.keys(), "b" in td.keys(), ("n", "c") in td.keys(True), "n" in td.keys(True, True)],  # noqa: SIM118
    "locked rows": lambda td: [
        part.is_locked for part in (td.lock_()[0], td[:1], td[:, 0], td.view(-1), td.transpose(0, 1))
    ],
    "locked, nested": lambda td: td.lock_().get("n").is_locked,
    "set when locked": lambda td: td.lock_().set("a", td.get(("n", "c"))),
    "set in locked rows": lambda td: td.lock_()[:, 0].set("b", values(0, 2)),
    "unlock what is nested": lambda td: td.lock_().get("n").unlock_(),
    "unlock": lambda td: td.lock_().unlock_(),
    "masked_fill": lambda td: td.masked_fill(torch.tensor([True, False]), -1.0),
    "masked_select": lambda td: td.masked_select(torch.tensor([True, False])),
    "names": lambda td: (td.rename_(*"xyz"[: td.ndim]), td.names, td[0].names, td.get("n").names)[1:],
    "narrow": lambda td: td.narrow(1, 0, 1),
    "new_zeros": lambda td: td.new_zeros((2,)),
    "new_ones": lambda td: td.new_ones(4, 5),
    "new_full": lambda td: td.new_full((), 7.0),
    "new_zeros of a dtype": lambda td: td.new_zeros(2, dtype=torch.int32),
    "new_tensor": lambda td: td.new_tensor(td + 1),
    "non_tensor_items": lambda td: [key for key, _ in td.select("a", "n", "s", strict=False).non_tensor_items(True)],
    "numpy": lambda td: td.numpy(),
    "param_count": lambda td: td.param_count(),
    "permute": lambda td: td.permute(*range(td.ndim - 1, -1, -1)),
    "rename_key_": lambda td: td.rename_key_(("n", "c"), ("n", "d")),
    "rename_keys": lambda td: td.rename_keys({("n", "c"): ("n", "d")}),
    "repeat_interleave": lambda td: td.repeat_interleave(2, dim=0),
    "replace": lambda td: td.replace(a=td.get(("n", "c"))),
    "reshape": lambda td: td.reshape(-1),
    "roll": lambda td: td.roll(1, 0),
    "roll 1": lambda td: td.roll((1, 1), (0, 1)),
    "rot90": lambda td: td.rot90(1, (0, 1)),
    "set": lambda td: td.set("b", values(0, *td.batch_size, 4)),
    "set nested": lambda td: td.set(("n", "e"), values(0, *td.batch_size)),
    "set what does not fit": lambda td: td.set("b", values(0, 5)),
    "set_": lambda td: td.set_(("n", "c"), td.get(("n", "c")) + 1),
    "set_at_": lambda td: td.set_at_("a", 7.0, (slice(None), 0)),
    "softmax": lambda td: td.softmax(-1),
    "split": lambda td: td.split(1, 1),
    "stack": lambda td: torch.stack([td, td], 1),
    "state_dict": lambda td: sorted(td.state_dict()),
    "load_state_dict": lambda td: td.load_state_dict(td.clone().state_dict()),
    "to": lambda td: td.to(torch.float64),
    "to_dict": lambda td: td.to_dict(),
    "to_tensordict": lambda td: td.to_tensordict(),
    "to_lazystack": lambda td: td.to_lazystack(1),
    "unbind": lambda td: td.unbind(1),
    "unflatten": lambda td: td.unflatten(0, (2, 1)),
    "unsqueeze": lambda td: td.unsqueeze(-1),
    "update": lambda td: td.update(td.clone() + 1),
    "update in place": lambda td: td.update(td.clone() + 1, inplace=True),
    "update of a dict": lambda td: td.update({"b": values(0, *td.batch_size)}),
    "update_": lambda td: td.update_(td.clone() + 1),
    "update_ of what is missing": lambda td: td.update_({"missing": values(0, *td.batch_size)}),
    "update_at_": lambda td: td.update_at_(td[0].clone() + 1, 0),
    "where": lambda td: td.where(torch.ones(td.batch_size, dtype=torch.bool), td + 1),
    "row": lambda td: td[0],
    "column": lambda td: td[:, 0],
    "mask": lambda td: td[torch.tensor([True, False])],
    "rows": lambda td: td[[1, 0]],
    "new dimension": lambda td: td[None],
    "write a row": lambda td: td.__setitem__(0, td[1].clone()),
    "write a column": lambda td: td.__setitem__((slice(None), 0), td[:, 1].clone()),
    "write a number": lambda td: td.__setitem__(0, 3.0),
    "equal": lambda td: td == td.clone(),
    "greater": lambda td: td > 1,
    "invert": lambda td: ~td.bool(),
    "from the right": lambda td: 1 - td,
}
"""What is called; on the stack itself, whose contents afterwards are compared as well."""

UNEVEN = ("ragged", "other keys", "tensorclasses", "ragged stacks", "with objects")
OTHER: dict[tuple[str, str], str] = {
    **{
        (name, kind): "tensordict fails, or loses what only some members have: here each member keeps its entries"
        for name in ("flip", "flip 1", "narrow", "roll", "roll 1", "rot90")
        for kind in UNEVEN
    },
    **{
        ("auto_batch_size_", kind): "tensordict fails: it stacks to see shapes" for kind in UNEVEN if "keys" not in kind
    },
    ("entry_class of 'a'", "ragged stacks"): "tensordict fails: it stacks to see the class",
    ("entry_class of 's'", "with objects"): "tensordict has a lazy stack of objects",
    ("del_ of 'b'", "tensorclasses"): "in tensordict the member keeps it",
    ("non_tensor_items", "tensorclasses"): "tensordict lists fields that are None",
    ("state_dict", "tensorclasses"): "tensordict loses the field of some members",
    ("load_state_dict", "tensorclasses"): "tensordict loses the field of some members",
    ("update_at_", "tensorclasses"): "tensordict fails: it takes a field for rows",
}
"""Where the two differ on purpose."""


def form(value: Any) -> Any:
    """Return a result in a form that can be compared: rows of TensorDicts, whether lazy or not."""
    if isinstance(value, type):
        return value.__name__.replace("Theirs", "Mine")
    if isinstance(value, (corral.NonTensorData, corral.NonTensorStack)) or tensordict.is_non_tensor(value):
        return "objects", value.tolist()
    if isinstance(value, corral.TensorDictBase) or tensordict.is_tensor_collection(value):
        size = tuple(value.batch_size)
        if size and -1 not in size:
            return size, [form(row) for row in value.unbind(0)]
        return size, {key: form(value.get(key)) for key in sorted(value.keys())}
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.nan_to_num(7.25).tolist()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, (list, tuple)):
        return [form(each) for each in value]
    if isinstance(value, dict):
        return {key: form(each) for key, each in sorted(value.items())}
    return value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_same(name: str, kind: str) -> None:
    reason = OTHER.get((name, kind), OTHER.get((name, "")))
    if reason is not None:
        pytest.skip(reason)
    found = []
    for library in (corral, tensordict):
        td = stack(library, kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = form(CALLS[name](td))
            except Exception:
                result = "an error"
        found.append((result, form(td)))
    assert found[0] == found[1]
