"""No TensorDict contains itself: where it is set inside itself, nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import corral
from corral import PersistentTensorDict, TensorDict
from tests.tensordict.tensorclasses import Inner


def make(kind: Any = TensorDict) -> Any:
    return kind({"a": torch.zeros(3), "n": {"b": torch.zeros(3), "m": {"c": torch.zeros(3)}}}, [3])


BOTH_REFUSE: dict[str, Callable[[Any], Any]] = {
    "item": lambda td: td.__setitem__("q", td),
    "set": lambda td: td.set("q", td),
    "nested key": lambda td: td.set(("n", "q"), td),
    "deep key": lambda td: td.set(("n", "m", "q"), td),
    "new key": lambda td: td.set(("x", "y"), td),
    "update": lambda td: td.update({"q": td}),
    "keyword": lambda td: td.update(q=td),
    "setdefault": lambda td: td.setdefault("q", td),
}
REFUSED = BOTH_REFUSE | {  # where tensordict recurses without end, some time later
    "child": lambda td: td["n"].set("q", td),
    "its own child": lambda td: td.set(("n", "m", "q"), td["n"]),
    "merged": lambda td: td.update({"n": {"q": td}}),
    "wrapped": lambda td: td.set("q", TensorDict({"z": td}, [3])),
    "in a dict": lambda td: td.set("q", {"z": {"y": td}}),
    "in a lazy stack": lambda td: td.set("q", corral.lazy_stack([TensorDict({"z": td}, [3])] * 3, 1)),
    "in a tensorclass": lambda td: td.set("q", Inner(q=td, batch_size=[3])),
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_refused(change: Any) -> None:
    td = make()
    keys = set(td.keys(True))
    with pytest.raises(ValueError, match="inside itself"):
        change(td)
    assert set(td.keys(True)) == keys


@pytest.mark.parametrize("change", BOTH_REFUSE.values(), ids=BOTH_REFUSE)
def test_refused_by_tensordict(change: Any) -> None:
    with pytest.raises(ValueError, match="inside itself"):
        change(make(tensordict.TensorDict))


def test_lazy_stacks_and_tensorclasses() -> None:
    members = [TensorDict(a=np.zeros(1)) for _ in range(2)]
    lazy = corral.lazy_stack(members)
    for change in (
        lambda: members[0].set("q", lazy),
        lambda: members[1].set(("x", "q"), TensorDict(z=lazy, batch_size=[2])),
        lambda: lazy.set("q", lazy),
        lambda: lazy.set("q", TensorDict(z=lazy, batch_size=[2])),
        lambda: lazy.append(TensorDict(z=lazy, batch_size=[])),
    ):
        with pytest.raises(ValueError, match="inside itself"):
            change()
        assert list(lazy.keys()) == ["a"]
        assert len(lazy.tensordicts) == 2
    kept = Inner(q=np.zeros(2))
    with pytest.raises(ValueError, match=r"itself|that very"):
        kept.q = kept
    with pytest.raises(ValueError, match="inside itself"):
        kept.q = TensorDict(z=kept)


def test_in_a_file(tmp_path: Path) -> None:
    td = PersistentTensorDict.from_dict({"a": np.zeros(2), "n": {"b": np.zeros(2)}}, tmp_path / "x.h5", batch_size=[2])
    for key in ("q", ("n", "q")):
        with pytest.raises(ValueError, match="inside itself"):
            td[key] = td
    assert set(td.keys(True, True)) == {"a", ("n", "b")}
    td.close()


def test_copies_may_be_set() -> None:
    td = make()
    td["n", "m", "q"] = td.copy()
    td["twice"] = td["n", "m"]
    assert td["n", "m", "q", "a"] is td["a"]
    assert td["twice"] is td["n", "m"]
    assert "twice" in repr(td)


def test_a_nested_set_that_fails_leaves_nothing() -> None:
    td = make()
    with pytest.raises(RuntimeError, match="batch dimension"):
        td["x", "y"] = np.zeros(2)
    assert "x" not in td
