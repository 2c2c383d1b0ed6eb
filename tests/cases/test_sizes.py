"""What moves is what the ranks have: no limit at 2 GiB, nothing serialized, nothing padded to the largest."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import pytest
from calls import my_groups
from ranks import run

import corral
import corral.distributed as dist

LARGE = 2**31 + 2**24  # bytes
PLACES = [0, 2**31 - 1, 2**31, 2**31 + 1, LARGE - 1]
MIB = 1 << 20


def _available():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def _large_object(rank, size):
    # Of the sender's array, only the pages that are written take memory.
    tree = {"small": np.arange(3), "large": np.zeros(LARGE, "u1")} if rank == 1 else {"none": None}
    if rank == 1:
        tree["large"][PLACES] = [1, 2, 3, 4, 5]

    def check(got):
        assert got["small"].tolist() == [0, 1, 2]
        assert got["large"].shape == (LARGE,)
        assert got["large"][PLACES].tolist() == [1, 2, 3, 4, 5]
        assert np.count_nonzero(got["large"][2**31 - 4096 : 2**31 + 4096]) == 3

    out = [None, None] if rank == 0 else None
    dist.gather_object(tree, out)
    if rank == 0:
        check(out.pop())
    both = corral.gather(tree, 0)
    if rank == 0:
        check(both.pop())
    dist.barrier()


def test_a_dictionary_beyond_2_gib():
    if _available() < 4 * LARGE:
        pytest.skip(f"needs {4 * LARGE / 2**30:.0f} GiB of free memory")
    run(_large_object, 2, group_timeout=60)


class Unserializable(np.ndarray):
    """An array that says so if anybody tries to pickle or copy it."""

    def __reduce_ex__(self, protocol):
        raise AssertionError("pickled")

    def __reduce__(self):
        raise AssertionError("pickled")

    def __deepcopy__(self, memo):
        raise AssertionError("copied")


def _tree(rank, count, rows, make=np.asarray):
    """Many arrays, nested, some of them strided."""
    return {
        f"group {i}": {
            "plain": make(np.full((rows, 16), 100.0 * rank + i)),
            "list": [make(np.full((16, rows), rank + 0.5 * i)).T, make(np.arange(rows) * (rank + 1))],
        }
        for i in range(count)
    }


def _check_tree(tree, rank, count, rows):
    assert list(tree) == [f"group {i}" for i in range(count)]
    for i in range(count):
        plain, (strided, numbers) = tree[f"group {i}"]["plain"], tree[f"group {i}"]["list"]
        assert plain.shape == strided.shape == (rows, 16)
        assert (plain == 100.0 * rank + i).all()
        assert (strided == rank + 0.5 * i).all()
        assert np.array_equal(numbers, np.arange(rows) * (rank + 1))


def _forms(call, me, n, root, group, mine):
    """Call one form, and return the trees that it brought, each with the rank that it is of."""
    here = me == root
    if call == "corral.gather":
        return enumerate(corral.gather(mine, group=group, group_dst=root) or [])
    if call == "corral.all_gather":
        return enumerate(corral.all_gather(mine, group))
    if call == "corral.broadcast":
        return [(root, corral.broadcast(mine if here else None, group=group, group_src=root))]
    if call == "corral.scatter":
        return [(root, corral.scatter([mine] * n if here else None, group=group, group_src=root))]
    if call == "corral.all_to_all":
        return enumerate(corral.all_to_all([mine] * n, group))
    if call == "corral.send":
        if here:
            return [(i, corral.recv(group=group, group_src=i)) for i in range(n) if i != root]
        corral.send(mine, group=group, group_dst=root)
        return []
    if call == "send_object_list":
        if not here:
            dist.send_object_list([mine], group=group, group_dst=root)
            return []
        found = []
        for i in range(n):
            one = [None]
            if i != root:
                dist.recv_object_list(one, group=group, group_src=i)
                found.append((i, one[0]))
        return found
    if call == "gather_object":
        out = [None] * n if here else None
        dist.gather_object(mine, out, group=group, group_dst=root)
        return enumerate(out or [])
    if call == "all_gather_object":
        out = [None] * n
        dist.all_gather_object(out, mine, group)
        return enumerate(out)
    if call == "broadcast_object_list":
        one = [mine if here else None]
        dist.broadcast_object_list(one, group=group, group_src=root)
        return [(root, one[0])]
    assert call == "scatter_object_list"
    one = [None]
    dist.scatter_object_list(one, [mine] * n if here else None, group=group, group_src=root)
    return [(root, one[0])]


TREES = ["corral.gather", "corral.all_gather", "corral.broadcast", "corral.scatter", "corral.all_to_all", "corral.send"]
OBJECTS = ["gather_object", "all_gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list"]
GROUPS = [[0, 1, 2, 3, 4], [3, 0, 2], [4, 1]]


def _not_serialized(rank, size):
    """With pickles refused, from arrays that cannot be pickled, and with next to no memory on the sending side."""
    for group, ranks in my_groups(GROUPS):
        n, me = len(ranks), ranks.index(rank)
        for number, call in enumerate(TREES + OBJECTS):
            root = number % n

            def make(array, plain=call in OBJECTS):
                return array if plain else array.view(Unserializable)

            count, rows = 10, 2000  # arrays that are large enough for every engine to take them from where they lie
            mine = _tree(me, count, rows, make)
            nbytes = sum(a.nbytes for g in mine.values() for a in [g["plain"], *g["list"]])
            for i, tree in _forms(call, me, n, root, group, mine):  # what is loaded once is loaded
                _check_tree(tree, i, count, rows)
            tree = None
            tracemalloc.start()
            found = list(_forms(call, me, n, root, group, mine))
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            received = sum(1 for _, tree in found if tree is not mine)
            assert peak < received * nbytes + nbytes / 2, f"{call}: {peak} bytes for {received} of {nbytes}"


def test_trees_are_not_serialized():
    run(_not_serialized, 5, environment={"CORRAL_PICKLE": "deny"})


def _not_padded(rank, size):
    """Only one rank has much: what the others make and receive is as small as what they have."""
    for group, ranks in my_groups(GROUPS):
        n, me = len(ranks), ranks.index(rank)
        for number, call in enumerate(TREES + OBJECTS):
            for large in range(n):
                rows = [20_000 if i == large else 10 + i for i in range(n)]
                mine = _tree(me, 1, rows[me])
                nbytes = [sum(a.nbytes for a in _flat(_tree(i, 1, rows[i]))) for i in range(n)]
                found = list(_forms(call, me, n, number % n, group, mine))
                for i, tree in found:
                    _check_tree(tree, i, 1, rows[i])
                    for array in _flat(tree):
                        base = array
                        while isinstance(base.base, np.ndarray):
                            base = base.base
                        assert base.nbytes < sum(nbytes) + 4096, f"{call}: a part of {base.nbytes} bytes"
                found = tree = array = base = None
                tracemalloc.start()
                found = list(_forms(call, me, n, number % n, group, mine))
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                expected = sum(nbytes[i] for i, tree in found if tree is not mine)
                assert peak < expected + nbytes[large] // 4, f"{call}: {peak} bytes for {expected}, {nbytes} in all"
                found = tree = None


def _flat(tree):
    return [a for each in tree.values() for a in [each["plain"], *each["list"]]]


def test_nothing_is_padded_to_the_largest():
    run(_not_padded, 5)


def _no_files(rank, size):
    """Nor does it pass through files or shared memory that somebody must clean up."""
    before = set(os.listdir("/dev/shm"))
    for group, ranks in my_groups(GROUPS):
        for call in TREES + OBJECTS:
            mine = _tree(ranks.index(rank), 3, 2000)
            for i, tree in _forms(call, ranks.index(rank), len(ranks), 0, group, mine):
                _check_tree(tree, i, 3, 2000)
    return sorted(name for name in set(os.listdir("/dev/shm")) - before if "corral" in name)


def test_nothing_passes_through_files():
    assert run(_no_files, 5) == [[]] * 5
