"""With-blocks on what methods return: the original has what tensordict's has afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensordict
import torch

from corral import LazyStackedTensorDict, TensorDict, tensorclass
from tests.tensordict.trees import plain, tree_map

CALLS: dict[str, Any] = {
    "lock_": lambda td: td.lock_(),
    "unlock_": lambda td: td.unlock_(),
    "flatten_keys": lambda td: td.flatten_keys(),
    "flatten_keys by a separator": lambda td: td.flatten_keys("_"),
    "flatten_keys in place": lambda td: td.flatten_keys("_", inplace=True),
    "unflatten_keys": lambda td: td.unflatten_keys("|"),
    "view": lambda td: td.view(-1),
    "view of two": lambda td: td.view(2, 3),
    "flatten": lambda td: td.flatten(),
    "flatten some": lambda td: td.flatten(0, 1),
    "unflatten": lambda td: td.unflatten(-1, [1, 2]),
    "unflatten in place": lambda td: td.unflatten(0, [3, 1], inplace=True),
    "permute": lambda td: td.permute(1, 0),
    "permute by a list": lambda td: td.permute([-1, 0]),
    "permute by name": lambda td: td.permute(dims=(1, 0)),
    "transpose": lambda td: td.transpose(0, 1),
    "swapaxes": lambda td: td.swapaxes(0, -1),
    "swapdims": lambda td: td.swapdims(0, 1),
    "movedim": lambda td: td.movedim(0, 1),
    "moveaxis": lambda td: td.moveaxis(-1, 0),
    "unsqueeze": lambda td: td.unsqueeze(-1),
    "unsqueeze by name": lambda td: td.unsqueeze(dim=1),
    "squeeze of nothing": lambda td: td.squeeze(0),
    "flip": lambda td: td.flip(0),
    "fliplr": lambda td: td.fliplr(),
    "flipud": lambda td: td.flipud(),
    "roll": lambda td: td.roll(1, 0),
    "roll two": lambda td: td.roll((1, 2), (0, 1)),
    "rot90": lambda td: td.rot90(),
    "rot90 by three": lambda td: td.rot90(3),
    "atleast_3d": lambda td: td.atleast_3d(),
    "nothing": lambda td: td,
}


def source() -> dict[str, Any]:
    return {
        "a": np.arange(24.0).reshape(3, 2, 4),
        "b": {"c": np.arange(6.0).reshape(3, 2)},
        "x|y": np.ones((3, 2)),
    }


def change(td: Any) -> None:
    """Write into a leaf, replace one, and where that is allowed add one."""
    first = next(iter(td.keys(True, True)))
    td.get(first)[0] = 7.0
    if not td.is_locked:
        td.set(first, td.get(first) * 2)
        td.set("new", td.get(first) * 3)


def forms(locked: bool) -> list[Any]:
    made = [
        kind(tree_map(convert, source()), batch_size=[3, 2])
        for kind, convert in (
            (tensordict.TensorDict, torch.as_tensor),
            (TensorDict, torch.as_tensor),
            (TensorDict, np.asarray),
        )
    ]
    return [td.lock_() if locked else td for td in made]


def outcome(td: Any, call: Any, fail: bool) -> Any:
    result: Any = None
    try:
        with call(td) as inner:
            change(inner)
            if fail:
                raise KeyError("of the block")
    except (RuntimeError, ValueError, KeyError) as error:
        result = "of the block" in str(error) or "an error"
    return result, td.is_locked, plain(td)


@pytest.mark.parametrize("fail", [False, True], ids=["", "an error in the block"])
@pytest.mark.parametrize("locked", [False, True], ids=["", "locked"])
@pytest.mark.parametrize("name", CALLS)
def test_same_as_tensordict(name: str, locked: bool, fail: bool) -> None:
    theirs, *ours = [outcome(td, CALLS[name], fail) for td in forms(locked)]
    for mine in ours:
        assert mine == theirs


def test_squeeze() -> None:
    for kind, library in ((tensordict.TensorDict, torch), (TensorDict, torch), (TensorDict, np)):
        td = kind({"a": library.zeros((3, 1))}, batch_size=[3, 1])
        with td.squeeze(-1) as inner:
            inner["b"] = library.ones((3, 2))
        assert tuple(td["b"].shape) == (3, 1, 2)
        with pytest.raises(RuntimeError), td.squeeze():
            pass


def test_flatten_in_place() -> None:
    # tensordict keeps the flat shape, and warns that it will not.
    td = TensorDict(source(), batch_size=[3, 2])
    with td.flatten(0, -1, inplace=True):
        assert td.batch_size == (6,)
    assert plain(td) == plain(TensorDict(source(), batch_size=[3, 2]))


def test_locks_in_each_other() -> None:
    for kind in (tensordict.TensorDict, TensorDict):
        td = kind({"a": torch.zeros(3)}, batch_size=[3])
        seen = []
        with td.lock_():
            seen.append(td.is_locked)
            with td.unlock_():
                seen.append(td.is_locked)
                with td.unlock_():  # is unlocked already: nothing to take back
                    pass
                seen.append(td.is_locked)
            seen.append(td.is_locked)
        assert [*seen, td.is_locked] == [True, False, False, True, False]


def test_blocks_in_each_other() -> None:
    td = TensorDict({"a": {"b": np.arange(6).reshape(2, 3)}}, batch_size=[2, 3])
    with td.flatten_keys() as flat, flat.view(-1) as line:
        line["a.c"] = np.arange(6)
    assert td["a", "c"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_lazy_stacks() -> None:
    results = []
    for kind in (tensordict.LazyStackedTensorDict, LazyStackedTensorDict):
        dense = tensordict.TensorDict if kind is tensordict.LazyStackedTensorDict else TensorDict
        stack = kind(*[dense({"n": {"a": torch.full((2,), float(i))}}, batch_size=[2]) for i in range(3)])
        with stack.flatten_keys() as flat:
            flat["n.b"] = torch.ones(3, 2)
        with stack.permute(1, 0) as turned:
            turned["c"] = torch.arange(6).reshape(2, 3)
        with stack.lock_():
            assert stack.is_locked
        results.append((stack.is_locked, plain(stack)))
    assert results[0] == results[1]


@tensorclass
class Pair:
    a: Any
    b: Any = None


def test_tensorclasses() -> None:
    pair = Pair(a=np.arange(6).reshape(2, 3), batch_size=[2, 3])
    with pair.view(-1) as line:
        line.b = np.arange(6)
    assert pair.b.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pair.lock_() as locked:
        assert locked is pair
        assert pair.is_locked
    assert not pair.is_locked
