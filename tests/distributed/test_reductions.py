"""Reductions between real processes: the same bits on every rank, equal to what rank order gives in one process."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np
import pytest
from ranks import LAYOUTS, in_layout, run

import corral.distributed as dist

OPS = dist.ReduceOp.__members__
BITS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FLOATS = ["f2", "bfloat16", "f4", "f8", ">f4"]
COMPLEX = ["c8", "c16"]
SHAPES = [(), (0,), (7,), (3, 5)]
LARGE = (50_021,)  # more than a rank combines alone
FACTOR = 0.3


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def has_meaning(op, name):
    if name in BITS:
        return True
    if op in ("BAND", "BOR", "BXOR"):
        return False
    return name in FLOATS or op not in ("MIN", "MAX")


def contribution(shape, name, rank, op="SUM"):
    """Values whose order matters in a sum, of very different sizes."""
    rng = np.random.default_rng([rank, len(shape), sum(map(ord, name))])
    dtype = dtype_of(name)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.6)
    if dtype.kind in "iu":
        low = 0 if dtype.kind == "u" else -100
        return np.asarray(rng.integers(low, 100, shape)).astype(dtype)
    spread = 0.0 if op == "PRODUCT" else 2.0 if dtype.itemsize == 2 else 6.0
    scale = 10.0 ** rng.uniform(-spread, spread / 2, shape)
    values = np.asarray(rng.normal(size=shape) * scale)
    if dtype.kind == "c":
        return np.asarray(values + 1j * rng.normal(size=shape) * scale).astype(dtype)
    return values.astype(dtype)


def combined(parts, op):
    """The definition, step by step: in rank order, 16-bit floats in float32."""
    dtype = parts[0].dtype.newbyteorder("=")
    n = len(parts)
    if dtype.kind == "b":
        total = {
            "SUM": np.any, "MAX": np.any, "BOR": np.any, "PREMUL_SUM": np.any,
            "BXOR": np.logical_xor.reduce,
        }.get(op, np.all)(np.stack(parts), axis=0)  # fmt: skip
        return np.asarray(total)
    wide = np.dtype("f4") if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    real = wide.type(0).real.dtype
    factor = np.trunc(FACTOR).astype(wide) if dtype.kind in "iu" else real.type(FACTOR)
    step = {
        "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum,
        "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
    }.get(op, np.add)  # fmt: skip
    total = None
    for part in parts:
        value = part.astype(wide)
        if op == "PREMUL_SUM":
            value = value * factor
        total = value if total is None else step(total, value)
    if op == "PRODUCT" and dtype.kind == "c":
        total = parts[0].astype(wide)
        for part in parts[1:]:  # NumPy may fuse a product's operations
            a, b, c, d = total.real, total.imag, part.real, part.imag
            total = (a * c - b * d) + 1j * (a * d + b * c)
    if op == "AVG":
        if dtype.kind in "iu":
            total = (np.sign(total) * (np.abs(total) // n)) if dtype.kind == "i" else total // n
        elif dtype.kind == "c":
            total = total.real / real.type(n) + 1j * (total.imag / real.type(n))
        else:
            total = total / wide.type(n)
    return np.asarray(total).astype(dtype)


def reduce_op(op):
    return OPS[op](FACTOR) if op == "PREMUL_SUM" else OPS[op]


def my_groups(size):
    orders = [[*range(1, size)][::-1]] if size > 2 else [[1, 0]]
    made = [(dist.group.WORLD, list(range(size)))]
    made += [(dist.new_group(ranks, sort_ranks=False), ranks) for ranks in orders]
    return [(g, ranks, ranks.index(dist.get_rank())) for g, ranks in made if dist.get_rank() in ranks]


def same_bits(actual, expected):
    native = np.ascontiguousarray(actual.astype(expected.dtype))
    return native.tobytes() == np.ascontiguousarray(expected).tobytes()


def _all(rank, size):
    digest = hashlib.sha256()
    with np.errstate(all="ignore"):
        for group, ranks, me in my_groups(size):
            number = 0
            for name in BITS + FLOATS + COMPLEX:
                for op in OPS:
                    for shape in [*SHAPES, *([LARGE] if name in ("f2", "bfloat16", "f4", "i8") else [])]:
                        number += 1
                        if not has_meaning(op, name):
                            continue
                        label = f"{op} of {name} {shape} in {ranks}"
                        parts = [contribution(shape, name, i, op) for i in range(len(ranks))]
                        expected = combined(parts, op)
                        mine, memory = in_layout(parts[me].astype(dtype_of(name)), LAYOUTS[(number + me) % 5])
                        before = memory.copy()
                        work = dist.all_reduce(mine, reduce_op(op), group, number % 3 == 0)
                        if work is not None:
                            work.wait()
                            assert work.result()[0] is mine
                        assert same_bits(mine, expected), label
                        if group is dist.group.WORLD:
                            digest.update(np.ascontiguousarray(mine).tobytes())
                        mine[...] = parts[me]
                        assert memory.tobytes() == before.tobytes(), f"{label}: wrote beside the array"
                        root = number % len(ranks)
                        dist.reduce(mine, ranks[root], reduce_op(op), group)
                        assert same_bits(mine, expected if me == root else parts[me].astype(expected.dtype)), label
    return digest.hexdigest()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_op_dtype_and_layout(size):
    digests = run(_all, size, timeout=150)
    assert len(set(digests)) == 1


def _scattered(rank, size):
    with np.errstate(all="ignore"):
        for group, ranks, me in my_groups(size):
            n, number = len(ranks), 0
            for name in ("?", "i4", "u1", "f2", "bfloat16", "f4", ">f4", "c16"):
                for op in OPS:
                    for shape in [(), (0, 2), (4, 3), *([(9_001,)] if name in ("f4", "f2") else [])]:
                        number += 1
                        if not has_meaning(op, name):
                            continue
                        label = f"{op} of {name} {shape} in {ranks}"
                        # Parts may differ in size: that of rank j has j rows more.
                        shapes = [(shape[0] + j, *shape[1:]) if shape else () for j in range(n)]
                        table = [[contribution(shapes[j], name, 7 * i + j, op) for j in range(n)] for i in range(n)]
                        expected = combined([table[i][me] for i in range(n)], op)
                        parts = [in_layout(part, LAYOUTS[(number + me) % 5])[0] for part in table[me]]
                        output, _ = in_layout(np.zeros(shapes[me], dtype_of(name)), LAYOUTS[(number + 2 + me) % 5])
                        work = dist.reduce_scatter(output, parts, reduce_op(op), group, number % 3 == 0)
                        if work is not None:
                            work.wait()
                        assert same_bits(output, expected), label
                        if op == "SUM":  # in place
                            dist.reduce_scatter(parts[me], parts, reduce_op(op), group)
                            assert same_bits(parts[me], expected), label

                        wholes = [contribution((n, *shape), name, i, op) for i in range(n)]
                        expected = combined([whole[me] for whole in wholes], op)
                        joined = (n * shape[0], *shape[1:]) if shape else (n,)
                        whole, _ = in_layout(wholes[me].reshape(joined), LAYOUTS[(number + me) % 5])
                        output, _ = in_layout(np.zeros(shape, dtype_of(name)), LAYOUTS[(number + me) % 5])
                        work = dist.reduce_scatter_tensor(output, whole, reduce_op(op), group, number % 3 == 0)
                        if work is not None:
                            work.wait()
                            assert work.result()[0] is output
                        assert same_bits(output, expected), label


@pytest.mark.parametrize("size", [2, 3])
def test_reduce_scatter(size):
    run(_scattered, size, timeout=120)


def _libraries(rank, size):
    import torch

    # One rank's array is NumPy's, the next one's torch's; one that NumPy has no dtype for is bfloat16 in both.
    for name in ("float32", "int64", "bfloat16", "complex64"):
        numpy = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
        parts = [(np.arange(6) * (i + 1)).astype(numpy).reshape(2, 3) for i in range(size)]
        expected = combined(parts, "SUM")
        if rank % 2:
            mine = torch.tensor(parts[rank].astype("c8" if name == "complex64" else "f4").T.copy()).T
            mine = mine.to(getattr(torch, name)).requires_grad_(name == "float32")
        else:
            mine = parts[rank].copy()
        dist.all_reduce(mine)
        values = mine.detach().to(torch.complex64).numpy() if rank % 2 else mine
        assert np.array_equal(values.astype("c8"), expected.astype("c8")), name
    # Memory that does not hold the values as they are: conjugated, negated, sparse, of too many dimensions.
    z = torch.tensor([1 + 2j, 3 - 1j])
    for lazy, expected in [(z.conj(), [1 - 2j, 3 + 1j]), (torch.conj(z).imag, [-2.0, 1.0])]:
        dist.all_reduce(lazy)
        assert lazy.tolist() == [size * value for value in expected]
        lazy /= size
    sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,), check_invariants=True)
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [size, 0, 2 * size, 0]
    deep = torch.arange(4.0).reshape(1, 2, 1, 1, 1, 1, 1, 1, 1, 2).transpose(1, 9)
    dist.all_reduce(deep, dist.ReduceOp.MAX)
    dist.all_reduce(deep)
    assert deep.flatten().tolist() == [0, 2 * size, size, 3 * size]
    half = torch.full((3,), 1.0, dtype=torch.float8_e5m2)
    for _ in range(2):  # before anything moves, on every rank, and again
        with pytest.raises(TypeError, match=r"all_reduce: ReduceOp.SUM has no meaning for float8_e5m2.*8-bit floats"):
            dist.all_reduce(half)
        dist.barrier()
    whole = torch.arange(6.0 * size).reshape(3, 2 * size)
    dist.reduce_scatter_tensor(z.real, whole[0, : 2 * size].clone())
    assert z.real.tolist() == [size * (2 * rank), size * (2 * rank + 1)]
    jax = pytest.importorskip("jax")
    if rank == 0:
        with pytest.raises(TypeError, match=r"jax\.Array never changes"):
            dist.all_reduce(jax.numpy.zeros(2))
    else:
        with pytest.raises(dist.MismatchError, match="rank 0 called all_reduce with arguments that it refused"):
            dist.all_reduce(np.zeros(2, "f4"))
    output = np.zeros(2, "f4")
    dist.reduce_scatter_tensor(output, jax.numpy.ones((size, 2)) if rank == 0 else np.ones((size, 2), "f4"))
    assert output.tolist() == [size, size]
    dist.reduce(jax.numpy.ones(2) if rank == 1 else output, 0)  # a jax.Array can be contributed, not be filled
    assert output.tolist() == [size * (size - 1) + 1 if rank == 0 else size] * 2


def test_arrays_of_other_libraries():
    run(_libraries, 3, timeout=120)


def _uneven_factors(rank, size):
    a = np.full(3, 2.0)
    dist.all_reduce(a, dist.ReduceOp.PREMUL_SUM(0.25))
    assert a.tolist() == [0.5 * size] * 3
    a[:] = np.inf if rank == 0 else np.nan if rank == 1 else 1.0
    dist.all_reduce(a, dist.ReduceOp.MAX)
    assert np.isnan(a).all()
    a = np.array([250, 10], "u1")
    dist.all_reduce(a)
    assert a.tolist() == [250 * size % 256, 10 * size % 256]


def test_edges_of_the_arithmetic():
    run(_uneven_factors, 3)
