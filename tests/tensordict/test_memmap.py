"""TensorDicts in files: each library reads what the other has written, and nothing that is not complete is believed."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import signal
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

from corral import MemoryMappedTensor, TensorDict, lazy_stack
from tests.tensordict.trees import batch_sizes, forms, plain, same, sources

MAKERS = {"numpy": np.asarray, "torch": torch.from_numpy}
fork = multiprocessing.get_context("spawn")


def example(make: Any = np.asarray) -> TensorDict:
    return TensorDict(
        a=make(np.arange(6).reshape(3, 2)),
        b={"c": make(np.arange(3, dtype="float32")), "empty": make(np.ones((3, 0)))},
        batch_size=[3],
    )


@pytest.fixture(params=["numpy", "torch"])
def make(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_each_library_reads_what_the_other_wrote(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    size = data.draw(batch_sizes())
    trio = forms(data.draw(sources(size)), size)
    for i, td in enumerate(trio):
        path = tmp_path_factory.mktemp("saved")
        saved = td.memmap(path)
        assert plain(saved) == plain(td)
        assert saved.is_memmap()
        assert saved.is_locked
        for reader in (TensorDict, tensordict.TensorDict):
            found = reader.load_memmap(path)
            assert plain(found) == plain(trio[0])
            assert not found.is_locked
            assert not found.is_memmap()
            assert str(found.device) == "cpu"
        leaves = TensorDict.load_memmap(path).values(True, True)
        assert all(isinstance(leaf, np.ndarray if i == 2 else torch.Tensor) for leaf in leaves)
        assert all(isinstance(leaf, np.ndarray) for leaf in TensorDict.load(path, library="numpy").values(True, True))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_consolidated_files(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    size = data.draw(batch_sizes())
    trio = forms(data.draw(sources(size)), size)
    path = tmp_path_factory.mktemp("one") / "file"
    for td in trio[1:]:
        made = td.consolidate(path)
        assert plain(made) == plain(td)
        assert made.is_locked
        assert plain(TensorDict.from_consolidated(path)) == plain(td)
        # tensordict views arrays of no element at any place, and cannot where they begin at an odd one
        assert plain(tensordict.TensorDict.from_consolidated(path)) == plain(td)


def test_corral_reads_a_consolidated_file_of_tensordict(tmp_path: Path) -> None:
    source = {"a": torch.arange(5, dtype=torch.uint8), "z": torch.arange(3) * 1j, "b": {"c": torch.ones(2, 3).half()}}
    tensordict.TensorDict(source).consolidate(tmp_path / "file")
    found = TensorDict.from_consolidated(tmp_path / "file")
    assert plain(found) == plain(TensorDict(source))
    found["a"][0] = 9
    assert TensorDict.from_consolidated(tmp_path / "file")["a"][0] == 0, "the map is this process's alone"


def test_a_truncated_consolidated_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    example().consolidate(path)
    whole = path.read_bytes()
    for length in (0, 3, 8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="no file that consolidate has written to its end"):
            TensorDict.from_consolidated(path)


KEYS = ["a/b", "..", ".", "", "a b", "%41", "x:y", "shape", "device", "_type", "_entries", "é"]


def test_keys_of_every_kind(tmp_path: Path, make: Any) -> None:
    td = TensorDict({key: make(np.arange(2) + i) for i, key in enumerate(KEYS)}, batch_size=[2])
    td["nested", "shape"] = make(np.arange(2))
    td.memmap(tmp_path / "mine")
    assert plain(TensorDict.load(tmp_path / "mine")) == plain(td)
    assert sorted(os.listdir(tmp_path)) == ["mine"]
    theirs = tensordict.TensorDict.load(tmp_path / "mine")
    for key in set(KEYS) - {"shape", "device", "_type", "_entries"}:  # which tensordict loses by itself
        assert theirs[key].tolist() == td[key].tolist()


def test_writes_reach_the_file_and_other_processes(tmp_path: Path, make: Any) -> None:
    saved = example(make).memmap(tmp_path)
    with fork.Pool(2) as pool:
        pool.map(_write_row, [(str(tmp_path), row) for row in range(3)])
    assert saved["a"].tolist() == [[0, -1], [-10, -1], [-20, -1]]
    assert TensorDict.load(tmp_path)["a"].tolist() == saved["a"].tolist()


def _write_row(task: tuple[str, int]) -> None:
    path, row = task
    td = TensorDict.load(path)
    td["a"][row, 0] = -10 * row
    td["a"][row, 1] = -1


def test_a_saved_tensordict_is_pickled_by_its_files(tmp_path: Path, make: Any) -> None:
    saved = example(make).memmap(tmp_path)
    for part in (saved, saved[1:], saved[::2], saved[:, None]):
        copy = pickle.loads(pickle.dumps(part))
        assert plain(copy) == plain(part)
        assert copy.is_locked == part.is_locked
    copy = pickle.loads(pickle.dumps(saved[1:]))
    copy["a"][0, 0] = 77
    assert saved["a"][1, 0] == 77
    with fork.Pool(1) as pool:
        pool.apply(_negate, (saved,))
    assert saved["b", "c"].tolist() == [0, -1, -2]
    private = TensorDict.load(tmp_path, mode="r")
    private["a"][0, 0] = 55
    assert pickle.loads(pickle.dumps(private))["a"][0, 0] == 55


def _negate(td: Any) -> None:
    td["b", "c"][...] = -td["b", "c"]


def test_modes(tmp_path: Path, make: Any) -> None:
    example(make).memmap(tmp_path)
    private = TensorDict.load(tmp_path, mode="r")
    private["a"][...] = 5
    assert TensorDict.load(tmp_path, mode="r+")["a"][0, 0] == 0
    with pytest.raises(ValueError, match="mode must be"):
        TensorDict.load(tmp_path, mode="w")


def test_a_directory_that_is_not_complete_is_not_believed(tmp_path: Path, make: Any) -> None:
    whole = tmp_path / "whole"
    example(make).memmap(whole)
    for file, said in (
        ("meta.json", "not to its end"),
        ("b/meta.json", "not to its end"),
        ("a.memmap", "not complete"),
        ("b/c.memmap", "not complete"),
    ):
        part = tmp_path / "part"
        shutil.copytree(whole, part)
        (part / file).unlink()
        with pytest.raises((FileNotFoundError, ValueError), match=said):
            TensorDict.load(part)
        shutil.rmtree(part)
    with open(whole / "a.memmap", "r+b") as file_:
        file_.truncate(47)
    with pytest.raises(ValueError, match="has 47 bytes"):
        TensorDict.load(whole)
    assert (whole / "a.memmap").stat().st_size == 47, "reading must not lengthen a file"


def test_a_process_that_dies_while_it_writes_leaves_nothing_to_believe(tmp_path: Path) -> None:
    example().memmap(tmp_path)
    child = fork.Process(target=_die_while_writing, args=(str(tmp_path),))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    with pytest.raises(FileNotFoundError, match="not to its end"):
        TensorDict.load(tmp_path)
    example().memmap(tmp_path)
    assert plain(TensorDict.load(tmp_path)) == plain(example())


def _die_while_writing(path: str) -> None:
    import corral.tensordict.saving as saving

    saving.write_file = lambda path, content: os.kill(os.getpid(), signal.SIGKILL)
    (example() + 1).memmap(path)


@pytest.mark.parametrize(
    "facts",
    [
        [],
        "text",
        {"a": {"shape": [-1], "dtype": "torch.int64"}, "_class": "tensordict:TensorDict"},
        {"a": {"shape": "no", "dtype": "torch.int64"}, "_class": "tensordict:TensorDict"},
        {"a": {"shape": [1 << 70], "dtype": "torch.int64"}, "_class": "tensordict:TensorDict"},
        {"a": {"shape": [2], "dtype": "object"}, "_class": "tensordict:TensorDict"},
        {"a": {"shape": [2], "dtype": "torch.load"}, "_class": "tensordict:TensorDict"},
        {"a": {"shape": [2], "dtype": "__class__"}, "_class": "tensordict:TensorDict"},
        {"a": {"shape": [2], "dtype": "int64"}, "shape": [3], "_class": "tensordict:TensorDict"},
        {"a": {"type": "TensorDict"}, "_class": "tensordict:TensorDict"},
        {"_class": "os:system"},
    ],
)
def test_hostile_descriptions_are_errors(tmp_path: Path, facts: Any) -> None:
    (tmp_path / "meta.json").write_text(json.dumps(facts))
    (tmp_path / "a.memmap").write_bytes(bytes(16))
    for library in ("numpy", "torch"):
        with pytest.raises((ValueError, TypeError, FileNotFoundError)):
            TensorDict.load(tmp_path, library=library)


def test_a_key_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "secret.memmap").write_bytes(bytes(8))
    inside = tmp_path / "inside"
    inside.mkdir()
    entry = {"shape": [1], "dtype": "torch.int64"}
    (inside / "meta.json").write_text(json.dumps({"../secret": entry, "_class": "tensordict:TensorDict"}))
    for robust in (True, False):
        with pytest.raises(ValueError, match=r"not complete|no name of a file"):
            TensorDict.load(inside, robust_key=robust)
    target = tmp_path / "target"
    target.write_bytes(b"untouched")
    (inside / "a.memmap").symlink_to(target)
    with pytest.raises(RuntimeError, match="symbolic link"):
        TensorDict(a=np.arange(2)).memmap(inside)
    assert target.read_bytes() == b"untouched"


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, ("trap",)


def test_pickled_data_is_not_unpickled_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    td = tensordict.TensorDict(x=tensordict.NonTensorData(Trap()))
    td.memmap(tmp_path / "saved")
    with pytest.raises(RuntimeError, match="allow_pickle=True"):
        TensorDict.load(tmp_path / "saved")
    assert not (tmp_path / "trap").exists()


def functions(path: Path) -> dict[str, Any]:
    """Calls whose outcome must be tensordict's."""

    def added(td: Any) -> Any:
        td = td.memmap(path)
        td.make_memmap(("b", "new", "x"), (3, 4))
        td.make_memmap_from_tensor("t", td["a"] + 1)
        return td, type(td).load_memmap(path), td["b", "new"].is_memmap(), td["b"].saved_path == path / "b"

    def refreshed(td: Any) -> Any:
        saved = td.memmap(path)
        other = td.clone()
        other["more"] = td["a"]
        del other["b"]
        other["a"] = other["a"] * 2
        other.memmap(path)
        saved.memmap_refresh_()
        return saved, saved.is_memmap(), saved.is_locked

    def in_place(td: Any) -> Any:
        result = td.memmap_(path)
        td["a"][0] = 7
        return result is td, td.is_memmap(), td.is_locked, type(td).load_memmap(path)

    def replaced(td: Any) -> Any:
        td.memmap(path)
        other = td.clone()
        nested = other["b"]
        other["gone"] = td["a"]
        other["a"] = other["a"] * 2
        return other.load_memmap_(path) is other, other["b"] is nested, other

    return {
        "added": added,
        "refreshed": refreshed,
        "in_place": in_place,
        "replaced": replaced,
        "like": lambda td: (td.memmap_like(path), type(td).load_memmap(path)),
        "like in memory": lambda td: (td.memmap_like()["a"], td.memmap_like().is_memmap()),
        "in memory": lambda td: (td.select("a").memmap(), td.select("a").memmap().saved_path),
        "unlocked": lambda td: td.memmap(path).unlock_().is_memmap(),
        "clone": lambda td: (
            td.memmap(path).clone().is_memmap(),
            td.memmap(path, copy_existing=True).copy().is_memmap(),
        ),
        "no path": lambda td: td.saved_path,
        "make unsaved": lambda td: td.make_memmap("x", (3,)),
        "make existing": lambda td: td.memmap(path).make_memmap("a", (3,)),
        "make of another batch": lambda td: td.memmap(path).make_memmap("x", (4,)),
        "refresh unsaved": lambda td: td.memmap_refresh_(),
        "nothing there": lambda td: type(td).load_memmap(path / "nothing"),
        "exists": lambda td: (td.memmap(path), td.memmap(path, existsok=False)),
        "elsewhere": lambda td: td.memmap(path).memmap(path / "else"),
        "copied": lambda td: td.memmap(path).memmap(path / "else", copy_existing=True),
        "again": lambda td: td.memmap(path).memmap(path).is_memmap(),
        "subpath": lambda td: (td.memmap(path), type(td).load_memmap(path, subpath="b"))[1],
        "no subpath": lambda td: (td.memmap(path), type(td).load_memmap(path, subpath="c"))[1],
        "threads": lambda td: (td.memmap(path, num_threads=3), type(td).load_memmap(path)),
        "early": lambda td: td.memmap(path, num_threads=3, return_early=True).result(),
        "atomic": lambda td: (td.memmap(path, atomic=True), type(td).load_memmap(path), os.listdir(path.parent)),
        "atomic in place": lambda td: (td.memmap_(path / "x", atomic=True), td.saved_path == path / "x"),
        "atomic without a path": lambda td: td.memmap(atomic=True),
        "legacy": lambda td: (td.memmap(path, robust_key=False), type(td).load_memmap(path, robust_key=False))[1],
        "write to locked": lambda td: td.memmap(path).set("q", td["a"]),
        "meta": lambda td: str((td.memmap(path), type(td).load_memmap(path, device="meta"))[1]["a"].device),
    }


@pytest.mark.parametrize("name", functions(Path()))
def test_same_calls(tmp_path: Path, name: str) -> None:
    source = {
        "a": np.arange(6).reshape(3, 2),
        "b": {"c": np.arange(3, dtype="float32"), "d": np.arange(12, dtype="uint8").reshape(3, 4)},
    }
    paths = iter(tmp_path / str(i) for i in range(3))

    def call(td: Any) -> Any:
        path = next(paths) / "td"
        return functions(path)[name](td)

    same(call, forms(source, (3,)))


def test_results_of_one_map_stay_arrays_of_numpy(tmp_path: Path) -> None:
    saved = example().memmap(tmp_path)
    leaf = saved["a"]
    assert isinstance(leaf, np.memmap)
    assert isinstance(leaf, MemoryMappedTensor)
    assert isinstance(leaf[1:], MemoryMappedTensor)
    assert leaf.filename == str(tmp_path / "a.memmap")
    for other in (saved.clone()["a"], leaf + 1, saved[[0, 2]]["a"], np.arange(3), 3, "text"):
        assert not isinstance(other, MemoryMappedTensor)
    assert type(saved.clone()["a"]) is np.ndarray


def test_arrays_in_files(tmp_path: Path) -> None:
    x = MemoryMappedTensor.from_tensor(torch.arange(4), filename=tmp_path / "x")
    assert isinstance(x, torch.Tensor)
    assert x.filename == str(tmp_path / "x")
    assert MemoryMappedTensor.from_tensor(x, filename=tmp_path / "x") is x
    with pytest.raises(RuntimeError, match="copy_existing"):
        MemoryMappedTensor.from_tensor(x, filename=tmp_path / "y")
    with pytest.raises(RuntimeError, match="existsok"):
        MemoryMappedTensor.from_tensor(np.arange(4), filename=tmp_path / "x")
    y = MemoryMappedTensor.from_filename(tmp_path / "x", "int64", (2, 2))
    y[1, 1] = 9
    assert x.tolist() == [0, 1, 2, 9]
    theirs = tensordict.MemoryMappedTensor.from_filename(str(tmp_path / "x"), torch.int64, (4,))
    assert theirs.tolist() == x.tolist()
    ones = MemoryMappedTensor.ones(2, 3, dtype="int16", filename=tmp_path / "ones")
    assert ones.tolist() == [[1] * 3] * 2
    assert MemoryMappedTensor.full((2,), 5, dtype=torch.uint8).tolist() == [5, 5]
    zeros = MemoryMappedTensor.zeros_like(np.ones((2, 0)), filename=tmp_path / "none")
    assert zeros.shape == (2, 0)
    assert not (tmp_path / "none").exists()
    with pytest.raises(RuntimeError, match="grad"):
        MemoryMappedTensor.from_tensor(torch.ones(2, requires_grad=True))


def test_extended_dtypes(tmp_path: Path) -> None:
    import ml_dtypes

    td = TensorDict(
        h=np.arange(3).astype(ml_dtypes.bfloat16), t=np.arange(3).astype("M8[ns]"), be=np.arange(3, dtype=">i2")
    )
    td.memmap(tmp_path)
    found = TensorDict.load(tmp_path)
    assert found["h"].dtype == ml_dtypes.bfloat16
    assert found["h"].tolist() == td["h"].tolist()
    assert found["t"].tolist() == td["t"].tolist()
    assert found["be"].tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="not a dtype"):
        TensorDict(x=np.zeros(2, [("a", "i4")])).memmap(tmp_path / "other")


def test_a_numpy_process_loads_without_torch(tmp_path: Path) -> None:
    tensordict.TensorDict(a=torch.arange(3), batch_size=[3]).memmap(tmp_path / "d")
    tensordict.TensorDict(a=torch.arange(3), batch_size=[3]).consolidate(tmp_path / "f")
    program = (
        "import sys, numpy as np\n"
        "from corral import TensorDict\n"
        f"one, other = {str(tmp_path / 'd')!r}, {str(tmp_path / 'f')!r}\n"
        "for td in (TensorDict.load(one), TensorDict.from_consolidated(other)):\n"
        "    assert type(td['a']) is np.memmap and td['a'].tolist() == [0, 1, 2]\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


@pytest.mark.parametrize("through", ["td", "link"])
@pytest.mark.parametrize("fill", [np.full, torch.full])
def test_leaves_of_the_directory_that_is_written_change_places(tmp_path: Path, fill: Any, through: str) -> None:
    path = tmp_path / "td"
    TensorDict({"a": fill((5,), 1.0), "b": fill((5,), 2.0), "n": {"c": fill((5,), 3.0)}}).memmap(path)
    (tmp_path / "link").symlink_to(path)
    old = TensorDict.load_memmap(tmp_path / through)
    TensorDict({"a": old["n", "c"], "b": old["a"], "n": {"c": old["b"]}}).memmap(path, copy_existing=True)
    new = TensorDict.load_memmap(path)
    assert [leaf.tolist() for leaf in (new["a"], new["b"], new["n", "c"])] == [[3.0] * 5, [1.0] * 5, [2.0] * 5]


@pytest.mark.parametrize("index", [slice(1, None), slice(None, None, 2)])
@pytest.mark.parametrize("make", [np.arange, torch.arange])
def test_a_part_is_saved_over_the_whole_by_another_path(tmp_path: Path, make: Any, index: slice) -> None:
    count = 200_000  # many pages
    TensorDict(a=make(count), batch_size=[count]).memmap(tmp_path / "td")
    (tmp_path / "link").symlink_to(tmp_path / "td")
    TensorDict.load_memmap(tmp_path / "link")[index].memmap(tmp_path / "td", copy_existing=True)
    assert np.array_equal(TensorDict.load_memmap(tmp_path / "td")["a"], np.arange(count)[index])
    TensorDict.load_memmap(tmp_path / "link").memmap(tmp_path / "td")  # the same file: there is nothing to copy


def test_members_of_a_lazy_stack_change_places(tmp_path: Path) -> None:
    lazy_stack([TensorDict(a=np.full(3, i)) for i in range(3)]).memmap(tmp_path)
    members = TensorDict.load_memmap(tmp_path).tensordicts
    lazy_stack(members[::-1]).memmap(tmp_path, copy_existing=True)
    assert TensorDict.load_memmap(tmp_path)["a"].tolist() == [[2] * 3, [1] * 3, [0] * 3]


def test_masked_arrays_are_saved_without_their_mask(tmp_path: Path) -> None:
    TensorDict(a=np.ma.array(np.arange(4.0), mask=[0, 1, 0, 1])).memmap(tmp_path)
    assert TensorDict.load_memmap(tmp_path)["a"].tolist() == [0, 1, 2, 3]
