"""Several arrays in one collective, between real processes."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import DTYPES, LAYOUTS, in_layout, run, values

import corral.distributed as dist


def _gathered(rank, size):
    order = [*range(size)][::-1]
    for group, ranks in ((None, [*range(size)]), (dist.new_group(order, sort_ranks=False), order)):
        me = ranks.index(rank)
        for number, dtypes in enumerate(zip(DTYPES, DTYPES[3:] + DTYPES[:3], strict=True)):
            shapes = [(number % 4, 3), ()]

            def arrays(i, shapes=shapes, dtypes=dtypes):
                # Rank i has i rows more than rank 0.
                return [
                    values((shapes[0][0] + i, 3), dtypes[0], 10 * i),
                    values(shapes[1], dtypes[1], 10 * i + 1),
                ]

            mine = [in_layout(a, LAYOUTS[(number + me) % 5])[0] for a in arrays(me)]
            outputs = [
                [in_layout(np.zeros(a.shape, a.dtype), LAYOUTS[(number + i) % 5])[0] for a in arrays(i)]
                for i in range(size)
            ]
            work = dist.all_gather_coalesced(outputs, mine, group, number % 2 == 1)
            if work is not None:
                assert work.wait()
                assert [id(a) for a in work.result()] == [id(a) for each in outputs for a in each]
            for i in range(size):
                for actual, expected in zip(outputs[i], arrays(i), strict=True):
                    np.testing.assert_array_equal(actual, expected)
    # A rank's own part may be what it contributes.
    outputs = [[np.full(2, float(rank)), np.full((), rank)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, outputs[rank])
    assert [(a[0], int(b)) for a, b in outputs] == [(i, i) for i in range(size)]


@pytest.mark.parametrize("size", [2, 3])
def test_all_gather_coalesced(size):
    run(_gathered, size)


def _reduced(rank, size):
    for number, layout in enumerate(LAYOUTS):
        for rows in (3, 0, 5000):
            everyone = [
                [
                    values((rows, 2), "f4", i),
                    values((), "i8", 10 + i),
                    values((rows,), ">f8", 20 + i),
                    values((2, rows), "u1", 30 + i),
                ]
                for i in range(size)
            ]
            mine = [in_layout(a, layout)[0] for a in everyone[rank]]
            work = dist.all_reduce_coalesced(mine, async_op=number % 2 == 1)
            if work is not None:
                assert work.wait()
                assert [id(a) for a in work.result()] == [id(a) for a in mine]
            for k, actual in enumerate(mine):
                total = everyone[0][k].copy()
                for i in range(1, size):
                    total = total + everyone[i][k]
                assert actual.astype(total.dtype).tobytes() == total.tobytes(), (layout, rows, k)
    single = np.array([rank, 5])
    dist.all_reduce_coalesced(single, dist.ReduceOp.MAX)
    assert single.tolist() == [size - 1, 5]
    pair = [np.array([True, False]), np.array([rank % 2 == 0, True])]
    dist.all_reduce_coalesced(pair, dist.ReduceOp.BAND)
    assert [a.tolist() for a in pair] == [[True, False], [False, True]]
    with pytest.raises(TypeError, match=r"all_reduce_coalesced: ReduceOp.BOR .* float64, the dtype of tensors\[1\]"):
        dist.all_reduce_coalesced([np.zeros(1, int), np.zeros(1)], dist.ReduceOp.BOR)


@pytest.mark.parametrize("size", [2, 3])
def test_all_reduce_coalesced(size):
    run(_reduced, size)
