"""Tensorclasses in files and pickles, over HDF5 files, and those that tensordict has saved."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import corral
from corral import PersistentTensorDict, TensorClass, TensorDict
from tests.tensordict.comparing import assert_same, tensordict
from tests.tensordict.tensorclasses import Inner, Outer, TheirOuter, outer

THEIR_NAMES = {"Outer": "TheirOuter", "Inner": "TheirInner"}


def renamed(folder: Path, names: dict[str, str]) -> None:
    """Give the classes that a directory names other names, as if each library had defined its own under one."""
    for file in folder.rglob("meta.json"):
        facts = json.loads(file.read_bytes())
        kind = facts.get("_type", "")
        for old, new in names.items():
            if kind.endswith(f"tensorclasses.{old}'>"):
                facts["_type"] = kind.replace(f".{old}'", f".{new}'")
        file.write_text(json.dumps(facts))


def test_memmap(tmp_path: Path) -> None:
    tc = outer((3,))
    saved = tc.memmap(tmp_path / "a")
    assert type(saved) is Outer
    assert type(saved.inner) is Inner
    assert saved.is_memmap()
    assert saved.saved_path == tmp_path / "a"
    for loaded in (TensorDict.load_memmap(tmp_path / "a"), Outer.load_memmap(tmp_path / "a")):
        assert type(loaded) is Outer
        assert type(loaded.inner) is Inner
        assert type(loaded.more) is TensorDict
        assert (loaded == tc).all()
    saved.x[0] = 7
    assert loaded.x[0].tolist() == [7, 7, 7]
    again = saved.memmap_refresh_()
    assert again is saved
    td = TensorDict(a=tc, batch_size=[3]).memmap(tmp_path / "b")
    assert type(td["a"]) is Outer
    assert type(TensorDict.load_memmap(tmp_path / "b")["a"].inner) is Inner
    atomic = tc.memmap(tmp_path / "c", atomic=True)
    assert type(atomic.inner) is Inner
    assert tc.memmap_() is tc
    assert type(tc.memmap_like(tmp_path / "d")) is Outer


def test_memmap_is_read_by_tensordict(tmp_path: Path) -> None:
    tc = outer((3,))
    tc.memmap(tmp_path)
    renamed(tmp_path, THEIR_NAMES)
    theirs = tensordict.TensorDict.load_memmap(tmp_path)
    assert type(theirs) is TheirOuter
    assert type(theirs.inner).__name__ == "TheirInner"
    assert_same(tc, theirs.cpu().clone().to_tensordict().clear_device_())


def test_memmap_of_tensordict_is_read(tmp_path: Path) -> None:
    theirs = outer((3,), theirs=True)
    theirs.memmap(tmp_path)
    unknown = TensorDict.load_memmap(tmp_path)  # its class is none of corral's
    assert type(unknown) is TensorDict
    assert type(Outer.load_memmap(tmp_path)) is Outer
    renamed(tmp_path, {new: old for old, new in THEIR_NAMES.items()})
    mine = TensorDict.load_memmap(tmp_path)
    assert type(mine) is Outer
    assert type(mine.inner) is Inner
    assert_same(mine.clone().clear_device_(), theirs)


def test_a_class_of_a_name_that_has_other_fields(tmp_path: Path) -> None:
    outer((2,), full=False).memmap(tmp_path)
    renamed(tmp_path, {"Outer": "Inner"})
    loaded = TensorDict.load_memmap(tmp_path)
    assert type(loaded) is TensorDict
    assert set(loaded.keys()) == {"x", "y"}
    with pytest.raises(ValueError, match="must correspond to the class attributes"):
        Inner.load_memmap(tmp_path)


def test_one_file(tmp_path: Path) -> None:
    tc = outer((3,), make=np.asarray)
    tc.consolidate(tmp_path / "file")
    loaded = Outer.from_consolidated(tmp_path / "file")
    assert type(loaded) is Outer
    assert type(loaded.inner) is Inner
    assert (loaded == tc).all()


def test_hdf5(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    tc = outer((3,), make=np.asarray)
    tc.to_h5(tmp_path / "file").close()
    stored = Outer.from_h5(tmp_path / "file", mode="r+")
    assert isinstance(stored, Outer)
    assert isinstance(stored, PersistentTensorDict)
    assert stored.double.tolist() == tc.double.tolist()
    stored.y = np.array([5.0, 6.0, 7.0], "float32")
    row = stored[1]
    assert (row.y, row.extra) == (6, None)
    with pytest.raises(AttributeError, match="no such field"):
        stored.other = 3
    assert type(stored.to_tensordict()) is TensorDict
    assert type(stored.contiguous()) is Outer
    stored.close()


def test_pickles() -> None:
    tc = outer((2,), make=np.asarray)
    lazy = corral.lazy_stack([tc, tc])
    for each in (tc, tc.lock_(), lazy, TensorDict(a=tc, batch_size=[2])):
        copy: Any = pickle.loads(pickle.dumps(each))
        assert type(copy) is type(each)
        assert copy.is_locked == each.is_locked
        assert (copy == each).all()


class Alone(TensorClass):
    a: Any


def test_shared_memory() -> None:
    alone = Alone(a=np.arange(3), batch_size=[3])
    assert alone.share_() is alone
    assert alone.is_shared()
    assert type(alone.consolidate()) is Alone


def test_of_the_other_library() -> None:
    theirs = outer((2,), theirs=True)
    mine = Outer.from_tensordict(theirs)
    assert type(mine) is Outer
    assert type(mine.inner) is Inner
    assert_same(mine, theirs)
    assert mine.x.data_ptr() == theirs.x.data_ptr()
    assert type(TensorDict(theirs.to_tensordict())["inner"]) is TensorDict
    assert torch.equal(TensorDict({"a": theirs}, batch_size=[2])["a", "x"], theirs.x)


def test_a_tensordict_of_the_other_library_keeps_its_batch_sizes() -> None:
    nested = tensordict.TensorDict(c=torch.zeros(3, 2, 1), batch_size=[3, 2])
    theirs = tensordict.TensorDict(a=torch.zeros(3), b=nested, batch_size=[3])
    mine = TensorDict(theirs)
    assert mine.batch_size == (3,)
    assert mine["b"].batch_size == (3, 2)
    assert_same(mine, theirs)
    assert TensorDict(d=theirs, batch_size=[3])["d", "b"].batch_size == (3, 2)
