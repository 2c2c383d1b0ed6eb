"""The functional forms on trees of every kind, another one on each rank, value by value."""

from __future__ import annotations

import pytest
from fleet import Fleet
from functional_trees import build, check, trees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import corral
import corral.distributed as dist

# Of four ranks: the default group, and two of some of them, in another order.
GROUPS = [None, (3, 1), (2, 0, 3)]
_groups: dict = {}


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(4)
    ranks(_make_groups)
    yield ranks
    ranks.close()


def _make_groups(rank, size):
    import jax
    import torch

    assert jax.numpy is not None
    assert torch.__version__
    for ranks in GROUPS:
        _groups[ranks] = None if ranks is None else dist.new_group(list(ranks), sort_ranks=False)


def _exchange(rank, size, ranks, specs, root, like):
    group = _groups[ranks]
    if rank not in (ranks or range(size)):
        return
    ranks = ranks or range(size)
    assert list(ranks) == dist.get_process_group_ranks(group)
    count = len(ranks)
    me, root = ranks.index(rank), root % count
    mine = specs[me % len(specs)]

    def spec(position):
        return specs[position % len(specs)]

    everyone = corral.all_gather(build(mine, 10 * me), group, like=like)
    assert len(everyone) == count
    for position, tree in enumerate(everyone):
        check(tree, spec(position), 10 * position, like)

    gathered = corral.gather(build(mine, 10 * me), group=group, group_dst=root, like=like)
    assert (gathered is None) is (me != root)
    for position, tree in enumerate(gathered or []):
        check(tree, spec(position), 10 * position, like)

    tree = build(spec(root), 5) if me == root else None
    check(corral.broadcast(tree, ranks[root], group, like=like), spec(root), 5, like)

    parts = [build(spec(i + 1), i) for i in range(count)] if me == root else None
    check(corral.scatter(parts, group=group, group_src=root, like=like), spec(me + 1), me, like)

    exchanged = corral.all_to_all([build(spec(me + i), 10 * me + i) for i in range(count)], group, like)
    assert len(exchanged) == count
    for position, tree in enumerate(exchanged):
        check(tree, spec(position + me), 10 * position + me, like)

    after, before = (me + 1) % count, (me - 1) % count
    if me % 2 == 0:  # an odd number of ranks is no ring of pairs, but someone always receives
        corral.send(build(mine, me), group=group, tag=7, group_dst=after)
    check(corral.recv(ranks[before], group, 7, like=like), spec(before), before, like)
    if me % 2:
        corral.send(build(mine, me), ranks[after], group, 7)


@given(
    st.sampled_from(GROUPS),
    st.lists(trees(), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sampled_from([None, None, "numpy"]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tree(fleet, ranks, specs, root, like):
    fleet(_exchange, ranks, specs, root, like)
