"""Batches of sends and receives never deadlock, whatever their order, their number, and who takes part."""

from __future__ import annotations

import random

import numpy as np
import pytest
from calls import ORDERS, Held, my_groups, values
from ranks import LAYOUTS, run

import corral.distributed as dist


def _individually(operations):
    """Start each by itself, in the order of the list."""
    works = []
    for operation in operations:
        peer = {"group_dst" if operation.op is dist.isend else "group_src": operation.group_peer}
        works.append(operation.op(operation.tensor, group=operation.group, tag=operation.tag, **peer))
    return works


HOW = {"one batch": dist.batch_isend_irecv, "one by one": _individually}


def _exchange(start, group, ranks, pairs, count, rows, order, seed=0):
    """Exchange `count` arrays, in each direction, between the two of each pair of group ranks."""
    me = ranks.index(dist.get_rank())
    receives, sends, expected = [], [], []
    for pair in pairs:
        if me not in pair:
            continue
        peer = pair[0] + pair[1] - me
        by = {"peer": ranks[peer]} if peer % 2 else {"group_peer": peer}
        for i in range(count):
            shape, tag = (rows + i % 3, 2), i % 4
            target = Held(np.zeros(shape), LAYOUTS[i % 5])
            receives.append(dist.P2POp(dist.irecv, target.array, group=group, tag=tag, **by))
            expected.append((target, values(shape, "f8", peer + 10 * seed, i)))
            mine = Held(values(shape, "f8", me + 10 * seed, i), LAYOUTS[(i + me) % 5]).array
            sends.append(dist.P2POp(dist.isend, mine, group=group, tag=tag, **by))
    if not receives:
        return lambda: None
    if order == "receives first":
        operations = receives + sends
    elif order == "sends first":
        operations = sends + receives
    elif order == "each receive before its send":
        operations = [each for both in zip(receives, sends, strict=True) for each in both]
    else:  # ranks go through their peers in different orders; only messages of one pair and tag keep theirs
        dice = random.Random(me)
        operations = []
        queues = [list(reversed(q)) for each in (receives, sends) for q in _by_peer_and_tag(each)]
        while queues:
            queue = dice.choice(queues)
            operations.append(queue.pop())
            queues = [q for q in queues if q]
    works = start(operations)

    def finish():
        for work in reversed(works):
            assert work.wait()
        for target, wanted in expected:
            target.check(wanted, f"from among {ranks} in {order}")

    return finish


def _by_peer_and_tag(operations):
    queues = {}
    for operation in operations:
        queues.setdefault((operation.group_peer, operation.tag), []).append(operation)
    return list(queues.values())


def _everyone_with_everyone(size):
    return [(i, j) for i in range(size) for j in range(i)]


def _ring(size):
    return sorted({tuple(sorted((i, (i + 1) % size))) for i in range(size)})


ORDERINGS = ["receives first", "sends first", "each receive before its send", "by chance"]


def _orderings(rank, size, how):
    for group, ranks in my_groups():
        for order in ORDERINGS:
            for pairs in (_ring(len(ranks)), _everyone_with_everyone(len(ranks))):
                for rows in (1, 20_000):
                    _exchange(HOW[how], group, ranks, pairs, 4 if rows == 1 else 2, rows, order)()


@pytest.mark.parametrize("how", HOW)
def test_any_order_between_neighbors_and_all_pairs(how):
    run(_orderings, 5, how)


def _first_of_a_group(rank, size, how):
    """Only two take part in what is the first operation of a group; others come in later, or never."""
    for ranks in ORDERS[:4]:
        n = len(ranks)
        for pair in [(0, 1), (n - 1, n - 2), (0, n - 1)]:
            for order in ORDERINGS[:2]:
                group = dist.new_group(ranks, sort_ranks=False)
                if rank in ranks:
                    for rows in (1, 30_000):
                        _exchange(HOW[how], group, ranks, [pair], 2, rows, order)()
    dist.barrier()


@pytest.mark.parametrize("how", HOW)
def test_only_two_take_part_as_the_first_operation(how):
    run(_first_of_a_group, 5, how)


def _many(rank, size, how):
    for group, ranks in my_groups(ORDERS[:4]):
        for order in (ORDERINGS[0], ORDERINGS[3]):
            pairs = _ring(len(ranks))
            per_pair = 1000 // (2 * min(2, len(pairs)))  # a thousand for each rank
            _exchange(HOW[how], group, ranks, pairs, per_pair, 1, order)()
    # Also where none of the messages fits in what a rank holds for another.
    for group, ranks in my_groups([[4, 1], [3, 0, 2]]):
        _exchange(HOW[how], group, ranks, _ring(len(ranks)), 250, 2000, "sends first")()


@pytest.mark.parametrize("how", HOW)
def test_a_thousand_operations(how):
    run(_many, 5, how)


def _groups_at_once(rank, size):
    """Batches of several groups are under way together, and end in another order than they started."""
    finishes = []
    for seed, (group, ranks) in enumerate(my_groups()):
        pairs = _everyone_with_everyone(len(ranks))
        finishes.append(_exchange(dist.batch_isend_irecv, group, ranks, pairs, 5, 300, ORDERINGS[seed % 4], seed))
    for finish in reversed(finishes):
        finish()


def test_batches_of_several_groups_at_once():
    run(_groups_at_once, 5)
