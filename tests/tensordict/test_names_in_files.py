"""Names of dimensions in HDF5 files and zarr stores: written, read, and what they are for parts of the batch."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import corral
from corral import PersistentTensorDict, TensorDict
from tests.tensordict.trees import plain

h5py = pytest.importorskip("h5py")
pytest.importorskip("zarr")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict

both = pytest.mark.parametrize("backend", ["h5", "zarr"])


def source(library: Any) -> Any:
    nested = library.TensorDict({"c": torch.arange(12.0).reshape(2, 3, 2)}, [2, 3, 2], names=[None, None, "z"])
    return library.TensorDict({"a": torch.zeros(2, 3, 4), "n": nested}, batch_size=[2, 3], names=["x", None])


def write(library: Any, backend: str, path: Path) -> Any:
    td = source(library)
    return td.to_h5(path) if backend == "h5" else td.to_zarr(path)


def read(library: Any, backend: str, path: Path, **options: Any) -> Any:
    kind = library.TensorDict
    return kind.from_h5(path, **options) if backend == "h5" else kind.from_zarr(path, **options)


CALLS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda td: td,
    "row": lambda td: td[0],
    "rows": lambda td: td[:1],
    "rows by number": lambda td: td[torch.tensor([0, 0])],
    "column": lambda td: td[:, 0],
    "nested column": lambda td: td.get("n")[:, 0],
    "nested in a column": lambda td: td[:, 0].get("n"),
    "in memory": lambda td: td.to_tensordict(),
    "nested in memory": lambda td: td.to_tensordict().get("n"),
    "shallow copy": lambda td: td.clone(recurse=False),
    "a nested one that is set": lambda td: td.set(
        "q", type(td.to_tensordict())({"e": torch.zeros(2, 3, 1)}, [2, 3, 1], names=["x", None, "k"])
    ).get("q"),
}


@both
@pytest.mark.parametrize("name", CALLS)
def test_names_of_parts(backend: str, name: str, tmp_path: Path) -> None:
    found = [
        CALLS[name](write(library, backend, tmp_path / library.__name__)).names for library in (corral, tensordict)
    ]
    assert found[0] == found[1]


@both
def test_names_are_written_and_read(backend: str, tmp_path: Path) -> None:
    write(corral, backend, tmp_path / "x").close()
    opened = read(corral, backend, tmp_path / "x", mode="r+")
    assert (opened.names, opened.get("n").names) == (["x", None], ["x", None, "z"])
    opened.names = ["u", "v"]
    opened.close()
    opened = read(corral, backend, tmp_path / "x")
    assert (opened.names, opened.get("n").names) == (["u", "v"], ["u", "v", "z"])
    opened.names = None  # here, and not in a file that is only read
    assert opened.get("n").names == [None, None, "z"]
    opened.close()
    opened = read(corral, backend, tmp_path / "x", mode="r+")
    assert opened.names == ["u", "v"]
    opened.names = None
    opened.close()
    assert read(corral, backend, tmp_path / "x").names == [None, None]


def test_names_for_other_batch_sizes(tmp_path: Path) -> None:
    write(corral, "h5", tmp_path / "x").close()
    for size, names in (([2], ["x"]), ([2, 3], ["x", None]), ([], [])):
        opened = PersistentTensorDict(filename=tmp_path / "x", batch_size=size)
        assert opened.names == names
        opened.close()
    opened = read(corral, "h5", tmp_path / "x", mode="r+")
    opened.batch_size = [2]
    assert opened.names == ["x"]
    assert pickle.loads(pickle.dumps(read(corral, "h5", tmp_path / "x"))).names == ["x", None]


def test_tensordict_reads_files_with_names(tmp_path: Path) -> None:
    write(corral, "h5", tmp_path / "x").close()
    theirs = tensordict.TensorDict.from_h5(tmp_path / "x")
    assert plain(theirs.to_tensordict()) == plain(TensorDict.from_h5(tmp_path / "x").to_tensordict())
    theirs.close()


def test_attributes_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x", "w") as file:
        file["a"] = np.zeros((2, 3))
        file.attrs["corral_names"] = "not JSON"
        file.attrs["other"] = 7
    opened = TensorDict.from_h5(tmp_path / "x", mode="r+")
    assert opened.names == [None, None]
    opened.names = ["x", "y"]
    opened.close()
    with h5py.File(tmp_path / "x") as file:
        assert dict(file.attrs) == {"corral_names": '["x", "y"]', "other": 7}


def test_no_dataset_is_read_for_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(corral, "h5", tmp_path / "x").close()
    opened = read(corral, "h5", tmp_path / "x", mode="r+")

    def refuse(*ignored: Any) -> Any:
        raise AssertionError("a dataset was read")

    monkeypatch.setattr(h5py.Dataset, "__getitem__", refuse)
    opened.names = ["u", "v"]
    assert opened[0].get("n").names == ["v", "z"]
