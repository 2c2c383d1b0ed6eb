"""TensorDicts in HDF5 files: beside tensordict's, in the same files, and reading no more than they are asked for."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corral import PersistentTensorDict, TensorDict
from tests.tensordict.test_same_calls import indices
from tests.tensordict.trees import batch_sizes, forms, plain, sources, tree_map

h5py = pytest.importorskip("h5py")


def source() -> dict[str, Any]:
    return {
        "a": np.arange(12).reshape(3, 4),
        "b": {"c": np.arange(3, dtype="float32"), "d": {"e": np.arange(30, dtype="uint8").reshape(3, 2, 5)}},
    }


@pytest.fixture
def td(tmp_path: Path) -> Iterator[PersistentTensorDict]:
    made = PersistentTensorDict.from_dict(TensorDict(source(), batch_size=[3]), tmp_path / "mine.h5")
    yield made
    made.close()


class Reads:
    """Counts the elements that h5py reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = h5py.Dataset.__getitem__

        def read(node: Any, index: Any, *args: Any) -> Any:
            found = original(node, index, *args)
            self.count += np.size(found)
            return found

        monkeypatch.setattr(h5py.Dataset, "__getitem__", read)

    def during(self, function: Any) -> int:
        self.count = 0
        function()
        return self.count


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_each_library_reads_what_the_other_wrote(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    size = data.draw(batch_sizes())
    trio = forms(data.draw(sources(size)), size)
    folder = tmp_path_factory.mktemp("h5")
    for i, td in enumerate(trio):
        path = folder / str(i)
        made = td.to_h5(path)
        assert plain(made) == plain(td)
        made.close()
        mine, theirs = TensorDict.from_h5(path), tensordict.TensorDict.from_h5(path)
        assert mine.batch_size == tuple(theirs.batch_size)
        assert plain(mine) == plain(theirs)
        mine.batch_size = size
        assert plain(mine.to_tensordict()) == plain(TensorDict(trio[2], batch_size=mine.batch_size)) or not size
        mine.close()
        theirs.close()


def calls() -> dict[str, Any]:
    """Writes and reads whose outcome must be tensordict's: of the result, and of what is then in the file."""

    def do(*steps: Any) -> Any:
        def run(td: Any) -> Any:
            results = [step(td) for step in steps]
            return [_in_memory(result) for result in results if result is not td]

        return run

    def setter(key: Any, value: Any) -> Any:
        return lambda td: td.__setitem__(key, value(td) if callable(value) else value)

    def array(*shape: int, dtype: str = "int64") -> torch.Tensor:
        return torch.arange(100, 100 + int(np.prod(shape))).reshape(shape).to(getattr(torch, dtype))

    def update_row(td: Any) -> None:
        td[1] = td[0].to_tensordict()

    return {
        "get": do(lambda td: td["a"], lambda td: td["b", "d", "e"], lambda td: td.get("zz", None)),
        "set": do(lambda td: td.set("new", array(3))),
        "set nested": do(setter(("b", "x", "y"), array(3, 2))),
        "set td": do(setter("n", lambda td: td["b"].to_tensordict())),
        "replace": do(lambda td: td.set("a", array(3, 2, dtype="float64"))),
        "item": do(setter("a", array(3, 4))),
        "item cast": do(setter("a", array(3, 4, dtype="float64") + 0.5)),
        "set_": do(lambda td: td.set_("a", array(3, 4)), lambda td: td["a"]),
        "set_ missing": do(lambda td: td.set_("zz", array(3, 4))),
        "set wrong": do(lambda td: td.set("zz", array(4))),
        "row": do(lambda td: td[0], lambda td: td[-1]["b", "d"]["e"]),
        "rows": do(lambda td: td[1:], lambda td: td[::2]["a"], lambda td: td[:, None].batch_size),
        "mask": do(lambda td: td[torch.tensor([True, False, True])]["a"]),
        "indices": do(lambda td: td[torch.tensor([2, 0, 2])]["a"], lambda td: td[[1, 1]]["b", "c"]),
        "out of bounds": do(lambda td: td[3]["a"]),
        "write row": do(update_row),
        "write through": do(lambda td: td[1:].set_("a", array(2, 4))),
        "write rows": do(lambda td: td.set_at_("a", array(2, 4), torch.tensor([0, 2]))),
        "write mask": do(lambda td: td.set_at_("a", array(1, 4), torch.tensor([False, True, False]))),
        "get_at": do(lambda td: td.get_at("a", 1), lambda td: td.get_at(("b", "d", "e"), (slice(None), 1))),
        "delete": do(lambda td: td.del_("a"), lambda td: td.del_(("b", "c"))),
        "delete missing": do(lambda td: td.del_("zz")),
        "rename": do(lambda td: td.rename_key_("a", "z")),
        "update": do(lambda td: td.update({"a": array(3, 4), "b": {"q": array(3)}})),
        "update_": do(lambda td: td.update_({"a": array(3, 4)})),
        "keys": do(
            lambda td: sorted(map(str, td.keys(True))),
            lambda td: sorted(map(str, td.keys(True, True))),
            lambda td: sorted(td.keys()),
            lambda td: ("b", "c") in td.keys(True),
            lambda td: "zz" in set(td.keys()),
        ),
        "locked": do(lambda td: td.lock_(), lambda td: td.set("x", array(3))),
        "locked item": do(lambda td: td.lock_(), setter("a", array(3, 4))),
        "batch size": do(lambda td: setattr(td, "batch_size", []), lambda td: td.batch_size),
        "wrong batch size": do(lambda td: setattr(td, "batch_size", [4])),
        "zero": do(lambda td: td.zero_()),
        "apply": do(lambda td: td.apply(lambda x: x + 1)),
        "memmap": do(lambda td: td.memmap()),
        "memmap_": do(lambda td: td.memmap_()),
        "clear": do(lambda td: td.clear()),
        "pop": do(lambda td: td.pop("a")),
        "stack": do(lambda td: torch.stack([td, td], 0)["a"]),
        "contiguous": do(lambda td: td.contiguous()["a"]),
    }


def _in_memory(result: Any) -> Any:
    return result.to_tensordict() if hasattr(result, "to_tensordict") else result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", calls())
def test_same_calls(tmp_path: Path, name: str) -> None:
    outcomes = []
    for kind, made in (
        (tensordict.TensorDict, tensordict.PersistentTensorDict),
        (TensorDict, PersistentTensorDict),
    ):
        path = tmp_path / made.__module__
        td = made.from_dict(kind(tree_map(torch.as_tensor, source()), [3]), str(path))
        try:
            result: Any = plain(calls()[name](td))
        except Exception as error:
            known = isinstance(error, (RuntimeError, ValueError, KeyError, IndexError))
            result = "an error" if known else f"an error, {error!r}"
        td.close()
        with h5py.File(path) as file:
            outcomes.append((result, _content(file)))
    assert repr(outcomes[1]) == repr(outcomes[0])


def _content(group: Any) -> Any:
    return {
        key: _content(node) if isinstance(node, h5py.Group) else (node.dtype.name, node.shape, node[()].tolist())
        for key, node in group.items()
    }


def test_rows_in_any_order(td: PersistentTensorDict) -> None:
    td.set_at_("a", np.arange(8).reshape(2, 4) + 100, np.array([2, 0]))
    assert td["a"].tolist() == [[104, 105, 106, 107], [4, 5, 6, 7], [100, 101, 102, 103]]
    td.set_at_("a", np.arange(4), [1])
    assert td["a"][1].tolist() == [0, 1, 2, 3]


def test_nothing_is_read_that_is_not_asked_for(td: PersistentTensorDict, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    for quiet in (
        lambda: repr(td),
        lambda: list(td.keys(True, True)),
        lambda: td["b"].batch_size,
        lambda: ("b", "d", "e") in td,
        lambda: td.set("a", np.zeros((3, 4))),
        lambda: td.set_("a", np.ones((3, 4))),
        lambda: td.update({"a": np.ones((3, 4)), "b": {"c": np.ones(3)}}),
        lambda: td.lock_().unlock_(),
        lambda: td.rename_key_("a", "z").rename_key_("z", "a"),
        lambda: setattr(td, "batch_size", [3]),
        lambda: (td.bytes(), td.is_empty(), td.dtype, len(td), td.numel()),
        lambda: td[1:],
        lambda: td.__setitem__(0, {"a": np.arange(4)}),
        lambda: td.set_at_("a", 5, 0),
        lambda: td.empty(),
        lambda: td.pop("zz", None),
    ):
        assert reads.during(quiet) == 0
    assert reads.during(lambda: td["a"]) == 12
    assert reads.during(lambda: td[1]["b", "d", "e"]) == 10
    assert reads.during(lambda: td[[0, 2]]["a"]) == 8
    assert reads.during(lambda: td[np.array([False, True, False])]["b", "c"]) == 1
    assert reads.during(lambda: td.get_at("a", (2, slice(1, 3)))) == 2
    assert reads.during(lambda: td["b"][0].to_tensordict()) == 11


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_parts_of_datasets(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    size = data.draw(batch_sizes(1))
    index = data.draw(indices(size))
    dense = TensorDict(a=np.arange(int(np.prod(size)) * 2).reshape(*size, 2), batch_size=size)
    path = tmp_path_factory.mktemp("h5") / "file"
    with h5py.File(path, "w") as file:
        made = PersistentTensorDict(group=file, batch_size=size)
        made.update(dense)
        try:
            expected = dense[index]
        except (IndexError, ValueError):
            with pytest.raises((IndexError, ValueError)):
                made[index]["a"]
            return
        assert plain(made[index].to_tensordict()) == plain(expected)
        made[index] = expected * 0 - 1
        dense[index] = expected * 0 - 1
        assert plain(made) == plain(dense)


def test_libraries_and_devices(tmp_path: Path) -> None:
    for library, kind in (("numpy", np.ndarray), ("torch", torch.Tensor)):
        made = PersistentTensorDict(filename=tmp_path / library, mode="w", batch_size=[3], library=library)
        made["a"] = torch.arange(3)
        assert isinstance(made["a"], kind)
        made["a"][0] = 7
        assert made["a"][0] == 0, "what is read is a copy"
        made.close()
    made = TensorDict(a=torch.arange(3)).to_h5(tmp_path / "t")
    assert isinstance(made["a"], torch.Tensor)
    made.close()


def test_compression_and_strings(tmp_path: Path) -> None:
    made = TensorDict(a=np.zeros((1000, 10)), batch_size=[1000]).to_h5(tmp_path / "z", compression="gzip")
    assert made.file["a"].compression == "gzip"
    made.set("note", "text")
    assert made["note"] == "text"
    made.close()
    theirs = tensordict.PersistentTensorDict(filename=str(tmp_path / "z"), batch_size=[1000])
    with pytest.warns(FutureWarning):
        assert theirs["note"] == b"text"
    theirs.close()


def test_pickle_and_several_readers(tmp_path: Path) -> None:
    PersistentTensorDict.from_dict(TensorDict(source(), batch_size=[3]), tmp_path / "mine.h5").close()
    opened = PersistentTensorDict(filename=tmp_path / "mine.h5", batch_size=[3])
    for part in (opened, opened["b"], opened[1:], opened.lock_()):
        again = pickle.loads(pickle.dumps(part))
        assert plain(again) == plain(part)
        assert again.is_locked == part.is_locked
        again.close()
        opened = PersistentTensorDict(filename=tmp_path / "mine.h5", batch_size=[3])
    with pytest.raises((OSError, ValueError, RuntimeError)):
        opened["a"] = np.zeros((3, 4))
    opened.close()
    assert "closed" in repr(opened)


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="either filename or group"):
        PersistentTensorDict(batch_size=[3])
    with pytest.raises(NotImplementedError, match="backend"):
        PersistentTensorDict(filename=tmp_path / "x", backend="tar", mode="w")
    with h5py.File(tmp_path / "y", "w") as file:
        file["a"] = np.zeros((3, 2))
    with pytest.raises(ValueError, match="batch size and array size mismatch"):
        PersistentTensorDict(filename=tmp_path / "y", batch_size=[2])
    with h5py.File(tmp_path / "y", "r+") as file, pytest.raises(KeyError, match="slashes"):
        PersistentTensorDict(group=file).set("a/b", 1)
    for name in ("share_", "memmap_", "requires_grad_"):
        made = PersistentTensorDict(filename=tmp_path / "y")
        with pytest.raises(RuntimeError, match=r"to_tensordict\(\)"):
            getattr(made, name)()
        made.close()


def test_h5py_is_imported_when_it_is_used() -> None:
    program = (
        "import sys, corral\n"
        "corral.TensorDict(a=[1]), corral.PersistentTensorDict\n"
        "assert 'h5py' not in sys.modules\n"
        "sys.modules['h5py'] = None\n"
        "try:\n"
        "    corral.PersistentTensorDict(filename='x.h5')\n"
        "except ModuleNotFoundError as error:\n"
        "    assert 'corral[hdf5]' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_numbers_that_files_do_not_have_are_refused(tmp_path) -> None:
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        td = TensorDict(w=torch.ones(2).to(dtype), batch_size=[2])
        with pytest.raises(TypeError, match=rf"'w' is of dtype {str(dtype).removeprefix('torch.')}.*cast it"):
            td.to_h5(tmp_path / "x.h5")
