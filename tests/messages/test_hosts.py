"""Ranks of several hosts: the results are the same, and between hosts one message does for all ranks of each."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from wires import run

from corral.backends.base import Reduction
from corral.backends.messages import routes
from corral.backends.messages.frames import PART

HOSTS = ["aabbb", "aaabcc", "ababc", "abcd", "aaaa", "ab", "a", "abcdefghijklmnopqrst"]
SIZES = [0, 3, 3000, 20_000]


def _values(rank, count, part=0):
    return np.arange(count) * 1.5 + 1000 * rank + part


def _everything(backend, net):
    n, me = backend.size, backend.rank
    for count in SIZES[: 4 if n < 9 else 3]:
        mine = _values(me, count)
        for root in {0, n // 2, n - 1}:
            here = me == root
            rows = np.zeros((n, count))
            backend.gather([mine], [[row] for row in rows] if here else None, root)
            assert not here or (rows == [_values(r, count) for r in range(n)]).all()
            got = mine.copy() if here else np.zeros(count)
            backend.broadcast([got], root)
            assert (got == _values(root, count)).all()
            got = np.zeros(count)
            backend.scatter([[_values(root, count, p)] for p in range(n)] if here else None, [got], root)
            assert (got == _values(root, count, me)).all()
            got = mine.copy()
            backend.reduce([got], Reduction("sum"), root)
            assert (got == (sum(_values(r, count) for r in range(n)) if here else mine)).all()
            found = backend.gather_bytes([mine, b"end"], root)
            assert (
                found is None
                if not here
                else [*map(bytes, found)] == [_values(r, count).tobytes() + b"end" for r in range(n)]
            )
            found = backend.broadcast_bytes([mine, b"end"] if here else None, root)
            assert here or bytes(found) == _values(root, count).tobytes() + b"end"
            found = backend.scatter_bytes([_values(root, count + p) for p in range(n)] if here else None, root)
            assert bytes(found) == _values(root, count + me).tobytes()
            tree = {"a": np.zeros((n - 1, count)), "b": {"c": np.zeros((2, n - 1), "i4").T}}
            if not here:
                tree = {"a": mine, "b": {"c": np.full(2, me, "i4")}}
            assert backend.gather_rows(tree, root)
            others = [r for r in range(n) if r != root]
            if here and others:
                assert (tree["a"] == [_values(r, count) for r in others]).all()
                assert (tree["b"]["c"] == [[r, r] for r in others]).all()
        columns = np.zeros((count, n))
        backend.all_gather([mine], [[columns[:, r]] for r in range(n)])
        assert ([_values(r, count) for r in range(n)] == columns.T).all()
        uneven = [np.zeros(count + r) for r in range(n)]
        backend.all_gather([_values(me, count + me)], [[each] for each in uneven])
        assert all((each == _values(r, count + r)).all() for r, each in enumerate(uneven))
        backend.all_to_all([[_values(me, count, p)] for p in range(n)], [[each[:count]] for each in uneven])
        assert all((each[:count] == _values(r, count, me)).all() for r, each in enumerate(uneven))
        found = backend.all_gather_bytes(mine)
        assert [*map(bytes, found)] == [_values(r, count).tobytes() for r in range(n)]
        found = backend.all_to_all_bytes([_values(me, count, p) for p in range(n)])
        assert [*map(bytes, found)] == [_values(r, count, me).tobytes() for r in range(n)]
        both = [mine.copy(), np.full(count, me, "i4")]
        backend.all_reduce(both, Reduction("max"))
        assert (both[0] == _values(n - 1, count)).all()
        assert (both[1] == n - 1).all()
        got = np.zeros(count)
        backend.reduce_scatter([[_values(me, count, p)] for p in range(n)], [got], Reduction("sum"))
        assert (got == sum(_values(r, count, me) for r in range(n))).all()
        backend.barrier()


@pytest.mark.parametrize("hosts", HOSTS)
def test_every_operation(hosts):
    run(_everything, list(hosts))


def _in_chunks(backend, net):
    large = np.arange(1_200_000.0) if backend.rank == 3 else np.zeros(1_200_000)
    backend.broadcast([large[:400_000].reshape(1000, 400).T, large[400_000:]], 3)
    assert (large == np.arange(1_200_000.0)).all()


def test_a_broadcast_in_chunks():
    run(_in_chunks, list("aabbcbac"))


def _between(net, since):
    """Count the parts that have gone from host to host."""
    return sum(1 for s, t, frame, _ in net.log[since:] if frame.kind == PART and net.hosts[s] != net.hosts[t])


def _counted(backend, net):
    n, me = backend.size, backend.rank
    big = np.full(300_000, float(me))
    rows = np.zeros((n, big.size))
    calls = {
        "gather": lambda: backend.gather([big], [[row] for row in rows] if me == 1 else None, 1),
        "rows": lambda: backend.gather_rows({"a": rows[1:]} if me == 1 else {"a": big}, 1),
        "scatter": lambda: backend.scatter([[row] for row in rows] if me == 1 else None, [big], 1),
        "broadcast": lambda: backend.broadcast([big], 1),
    }
    counts = {}
    for name, call in calls.items():
        backend.barrier()
        since = len(net.log)
        backend.barrier()
        call()
        backend.barrier()
        counts[name] = _between(net, since)
    return counts


def test_one_message_for_each_host():
    for counts in run(_counted, list("abaabbccc")):
        assert counts == {"gather": 2, "rows": 2, "scatter": 2, "broadcast": 2}


def _by_themselves(backend, net):
    """Gather and scatter arrays of which some are too large for a leader to keep; return the ways that they took."""
    n, me = backend.size, backend.rank
    counts = [40_000 if r % 2 else 600_000 + r for r in range(n)]
    mine, root = _values(me, counts[me]), 1
    rows = [np.zeros(count) for count in counts]
    parts = [_values(r, count) for r, count in enumerate(counts)] if me == root else None
    got = np.zeros(counts[me])
    found: list = []
    calls = {
        "gather": lambda: backend.gather([mine], [[row] for row in rows] if me == root else None, root),
        "scatter": lambda: backend.scatter([[part] for part in parts] if me == root else None, [got], root),
        "gather_bytes": lambda: found.append(backend.gather_bytes([mine], root)),
        "scatter_bytes": lambda: found.append(backend.scatter_bytes(parts, root)),
    }
    ways = {}
    for name, call in calls.items():
        backend.barrier()
        since = len(net.log)
        backend.barrier()
        call()
        backend.barrier()
        ways[name] = sorted((s, t, size // 8) for s, t, frame, size in net.log[since:] if frame.kind == PART)
    if me == root:
        assert all((row == _values(r, counts[r])).all() for r, row in enumerate(rows))
        assert [*map(bytes, found[0])] == [part.tobytes() for part in parts]
    assert (got == mine).all()
    assert bytes(found[1]) == mine.tobytes()
    return ways


def test_what_is_too_large_for_a_leader_to_keep_goes_by_itself(monkeypatch):
    monkeypatch.setattr(routes, "_KEPT", 4 << 20)
    small, large = 40_000, [600_000 + r for r in range(9)]
    # On host b, rank 2 speaks for ranks 3 and 5, on host c, rank 6 for rank 7.
    up = [(0, 1, large[0]), (2, 1, large[2] + 2 * small), (3, 2, small), (4, 1, large[4]), (5, 2, small)]
    up += [(6, 1, large[6] + small), (7, 6, small), (8, 1, large[8])]
    down = sorted((t, s, size) for s, t, size in up)
    for ways in run(_by_themselves, list("aabbbbccc")):
        assert ways == {"gather": up, "scatter": down, "gather_bytes": up, "scatter_bytes": down}


def _carried(backend, net):
    """Return how many parts each host has sent to others, and of how many bytes, by a reduction."""
    big = np.full(300_000, float(backend.rank))
    sent = {}
    for name in ("reduce", "all_reduce"):
        backend.barrier()
        since = len(net.log)
        backend.barrier()
        if name == "reduce":
            backend.reduce([big.copy()], Reduction("sum"), 1)
        else:
            backend.all_reduce([big.copy()], Reduction("sum"))
        backend.barrier()
        parts = [each for each in net.log[since:] if each[2].kind == PART]
        between = [(net.hosts[s], size) for s, t, _, size in parts if net.hosts[s] != net.hosts[t]]
        sent[name] = {host: [size for from_, size in between if from_ == host] for host in sorted(set(net.hosts))}
    return sent


def test_of_a_reduction_one_array_leaves_each_host():
    size = 300_000 * 8
    for sent in run(_carried, list("aaabbcccc")):
        assert sent["reduce"] == {"a": [size], "b": [size], "c": [size]}
        assert sum(map(sum, sent["all_reduce"].values())) == 2 * 2 * size  # there and back


TYPES = ["f2", "f4", "f8", "c8", "i2", "u8", "?"]


def _reduced(backend, net):
    """Return the bits of reductions that rounding makes depend on their order, of several types at once."""
    rng = np.random.default_rng(backend.rank)
    count = 700_001
    given = [np.asarray(rng.normal(size=count) * 100).astype(kind) for kind in TYPES]
    results = []
    for reduction in (
        Reduction("sum"),
        Reduction("avg"),
        Reduction("product"),
        Reduction("premul_sum", backend.rank + 0.3),
    ):
        arrays = [each.copy() for each in given]
        backend.all_reduce(arrays, reduction)
        kept = [each.copy() for each in given]
        backend.reduce(kept, reduction, 1)
        assert [each.tobytes() for each in kept] == [
            each.tobytes() for each in (arrays if backend.rank == 1 else given)
        ]
        results.append([hashlib.sha256(each).hexdigest() for each in arrays])
    return results


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_a_reductions_bits_do_not_depend_on_the_hosts():
    expected = run(_reduced, list("aaaaa"))
    assert len({repr(each) for each in expected}) == 1
    for hosts in ("aabbb", "abcde", "abbbb", "ababa"):
        assert run(_reduced, list(hosts)) == expected
