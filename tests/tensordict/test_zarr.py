"""TensorDicts in zarr stores: beside tensordict's, in the same stores."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corral import NonTensorStack, PersistentTensorDict, TensorDict
from tests.tensordict.test_persistent import calls
from tests.tensordict.test_persistent import source as files_source
from tests.tensordict.trees import batch_sizes, forms, plain, sources, tree_map

zarr = pytest.importorskip("zarr")


@settings(deadline=None, max_examples=10)
@given(st.data())
def test_each_library_reads_what_the_other_wrote(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    size = data.draw(batch_sizes())
    folder = tmp_path_factory.mktemp("zarr")
    for i, td in enumerate(forms(data.draw(sources(size)), size)):
        path = folder / str(i)
        assert plain(td.to_zarr(path)) == plain(td)
        mine, theirs = TensorDict.from_zarr(path), tensordict.TensorDict.from_zarr(path)
        assert mine.batch_size == tuple(theirs.batch_size) == size
        assert plain(mine) == plain(theirs) == plain(td)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(calls().keys() - {"delete missing"}))  # where tensordict is silent
def test_same_calls(tmp_path: Path, name: str) -> None:
    outcomes = []
    for kind in (tensordict.TensorDict, TensorDict):
        path = tmp_path / kind.__module__
        td = kind(tree_map(torch.as_tensor, files_source()), [3]).to_zarr(str(path))
        try:
            result: Any = plain(calls()[name](td))
        except Exception as error:
            known = isinstance(error, (RuntimeError, ValueError, KeyError, IndexError))
            result = "an error" if known else f"an error, {error!r}"
        td.close()
        # Read with the gathered metadata, which have to be those of the entries.
        outcomes.append((result, _content(zarr.open_group(path, mode="r"))))
    assert repr(outcomes[1]) == repr(outcomes[0])


def _content(group: Any) -> Any:
    return {
        key: _content(node) if isinstance(node, zarr.Group) else (str(node.dtype), node.shape, node[...].tolist())
        for key, node in sorted(group.members())
    }


def _with_objects(kind: Any, stack: Any, convert: Any) -> Any:
    td = kind({"a": convert(np.arange(3)), "n": {"c": convert(np.ones((3, 2)))}}, [3], names=["time"])
    td["n"].batch_size = [3, 2]
    td["note"] = "text"
    td.set_non_tensor("options", {"rate": 0.1, "sizes": [1, 2]})
    td.set_non_tensor("pair", (1, 2))
    td["words"] = stack("x", "longer", "")
    td["mixed"] = stack(1, None, "z")
    return td


def _objects(td: Any) -> Any:
    stacks = [td.get(key).tolist() for key in ("words", "mixed")]
    sizes = tuple(td.batch_size), tuple(td["n"].batch_size)
    return td["note"], td["options"], td["pair"], *stacks, td.names, *sizes


def test_objects_names_and_sizes(tmp_path: Path) -> None:
    theirs = _with_objects(tensordict.TensorDict, tensordict.NonTensorStack, torch.as_tensor)
    mine = _with_objects(TensorDict, NonTensorStack, np.asarray)
    theirs.to_zarr(tmp_path / "theirs")
    mine.to_zarr(tmp_path / "mine")
    expected = _objects(theirs)
    for name in ("theirs", "mine"):
        for kind in (tensordict.TensorDict, TensorDict):
            opened = kind.from_zarr(tmp_path / name, allow_pickle=True)
            assert _objects(opened) == expected
    read = TensorDict.from_zarr(tmp_path / "theirs", allow_pickle=True)
    assert read[1]["words"] == "longer"
    assert read[1:].get("mixed").tolist() == [None, "z"]
    assert read.to_tensordict()["pair"] == (1, 2)


def test_pickled_values_need_trust(tmp_path: Path) -> None:
    td = TensorDict({"a": np.zeros(2)})
    td["odd"] = {1, 2}
    assert td.to_zarr(tmp_path / "x")["odd"] == {1, 2}
    with pytest.warns(FutureWarning, match="allow_pickle"):
        assert TensorDict.from_zarr(tmp_path / "x")["odd"] == {1, 2}
    with pytest.raises(RuntimeError, match="allow_pickle=True"):
        TensorDict.from_zarr(tmp_path / "x", allow_pickle=False)["odd"]
    with pytest.raises(TypeError, match="allow_pickle"):
        TensorDict.from_zarr(tmp_path / "x", allow_pickle=1)


def test_writes_in_place(tmp_path: Path) -> None:
    TensorDict(files_source(), batch_size=[3]).to_zarr(tmp_path / "x", chunks=(2,))
    td = TensorDict.from_zarr(tmp_path / "x", mode="r+")
    assert td.file["a"].chunks == (2, 4)
    td[1] = {"a": np.full(4, 9)}
    td[[2, 0]]["b"].set_("c", np.array([5, 6]))
    td["b", "new"] = np.ones(3)
    td.rename_key_("b", "z")
    theirs = tensordict.TensorDict.from_zarr(tmp_path / "x")
    assert theirs["a"][1].tolist() == [9] * 4
    assert theirs["z", "c"].tolist() == [6.0, 1.0, 5.0]
    assert theirs["z", "new"].tolist() == [1.0] * 3
    again = pickle.loads(pickle.dumps(td))
    assert plain(again) == plain(td)
    td.close()
    assert "closed" in repr(td)


def test_other_programs_stores(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x", mode="w")
    group["a"] = np.zeros((3, 2))
    group.create_group("n")["b"] = np.zeros((3, 2, 4))
    for kind in (tensordict.TensorDict, TensorDict):
        opened = kind.from_zarr(tmp_path / "x")
        assert (tuple(opened.batch_size), tuple(opened["n"].batch_size)) == ((3, 2), (3, 2, 4))
        assert tuple(kind.from_zarr(tmp_path / "x", auto_batch_size=True, batch_dims=1).batch_size) == (3,)
        assert tuple(kind.from_zarr(tmp_path / "x", batch_size=[3]).batch_size) == (3,)
        with pytest.raises(ValueError, match="size mismatch"):
            kind.from_zarr(tmp_path / "x", batch_size=[4])
        with pytest.raises(TypeError):
            kind.from_zarr(tmp_path / "x", batch_size=[3], auto_batch_size=True)


def test_archives(tmp_path: Path) -> None:
    td = TensorDict(files_source(), batch_size=[3])
    td.to_zarr(zarr.storage.ZipStore(tmp_path / "x.zip", mode="w")).close()
    for kind in (tensordict.TensorDict, TensorDict):
        opened = kind.from_zarr(zarr.storage.ZipStore(tmp_path / "x.zip", mode="r"))
        assert plain(opened) == plain(td)
        opened.close()


def test_stacks_of_objects_in_hdf5(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    stacks = {"words": ["a", "longer", ""], "counts": [1, 2, 3]}
    for name, kind, stack in (
        ("theirs", tensordict.TensorDict, tensordict.NonTensorStack),
        ("mine", TensorDict, NonTensorStack),
    ):
        td = kind({key: stack(*values) for key, values in stacks.items()}, [3])
        td.to_h5(tmp_path / name).close()
        for reader in (tensordict.PersistentTensorDict, PersistentTensorDict):
            opened = reader(filename=tmp_path / name, batch_size=[3])
            assert {key: opened.get(key).tolist() for key in stacks} == stacks
            opened.close()
        td["mixed"] = stack(1, "a", None)
        with pytest.raises(TypeError):
            td.to_h5(tmp_path / "mixed")


def test_zarr_is_imported_when_it_is_used() -> None:
    program = (
        "import sys, corral\n"
        "corral.TensorDict(a=[1]), corral.PersistentTensorDict\n"
        "assert 'zarr' not in sys.modules\n"
        "sys.modules['zarr'] = None\n"
        "try:\n"
        "    corral.TensorDict.from_zarr('x.zarr')\n"
        "except ModuleNotFoundError as error:\n"
        "    assert 'corral[zarr]' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
