"""Classes of errors: who catches what tensordict raises for a wrong argument catches what corral raises."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import corral
from corral.tensordict import DimensionError, InplaceWriteError, InvalidKeyError, KeyThroughLeafError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict

BUILTIN = (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError, NotImplementedError)


def dense(library: Any) -> Any:
    nested = library.TensorDict({"c": torch.arange(6.0).reshape(2, 3, 1)}, batch_size=[2, 3])
    return library.TensorDict(
        {"a": torch.arange(24.0).reshape(2, 3, 4), "n": nested, "s": library.NonTensorData("hi", [2, 3])},
        batch_size=[2, 3],
    )


def lazy(library: Any) -> Any:
    return library.lazy_stack(
        [
            library.TensorDict({"a": torch.ones(3, 4) * i, "n": library.TensorDict({"c": torch.ones(3, 1)}, [3])}, [3])
            for i in range(2)
        ]
    )


def assigned(td: Any, name: str, value: Any) -> None:
    setattr(td, name, value)


CALLS: dict[str, Callable[[Any], Any]] = {}
for _dim in (2, -3, 5):
    CALLS |= {
        f"squeeze {_dim}": lambda td, dim=_dim: td.squeeze(dim),
        f"unsqueeze {_dim}": lambda td, dim=_dim: td.unsqueeze(dim + (1 if dim > 0 else -1)),
        f"unbind {_dim}": lambda td, dim=_dim: td.unbind(dim),
        f"split {_dim}": lambda td, dim=_dim: td.split(1, dim),
        f"chunk {_dim}": lambda td, dim=_dim: td.chunk(1, dim),
        f"tensor_split {_dim}": lambda td, dim=_dim: td.tensor_split(2, dim),
        f"narrow {_dim}": lambda td, dim=_dim: td.narrow(dim, 0, 1),
        f"transpose {_dim}": lambda td, dim=_dim: td.transpose(0, dim),
        f"movedim {_dim}": lambda td, dim=_dim: td.movedim(0, dim),
        f"flip {_dim}": lambda td, dim=_dim: td.flip(dim),
        f"roll {_dim}": lambda td, dim=_dim: td.roll(1, dim),
        f"unflatten {_dim}": lambda td, dim=_dim: td.unflatten(dim, (1, 2)),
        f"gather {_dim}": lambda td, dim=_dim: td.gather(dim, torch.zeros(2, 3, dtype=torch.int64)),
        f"sum {_dim}": lambda td, dim=_dim: td.exclude("s").sum(dim=dim),
        f"all {_dim}": lambda td, dim=_dim: td.exclude("s").bool().all(dim=dim),
        f"softmax {_dim}": lambda td, dim=_dim: td.exclude("s").softmax(dim),
    }
CALLS |= {
    "flatten to 9": lambda td: td.flatten(0, 9),
    "stack along 4": lambda td: torch.stack([td, td], 4),
    "cat along 2": lambda td: torch.cat([td, td], 2),
    "cat along -7": lambda td: torch.cat([td, td], -7),
    "stack of nothing": lambda td: torch.stack([]),
    "stack of other shapes": lambda td: torch.stack([td, td[:1]]),
    "cat of other keys": lambda td: torch.cat([td, td.exclude("a")], 1),
    "split by 0": lambda td: td.split(0, 0),
    "split by -1": lambda td: td.split(-1, 0),
    "split of too few": lambda td: td.split([1, 1], 1),
    "chunk by 0": lambda td: td.chunk(0, 0),
    "tensor_split by 0": lambda td: td.tensor_split(0, 0),
    "reshape to what does not fit": lambda td: td.reshape(5),
    "reshape by -1 twice": lambda td: td.reshape(-1, -1),
    "view of what does not fit": lambda td: td.view(4, 2),
    "expand to less": lambda td: td.expand(2),
    "expand to other lengths": lambda td: td.expand(4, 3),
    "permute too many": lambda td: td.permute(0, 1, 2),
    "permute too far": lambda td: td.permute(0, 5),
    "repeat too few": lambda td: td.repeat(2),
    "repeat_interleave below 0": lambda td: td.repeat_interleave(-1, 0),
    "rot90 in a line": lambda td: td.rot90(1, (0, 0)),
    "rot90 of one dimension": lambda td: td.rot90(1, (0,)),
    "unflatten to other lengths": lambda td: td.unflatten(1, (2, 2)),
    "row too far": lambda td: td[9],
    "column too far": lambda td: td[:, 9],
    "rows too far": lambda td: td[torch.tensor([0, 9])],
    "wrong mask": lambda td: td[torch.tensor([True, False, True])],
    "too many indices": lambda td: td[:, :, :, :],
    "step below 0": lambda td: td[::-1],
    "write a row too far": lambda td: td.__setitem__(9, td[0]),
    "write other rows": lambda td: td.__setitem__(0, td[:, :2].clone()),
    "gather too far": lambda td: td.gather(0, torch.full((2, 3), 9)),
    "a missing key": lambda td: td["zz"],
    "a missing nested key": lambda td: td["n", "zz"],
    "a key through a leaf": lambda td: td["a", "b"],
    "get through a leaf": lambda td: td.get(("a", "b")),
    "set through a leaf": lambda td: td.set(("a", "b"), torch.ones(2, 3)),
    "update through a leaf": lambda td: td.update({("a", "b"): torch.ones(2, 3)}),
    "entry_class through a leaf": lambda td: td.entry_class(("a", "b")),
    "del_ of a missing key": lambda td: td.del_("zz"),
    "pop of a missing key": lambda td: td.pop("zz"),
    "rename of a missing key": lambda td: td.rename_key_("zz", "y"),
    "safe rename to a key that there is": lambda td: td.rename_key_("a", "n", safe=True),
    "select of a missing key": lambda td: td.select("zz"),
    "set of a misfit": lambda td: td.set("b", torch.ones(7)),
    "set_ of a missing key": lambda td: td.set_("zz", torch.ones(2, 3)),
    "set_ of a misfit": lambda td: td.set_("a", torch.ones(2, 3, 9)),
    "set_ of a leaf into a TensorDict": lambda td: td.set_("n", torch.ones(2, 3)),
    "set in place, a TensorDict into a leaf": lambda td: td.set("a", td.select("n"), inplace=True),
    "update_ of a missing key": lambda td: td.update_({"zz": torch.ones(2, 3)}),
    "update_ of a misfit": lambda td: td.update_({"a": torch.ones(7)}),
    "update_ of a number": lambda td: td.update_(5),
    "set when locked": lambda td: td.lock_().set("b", torch.ones(2, 3)),
    "del_ when locked": lambda td: td.lock_().del_("a"),
    "another batch size": lambda td: assigned(td, "batch_size", [4]),
    "too many names": lambda td: assigned(td, "names", ["x", "y", "z"]),
    "equal names": lambda td: assigned(td, "names", ["x", "x"]),
    "iteration over no rows": lambda td: list(td[0, 0]),
}
for _key in (5, None, 1.5, ("a", 5), ("n", None), b"a", ["a"], ()):
    CALLS |= {
        f"{name} of {_key!r}": lambda td, name=name, key=_key: getattr(td, name)(key)
        for name in ("get", "pop", "del_", "separates", "entry_class", "get_item_shape")
    }
    CALLS |= {
        f"set of {_key!r}": lambda td, key=_key: td.set(key, torch.ones(2, 3)),
        f"set_ of {_key!r}": lambda td, key=_key: td.set_(key, torch.ones(2, 3)),
    }

ALLOWED = {
    "gather -3": "tensordict takes what it takes for another dimension",
    "unsqueeze -3": "tensordict takes what it takes for another dimension",
    "flatten to 9": "tensordict's lazy stacks end at the last dimension",
    "stack along 4": "tensordict's lazy stacks are stacked wherever that is",
    "step below 0": "tensordict's lazy stacks take them, which tensors do not",
    "equal names": "tensordict's lazy stacks do not look at the names of their members",
    "all -3": "tensordict's lazy stacks take -3 for -1",
}


@pytest.mark.parametrize("make", [dense, lazy])
@pytest.mark.parametrize("name", CALLS)
def test_same_classes(name: str, make: Callable[[Any], Any]) -> None:
    found: list[Exception | None] = []
    for library in (corral, tensordict):
        td = make(library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                CALLS[name](td)
            except Exception as error:
                found.append(error)
            else:
                found.append(None)
    mine, theirs = found
    assert mine is not None
    if theirs is None:
        assert name in ALLOWED
        return
    classes = tuple(kind for kind in BUILTIN if isinstance(theirs, kind))
    assert classes
    assert isinstance(mine, classes), f"{mine!r} in place of {theirs!r}"


def test_classes_are_what_torch_raises() -> None:
    assert issubclass(DimensionError, IndexError)
    assert issubclass(InplaceWriteError, RuntimeError)
    assert issubclass(InvalidKeyError, KeyError)
    assert issubclass(KeyThroughLeafError, KeyError)
    with pytest.raises(InvalidKeyError) as error:
        dense(corral).get(5)
    assert str(error.value) == "a key must be a string or a tuple of strings, got int: 5"


@pytest.mark.parametrize("shape", [1.5, None, "x", ("x",)])
def test_what_is_no_shape_is_named(shape: Any) -> None:
    with pytest.raises(TypeError, match="made of integers"):
        dense(corral).reshape(shape)


@pytest.mark.parametrize("key", [("s", "x"), ("s", "x", "y")])
def test_an_object_is_no_tensordict_that_a_key_leads_through(key: Any) -> None:
    td = dense(corral)
    for write in (
        lambda: td.set(key, torch.ones(2, 3)),
        lambda: td.setdefault(key, torch.ones(2, 3)),
        lambda: td.update({key: torch.ones(2, 3)}),
        lambda: td.rename_key_("a", key),
    ):
        with pytest.raises(KeyError, match=r"'s'.*not a TensorDict"):
            write()
    assert (td["s"], sorted(td.keys())) == ("hi", ["a", "n", "s"])
    mine, theirs = (dense(library).create_nested(key) for library in (corral, tensordict))  # in the object's place
    assert set(mine.keys(True)) == set(theirs.keys(True))


@pytest.mark.parametrize("name", ["select", "exclude"])
def test_objects_stay_where_a_key_leads_through_them(name: str) -> None:
    options = {"strict": False} if name == "select" else {}
    mine, theirs = (getattr(dense(library), name)(("s", "x"), **options) for library in (corral, tensordict))
    assert sorted(mine.keys()) == sorted(theirs.keys())
    assert mine["s"] == theirs["s"] == "hi"


@pytest.mark.parametrize("make", [dense, lazy])
def test_a_new_tensordict_of_the_same_shape(make: Callable[[Any], Any]) -> None:
    for library in (corral, tensordict):
        td = make(library)
        part = td.flatten(0, 0)
        part["new"] = torch.ones(2, 3)
        assert "new" not in td or make is lazy  # whose members are those of both
    assert dense(corral).lock_().flatten(1, 1).is_locked


def test_to_what_an_array_is() -> None:
    for library in (corral, tensordict):
        td = dense(library).exclude("s").to(torch.ones(1, dtype=torch.int16))
        assert (td["a"].dtype, td["n", "c"].dtype, td.device) == (torch.int16, torch.int16, torch.device("cpu"))
