"""TensorDicts in safetensors files: each library reads what the other wrote."""

from __future__ import annotations

import json
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

import corral
from corral import LazyStackedTensorDict, NonTensorStack, PersistentTensorDict, TensorDict
from tests.tensordict.comparing import assert_same
from tests.tensordict.tensorclasses import Inner, Outer, TheirInner, TheirOuter, outer
from tests.tensordict.trees import batch_sizes, forms, plain, sources

safetensors = pytest.importorskip("safetensors")
pytest.importorskip("safetensors.numpy")
pytest.importorskip("safetensors.torch")


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_each_library_reads_what_the_other_wrote(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    size = data.draw(batch_sizes())
    folder = tmp_path_factory.mktemp("safetensors")
    theirs, *mine = forms(data.draw(sources(size)), size)
    tensordict.to_safetensors(theirs, folder / "theirs")
    for i, td in enumerate(mine):
        td.to_safetensors(folder / str(i))
        assert _header(folder / str(i)).keys() == _header(folder / "theirs").keys()
    for file, library in (("theirs", "torch"), ("0", "torch"), ("1", "numpy")):
        read = TensorDict.from_safetensors(folder / file)
        assert plain(read) == plain(theirs) == plain(tensordict.from_safetensors(folder / file))
        assert {corral.arrays.library_of(leaf) for leaf in read.values(True, True)} <= {library}
        for other in ("numpy", "torch"):
            read = TensorDict.from_safetensors(folder / file, library=other)
            assert plain(read) == plain(theirs)
            assert {corral.arrays.library_of(leaf) for leaf in read.values(True, True)} <= {other}
    assert len(list(folder.iterdir())) == 3  # nothing temporary


def _header(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_lazy_stacks(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    size = data.draw(batch_sizes(0, 2))
    dim = data.draw(st.integers(0, len(size)))
    count = data.draw(st.integers(1, 3))
    source = data.draw(sources(size))
    folder = tmp_path_factory.mktemp("safetensors")
    theirs, torchs, numpys = zip(*(forms(source, size) for _ in range(count)), strict=True)
    stacks = [
        tensordict.lazy_stack(list(theirs), dim),
        *(corral.lazy_stack(list(tds), dim) for tds in (torchs, numpys)),
    ]
    stacks[0].names = names = [f"d{i}" for i in range(len(size) + 1)]
    tensordict.to_safetensors(stacks[0], folder / "0")
    for i, stack in enumerate(stacks[1:], 1):
        stack.names = names
        stack.to_safetensors(folder / str(i))
    for i in range(3):
        mine, its = TensorDict.from_safetensors(folder / str(i)), tensordict.from_safetensors(folder / str(i))
        assert isinstance(mine, LazyStackedTensorDict)
        assert isinstance(its, tensordict.LazyStackedTensorDict)
        assert (mine.stack_dim, list(mine.names)) == (its.stack_dim, list(its.names))
        assert mine.stack_dim == dim
        if i or size:  # tensordict forgets the name where members have no dimensions
            assert list(mine.names) == names
        assert plain(mine) == plain(its) == plain(stacks[0])


def _with_everything(kind: Any, lazy_stack: Any) -> Any:
    td = kind(
        {
            "a": torch.arange(3),
            "n": kind({"c": torch.ones(3, 2, 4)}, [3, 2], names=[None, "x"]),
            "empty": kind({}, [3]),
            "lazy": lazy_stack([kind({"b": torch.full((2,), i)}, []) for i in range(3)], 0),
        },
        [3],
        names=["time"],
    )
    td["note"] = "text"
    for key, value in {"options": {"r": 0.1, "l": [1, None]}, "flag": True, "inf": float("inf")}.items():
        td.set_non_tensor(key, value)
    return td


def test_all_kinds_of_entries(tmp_path: Path) -> None:
    mine = _with_everything(TensorDict, corral.lazy_stack)
    theirs = _with_everything(tensordict.TensorDict, tensordict.lazy_stack)
    mine.to_safetensors(tmp_path / "mine")
    tensordict.to_safetensors(theirs, tmp_path / "theirs")
    for file in ("mine", "theirs"):
        one, other = TensorDict.from_safetensors(tmp_path / file), tensordict.from_safetensors(tmp_path / file)
        objects = ("note", "options", "flag", "inf")
        assert_same(one.exclude(*objects), other.exclude(*objects))
        for td in (one, other):
            assert (td["note"], td["options"], td["inf"]) == ("text", {"r": 0.1, "l": [1, None]}, float("inf"))
            assert td["flag"] is True
            assert list(td.names) == ["time"]
            assert list(td["n"].names) == ["time", "x"]
            assert tuple(td["n"].batch_size) == (3, 2)
        assert isinstance(one["lazy"], LazyStackedTensorDict)
    assert str(TensorDict.from_safetensors(tmp_path / "mine", device="cpu").device) == "cpu"


def _renamed(path: Path, names: dict[type, type]) -> None:
    """Give the classes that a file names other names, as if each library had defined its own under one."""
    with safetensors.safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        text = file.metadata()["tensordict"]
    for old, new in names.items():
        text = text.replace(f".{old.__name__}'>", f".{new.__name__}'>")
    safetensors.torch.save_file(tensors, path, {"tensordict": text})


def test_tensorclasses(tmp_path: Path) -> None:
    mine, theirs = outer((3,)), outer((3,), theirs=True)
    mine.to_safetensors(tmp_path / "mine")
    tensordict.to_safetensors(theirs, tmp_path / "theirs")
    for loaded in (TensorDict.from_safetensors(tmp_path / "mine"), Outer.from_safetensors(tmp_path / "theirs")):
        assert type(loaded) is Outer
        assert type(loaded.inner) is Inner
        assert_same(loaded, theirs)
    assert type(TensorDict.from_safetensors(tmp_path / "theirs")) is TensorDict  # its class is none of corral's
    _renamed(tmp_path / "mine", {Outer: TheirOuter, Inner: TheirInner})
    _renamed(tmp_path / "theirs", {TheirOuter: Outer, TheirInner: Inner})
    loaded = TensorDict.from_safetensors(tmp_path / "theirs")
    assert type(loaded) is Outer
    assert type(loaded.inner) is Inner
    other = tensordict.from_safetensors(tmp_path / "mine")
    assert type(other) is TheirOuter
    assert_same(loaded, other)
    lazy = corral.lazy_stack([mine, mine])
    lazy.to_safetensors(tmp_path / "lazy")
    again = TensorDict.from_safetensors(tmp_path / "lazy")
    assert type(again) is type(lazy)
    assert (again == lazy).all()


def test_files_of_other_programs(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), path, {"format": "pt"})
    mine, theirs = TensorDict.from_safetensors(path), tensordict.from_safetensors(path)
    assert plain(mine) == plain(theirs)
    assert mine["1", "weight"].shape == (2, 4)
    for names in (("a", "a.b"), ("a.b", "a")):
        safetensors.numpy.save_file({name: np.zeros(2) for name in names}, path)
        with pytest.raises(ValueError, match="nested"):
            TensorDict.from_safetensors(path)


DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64", "complex64", "float16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(tmp_path: Path, dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([[0, 1, 2], [3, 4, 6]], getattr(ml_dtypes, dtype, dtype))
    tensor = corral.arrays.convert(values, "torch")
    for i, leaf in enumerate((values, values.T.copy().T, tensor, tensor.T.contiguous().T)):
        TensorDict({"x": leaf, "more": {"y": leaf[0, 0]}}).to_safetensors(tmp_path / str(i))
        for library in ("numpy", "torch"):
            read = TensorDict.from_safetensors(tmp_path / str(i), library=library)
            assert (read["x"].shape, read["more", "y"].shape) == ((2, 3), ())
            assert corral.arrays.dtype_name(read["x"]) == dtype
            assert corral.arrays.to_numpy(read["x"]).tolist() == values.tolist()
        assert tensordict.from_safetensors(tmp_path / str(i))["x"].dtype == getattr(torch, dtype)


def test_byte_orders(tmp_path: Path) -> None:
    TensorDict(a=np.arange(3, dtype=">i4")).to_safetensors(tmp_path / "x")
    assert TensorDict.from_safetensors(tmp_path / "x")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shared_memory_and_libraries_together(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = torch.arange(6).to(dtype)
    td = TensorDict(a=whole, b=whole[2:], c=whole[:0], d=whole.view(2, 3).T, e=np.arange(2), f=whole)
    td.to_safetensors(tmp_path / "x")
    read = TensorDict.from_safetensors(tmp_path / "x")
    assert plain(read) == plain(td)
    assert isinstance(read["e"], np.ndarray)
    read["a"].zero_()
    assert read["f"].tolist() == [0, 1, 2, 3, 4, 5]
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]


def test_stored_and_mapped(tmp_path: Path) -> None:
    td = TensorDict({"a": np.arange(6).reshape(3, 2), "n": {"b": np.ones(3)}}, [3])
    pytest.importorskip("zarr")
    stored = td.to_zarr(tmp_path / "zarr")
    assert isinstance(stored, PersistentTensorDict)
    for i, each in enumerate((stored, td.memmap(tmp_path / "map"), td.consolidate())):
        each.to_safetensors(tmp_path / str(i))
        assert plain(TensorDict.from_safetensors(tmp_path / str(i))) == plain(td)


def _ragged(kind: Any, lazy: Any) -> Any:
    return kind({"s": lazy([kind({"a": torch.zeros(n)}, []) for n in (2, 3)], 0)}, [2])


def _different_keys(kind: Any, lazy: Any) -> Any:
    inner = [lazy([kind({key: torch.zeros(2), "c": torch.zeros(2)}, []) for key in "ab"], 0) for _ in range(2)]
    return lazy(inner, 0)


def _sparse(kind: Any, lazy: Any) -> Any:
    return kind({"a": torch.eye(2).to_sparse()}, [2])


BAD: dict[str, tuple[Any, Any, str]] = {
    "two keys with one name": (
        lambda kind, lazy: kind({"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}}, []),
        ValueError,
        r"'a\.b'",
    ),
    "no JSON": (lambda kind, lazy: kind({"a": torch.zeros(2), "o": {1, 2}}, []), TypeError, "'o', a set"),
    "a tuple": (lambda kind, lazy: kind({}, []).set_non_tensor("o", {"k": (1,)}), TypeError, "'o', a dict"),
    "ragged": (_ragged, TypeError, r"\['a'\] of the lazy stack 's'"),
    "different keys": (_different_keys, TypeError, "different keys"),
    "sparse": (_sparse, TypeError, "layout"),
    "complex128": (lambda kind, lazy: kind({"a": torch.zeros(2, dtype=torch.complex128)}, []), TypeError, "complex128"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_written(tmp_path: Path, name: str) -> None:
    make, error, message = BAD[name]
    path = tmp_path / "x"
    TensorDict(old=np.ones(2)).to_safetensors(path)
    with pytest.raises(Exception):  # noqa: B017, PT011 - of tensordict's or torch's kinds
        tensordict.to_safetensors(make(tensordict.TensorDict, tensordict.lazy_stack), tmp_path / "theirs")
    with pytest.raises(error, match=message):
        make(TensorDict, corral.lazy_stack).to_safetensors(path)
    assert plain(TensorDict.from_safetensors(path)) == plain(TensorDict(old=np.ones(2)))
    assert list(tmp_path.iterdir()) == [path]


def test_what_only_corral_has_cannot_be_written(tmp_path: Path) -> None:
    for bad, error in (
        (TensorDict(a=NonTensorStack("x", "y"), batch_size=[2]), TypeError),
        (TensorDict(a=NonTensorStack("x", "y"), batch_size=[2]).get("a"), TypeError),
        (TensorDict(a=np.zeros(2, "M8[s]")), TypeError),
        (TensorDict(a=torch.zeros(2, device="meta")), TypeError),
        (TensorDict({"__metadata__": np.zeros(2)}), ValueError),
    ):
        with pytest.raises(error, match="to_safetensors: "):
            bad.to_safetensors(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    TensorDict(a=np.arange(3)).to_safetensors(path)

    def full(arrays: Any, file: Path, metadata: Any) -> None:
        file.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(OSError, match="no space"):
        TensorDict(b=np.arange(4)).to_safetensors(path)
    assert TensorDict.from_safetensors(path)["a"].tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [path]


def _level(**changes: Any) -> dict[str, Any]:
    return {"batch_size": [3], "names": None, "keys": {"a": {"tensor": "a"}}} | changes


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("{", "do not describe"),
        ("[]", "do not describe"),
        ({"version": 1}, "do not describe"),
        ({"version": 2, "root": {}}, "version 2"),
        ({"version": 1, "root": _level(batch_size=[2])}, "does not start with"),
        ({"version": 1, "root": _level(batch_size=["x"])}, "no list of lengths"),
        ({"version": 1, "root": _level(stack_dim=1)}, "lazy stack"),
        ({"version": 1, "root": _level(keys={})}, "not in its metadata"),
        ({"version": 1, "root": _level(keys={"a": {"tensor": "b"}})}, "no leaf 'b'"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, metadata: Any, message: str) -> None:
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    safetensors.numpy.save_file({"a": np.zeros(3)}, tmp_path / "x", {"tensordict": text})
    with pytest.raises(ValueError, match=message):
        TensorDict.from_safetensors(tmp_path / "x")


def test_no_such_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="from_safetensors"):
        TensorDict.from_safetensors(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"text")
    with pytest.raises(ValueError, match="no safetensors file"):
        TensorDict.from_safetensors(tmp_path / "x")
    with pytest.raises(ValueError, match="library must be"):
        TensorDict.from_safetensors(tmp_path / "x", library="tensorflow")
    with pytest.raises(FileNotFoundError):
        TensorDict(a=1).to_safetensors(tmp_path / "missing" / "x")


def test_numpy_without_torch(tmp_path: Path) -> None:
    theirs = tensordict.TensorDict({"a": torch.arange(3), "n": {"b": torch.ones(3, dtype=torch.bfloat16)}}, [3])
    tensordict.to_safetensors(theirs, tmp_path / "theirs")
    program = (
        "import sys, numpy as np\n"
        "from corral import TensorDict\n"
        "assert 'safetensors' not in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
        "read = TensorDict.from_safetensors(sys.argv[1] + '/theirs')\n"
        "assert type(read['a']) is np.ndarray and read['n', 'b'].dtype.name == 'bfloat16'\n"
        "read.to_safetensors(sys.argv[1] + '/mine')\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['ml_dtypes'] = None\n"
        "try:\n"
        "    TensorDict.from_safetensors(sys.argv[1] + '/theirs')\n"
        "except ModuleNotFoundError as error:\n"
        "    assert 'pip install ml_dtypes' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
        "sys.modules['safetensors'] = None\n"
        "for call in (TensorDict.from_safetensors, TensorDict(a=1).to_safetensors):\n"
        "    try:\n"
        "        call('x')\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert 'corral[safetensors]' in str(error)\n"
        "    else:\n"
        "        raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=100)
    assert plain(tensordict.from_safetensors(tmp_path / "mine")) == plain(theirs)
