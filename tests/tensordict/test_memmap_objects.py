"""Objects in memory-mapped TensorDicts: what is written in place is written to the directory, too."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import corral
from corral import NonTensorData, NonTensorStack, TensorDict
from tests.distributed.ranks import run
from tests.tensordict.tensorclasses import Outer


def saved(path: Path, kind: Any = TensorDict) -> Any:
    stack = NonTensorStack if kind is TensorDict else tensordict.NonTensorStack
    source = {"a": torch.zeros(2), "s": "old", "n": {"s": "inner", "b": torch.zeros(2)}, "st": stack("x", "y")}
    return kind(source, [2]).memmap(path)


def objects(td: Any) -> tuple[Any, ...]:
    stack = td.get("st")
    return td["s"], td["n", "s"], stack.tolist(), td["a"].tolist()


def entry(kind: Any, data: Any, size: tuple[int, ...] = (2,)) -> Any:
    return (NonTensorData if kind is TensorDict else tensordict.NonTensorData)(data, batch_size=size)


def stack(kind: Any, *data: Any) -> Any:
    return (NonTensorStack if kind is TensorDict else tensordict.NonTensorStack)(*data)


def full(kind: Any) -> Any:
    source = {"a": torch.ones(2), "s": "new", "n": {"s": "q", "b": torch.ones(2)}, "st": stack(kind, "k", "l")}
    return kind(source, [2])


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "set_": lambda kind, td: td.set_("s", "new"),
    "set_ nested": lambda kind, td: td.set_(("n", "s"), "new"),
    "set_ in nested": lambda kind, td: td["n"].set_("s", "new"),
    "set_ stack": lambda kind, td: td.set_("st", stack(kind, "p", "q")),
    "set_ pickled": lambda kind, td: td.set_("s", {1, 2}),
    "set_ stack pickled": lambda kind, td: td.set_("st", stack(kind, {1}, "q")),
    "set": lambda kind, td: td.set("s", "new", inplace=True),
    "update_": lambda kind, td: td.update_({"s": "new"}),
    "update": lambda kind, td: td.update({"s": "new", "a": torch.ones(2)}, inplace=True),
    "update nested": lambda kind, td: td.update_(kind({"s": "new", "n": {"s": "q"}}, [2])),
    "copy_": lambda kind, td: td.copy_(full(kind)),
    "entry": lambda kind, td: td.get("s").update(entry(kind, "g"), inplace=True),
    "entry_": lambda kind, td: td.get("s").update_(entry(kind, "g")),
    "stack entry": lambda kind, td: td.get("st").update(stack(kind, "g", "h"), inplace=True),
    "stack item": lambda kind, td: td.get("st").__setitem__(0, "u"),
    "row": lambda kind, td: td.__setitem__(0, td[1]),
    "zero_": lambda kind, td: td.zero_(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_reach_the_directory(write: Any, tmp_path: Path) -> None:
    found = []
    for name, kind in (("mine", TensorDict), ("theirs", tensordict.TensorDict)):
        td = saved(tmp_path / name, kind)
        write(kind, td)
        assert td.is_memmap()
        for reader in (TensorDict, tensordict.TensorDict):
            assert objects(reader.load_memmap(tmp_path / name, allow_pickle=True)) == objects(td)
        found.append(objects(td))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "write",
    [
        lambda td: td.__setitem__(0, full(TensorDict)[0]),
        lambda td: td.__setitem__(np.array([True, False]), full(TensorDict)[:1]),
        lambda td: td.set_at_("s", "new", 0),
        lambda td: td.set_at_("s", {1}, 0).set_at_("s", "old", 0),
        lambda td: td.update_at_(TensorDict(s="new"), 0),
        lambda td: td.set_("s", {1}).set_("s", "again"),
    ],
)
def test_an_object_that_becomes_several_is_written_as_several(write: Any, tmp_path: Path) -> None:
    td = saved(tmp_path)  # where tensordict raises an error
    write(td)
    assert td.is_memmap()
    assert td.is_locked
    for reader in (TensorDict, tensordict.TensorDict):
        assert objects(reader.load_memmap(tmp_path)) == objects(td)  # without a pickle, that of before being gone
    td.set_at_("s", "third", 1)
    assert objects(TensorDict.load_memmap(tmp_path)) == objects(td)


def test_what_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    td = saved(tmp_path)
    before = objects(td)
    for write in (
        lambda: td.set_("s", lambda: None),
        lambda: td.set_("st", [lambda: None, "q"]),
        lambda: td.set_at_("s", lambda: None, 0),
        lambda: td.set_at_("st", lambda: None, 0),
        lambda: td.get("s").update_(NonTensorData(lambda: None, [2])),
    ):
        with pytest.raises((pickle.PicklingError, AttributeError)):
            write()
        assert objects(td) == before == objects(TensorDict.load_memmap(tmp_path))


def test_copies_and_rows_have_no_directory(tmp_path: Path) -> None:
    td = saved(tmp_path)
    before = objects(td)
    for copy in (td.clone(), td.clone(recurse=False), td[0], td[:1], td.select("s"), td.unlock_()):
        copy.set_("s", "new")
    assert objects(TensorDict.load_memmap(tmp_path)) == before


def test_lazy_stacks_and_tensorclasses(tmp_path: Path) -> None:
    lazy = corral.lazy_stack([TensorDict(a=np.zeros(2), s=str(i)) for i in range(2)]).memmap(tmp_path / "lazy")
    lazy[0].set_("s", "new")
    assert TensorDict.load_memmap(tmp_path / "lazy")[0]["s"] == lazy[0]["s"] == "new"
    lazy.update_(TensorDict(s=["p", "q"], batch_size=[2]))
    assert [TensorDict.load_memmap(tmp_path / "lazy")[i]["s"] for i in range(2)] == ["p", "q"]
    kept = Outer(x=np.zeros(2), y=np.zeros(2), extra="old", batch_size=[2]).memmap(tmp_path / "class")
    kept.set_("extra", "new")
    assert TensorDict.load_memmap(tmp_path / "class").extra == kept.extra == "new"


def test_pickled_entries_know_their_directory(tmp_path: Path) -> None:
    td = saved(tmp_path)
    again = pickle.loads(pickle.dumps(td))
    assert again.is_memmap()
    again.set_("s", "new")
    again.set_("st", ["p", "q"])
    assert objects(TensorDict.load_memmap(tmp_path)) == objects(again)


def moved(rank: int, size: int, path: Path) -> None:
    row = TensorDict(a=torch.ones(()), s=f"from {rank}", st=f"row {rank}", n={"s": "q", "b": torch.ones(())})
    td = saved(path / str(rank))

    def check(*expected: Any) -> None:
        assert objects(td) == expected == objects(TensorDict.load_memmap(path / str(rank)))

    (td if rank == 0 else row).gather_and_stack(0)
    if rank == 0:
        check(["from 1", "from 2"], ["q", "q"], ["row 1", "row 2"], [1.0, 1.0])
    td = saved(path / f"b{rank}")
    new = full(TensorDict)
    (new if rank == 0 else td).broadcast(0, inplace=True)
    if rank:
        assert objects(td) == objects(new) == objects(TensorDict.load_memmap(path / f"b{rank}"))
    td = saved(path / f"r{rank}")
    if rank == 0:
        new.send(1)
    elif rank == 1:
        td.recv(0)
        assert objects(td) == objects(new) == objects(TensorDict.load_memmap(path / f"r{rank}"))


def test_what_arrives_reaches_the_directory(tmp_path: Path) -> None:
    run(moved, 3, tmp_path)
