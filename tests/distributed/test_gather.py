"""`gather` and `gather_object` between real processes."""

from __future__ import annotations

import asyncio
import datetime

import numpy as np
import pytest
from ranks import DTYPES, LAYOUTS, in_layout, run, values

import corral
import corral.distributed as dist


def _layouts(rank, size):
    for shape in [(), (0,), (3,), (4, 5)]:
        for dtype in DTYPES:
            for number, there in enumerate(LAYOUTS):
                mine, _ = in_layout(values(shape, dtype, rank), there)
                root = number % size
                if rank != root:
                    dist.gather(mine, dst=root)
                    continue
                kinds = [LAYOUTS[(number + i) % len(LAYOUTS)] for i in range(size)]
                made = [in_layout(np.zeros(shape, dtype), kind) for kind in kinds]
                dist.gather(mine, [view for view, _ in made], dst=root)
                for source, (view, memory) in enumerate(made):
                    np.testing.assert_array_equal(view, values(shape, dtype, source))
                    view[...] = np.zeros(shape, dtype)
                    assert not memory.astype(bool).any() if memory.dtype.kind != "U" else True


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_dtype_and_layout(size):
    run(_layouts, size)


def _large(rank, size):
    mine = values((300, 1000), "f8", rank)
    if rank == 1:
        rows = np.zeros((300, size, 1000)).transpose(1, 0, 2)
        dist.gather(mine.T.copy().T, list(rows), dst=1)
        for i, row in enumerate(rows):
            assert np.array_equal(row, values((300, 1000), "f8", i))
    else:
        dist.gather(mine, dst=1)


@pytest.mark.parametrize("direct", ["1", "0"])
def test_large_arrays(direct):
    run(_large, 3, environment={"CORRAL_SHM_DIRECT": direct})


def _uneven(rank, size):
    mine = values((2 * rank, 3), "i4", rank)
    rows = [np.zeros((2 * i, 3), "i4") for i in range(size)] if rank == 0 else None
    dist.gather(mine, rows)
    if rows is not None:
        for i, row in enumerate(rows):
            assert np.array_equal(row, values((2 * i, 3), "i4", i))


@pytest.mark.also("sockets")
def test_uneven_rows():
    run(_uneven, 4)


def _mismatch(rank, size):
    rows = [np.zeros(3) for _ in range(size)] if rank == 0 else None
    with pytest.raises(dist.MismatchError, match="rank 1"):
        dist.gather(np.zeros(4 if rank == 1 else 3), rows)
    with pytest.raises(dist.MismatchError, match=r"rank 2.*int64.*float64"):
        dist.gather(np.zeros(3, "i8" if rank == 2 else "f8"), rows)
    with pytest.raises(dist.MismatchError, match=r"rank 2 contributes str64, .* is of float64"):  # on all, by its name
        dist.gather(np.zeros(3, "U2" if rank == 2 else "f8"), rows)
    with pytest.raises(dist.MismatchError, match="root"):
        dist.gather(np.zeros(3), [np.zeros(3) for _ in range(size)] if rank == 1 else rows, dst=int(rank == 1))
    with pytest.raises(dist.MismatchError, match=r"gather.*barrier|barrier.*gather"):
        dist.barrier() if rank == 1 else dist.gather(np.zeros(3), rows)
    dist.gather(np.full(3, float(rank)), rows)
    if rows is not None:
        assert [row[0] for row in rows] == list(range(size))


@pytest.mark.also("sockets")
def test_mismatches_are_told_to_every_rank():
    run(_mismatch, 3)


def _refused(rank, size):
    """Destinations that are received into through scratch memory keep what they had, as all others do."""
    memory = np.full((size, 3, 2), 7.0)
    rows = [memory[i, :, 0] for i in range(size)] if rank == 0 else None
    for wrong in (np.zeros(4), np.zeros(3, "f4")):
        with pytest.raises(dist.MismatchError, match="Nothing was written"):
            dist.gather(wrong if rank == 1 else np.zeros(3), rows)
        with pytest.raises(dist.MismatchError, match="Nothing was written"):
            dist.gather(wrong if rank == 1 else np.zeros(3), rows, async_op=True).wait()
        assert (memory == 7).all()
    with pytest.raises(dist.MismatchError):
        corral.gather_and_stack({"a": memory[1:, :, 0] if rank == 0 else np.zeros(4)}, 0)
    assert (memory == 7).all()
    if rank == 0:
        work = dist.irecv(memory[0, :, 0], 1)
        with pytest.raises(dist.DistTimeoutError):
            work.wait(0.2)
        del work
        with pytest.raises(dist.MismatchError):
            dist.recv(memory[0, :, 0], 1, tag=1)
        assert (memory == 7).all()
    elif rank == 1:
        dist.send(np.zeros(4), 0, tag=1)
    dist.barrier()


@pytest.mark.everywhere
def test_nothing_is_written_where_something_is_refused():
    run(_refused, 3)


def _asynchronous(rank, size):
    works, targets = [], []
    for i in range(5):
        rows = np.zeros((size, 4), ">f8" if i == 4 else "f8") if rank == 2 else None
        targets.append(rows)
        works.append(
            dist.gather(np.full(4, 10.0 * i + rank), None if rows is None else list(rows), dst=2, async_op=True)
        )

    async def wait_for_all():
        for work in works[:3]:
            await work

    asyncio.run(wait_for_all())
    futures = [work.get_future().then(lambda f: len(f.value())) for work in works]
    assert [future.wait() for future in futures] == [size if rank == 2 else 0] * 5
    for i, rows in enumerate(targets):
        if rows is not None:
            assert rows[:, 0].tolist() == [10.0 * i + r for r in range(size)]
    barrier = dist.barrier(async_op=True)
    assert barrier.wait(10)
    assert barrier.is_success()


def test_asynchronous():
    run(_asynchronous, 3)


def _objects(rank, size):
    things = [
        None,
        True,
        -(2**80),
        1.5,
        2j,
        "text ☃",
        b"bytes",
        [1, [2, (3, {4})]],
        {"a": {"b": (1,)}, 3: None},
        datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        {"array": np.arange(rank + 1.0), "names": np.array(["x"] * rank)},
        "x" * (rank * 1_000_000),
    ]
    for root in range(size):
        for thing in things:
            out = [None] * size if rank == root else None
            dist.gather_object((rank, thing), out, dst=root)
            if out is not None:
                assert [r for r, _ in out] == list(range(size))
                assert type(out[rank][1]) is type(thing)
                if not isinstance(thing, (dict, str)):
                    assert [t for _, t in out] == [thing] * size
    out = [None] * size if rank == 0 else None
    dist.gather_object({"a": np.full((rank, 2), rank, "f4")}, out)
    if out is not None:
        for i, tree in enumerate(out):
            assert tree["a"].dtype == np.float32
            assert np.array_equal(tree["a"], np.full((i, 2), i))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_objects(size):
    run(_objects, size)


class Thing:
    """Something that only a pickle can hold."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Thing and other.value == self.value

    __hash__ = None


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("never")


def _pickles(rank, size, allowed):
    out = [None] * size if rank == 0 else None
    if allowed:
        dist.gather_object(Thing(rank), out)
        if out is not None:
            assert out == [Thing(i) for i in range(size)]
    else:
        with pytest.raises(Exception, match="Thing"):
            dist.gather_object(Thing(rank), out)
    # One that cannot send tells the destination; nobody hangs, and the others' part is over.
    for bad in (Unpicklable(), lambda: None):
        if rank == 1:
            with pytest.raises(Exception, match=r"never|lambda|pickle|function|Unpicklable"):
                dist.gather_object(bad, out)
        elif rank == 0:
            before = list(out)
            with pytest.raises(dist.DistBackendError, match="rank 1 could not send its object"):
                dist.gather_object(1, out)
            assert out == before
        else:
            dist.gather_object(1, out)
    dist.gather_object(rank, out)
    if out is not None:
        assert out == list(range(size))


def test_pickles():
    run(_pickles, 3, True)


def test_pickles_denied_on_the_group():
    run(_pickles, 3, False, allow_pickle=False)


def test_pickles_denied_by_the_environment():
    run(_pickles, 3, False, environment={"CORRAL_PICKLE": "deny"}, allow_pickle=True)


@pytest.mark.parametrize("word", ["denny", "no", "0", "deny,allow"])
def test_a_misspelt_prohibition_is_an_error(word, monkeypatch, tmp_path):
    monkeypatch.setenv("CORRAL_PICKLE", word)
    for allow_pickle in (None, True, False):
        meeting = f"file://{tmp_path}/{allow_pickle}"
        with pytest.raises(ValueError, match=rf"CORRAL_PICKLE is '{word}'.*'deny'.*'allow'"):
            dist.init_process_group("shm", meeting, rank=0, world_size=1, allow_pickle=allow_pickle)
        assert not dist.is_initialized()


@pytest.mark.parametrize(("word", "allowed"), [("", True), (" Allow ", True), (" DENY\t", False), ("Deny", False)])
def test_the_environment_may_be_written_in_any_case(word, allowed):
    run(_pickles, 3, allowed, environment={"CORRAL_PICKLE": word})


def _denied_by_the_receiver(rank, size):
    group = dist.new_group(allow_pickle=rank != 0)
    out = [None] * size if rank == 0 else None
    if rank == 0:
        with pytest.raises(Exception, match="Thing"):
            dist.gather_object(1, out, group=group)
        assert out == [None] * size
    else:
        dist.gather_object(Thing(rank), out, group=group)


def test_pickles_denied_by_the_receiver_alone():
    run(_denied_by_the_receiver, 2)
