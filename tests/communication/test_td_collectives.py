"""`TensorDict.broadcast`, `scatter`, `all_gather`, `gather`, `reduce`, `all_reduce`, beside tensordict's over gloo."""

from __future__ import annotations

import numpy as np
import pytest
from fleet import Fleet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from td_trees import NUMBERS, addresses, ours, plain, specs, theirs

import corral
import corral.distributed as dist
from corral import TensorDict


@pytest.fixture(scope="module", params=[2, 3, 4])
def fleet(request):
    ranks = Fleet(request.param, gloo=True)
    yield ranks
    ranks.close()


quick = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
libraries = st.sampled_from(["numpy", "torch", "mixed"])


def _whole(rank, size, structures, root, library):
    """Every rank has a structure of its own, which nobody else knows."""
    import tensordict

    root %= size
    spec = structures[rank % len(structures)]
    mine, reference = ours(spec, rank, library), theirs(spec, rank)
    before = plain(mine)

    everyone = plain(reference.all_gather())
    assert plain(mine.all_gather()) == everyone
    assert plain(mine.gather(root)) == (everyone if rank == root else None)

    result = mine.broadcast(root)
    assert plain(result) == plain(reference.broadcast(root))
    assert result is not mine
    assert tuple(result.batch_size) == (2,)

    if rank == root:
        mine.init_remote(use_broadcast=True)
        reference.init_remote(use_broadcast=True)
    else:
        found = TensorDict.from_remote_init(root, use_broadcast=True)
        assert plain(found) == plain(tensordict.TensorDict.from_remote_init(root, use_broadcast=True))

    parts = [structures[i % len(structures)] for i in range(size)]
    scattered = mine.scatter(root, [ours(each, i, library) for i, each in enumerate(parts)] if rank == root else "none")
    expected = reference.scatter(root, [theirs(each, i) for i, each in enumerate(parts)] if rank == root else None)
    assert plain(scattered) == plain(expected)
    assert plain(mine) == before


@given(st.lists(specs(("float32", "int64", "bool", "complex64")), min_size=1, max_size=3), st.integers(0, 3), libraries)
@quick
def test_whole_ones(fleet, structures, root, library):
    structures = [[*each, (("z", "z"), (1,), "int32", False)] for each in structures]  # gloo moves no empty storage
    fleet(_whole, structures, root, library)


def _in_place(rank, size, spec, root, library):
    root %= size
    td = ours(spec, rank, library)
    held = addresses(td)
    assert td.broadcast(root, inplace=True) is td
    assert plain(td) == plain(ours(spec, root))
    assert addresses(td) == held
    parts = [ours(spec, 40 + i, library) for i in range(size)]
    assert td.scatter(root, parts if rank == root else None, inplace=True) is td
    assert plain(td) == plain(ours(spec, 40 + rank))
    assert addresses(td) == held
    assert parts[rank].scatter(root, parts if rank == root else None, inplace=True) is parts[rank]
    assert plain(parts[rank]) == plain(ours(spec, 40 + rank))


@given(specs(), st.integers(0, 3), libraries)
@quick
def test_in_place(fleet, spec, root, library):
    fleet(_in_place, spec, root, library)


def _reductions(rank, size, spec, op, root, library, how):
    import torch.distributed as gloo

    root %= size
    theirs_op = getattr(gloo.ReduceOp, op)
    arguments = {"bucket_bytes": 64} if how == "buckets" else {}
    asynchronous = how == "async"

    reference, mine = theirs(spec, rank), ours(spec, rank, library)
    held = addresses(mine)
    mine.lock_()
    results = [td.all_reduce(theirs_op, async_op=asynchronous, **arguments) for td in (reference, mine)]
    for works in results:
        assert (works is None) != asynchronous
        for work in works or ():
            work.wait()
    assert plain(mine) == plain(reference)
    assert addresses(mine) == held

    reference, mine = theirs(spec, rank), ours(spec, rank, library)
    before, held = plain(mine), addresses(mine)
    for td in (reference, mine):
        result = td.reduce(root, theirs_op, asynchronous, how == "async", **arguments)
        assert isinstance(result, list) == asynchronous
        for work in result or ():
            work.wait()
    assert plain(mine) == (plain(reference) if rank == root else before)
    assert addresses(mine) == held

    mine = ours(spec, rank, library)
    assert mine.reduce(root, getattr(dist.ReduceOp, op), async_op=True) is None
    assert plain(mine) == (plain(reference) if rank == root else before)


@given(
    specs(NUMBERS),
    st.sampled_from(["SUM", "PRODUCT", "MIN", "MAX"]),
    st.integers(0, 3),
    libraries,
    st.sampled_from(["plain", "async", "buckets"]),
)
@quick
def test_reductions(fleet, spec, op, root, library, how):
    fleet(_reductions, spec, op, root, library, how)


def _other_groups(rank, size):
    """In a group whose ranks are in another order, `dst` and `src` are global ranks."""
    members = list(range(size))[::-1]
    everyone = dist.new_group(members, sort_ranks=False)
    last = size - 1
    td = TensorDict(a=np.full(2, rank))
    assert td.broadcast(last, group=everyone)["a"].tolist() == [last] * 2
    assert td.broadcast(group=everyone, group_src=0)["a"].tolist() == [last] * 2
    assert [each["a"][0] for each in td.all_gather(group=everyone)] == members
    for found in (td.gather(last, everyone), td.gather(group=everyone, group_dst=0)):
        assert (found is None) == (rank != last)
        assert found is None or [each["a"][0] for each in found] == members
    parts = [TensorDict(a=np.full(2, 10 * i)) for i in range(size)] if rank == last else None
    position = members.index(rank)
    assert td.scatter(last, parts, group=everyone)["a"].tolist() == [10 * position] * 2
    assert td.scatter(None, parts, group=everyone, group_src=0)["a"].tolist() == [10 * position] * 2
    result = TensorDict(a=np.zeros(2, int)).scatter(None, parts, group=everyone, group_src=0, inplace=True)
    assert result["a"].tolist() == [10 * position] * 2
    total = sum(range(size))
    td.reduce(last, group=everyone)
    assert td["a"].tolist() == [total if rank == last else rank] * 2
    td = TensorDict(a=np.full(2, rank))
    td.reduce(group=everyone, group_dst=0)
    assert td["a"].tolist() == [total if rank == last else rank] * 2
    td = TensorDict(a=np.full(2, rank))
    td.all_reduce(dist.ReduceOp.MAX, group=everyone)
    assert td["a"].tolist() == [last] * 2
    if rank == last:
        td.init_remote(group=everyone, use_broadcast=True)
    else:
        found = TensorDict.from_remote_init(last, everyone, use_broadcast=True)
        assert found["a"].tolist() == [last] * 2
    dist.destroy_process_group(everyone)

    pair = dist.new_group([1, 0], sort_ranks=False)
    td = TensorDict(a=np.full(2, rank))
    if rank < 2:
        td.reduce(0, group=pair)
        assert td["a"].tolist() == [1] * 2
        assert [each["a"][0] for each in td.all_gather(group=pair)] == [1, 1]
        dist.destroy_process_group(pair)
    else:
        for call in (td.all_reduce, td.all_gather, lambda group: td.reduce(0, group=group), td.broadcast):
            with pytest.warns(UserWarning, match="does not belong"):
                assert call(group=pair) is None


def test_other_groups(fleet):
    fleet(_other_groups)


def _same_on_all(call, message):
    with pytest.raises(dist.MismatchError, match=message) as raised:
        call()
    assert len(set(corral.all_gather(str(raised.value)))) == 1


def _misfits(rank, size):
    last = size - 1
    odd = rank == last
    a = np.ones(2)
    cases = [
        (
            TensorDict(a=a, **({"b": np.ones(2)} if odd else {})),
            rf"'b' is .* on rank {last}, but rank 0 has no such key",
        ),
        (
            TensorDict(n={"a": np.ones(3 if odd else 2)}),
            rf"\('n', 'a'\) has shape \(3,\) on rank {last}, but \(2,\) on",
        ),
        (TensorDict(a=np.ones((2, 3) if odd else (3, 2))), rf"'a' has shape \(2, 3\) on rank {last}, but \(3, 2\)"),
        (
            TensorDict(a=np.ones(2, "i4" if odd else "f4")),
            rf"'a' is .*int32 .* on rank {last}, but .*float32 .* rank 0",
        ),
        (TensorDict({f"k{i}": np.ones(3 if odd and i == 300 else 2) for i in range(301)}), r"'k300' has shape \(3,\)"),
    ]
    for td, message in cases:
        before = plain(td)
        _same_on_all(td.all_reduce, f"^TensorDict.all_reduce: {message}")
        _same_on_all(lambda td=td: td.reduce(0), f"^TensorDict.reduce: {message}")
        _same_on_all(lambda td=td: td.reduce(last), f"^TensorDict.reduce: {message}")
        assert plain(td) == before
        (work,) = td.all_reduce(async_op=True)
        _same_on_all(work.wait, f"^TensorDict.all_reduce: {message}")
        assert isinstance(work.exception(), dist.MismatchError)
        work = (td.all_reduce(async_op=True) or [None])[0] if odd else None  # some ranks wait, and some do not
        _same_on_all(td.all_reduce if work is None else work.wait, f"^TensorDict.all_reduce: {message}")
        td = TensorDict({key: value.copy() for key, value in td.items(True, True)})
        before = plain(td)
        _same_on_all(lambda td=td: td.broadcast(0, inplace=True), r"^TensorDict.broadcast: .* on rank \d")
        _same_on_all(
            lambda td=td: td.scatter(0, [td] * size if rank == 0 else None, inplace=True), "^TensorDict.scatter: "
        )
        assert plain(td) == before
    td = TensorDict(a=a)
    _same_on_all(
        lambda: td.reduce(last if odd else 0), rf"^TensorDict.reduce: dst is rank {last} on rank {last}, but rank 0"
    )
    op = dist.ReduceOp.MAX if odd else dist.ReduceOp.MIN
    _same_on_all(lambda: td.all_reduce(op), rf"op is 'max' on rank {last}, but 'min' on rank 0")
    _same_on_all(lambda: td.broadcast(last if odd else 0, inplace=True), r"src is rank")
    td.all_reduce()
    assert td["a"].tolist() == [size] * 2


def test_misfits(fleet):
    fleet(_misfits)


def _finish(works):
    for work in works or ():
        work.wait()


def _refused(rank, size):
    """What one rank refuses itself is an error on all, and the group goes on."""
    last = size - 1
    odd = rank == last
    fixed = np.ones(2)
    fixed.flags.writeable = False
    td = TensorDict(a=np.ones(2))
    bad = TensorDict(a=fixed)
    cases = [
        (lambda: bad.all_reduce(), lambda: td.all_reduce(), ValueError, "read-only"),
        (lambda: bad.all_reduce(async_op=True), lambda: td.all_reduce(async_op=True), ValueError, "read-only"),
        (lambda: td.all_reduce("sum"), lambda: td.all_reduce(), TypeError, "op must be a member"),
        (lambda: td.all_reduce(dist.ReduceOp.BAND), lambda: td.all_reduce(), TypeError, "no meaning for float64"),
        (lambda: td.all_reduce(bucket_bytes=0), lambda: td.all_reduce(), ValueError, "bucket_bytes must be"),
        (lambda: td.reduce(99), lambda: td.reduce(0), ValueError, "Global rank 99"),
        (lambda: td.reduce(), lambda: td.reduce(0), ValueError, "Must specify dst"),
        (lambda: bad.reduce(last), lambda: td.reduce(last), ValueError, "read-only"),
        (lambda: td.broadcast(99, inplace=True), lambda: td.broadcast(0, inplace=True), ValueError, "Global rank 99"),
    ]
    for refused, called, error, message in cases:
        if odd:
            with pytest.raises(error, match=message):
                refused()
        else:
            with pytest.raises(dist.MismatchError, match=rf"rank {last}\b"):
                _finish(called())
        assert len(td.all_gather()) == size
    for call in (
        lambda: (bad if odd else td).broadcast(0, inplace=True),
        lambda: (bad if odd else td).scatter(0, [td] * size if rank == 0 else None, inplace=True),
    ):
        _same_on_all(call, rf"rank {last}: ValueError: 'a' cannot be received into: it is read-only")
    if rank == 0:
        for parts in (None, [td], 3):
            with pytest.raises((TypeError, ValueError), match=r"one tree for each|a list of a tree"):
                td.scatter(0, parts, inplace=True)
    else:
        for _ in range(3):
            with pytest.raises(dist.MismatchError, match="refused"):
                td.scatter(0, inplace=True)
    td = TensorDict(a=np.full(2, rank))
    td.all_reduce()
    assert td["a"].tolist() == [sum(range(size))] * 2


def test_what_a_rank_refuses(fleet):
    fleet(_refused)


def _in_the_way(rank, size):
    if rank == 0:
        rows = np.zeros((size, 3))
        parts = [TensorDict(a=row) for row in rows]
        with pytest.raises(dist.MismatchError, match="a leaf of the TensorDict to fill shares memory with one of"):
            TensorDict(a=rows[-1]).scatter(0, parts, inplace=True)
    else:
        with pytest.raises(dist.MismatchError, match="shares memory with one of"):
            TensorDict(a=np.zeros(3)).scatter(0, inplace=True)


def test_scatter_into_what_is_sent(fleet):
    fleet(_in_the_way)


def _torch_programs(rank, size):
    """What training loops do: parameters and gradients, a device, an index in place of a destination."""
    import torch

    parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
    td = TensorDict(weight=parameter, bias=torch.ones(2, dtype=torch.bfloat16))
    td.all_reduce(torch.distributed.ReduceOp.AVG)
    assert parameter.tolist() == [(size - 1) / 2] * 3
    assert td["weight"] is parameter
    assert parameter.requires_grad
    result = td.broadcast(0, device="cpu")
    assert str(result.device) == "cpu"
    found = TensorDict.scatter(td, 0, [td] * size if rank == 0 else None, device="cpu")
    assert found["bias"].dtype == torch.bfloat16
    complexes = TensorDict(a=np.full(2, 1j))
    complexes.all_reduce()
    assert complexes["a"].tolist() == [size * 1j] * 2
    assert TensorDict().all_reduce() is None
    assert TensorDict(a=np.zeros((0, 3))).reduce(0) is None


def test_as_torch_programs_call_it(fleet):
    fleet(_torch_programs)


def _jax(rank, size):
    import jax.numpy as jnp

    td = TensorDict(a=jnp.full((3,), float(rank)), b=np.full(3, rank))
    array = td["a"]
    td.all_reduce()
    assert td["a"].tolist() == [sum(range(size))] * 3
    assert type(td["a"]) is type(array)
    assert array.tolist() == [rank] * 3
    td = TensorDict(a=jnp.full((3,), float(rank)))
    td.broadcast(size - 1, inplace=True)
    assert td["a"].tolist() == [size - 1] * 3


def test_arrays_that_never_change_are_replaced(fleet):
    fleet(_jax)
