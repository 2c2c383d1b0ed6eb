"""`corral.all_reduce` and `corral.reduce`: new trees, combined in rank order."""

from __future__ import annotations

import numpy as np
import pytest
from fleet import Fleet
from functional_trees import Pair, Record, library_of, numbers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import corral
import corral.distributed as dist
from corral.backends.base import Reduction

INTEGERS = ["bool", "uint8", "int16", "int64", ">i4"]
DTYPES = [*INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64"]


@pytest.fixture(scope="module", params=[2, 3, 4])
def fleet(request):
    ranks = Fleet(request.param, gloo=True)
    yield ranks
    ranks.close()


def _leaf(shape, dtype, library, seed):
    from corral.arrays.libraries import convert

    array = numbers(shape, dtype, seed)
    found = library_of(dtype, library)
    if found != "numpy":
        return convert(array, found)
    return array.T.copy().T if library == "strided" else array


def _expected(arrays, op):
    """Combine small whole numbers: exact in every dtype, as long as nothing is multiplied too often."""
    dtype = arrays[0].dtype
    functions = {"sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
    functions |= {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
    wide = (
        arrays
        if op.startswith("b") or dtype.kind == "b"
        else [a.astype("c16" if dtype.kind == "c" else "f8") for a in arrays]
    )
    if op == "avg" and dtype.kind == "b":
        return np.logical_and.reduce(wide)
    total = wide[0]
    for array in wide[1:]:
        total = functions[op](total, array)
    return total / len(arrays) if op == "avg" else total


def _reduce(rank, size, leaves, op, root, like):
    from corral.arrays import libraries

    def leaf(source, key, index):
        shape, dtype, kinds = leaves[key]
        return _leaf(shape, dtype, kinds[source % len(kinds)], 31 * source + index)

    keys = sorted(leaves)
    items = [(key, leaf(rank, key, index)) for index, key in enumerate(keys)]
    tree = {"in": dict(items if rank % 2 else items[::-1]), "n": rank + 1, "none": None}
    for result in (corral.all_reduce(tree, op, like=like), corral.reduce(tree, op, root % size, like=like)):
        if result is None:
            assert rank != root % size
            continue
        assert result["none"] is None
        for index, key in enumerate(keys):
            shape, dtype, kinds = leaves[key]
            found = result["in"][key]
            assert libraries.library_of(found) == (like or library_of(dtype, kinds[rank % len(kinds)]))
            mine = libraries.to_numpy(found)
            assert mine.shape == tuple(shape)
            assert like is not None or mine.dtype == libraries.to_numpy(tree["in"][key]).dtype
            wanted = _expected([numbers(shape, dtype, 31 * source + index) for source in range(size)], op)
            if op == "avg" and mine.dtype.kind in "iu":
                wanted = np.trunc(wanted)
            np.testing.assert_allclose(
                mine.astype(wanted.dtype), wanted, rtol=1e-2 if mine.dtype.itemsize == 2 else 1e-6
            )
    for index, key in enumerate(keys):  # what was passed is as it was
        shape, dtype, _ = leaves[key]
        assert np.array_equal(libraries.to_numpy(tree["in"][key]), numbers(shape, dtype, 31 * rank + index))


@st.composite
def calls(draw):
    op = draw(st.sampled_from(["sum", "avg", "product", "min", "max", "band", "bor", "bxor"]))
    known = INTEGERS if op.startswith("b") else DTYPES
    known = [dtype for dtype in known if not (op in ("min", "max") and dtype == "complex64")]
    if op in ("sum", "product"):  # what wraps around is tested beside torch
        known = [dtype for dtype in known if dtype not in ("uint8", "bool")] + ["int64"]
    if op == "product":
        known = ["int64", "float64", "float32"]
    leaf = st.tuples(
        st.lists(st.integers(0, 4), max_size=3),
        st.sampled_from(known),
        st.lists(st.sampled_from(["numpy", "torch", "jax", "strided"]), min_size=1, max_size=4),
    )
    return draw(st.dictionaries(st.sampled_from("abc"), leaf, max_size=3)), op


@given(calls(), st.integers(0, 3), st.sampled_from([None, "numpy"]))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values(fleet, call, root, like):
    fleet(_reduce, *call, root, like)


def _beside_torch(rank, size):
    import torch
    import torch.distributed as theirs

    for dtype in (torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64):
        mine = (torch.arange(12).reshape(3, 4) + 50 * rank).to(dtype).T
        for op in ("sum", "product", "min", "max"):
            wanted = mine.contiguous()
            theirs.all_reduce(wanted, getattr(theirs.ReduceOp, op.upper()))
            found = corral.all_reduce(mine, getattr(theirs.ReduceOp, op.upper()))
            assert found.dtype == dtype
            assert torch.equal(found, wanted)


def test_as_torch(fleet):
    fleet(_beside_torch)


def _numbers(rank, size):
    assert corral.all_reduce(rank) == size * (size - 1) // 2
    result = corral.all_reduce({"n": rank, "x": 0.5, "b": rank == 0, "c": 1j, "a": np.float32(rank)}, "sum")
    assert result == {"n": size * (size - 1) // 2, "x": size / 2, "b": True, "c": size * 1j, "a": sum(range(size))}
    assert list(map(type, result.values()))[:4] == [int, float, bool, complex]
    assert corral.all_reduce(Pair(rank, [Record(1.0, 2)]), "max") == Pair(size - 1, [Record(1.0, 2)])
    assert corral.all_reduce(np.int64(3) if rank else 3) == 3 * size  # a number is an array of no dimensions
    td = corral.TensorDict(a=np.full((2, 3), rank), b={"c": np.ones(2)}, batch_size=[2])
    result = corral.reduce(td, "sum", group_dst=size - 1)
    if rank == size - 1:
        assert tuple(result.batch_size) == (2,)
        assert result["b", "c"].tolist() == [size] * 2
    else:
        assert result is None
    assert corral.all_reduce(np.ones(2), Reduction("premul_sum", 3.0)).tolist() == [3.0 * size] * 2
    assert corral.all_reduce({}) == {}


def test_numbers_and_containers(fleet):
    fleet(_numbers)


def _gradients(rank, size):
    import torch

    parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
    sparse = torch.eye(3).to_sparse()
    total, dense = corral.all_reduce([parameter, sparse])
    assert not total.requires_grad
    assert total.tolist() == [sum(range(size))] * 3
    assert torch.equal(dense, torch.eye(3) * size)
    assert parameter.tolist() == [rank] * 3


def test_tensors_with_grad_and_sparse_ones(fleet):
    fleet(_gradients)


def _misfits(rank, size):
    import torch

    last = size - 1
    odd = rank == last
    cases = [
        (
            {"a": np.ones(2), **({"b": 1} if odd else {})},
            "sum",
            rf"'b' is .* on rank {last}, but rank 0 has no such key",
        ),
        ({"a": np.ones(3 if odd else 2)}, "sum", rf"'a' has shape \(3,\) on rank {last}, but \(2,\) on rank 0"),
        ({"a": 1 if odd else 1.0}, "sum", rf"'a' is .*int64 .* on rank {last}, but .*float64 .* rank 0"),
        ({"a": None if odd else 1.0}, "sum", rf"'a' is None on rank {last}, but .*float64 .* rank 0"),
        ({"a": np.ones(2)}, "max" if odd else "min", rf"op is 'max' on rank {last}, but 'min' on rank 0"),
        ({"a": "text" if odd else 1}, "sum", rf"rank {last}: TypeError: 'a' is a str: only arrays and numbers"),
        ({"a": 2**70 if odd else 1}, "sum", rf"rank {last}: ValueError: 'a' is an int of more than 64 bits"),
        ({"a": np.ones(2)}, "band", r"'a' on rank 0 has dtype float64 \(shape \(2,\)\), for which .*'band' has no"),
        ({"a": np.ones(2, "c8")}, "min", r"'a' on rank 0 has dtype complex64"),
        ({"a": torch.ones(2).to(torch.float8_e5m2)}, "sum", r"'a' on rank 0 has dtype float8_e5m2"),
        ({"a": np.zeros(2, "M8[s]")}, "max", r"'a' on rank 0 has dtype datetime64\[s\]"),
    ]
    for tree, op, message in cases:
        with pytest.raises(dist.MismatchError, match=rf"^corral.all_reduce: {message}"):
            corral.all_reduce(tree, op)
        with pytest.raises(dist.MismatchError, match=rf"^corral.reduce: {message}"):
            corral.reduce(tree, op, dst=last)
        assert corral.all_reduce(1) == size
    for arguments in ({"op": "mean"}, {"op": None}, {"op": "premul_sum"}, {"like": "tensorflow"}):
        with pytest.raises(ValueError, match=r"op must be|like must be" if odd else "refused"):
            corral.all_reduce(1, **(arguments if odd else {}))
        assert corral.all_reduce(1) == size


def test_misfits(fleet):
    fleet(_misfits)
