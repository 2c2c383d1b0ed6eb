"""Operations on objects between real processes."""

from __future__ import annotations

import inspect
import threading

import numpy as np
import pytest
from ranks import run, values

import corral
import corral.distributed as dist

torch = pytest.importorskip("torch")

NAMES = [
    "gather_object",
    "all_gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
]


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


def _object(seed):
    """An object that every rank can compute, of another size for each seed."""
    return {
        "seed": seed,
        "plain": [None, True, -(2**80), 1.5, 2j, "text ☃", b"bytes", (1, {2}, frozenset({(3,)}))],
        "thing": Thing(seed),
        "text": "x" * (seed * 10_000),
        "arrays": [values((seed + 2, 3), dtype, seed) for dtype in ("f8", "?", "c8", "U2")],
        "large": values((seed + 1, 20_000), "i4", seed).T,
        "tensor": torch.arange(seed + 3, dtype=torch.bfloat16),
    }


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b) and a.flags.writeable
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_torchs(name):
    import torch.distributed as c10d

    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (dist, c10d))
    assert [(p.name, p.default, p.kind) for p in ours.values()] == [
        (p.name, p.default, p.kind) for p in theirs.values()
    ]


def _program(module, rank, size, group, ranks):
    """What each rank has after each of the operations, called with the roots in every way."""
    me = ranks.index(rank)
    n = len(ranks)
    results = []
    for root in range(n):
        for where in ("global", "group"):
            src, dst = (
                ({"src": ranks[root]}, {"dst": ranks[root]})
                if where == "global"
                else ({"group_src": root}, {"group_dst": root})
            )
            out = [None] * n if me == root else None
            module.gather_object(_object(rank), out, group=group, **dst)
            results.append(out)
            both = [_object(root), ("second", root)] if me == root else [None, None]
            module.broadcast_object_list(both, group=group, **src)
            results.append(both)
            one = ["before", "stays"]
            parts = [_object(10 * root + i) for i in range(n)] if me == root else None
            module.scatter_object_list(one, parts, group=group, **src)
            results.append(one)
    out = [None] * n
    module.all_gather_object(out, _object(rank), group=group)
    results.append(out)
    for batch in (False, True):
        for source in range(n):
            target = (source + 1) % n
            if me == source:
                module.send_object_list([_object(source), source], dst=ranks[target], group=group, use_batch=batch)
            elif me == target:
                got = [None, None]
                src = {"src": ranks[source]} if batch else {"group_src": source}
                results.append(module.recv_object_list(got, group=group, use_batch=batch, **src))
                results.append(got)
    return results


def _against_torch(rank, size, folder):
    import torch.distributed as c10d

    c10d.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size)
    groups = [(None, {})]
    if size == 5:
        groups += [([3, 1], {}), ([4, 2, 0], {"sort_ranks": False}), ([4, 0, 3], {"use_local_synchronization": True})]
    for ranks, keywords in groups:
        theirs, ours = c10d.new_group(ranks, **keywords), dist.new_group(ranks, **keywords)
        if ranks is not None and rank not in ranks:
            continue
        members = dist.get_process_group_ranks(ours)
        assert members == c10d.get_process_group_ranks(theirs)
        assert same(_program(dist, rank, size, ours, members), _program(c10d, rank, size, theirs, members))
    c10d.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_same_as_torch(size, tmp_path):
    run(_against_torch, size, tmp_path)


def _outside(rank, size):
    group = dist.new_group([1])
    if rank == 1:
        out = [None]
        dist.all_gather_object(out, "me", group=group)
        assert out == ["me"]
        return
    calls = [
        lambda: dist.gather_object(1, None, group=group),
        lambda: dist.all_gather_object([], 1, group=group),
        lambda: dist.broadcast_object_list([], group=group),
        lambda: dist.scatter_object_list([], group=group),
        lambda: dist.send_object_list([1], 1, group=group),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="does not belong"):
            call()
    with pytest.warns(UserWarning, match="does not belong"):
        assert dist.recv_object_list([1], 1, group=group) == -1


def test_ranks_outside_the_group():
    run(_outside, 2)


def _own_memory(rank, size):
    mine = {"small": np.arange(3.0), "large": np.arange(100_000.0), "tensor": torch.arange(100_000)}
    out = [None] * size
    dist.all_gather_object(out, mine)
    for each in out:
        for entry in each.values():
            entry[0] = 7 + rank
        assert int(each["large"].sum()) == int(np.arange(100_000).sum()) + 7 + rank
    assert mine["large"][0] == mine["small"][0] == mine["tensor"][0] == 0
    one = [None]
    dist.scatter_object_list(one, [mine] * size if rank == 1 else None, src=1)
    one[0]["large"][0] = 8
    assert mine["large"][0] == 0
    # Arrays outlive the objects that they came with.
    kept = [each["large"] for each in out]
    del out, one
    other = [None] * size
    dist.all_gather_object(other, {"large": np.zeros(100_000)})
    assert all(int(array[1:].sum()) == int(np.arange(100_000).sum()) for array in kept)


def test_received_arrays_belong_to_the_receiver():
    run(_own_memory, 2)


def _odd_sizes(rank, size):
    arrays = [np.full(n, rank, dtype) for n in (1, 513, 1001, 9000, 70_001) for dtype in ("u1", "f4", "c16", "g")]
    out = [None] * size
    dist.all_gather_object(out, arrays)
    for source, each in enumerate(out):
        for array, mine in zip(each, arrays, strict=True):
            assert array.flags.aligned
            assert array.dtype == mine.dtype
            assert np.array_equal(array, np.full(len(mine), source, mine.dtype))


def test_arrays_of_odd_sizes_are_aligned():
    run(_odd_sizes, 2)


def _tensordicts(rank, size):
    td = corral.TensorDict(a=np.full((2, 50_000), rank), b={"c": torch.full((2,), float(rank))}, batch_size=[2])
    out = [None] * size if rank == 1 else None
    dist.gather_object({"td": td, "rank": rank}, out, dst=1)
    if out is not None:
        for source, each in enumerate(out):
            assert type(each["td"]) is corral.TensorDict
            assert each["td"].batch_size == td.batch_size
            assert (each["td"]["a"] == source).all()
            assert torch.equal(each["td"]["b", "c"], torch.full((2,), float(source)))


def test_tensordicts():
    run(_tensordicts, 3, allow_pickle=False)


@pytest.mark.parametrize("direct", ["1", "0"])
def test_more_than_a_hundred_megabytes(direct):
    run(_huge, 2, environment={"CORRAL_SHM_DIRECT": direct}, allow_pickle=False)


def _huge(rank, size):
    count = 110_000_000
    if rank == 0:
        huge = np.arange(count, dtype="u4").view("u1")[: count + 3]
        dist.send_object_list([{"huge": huge}, "x" * count], dst=1)
    else:
        got = [None, None]
        assert dist.recv_object_list(got) == 0
        assert len(got[1]) == count
        assert np.array_equal(got[0]["huge"][:count].view("u4"), np.arange(count // 4, dtype="u4"))
        assert got[0]["huge"].flags.writeable


def _threads(rank, size):
    groups = [dist.new_group() for _ in range(4)]
    failures = []

    def work(number, group):
        try:
            for i in range(30):
                out = [None] * size
                dist.all_gather_object(out, (rank, number, i, np.full(20_000, number)), group=group)
                assert [each[:3] for each in out] == [(source, number, i) for source in range(size)]
                assert all((each[3] == number).all() for each in out)
                both = [(number, i)] if rank == i % size else [None]
                dist.broadcast_object_list(both, src=i % size, group=group)
                assert both == [(number, i)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=item) for item in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_threads():
    run(_threads, 3)


BAD = [Unpicklable, lambda: lambda: None, lambda: _loop()]


def _loop():
    loop = []
    loop.append(loop)
    return loop


def _cannot_send(rank, size):
    refused = (TypeError, ValueError)
    for make in BAD:
        told = pytest.raises(dist.DistBackendError, match="rank 1 could not send its object")
        own = pytest.raises(refused, match=r"never|function|contains itself")
        out = [None] * size
        with own if rank == 1 else told:
            dist.all_gather_object(out, make() if rank == 1 else rank)
        assert out == [None] * size
        entries = [make(), 1] if rank == 1 else [None, 2]
        with own if rank == 1 else told:
            dist.broadcast_object_list(entries, src=1)
        assert rank == 1 or entries == [None, 2]
        one = [5]
        with own if rank == 1 else told:
            dist.scatter_object_list(one, [0, make(), 2] if rank == 1 else None, src=1)
        assert one == [5]
        if rank == 1:
            with own:
                dist.send_object_list([make()], dst=0)
            with pytest.raises(TypeError, match="object_list must be a list"):
                dist.send_object_list("text", dst=0)
        elif rank == 0:
            one = [6]
            with told:
                dist.recv_object_list(one, src=1)
            with pytest.raises(dist.DistBackendError, match="rank 1 could not send its object: TypeError: send_object"):
                dist.recv_object_list(one, src=1)
            assert one == [6]
    out = [None] * size
    dist.all_gather_object(out, rank)
    assert out == list(range(size))


def test_one_that_cannot_send_does_not_stop_the_others():
    run(_cannot_send, 3)


def _wrong_arguments(rank, size):
    """Rank 1 calls each of these in a way that makes no sense, and says so; the others learn who it was."""
    good, short = [None] * size, [None] * (size - 1)
    at_zero = good if rank == 0 else None
    calls = [
        (TypeError, lambda: dist.gather_object(1, (1, 2, 3), dst=1), lambda: dist.gather_object(1, at_zero)),
        (ValueError, lambda: dist.gather_object(1, None, dst=1), lambda: dist.gather_object(1, at_zero)),
        (ValueError, lambda: dist.gather_object(1, short, dst=1), lambda: dist.gather_object(1, at_zero)),
        (ValueError, lambda: dist.gather_object(1, good), lambda: dist.gather_object(1, at_zero)),
        (ValueError, lambda: dist.gather_object(1, dst=size), lambda: dist.gather_object(1, at_zero)),
        (TypeError, lambda: dist.gather_object(1, dst="0"), lambda: dist.gather_object(1, at_zero)),
        (ValueError, lambda: dist.gather_object(1, dst=0, group_dst=0), lambda: dist.gather_object(1, at_zero)),
        (ValueError, lambda: dist.all_gather_object(short, 1), lambda: dist.all_gather_object(good, 1)),
        (TypeError, lambda: dist.all_gather_object(None, 1), lambda: dist.all_gather_object(good, 1)),
        (TypeError, lambda: dist.broadcast_object_list((1,)), lambda: dist.broadcast_object_list([1])),
        (ValueError, lambda: dist.broadcast_object_list([1], group_src=-1), lambda: dist.broadcast_object_list([1])),
        (ValueError, lambda: dist.scatter_object_list([]), lambda: dist.scatter_object_list([1], at_zero)),
        (ValueError, lambda: dist.scatter_object_list([1], None, 1), lambda: dist.scatter_object_list([1], None, 1)),
        (ValueError, lambda: dist.scatter_object_list([1], short, 1), lambda: dist.scatter_object_list([1], None, 1)),
        (TypeError, lambda: dist.scatter_object_list([1], (1,), 1), lambda: dist.scatter_object_list([1], None, 1)),
    ]
    for kind, wrong, right in calls:
        errors = []
        if rank == 1:
            with pytest.raises(kind, match=r"(gather_object|broadcast_object_list|scatter_object_list): "):
                wrong()
        # A rank whose part is only to send learns of it with a later call.
        for call in ([] if rank == 1 else [right]) + [dist.barrier, dist.barrier]:
            try:
                call()
            except dist.MismatchError as error:
                errors.append(str(error))
        if rank != 1:
            assert any("rank 1 called" in error and "that it refused itself" in error for error in errors), errors
        assert good == [None] * size
        out = [None] * size
        dist.all_gather_object(out, rank)
        assert out == list(range(size))


def test_wrong_arguments_are_told_to_every_rank():
    run(_wrong_arguments, 3)


def _lengths(rank, size):
    entries = ["a", "b"] if rank == 0 else [None] * (3 if rank == 1 else 2)
    if rank == 1:
        with pytest.raises(dist.MismatchError, match=r"rank 0 sent a list of 2, object_list on rank 1 has 3"):
            dist.broadcast_object_list(entries)
        assert entries == [None] * 3
        with pytest.raises(dist.MismatchError, match="list of 1"):
            dist.recv_object_list(entries, src=0)
        with pytest.raises(dist.DistBackendError, match="rank 0"):
            dist.recv_object_list(entries, src=0)
        assert dist.recv_object_list(entries) == 0
        assert entries == [1, 2, 3]
    else:
        dist.broadcast_object_list(entries)
        assert entries == ["a", "b"]
    if rank == 0:
        dist.send_object_list([1], dst=1)
        dist.send(np.arange(3, dtype="u1"), dst=1)
        dist.send_object_list([1, 2, 3], dst=1)
        for bad, match in [({}, "Must specify dst"), ({"dst": 0}, "should not be the same"), ({"dst": 9}, "not part")]:
            with pytest.raises(ValueError, match=match):
                dist.send_object_list([1], **bad)
        with pytest.raises(ValueError, match="should not be the same"):
            dist.recv_object_list([1], src=0)
        with pytest.raises(TypeError, match="must be a list, got NoneType"):
            dist.recv_object_list(None, src=1)
    dist.barrier()


def test_lists_of_other_lengths():
    run(_lengths, 3)


def _denied(rank, size):
    out = [None] * size
    with pytest.raises(TypeError if rank == 1 else dist.DistBackendError, match=r"test_objects\.Thing.*refuses"):
        dist.all_gather_object(out, {"deep": [Thing(1)]} if rank == 1 else 1)
    assert out == [None] * size
    dist.all_gather_object(out, {"plain": (rank, np.zeros(2))})
    assert [each["plain"][0] for each in out] == list(range(size))


@pytest.mark.parametrize("how", ["group", "environment"])
def test_pickles_denied(how):
    if how == "group":
        run(_denied, 2, allow_pickle=False)
    else:
        run(_denied, 2, environment={"CORRAL_PICKLE": "deny"})


def _denied_by_receivers(rank, size):
    group = dist.new_group(allow_pickle=rank == 0)
    refused = pytest.raises(dist.DistBackendError, match=r"object of rank 0.*test_objects\.Thing.*refuses")
    entries = [1, Thing(2)] if rank == 0 else [None, None]
    if rank == 0:
        dist.broadcast_object_list(entries, group=group)
        dist.send_object_list(entries, dst=1, group=group)
    else:
        with refused:
            dist.broadcast_object_list(entries, group=group)
        if rank == 1:
            with refused:
                dist.recv_object_list(entries, src=0, group=group)
        assert entries == [None, None]
    one = [7]
    parts = [Thing(i) for i in range(size)] if rank == 0 else None
    if rank == 0:
        dist.scatter_object_list(one, parts, group=group)
        assert one == [Thing(0)]
    else:
        with refused:
            dist.scatter_object_list(one, parts, group=group)
        assert one == [7]


def test_pickles_denied_by_receivers_alone():
    run(_denied_by_receivers, 3)
