"""Collectives that move data, between real processes: every dtype and layout, in groups in any order."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest
from ranks import DTYPES, LAYOUTS, in_layout, run, values

import corral.distributed as dist

SHAPES = [(), (0,), (3,), (4, 5)]


def groups_of(size):
    """The default group, and groups of some of its ranks in another order; each with its ranks."""
    orders = [[*range(1, size)][::-1], [size - 1, 0]] if size > 2 else [[1, 0]]
    made = [(dist.group.WORLD, list(range(size)))]
    return made + [(dist.new_group(ranks, sort_ranks=False), ranks) for ranks in orders]


def my_groups(size):
    rank = dist.get_rank()
    return [(group, ranks, ranks.index(rank)) for group, ranks in groups_of(size) if rank in ranks]


class Target:
    """An array to be filled, in some layout, with nothing else of its memory to be touched."""

    def __init__(self, shape, dtype, layout):
        self.view, self.memory = in_layout(np.zeros(shape, dtype), layout)

    def check(self, expected):
        np.testing.assert_array_equal(self.view, expected)
        self.view[...] = np.zeros(self.view.shape, self.view.dtype)
        assert self.memory.dtype.kind == "U" or not self.memory.astype(bool).any()


def _cases():
    for shape in SHAPES:
        for dtype in DTYPES:
            for number, layout in enumerate(LAYOUTS):
                yield number, shape, dtype, layout


def _layouts(rank, size):
    for group, ranks, me in my_groups(size):
        n = len(ranks)
        for number, shape, dtype, layout in _cases():
            other = LAYOUTS[(number + 1 + me) % len(LAYOUTS)]
            mine, _ = in_layout(values(shape, dtype, me), layout)
            root = number % n
            asynchronous = number % 2 == 1

            if me == root:
                work = dist.broadcast(mine, ranks[root], group, asynchronous)
            else:
                target = Target(shape, dtype, other)
                work = dist.broadcast(target.view, group=group, group_src=root, async_op=asynchronous)
            assert (work is None) is not asynchronous
            if work is not None:
                work.wait()
            if me != root:
                target.check(values(shape, dtype, root))

            target = Target(shape, dtype, other)
            parts = None
            if me == root:
                parts = [in_layout(values(shape, dtype, 10 + i), LAYOUTS[(number + i) % 5])[0] for i in range(n)]
            work = dist.scatter(target.view, parts, ranks[root], group, asynchronous)
            if work is not None:
                assert work.wait()
                assert work.result()[0] is target.view
            target.check(values(shape, dtype, 10 + me))

            targets = [Target(shape, dtype, LAYOUTS[(number + i) % 5]) for i in range(n)]
            work = dist.all_gather([t.view for t in targets], mine, group, asynchronous)
            if work is not None:
                work.wait()
            for i, target in enumerate(targets):
                target.check(values(shape, dtype, i))

            sent = [in_layout(values(shape, dtype, 100 * me + i), LAYOUTS[(number + i) % 5])[0] for i in range(n)]
            work = dist.all_to_all([t.view for t in targets], sent, group, asynchronous)
            if work is not None:
                work.wait()
            for i, target in enumerate(targets):
                target.check(values(shape, dtype, 100 * i + me))

            joined = (n * shape[0], *shape[1:]) if shape else (n,)
            for whole in {joined, (n, *shape)}:
                target = Target(whole, dtype, other)
                work = dist.all_gather_into_tensor(target.view, mine, group, asynchronous)
                if work is not None:
                    work.wait()
                target.check(np.stack([values(shape, dtype, i) for i in range(n)]).reshape(whole))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_dtype_and_layout(size):
    run(_layouts, size, timeout=120)


def _uneven(rank, size):
    for group, ranks, me in my_groups(size):
        n = len(ranks)
        rows = [2 * i % 5 for i in range(n)]
        mine = values((rows[me], 3), "i4", me)
        targets = [np.zeros((3, r), "i4").T for r in rows]
        dist.all_gather(targets, mine, group)
        for i in range(n):
            assert np.array_equal(targets[i], values((rows[i], 3), "i4", i))

        def table(i, j):
            return values(((3 * i + j) % 4, 2), "f4", 10 * i + j)

        sent = [table(me, j) for j in range(n)]
        targets = [np.zeros_like(table(i, me)) for i in range(n)]
        dist.all_to_all(targets, sent, group)
        for i in range(n):
            assert np.array_equal(targets[i], table(i, me))
        whole = np.concatenate(sent)
        output = np.zeros((2, sum(map(len, targets)))).astype("f4").T
        sizes = [len(t) for t in targets], [len(s) for s in sent]
        dist.all_to_all_single(output, np.asfortranarray(whole), *sizes, group=group)
        assert np.array_equal(output, np.concatenate(targets))

        parts = [np.full(i, i) for i in range(n)] if me == n - 1 else None
        target = np.zeros(me, int)
        dist.scatter(target, parts, group=group, group_src=n - 1)
        assert target.tolist() == [me] * me


@pytest.mark.parametrize("size", [2, 5])
def test_uneven_sizes(size):
    run(_uneven, size)


def _forms(rank, size):
    # One array for all: of a shape that parts share rows of, without strides of its own, or in place.
    mine = values((2, 3), "f8", rank)
    everyone = np.stack([values((2, 3), "f8", i) for i in range(size)])
    for shape in [(6 * size,), (1, 6 * size), (2, 3 * size), (3, size, 2)]:
        for layout in LAYOUTS:
            target = Target(shape, "f8", layout)
            dist.all_gather_into_tensor(target.view, mine)
            target.check(everyone.reshape(shape))
    for dtype in ("f8", ">f8"):
        whole = np.zeros((size, 2, 3), dtype)
        whole[rank] = mine
        dist.all_gather_into_tensor(whole, whole[rank])
        assert np.array_equal(whole, everyone)
        whole[:] = 0
        whole[rank] = mine
        dist.all_gather(list(whole), whole[rank])
        assert np.array_equal(whole, everyone)
    if rank == 1:
        whole[:] = 0
        whole[1] = mine
    dist.gather(whole[1] if rank == 1 else mine, list(whole) if rank == 1 else None, 1)
    assert np.array_equal(whole, everyone)
    parts = everyone.copy()
    dist.scatter(parts[1] if rank == 1 else parts[0], list(parts) if rank == 1 else None, 1)
    assert np.array_equal(parts[1] if rank == 1 else parts[0], values((2, 3), "f8", rank))
    # A small array of the default group takes another way than a large one, or one of another type.
    for rows in (1, 100_000):
        small = np.zeros((size, rows))
        dist.all_gather_single(small, np.full(rows, float(rank)))
        assert (small == np.arange(size)[:, None]).all()
    # Two arrays that are one: what is exchanged is as large as it says, and 9 dimensions are no more than 8.
    deep = values((1, 2, 1, 2, 1, 2, 1, 2, 1), "f4", rank)
    out = [np.zeros((1, 2, 1, 2, 1, 2, 1, 2, 1), "f4") for _ in range(size)]
    dist.all_gather(out, deep)
    for i in range(size):
        assert np.array_equal(out[i], values(deep.shape, "f4", i))
    buffer = bytearray(2 * size)
    dist.all_gather_into_tensor(buffer, bytes([rank, 7]))
    assert list(buffer) == [b for i in range(size) for b in (i, 7)]


def test_forms_of_one_array():
    run(_forms, 3)


def _refusals(rank, size):
    """One rank's arguments make no sense: it says why, the others learn that it did, and the next call is right."""
    rows = np.zeros((size, 2))
    a = np.ones(2)
    bad = [
        (lambda g: dist.barrier(g, timeout="1"), dist.barrier),
        (lambda g: dist.monitored_barrier(g, 0), dist.monitored_barrier),
        (lambda g: dist.broadcast(a, 7, g), lambda g: dist.broadcast(a, 0, g)),
        (lambda g: dist.gather(a, None, 1, g), lambda g: dist.gather(a, None, 1, g)),
        (lambda g: dist.scatter(a, None, 1, g), lambda g: dist.scatter(a, None, 1, g)),
        (lambda g: dist.all_gather([a] * size, a, g), lambda g: dist.all_gather(list(rows), a, g)),
        (lambda g: dist.all_gather_into_tensor(a, a, g), lambda g: dist.all_gather_into_tensor(rows, a, g)),
        (lambda g: dist.all_to_all(1, 2, g), lambda g: dist.all_to_all(list(rows), [a] * size, g)),
        (
            lambda g: dist.all_to_all_single(rows, rows, group=g),
            lambda g: dist.all_to_all_single(np.zeros_like(rows), rows, group=g),
        ),
        (lambda g: dist.all_reduce(a, "sum", g), lambda g: dist.all_reduce(a, group=g)),
        (lambda g: dist.reduce(a, 0, dist.ReduceOp.BOR, g), lambda g: dist.reduce(a, 0, group=g)),
        (
            lambda g: dist.reduce_scatter(rows[0], list(rows), group=g),
            lambda g: dist.reduce_scatter(a, list(rows), group=g),
        ),
        (lambda g: dist.reduce_scatter_tensor(a, a, group=g), lambda g: dist.reduce_scatter_tensor(a, rows, group=g)),
        (lambda g: dist.all_reduce_coalesced([], group=g), lambda g: dist.all_reduce_coalesced([a], group=g)),
        (
            lambda g: dist.all_gather_coalesced([], [a], g),
            lambda g: dist.all_gather_coalesced([[row] for row in rows], [a], g),
        ),
    ]
    groups = [dist.new_group() for _ in bad]
    for group, (refuse, call) in zip(groups, bad, strict=True):
        told = None
        try:
            (refuse if rank == 1 else call)(group)
        except (ValueError, TypeError, dist.MismatchError) as error:
            told = error
        dist.barrier()
        try:
            dist.destroy_process_group(group)  # the last chance to tell a rank that needed nothing of the others
        except dist.MismatchError as error:
            told = told or error
        if rank == 1:
            assert isinstance(told, (ValueError, TypeError))
            assert not isinstance(told, dist.DistError)
        else:
            assert isinstance(told, dist.MismatchError)
            assert re.search(r"rank 1 called \w+ with arguments that it refused", str(told))


def test_refusals_are_told_to_all():
    run(_refusals, 3)


def _right_after_a_refusal(rank, size):
    rows = np.zeros((size, 2))
    for expected in (1, 2, 3):
        if rank == 1:
            with pytest.raises(ValueError, match="shares memory with tensor"):
                dist.all_gather(list(rows), rows[0])
        else:
            with pytest.raises(dist.MismatchError, match="rank 1 called all_gather with arguments"):
                dist.all_gather(list(rows), rows[rank])
        dist.all_gather(list(rows), np.full(2, 10.0 * expected + rank))
        assert rows[:, 0].tolist() == [10 * expected + i for i in range(size)]


def test_the_next_call_after_a_refusal_is_right():
    run(_right_after_a_refusal, 3)


def _mismatches(rank, size):
    """Calls that do not fit together; each in a group of its own, as a rank may learn of it by its next call only."""
    a, rows = np.ones(4), np.zeros((size, 4))
    odd = rank == 1
    calls = {
        "broadcast.*root": lambda g: dist.broadcast(a, int(odd), g),
        "float32.*float64|float64.*float32": lambda g: dist.broadcast(a.astype("f4") if odd else a, 0, g),
        "16 bytes.*32 bytes|32 bytes.*16 bytes": lambda g: dist.broadcast(a[:2] if odd else a, 0, g),
        "all_gather.*broadcast|broadcast.*all_gather": lambda g: (
            dist.all_gather(list(rows), a, g) if odd else dist.broadcast(a, 0, g)
        ),
        "all_gather.*int64|int64.*all_gather": lambda g: (
            dist.all_gather(list(rows.astype(int)), a.astype(int), g) if odd else dist.all_gather(list(rows), a, g)
        ),
        "all_gather_into_tensor.*(16|32) bytes": lambda g: dist.all_gather_into_tensor(
            rows[:, :2].copy() if odd else rows, a[:2] if odd else a, g
        ),
        "scatter.*bytes": lambda g: dist.scatter(a[:2] if odd else a, list(rows) if rank == 0 else None, 0, g),
        "all_to_all.*rank 1 contributes 16 bytes|all_to_all.*where rank 1 expects 16": lambda g: dist.all_to_all(
            list(np.zeros((size, 2))) if odd else list(rows),
            list(np.zeros((size, 2))) if odd else list(np.ones((size, 4))),
            g,
        ),
        "MAX.*SUM|SUM.*MAX": lambda g: dist.all_reduce(a, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM, g),
        "all_reduce.*int64": lambda g: dist.all_reduce(a.astype(int) if odd else a, group=g),
        "all_reduce.*bytes": lambda g: dist.all_reduce(a[:3] if odd else a, group=g),
        "reduce.*root": lambda g: dist.reduce(a, int(odd), group=g),
        "reduce_scatter.*bytes": lambda g: dist.reduce_scatter(
            a[:2] if odd else a, list(rows[:, :2]) if odd else list(rows), group=g
        ),
        "reduce_scatter_tensor.*BOR|BOR.*reduce_scatter_tensor": lambda g: dist.reduce_scatter_tensor(
            a.astype(int), rows.astype(int), dist.ReduceOp.BOR if odd else dist.ReduceOp.BAND, g
        ),
        "barrier.*monitored_barrier|monitored_barrier.*barrier": lambda g: (
            dist.barrier(g) if odd else dist.monitored_barrier(g)
        ),
        "all_reduce_coalesced": lambda g: dist.all_reduce_coalesced([a] if odd else [a, np.ones(2)], group=g),
    }
    groups = [dist.new_group() for _ in calls]
    for group, (text, call) in zip(groups, calls.items(), strict=True):
        told = []
        try:
            call(group)
        except dist.MismatchError as error:
            told.append(str(error))
        dist.barrier()
        try:
            dist.destroy_process_group(group)
        except dist.MismatchError as error:
            told.append(str(error))
        assert told, f"{text}: rank {rank} was told nothing"
        assert re.search(text, told[0]), f"{text}: {told[0]}"


@pytest.mark.also("sockets")
@pytest.mark.parametrize("size", [2, 3])
def test_mismatches_are_told_to_all(size):
    run(_mismatches, size)


def _monitored(rank, size):
    dist.monitored_barrier()
    dist.monitored_barrier(wait_all_ranks=True)
    if rank in (1, 3):
        others = dist.new_group([1, 3], use_local_synchronization=True)
        dist.recv(np.zeros(1), 0)  # from a rank that has been told
        dist.barrier(others)
        return
    with pytest.raises(dist.DistTimeoutError, match=r"(?s)^monitored_barrier #\d+ on rank.*rank 1 .*rank 3 ") as caught:
        dist.monitored_barrier(timeout=0.5)
    assert f"rank {4 - rank if rank == 4 else 2} is" not in str(caught.value)
    if rank == 0:
        dist.send(np.zeros(1), 1)
        dist.send(np.zeros(1), 3)


def test_monitored_barrier_names_all_that_are_missing():
    run(_monitored, 5)


def _asynchronous(rank, size):
    calls = []
    for i in range(6):
        a = np.full(3, rank + 10.0 * i, ">f8" if i % 2 else "f8")
        rows = np.zeros((size, 3), a.dtype)
        calls.append((dist.all_gather(list(rows), a, async_op=True), rows, i))

    async def wait_for_all():
        for work, rows, i in calls[:3]:
            assert await work == list(work.result())
            assert rows[:, 0].tolist() == [r + 10 * i for r in range(size)]

    asyncio.run(wait_for_all())
    for work, rows, i in calls[3:]:
        assert work.get_future().wait()[rank][0] == rank + 10 * i
        assert rows[:, 0].tolist() == [r + 10 * i for r in range(size)]
    single = np.zeros(2 * size)
    work = dist.all_to_all_single(single, np.arange(2.0 * size), async_op=True)
    assert work.wait()
    assert work.result()[0] is single
    assert single.tolist() == [2 * rank, 2 * rank + 1] * size


def test_asynchronous():
    run(_asynchronous, 3)
