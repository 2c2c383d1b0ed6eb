"""`corral.all_gather(cat=True)`: rows of any number, joined key by key."""

from __future__ import annotations

import numpy as np
import pytest
from fleet import Fleet
from functional_trees import Pair, library_of, numbers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import corral
import corral.distributed as dist


@pytest.fixture(scope="module", params=[2, 3, 4])
def fleet(request):
    ranks = Fleet(request.param)
    yield ranks
    ranks.close()


def _leaf(rows, tail, dtype, library, seed):
    array = numbers([rows, *tail], dtype, seed)
    if library_of(dtype, library) == "torch":
        from corral.arrays.libraries import convert

        return convert(array, "torch")
    return array[::-1].copy()[::-1] if library == "strided" else array


def _join(rank, size, leaves, counts, like):
    from corral.arrays import libraries

    def rows(source):
        return counts[source % len(counts)]

    items = [
        (key, _leaf(rows(rank), tail, dtype, kinds[rank % len(kinds)], 7 * rank))
        for key, (tail, dtype, kinds) in leaves.items()
    ]
    tree = dict(items if rank % 2 else items[::-1])  # the order of keys does not matter
    result = corral.all_gather({"x": tree, "td": corral.TensorDict(tree, batch_size=[rows(rank)])}, cat=True, like=like)
    total = sum(map(rows, range(size)))
    assert tuple(result["td"].batch_size) == (total,)
    for key, (tail, dtype, kinds) in leaves.items():
        wanted = np.concatenate([numbers([rows(source), *tail], dtype, 7 * source) for source in range(size)])
        for array in (result["x"][key], result["td"][key]):
            assert libraries.library_of(array) == (like or library_of(dtype, kinds[rank % len(kinds)]))
            assert libraries.to_numpy(array).dtype == numbers([0], dtype, 0).dtype
            assert np.array_equal(libraries.to_numpy(array), wanted)


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.tuples(
            st.lists(st.integers(0, 3), max_size=2),
            st.sampled_from(["bool", "uint16", "int64", "float16", "bfloat16", "float32", ">i4", "complex64"]),
            st.lists(st.sampled_from(["numpy", "torch", "strided"]), min_size=1, max_size=4),
        ),
        max_size=3,
    ),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.sampled_from([None, "numpy"]),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows(fleet, leaves, counts, like):
    fleet(_join, leaves, counts, like)


def _nested(rank, size):
    rows = corral.all_gather(np.full((rank, 2), rank), cat=True)
    assert rows.tolist() == [[source] * 2 for source in range(size) for _ in range(source)]
    empty = corral.TensorDict(batch_size=[rank, 3])
    inner = corral.TensorDict(a=np.full((rank, 3, 2), rank), e=empty, batch_size=[rank, 3])
    pair = corral.all_gather(Pair(corral.TensorDict(inner=inner, batch_size=[rank]), [np.zeros(1)]), cat=True)
    total = size * (size - 1) // 2
    assert type(pair) is Pair
    assert tuple(pair.left["inner"].batch_size) == (total, 3)
    assert tuple(pair.left["inner", "e"].batch_size) == (total, 3)
    assert pair.left["inner", "a"].shape == (total, 3, 2)
    assert pair.right[0].shape == (size,)


def test_containers(fleet):
    fleet(_nested)


def _misfits(rank, size):
    last = size - 1
    odd = rank == last
    cases = [
        (
            {"a": np.ones(1), **({"b": np.ones(2)} if odd else {})},
            rf"'b' is .*\(2,\) on rank {last}, but rank 0 ",
        ),
        ({"a": np.ones((1, 3 + odd))}, rf"'a' has shape \(1, 4\) on rank {last}, but \(1, 3\) on rank 0"),
        ({"a": np.ones((1,) * (1 + odd))}, rf"'a' has shape \(1, 1\) on rank {last}, but \(1,\) on rank 0"),
        (np.ones(1, "f4" if odd else "f8"), rf"the tree is .*float32 .*rank {last}, but .*float64 .* rank 0"),
        ({"a": [np.ones(1), np.array(1, "f4") if odd else np.ones(1)]}, rf"\('a', 1\) is a scalar .* rank {last}"),
        ({"a": "text" if rank == 0 else np.ones(1)}, r"'a' is a str on rank 0: with cat=True only arrays"),
        (3, r"the tree is a int on rank 0"),
    ]
    for cat in ([True] * size, [source == last for source in range(size)]):  # on one rank alone: all raise all the same
        for tree, message in cases:
            with pytest.raises(dist.MismatchError, match=rf"^corral.all_gather: .*{message}"):
                corral.all_gather(tree, cat=cat[rank])
            assert corral.all_gather(np.full(1, rank), cat=True).tolist() == list(range(size))


def test_misfits(fleet):
    fleet(_misfits)


def _only_here(rank, size):
    result = corral.all_gather(np.full(rank, rank), cat=rank == 0)
    if rank == 0:
        assert result.tolist() == [source for source in range(size) for _ in range(source)]
    else:
        assert [each.tolist() for each in result] == [[source] * source for source in range(size)]


def test_each_rank_gets_what_it_asked_for(fleet):
    fleet(_only_here)
