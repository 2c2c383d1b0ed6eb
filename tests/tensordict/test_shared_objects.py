"""Objects that are no arrays, which processes share with `share_non_tensor=True`."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

from corral import NonTensorData, NonTensorStack, TensorDict, lazy_stack
from corral.wire import codec

processes = multiprocessing.get_context("spawn")
WAIT = 100
ROOT = Path(__file__).parents[2]


def source(kind: Any = TensorDict) -> Any:
    stack = NonTensorStack if kind is TensorDict else tensordict.NonTensorStack
    return kind({"a": torch.zeros(2), "s": "old", "n": {"s": "inner"}, "st": stack("x", "y")}, [2])


def objects(td: Any) -> tuple[Any, ...]:
    return td["s"], td["n", "s"], td.get("st").tolist(), td["a"].tolist()


def _answer(td: Any, asked: Any, found: Any) -> None:
    while asked.get(timeout=WAIT) != "end":
        found.put(objects(td))
        td.update_({"s": "from the child"})
        found.put("written")


def _theirs(path: str) -> None:
    """Print what a child of tensordict's reads first: its shared objects cannot be sent to spawned processes."""
    td = source(tensordict.TensorDict).memmap_(path, share_non_tensor=True)
    print(rounds(td, multiprocessing.get_context("fork"))[0])


def rounds(td: Any, context: Any) -> list[Any]:
    """Return what a child reads after each write here, and what is here after each of its own writes."""
    asked, found = context.Queue(), context.Queue()
    child = context.Process(target=_answer, args=(td, asked, found))
    child.start()
    seen = []
    for write in (
        lambda: td.update_({"s": "new"}),
        lambda: td.update_({"n": {"s": "a text that is longer than the one before it"}}),
        lambda: td["a"].fill_(3),
    ):
        write()
        asked.put("go")
        seen.append(found.get(timeout=WAIT))
        assert found.get(timeout=WAIT) == "written"
        seen.append(objects(td))
    asked.put("end")
    child.join(WAIT)
    assert child.exitcode == 0
    return seen


def test_processes_see_what_others_write(tmp_path: Path) -> None:
    mine = rounds(source().memmap_(tmp_path / "mine", share_non_tensor=True), processes)
    program = f"from tests.tensordict.test_shared_objects import _theirs; _theirs({str(tmp_path / 'theirs')!r})"
    command = [sys.executable, "-W", "ignore", "-c", program]
    theirs = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT, cwd=ROOT)
    assert repr(mine[0]) == theirs.stdout.strip().splitlines()[-1]
    text = "a text that is longer than the one before it"
    assert mine == [  # tensordict shares the first write alone
        ("new", "inner", ["x", "y"], [0.0, 0.0]),
        ("from the child", "inner", ["x", "y"], [0.0, 0.0]),
        ("from the child", text, ["x", "y"], [0.0, 0.0]),
        ("from the child", text, ["x", "y"], [0.0, 0.0]),
        ("from the child", text, ["x", "y"], [3.0, 3.0]),
        ("from the child", text, ["x", "y"], [3.0, 3.0]),
    ]


def test_a_copy_in_a_pickle_reads_anew(tmp_path: Path) -> None:
    td = source().memmap(tmp_path, share_non_tensor=True)
    other = pickle.loads(pickle.dumps(td))
    td.set_("s", {1, 2})  # which JSON cannot hold
    td.set_("st", NonTensorStack("p", {3}))
    assert objects(other)[:3] == ({1, 2}, "inner", ["p", {3}])
    other.set_at_("s", "row", 0)  # one for each row from now on
    assert (other["s"], td["s"]) == (["row", {1, 2}], ["row", {1, 2}])
    assert TensorDict.load_memmap(tmp_path, allow_pickle=True)["s"] == ["row", {1, 2}]
    assert tensordict.TensorDict.load_memmap(tmp_path, allow_pickle=True).get("s").tolist() == ["row", {1, 2}]


def test_many_writes_in_a_row_are_all_seen(tmp_path: Path) -> None:
    td = source().memmap(tmp_path, share_non_tensor=True)
    other = pickle.loads(pickle.dumps(td))
    for i in range(100, 200):
        td.set_("s", str(i))
        td.set_("s", str(i + 500))
        assert other["s"] == str(i + 500)


def test_a_reader_gets_the_old_objects_or_the_new(tmp_path: Path) -> None:
    td = source().memmap(tmp_path, share_non_tensor=True)
    other = pickle.loads(pickle.dumps(td))
    values = ["text", {1}, "longer text", {2, 3}]

    def write() -> None:
        for i in range(200):
            td.set_("s", values[i % 4])

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        assert other["s"] in ["old", *values]
    writer.join()
    assert other["s"] == values[3]


def test_parts_and_copies_are_what_was_read(tmp_path: Path) -> None:
    td = source().memmap(tmp_path, share_non_tensor=True)
    copies = [td.clone(), td.copy(), td[0], codec.decode(*codec.encode(td)), td.to_tensordict()]
    td.set_("s", "new")
    assert [copy["s"] for copy in copies] == ["old"] * len(copies)
    assert type(copies[0].get("s")) is NonTensorData
    assert repr(td.get("s")) == "NonTensorData(data=new, batch_size=[2], device=cpu)"
    shutil.rmtree(tmp_path)
    assert td["s"] == "new"


def test_kinds_of_tensordicts(tmp_path: Path) -> None:
    lazy = lazy_stack([source(), source()]).memmap(tmp_path / "lazy", share_non_tensor=True)
    other = pickle.loads(pickle.dumps(lazy))
    lazy.tensordicts[1].set_("s", "new")
    assert other.tensordicts[1]["s"] == "new"
    atomic = source().memmap(tmp_path / "atomic", share_non_tensor=True, atomic=True)
    other = pickle.loads(pickle.dumps(atomic))
    atomic.set_("s", "new")
    assert other["s"] == "new"
    made = source().memmap_like(tmp_path / "like", share_non_tensor=True)
    other = pickle.loads(pickle.dumps(made))
    made.set_("s", "new")
    assert other["s"] == "new"


def test_not_shared_by_default(tmp_path: Path) -> None:
    td = source().memmap(tmp_path)
    other = pickle.loads(pickle.dumps(td))
    td.set_("s", "new")
    assert (td["s"], other["s"]) == ("new", "old")


def test_a_directory_is_needed_for_objects_alone() -> None:
    assert TensorDict(a=np.zeros(2)).memmap(share_non_tensor=True).is_memmap()
    for td in (source(), TensorDict(n=source()), lazy_stack([source()])):
        with pytest.raises(ValueError, match=r"give one as prefix"):
            td.memmap(share_non_tensor=True)
