"""Every dtype goes through every operation that has a meaning for it; the others are refused, on all ranks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from calls import Call, my_groups
from operations import OPERATIONS
from ranks import run
from test_reductions import COMPLEX, FLOATS, OPS, combined, has_meaning, reduce_op

import corral.distributed as dist
from corral.arrays.dtypes import EXTENDED

INTEGERS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i2", ">u8"]
NARROW = sorted(set(EXTENDED) - {"bfloat16"})
OTHERS = ["M8[s]", "M8[ns]", "m8[D]", "U3", "S4", "V5", "longdouble", "record"]
REDUCIBLE = [*INTEGERS, *FLOATS, *COMPLEX, ">c8"]
ALL = [*REDUCIBLE, *NARROW, *OTHERS]
REDUCING = [operation for operation in OPERATIONS if operation.reduces]
MOVING = [operation for operation in OPERATIONS if operation.arrays and not operation.reduces]
SHAPES = [(2, 3), (), (0, 2)]
RECORD = np.dtype([("x", "u1"), ("y", ">f4")])


def dtype_of(name):
    if name == "record":
        return RECORD
    return np.dtype(getattr(ml_dtypes, name)) if name in EXTENDED else np.dtype(name)


def by_definition(parts, op):
    """What a reduction makes of the ranks' arrays."""
    if op == "AVG" and parts[0].dtype.kind == "i":  # a sum that has wrapped around may have no absolute value
        total = combined(parts, "SUM").astype("i8")
        return (np.sign(total) * (abs(total) // len(parts))).astype(parts[0].dtype)
    return combined(parts, op)


def _moved(rank, size, names, shapes, library):
    for group, ranks in my_groups([[0, 1, 2, 3, 4], [3, 0, 2], [4, 1]]):
        for number, name in enumerate(names):
            for shape in shapes:
                for operation in MOVING:
                    asynchronous = operation.asynchronous and number % 2 == 0
                    kind = library if rank % 2 else "numpy"
                    call = Call(group, ranks, number % len(ranks), shape, dtype_of(name), number, asynchronous, kind)
                    operation.run(call)


def test_moved():
    run(_moved, 5, ALL, SHAPES, "numpy", timeout=120)


def test_moved_between_numpy_and_torch():
    torch = pytest.importorskip("torch")
    names = [
        n for n in [*INTEGERS, *FLOATS, *COMPLEX, *NARROW] if n[0] != ">" and (n not in EXTENDED or hasattr(torch, n))
    ]
    assert "float8_e4m3fn" in names
    run(_moved, 5, names, SHAPES[:1], "torch", timeout=120, environment={"OMP_NUM_THREADS": "1"})


def _reduced(rank, size):
    with np.errstate(all="ignore"):
        for group, ranks in my_groups([[0, 1, 2, 3, 4], [3, 0, 2], [4, 1]]):
            for number, name in enumerate(REDUCIBLE):
                for op in OPS:
                    if not has_meaning(op, name.removeprefix(">")):
                        continue
                    for operation in REDUCING:
                        asynchronous = operation.asynchronous and number % 2 == 1
                        root, dtype = number % len(ranks), dtype_of(name)
                        how = {"op": op, "reduce_op": reduce_op(op), "combined": by_definition}
                        operation.run(Call(group, ranks, root, (2, 3), dtype, number, asynchronous, **how))


def test_reduced():
    run(_reduced, 5, timeout=120)


def _refused(rank, size):
    for group, ranks in my_groups([[0, 1, 2, 3, 4], [3, 0, 2], [4, 1]]):
        for number, name in enumerate(ALL):
            for op in ("SUM", "MAX", "BXOR", "PREMUL_SUM"):
                if name in REDUCIBLE and has_meaning(op, name.removeprefix(">")):
                    continue
                for operation in REDUCING:
                    call = Call(group, ranks, 0, (2, 3), dtype_of(name), number, op=op, reduce_op=reduce_op(op))
                    with pytest.raises(
                        (TypeError, dist.MismatchError), match=f"(?i){op}.*no meaning|no meaning.*{op}|{op} of"
                    ):
                        operation.start(call)
    dist.barrier()


def test_reductions_without_a_meaning_are_refused():
    run(_refused, 5)


def _functional_reduce_op(rank, size):
    import corral

    a = np.full(2, float(rank))
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
        total = corral.all_reduce(a, op)
        assert total.tolist() == [sum(range(size)) if op == dist.ReduceOp.SUM else size - 1] * 2


def test_functional_reductions_take_a_reduce_op():
    run(_functional_reduce_op, 2)
