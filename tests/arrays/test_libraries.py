"""What the array libraries have in common: names, conversions, copies, indices."""

from __future__ import annotations

import array
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.arrays import convert, copy_into, dtype_name, is_array, library_of, namespace_of, to_numpy
from corral.arrays.indexing import assign, normalize, take
from corral.arrays.operations import cat, expand, stack

TORCH_ONLY = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
SHARED = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


def tensor(name: str) -> torch.Tensor:
    """Return six numbers that every dtype can hold."""
    return torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 6.0]]).to(getattr(torch, name))


@pytest.mark.parametrize("name", [*SHARED, *TORCH_ONLY])
def test_round_trip_between_numpy_and_torch(name: str) -> None:
    x = tensor(name)
    host = to_numpy(x)
    assert dtype_name(x) == dtype_name(host) == name
    assert library_of(host) == "numpy"
    back = convert(host, "torch")
    assert back.dtype == x.dtype
    assert back.data_ptr() == x.data_ptr(), "a conversion copied"
    assert torch.equal(back.float() if not x.is_complex() else back, x.float() if not x.is_complex() else x)


@pytest.mark.parametrize("name", TORCH_ONLY)
def test_formats_that_numpy_lacks_keep_their_values(name: str) -> None:
    assert to_numpy(tensor(name)).astype("float32").tolist() == tensor(name).float().tolist()


def test_tensors_that_numpy_cannot_see_as_they_are() -> None:
    x = torch.arange(4.0, requires_grad=True)
    assert to_numpy(x).tolist() == [0, 1, 2, 3]
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert to_numpy(z.conj()).tolist() == [1 - 2j, 3 + 4j]
    assert to_numpy(z.conj().imag).tolist() == [-2, 4]  # its negative bit is set
    assert to_numpy(torch.eye(3).to_sparse()).tolist() == np.eye(3).tolist()


@pytest.mark.parametrize(
    "x",
    [
        np.arange(6)[::-1],
        np.arange(6, dtype=">i4"),
        np.broadcast_to(np.arange(3), (2, 3)),
        np.frombuffer(b"abcdef", np.uint8),
        np.zeros(3, [("pad", "i1"), ("x", "<f4")])["x"],
        array.array("d", [1.0, 2.5]),
        [1, 2, 3],
        7,
    ],
    ids=["reversed", "big-endian", "read-only", "bytes", "field", "buffer", "list", "number"],
)
def test_anything_becomes_a_tensor(x: Any) -> None:
    assert convert(x, "torch").tolist() == np.asarray(x).tolist()


def test_what_is_an_array() -> None:
    assert all(map(is_array, [np.zeros(1), np.float32(1), torch.zeros(1), array.array("i"), memoryview(b"ab")]))
    assert not any(map(is_array, [1, 1.0, [1], "a", b"a", None, np.ndarray, {}]))
    assert library_of(torch.nn.Parameter(torch.zeros(1))) == "torch"
    assert library_of(np.ma.zeros(1)) == "numpy"
    assert namespace_of(torch.zeros(1)).concat([torch.zeros(1), torch.ones(1)]).tolist() == [0, 1]


def test_errors() -> None:
    with pytest.raises(ValueError, match="cannot lie on cuda"):
        convert(np.zeros(1), "numpy", "cuda")
    with pytest.raises(ValueError, match="must be 'numpy', 'torch'"):
        convert(np.zeros(1), "tensorflow")
    with pytest.raises(IndexError, match="single ellipsis"):
        normalize((..., ...), 3)
    with pytest.raises(IndexError, match="too many indices"):
        normalize((0, 0), 1)
    with pytest.raises(ValueError, match="step must be greater"):
        normalize(slice(None, None, -1), 1)
    with pytest.raises(IndexError, match="integer or boolean"):
        normalize(np.zeros(2), 1)


@pytest.mark.parametrize("source", SHARED)
@pytest.mark.parametrize("target", ["bool", "uint8", "int64", "float16", "float32", "complex64", "bfloat16"])
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_copy_into_casts_alike(source: str, target: str) -> None:
    expected = torch.zeros(2, 3, dtype=getattr(torch, target)).copy_(tensor(source))
    for src in (tensor(source), to_numpy(tensor(source))):
        for dst in (torch.zeros_like(expected), to_numpy(torch.zeros_like(expected))):
            copy_into(dst, src)
            assert to_numpy(dst).tolist() == to_numpy(expected).tolist()


def test_copy_into_writes_in_place() -> None:
    base = np.zeros((3, 4), np.int16)
    copy_into(base.T[::2], torch.arange(6).reshape(2, 3))
    assert base.tolist() == [[0, 0, 3, 0], [1, 0, 4, 0], [2, 0, 5, 0]]
    leaf = torch.zeros(2, requires_grad=True)
    copy_into(leaf, np.array([1.5, 2.5]))
    assert leaf.tolist() == [1.5, 2.5]
    assert leaf.requires_grad
    assert leaf.grad_fn is None
    half = np.zeros(2, ml_dtypes.bfloat16)
    copy_into(half, torch.tensor([1.0, 3.0]))
    assert half.tolist() == [1.0, 3.0]


parts = st.one_of(
    st.integers(-2, 1),
    st.builds(slice, st.none() | st.integers(-3, 3), st.none() | st.integers(-3, 3), st.sampled_from([None, 1, 2])),
    st.none(),
    st.just(...),
    st.lists(st.integers(-2, 1), min_size=1, max_size=3),
    st.lists(st.lists(st.integers(-2, 1), min_size=2, max_size=2), min_size=1, max_size=2),
    st.lists(st.booleans(), min_size=2, max_size=2).map(lambda v: np.array(v)),
    st.lists(st.booleans(), min_size=4, max_size=4).map(lambda v: np.array(v).reshape(2, 2)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(parts, max_size=4).map(tuple))
def test_numpy_is_indexed_by_the_rules_of_torch(index: tuple[Any, ...]) -> None:
    x = torch.arange(16).reshape(2, 2, 2, 2)
    if sum(i is ... for i in index) > 1:
        return  # torch takes the second one for a slice
    theirs = tuple(torch.tensor(i) if isinstance(i, (list, np.ndarray)) else i for i in index)
    try:
        expected = x[theirs]
    except IndexError:
        with pytest.raises(IndexError):
            take(x.numpy(), normalize(index, 4))
        return
    mine = x.numpy().copy()
    found = take(mine, normalize(index, 4))
    assert type(found) is np.ndarray
    assert found.tolist() == expected.tolist()
    assert found.shape == tuple(expected.shape)
    if any(isinstance(i, (list, np.ndarray)) for i in index):
        theirs_written, values = x.clone(), -1
    else:
        theirs_written, values = x.clone(), (-1 - torch.arange(expected.numel())).reshape(expected.shape)
    theirs_written[theirs] = values
    assign(mine, normalize(index, 4), values if isinstance(values, int) else values.numpy())
    assert mine.tolist() == theirs_written.tolist()


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_joining_arrays_of_several_libraries_and_dtypes(dim: int) -> None:
    a, b = np.arange(6.0).reshape(2, 3), torch.arange(6, 12).reshape(2, 3)
    assert stack([a, b], dim).tolist() == np.stack([a, b.numpy()], dim).tolist()
    assert stack([b, a], dim).tolist() == np.stack([b.numpy(), a], dim).tolist()
    small = [np.arange(6, dtype="int8").reshape(2, 3), np.arange(6, dtype="int32").reshape(2, 3).T.copy().T]
    assert stack(small, dim).dtype == np.int32
    if dim < 2:
        assert cat([a, b], dim).tolist() == np.concatenate([a, b.numpy()], dim).tolist()
        assert library_of(cat([b, a], dim)) == "torch"


def test_stacks_own_their_memory() -> None:
    rows = [np.arange(4) + 4 * i for i in range(3)]
    assert stack(rows, 0).base is None
    assert stack(rows, 0).tolist() == np.arange(12).reshape(3, 4).tolist()
    assert stack([np.array(1), np.array(2)], 0).tolist() == [1, 2]
    assert stack([np.zeros((0, 2)), np.zeros((0, 2))], 0).shape == (2, 0, 2)


def test_expanded_arrays_are_views() -> None:
    x = np.arange(3).reshape(1, 3)
    wide = expand(x, (4, 2, 3))
    assert wide.shape == (4, 2, 3)
    assert np.shares_memory(wide, x)
    assert not wide.flags.writeable
    assert type(expand(np.array(5), ())) is np.ndarray


def test_no_other_library_is_imported() -> None:
    code = (
        "import sys, numpy as np; from corral.arrays import *; from corral import TensorDict, stack\n"
        "x = np.arange(4); copy_into(x, [3, 2, 1, 0]); assert x.tolist() == [3, 2, 1, 0]\n"
        "td = stack([TensorDict(a=x, batch_size=[4])] * 2); repr(td); (td + 1)[0]; td.clone().update(td)\n"
        "assert not {'torch', 'jax', 'cupy', 'optree', 'rich', 'typer'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
