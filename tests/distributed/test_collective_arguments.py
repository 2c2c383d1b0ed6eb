"""What collectives refuse before anything moves, each rank by itself, and what they take as a reduction."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import corral.distributed as dist
from corral.backends.base import Backend
from corral.distributed import groups
from corral.distributed.groups import ProcessGroup

A = np.zeros(2)


class RefusingBackend(Backend):
    """Remembers what was refused, and does nothing else."""

    name = "refusing"

    def __init__(self, rank, size):
        self.rank, self.size, self.timeout = rank, size, 300.0
        self.calls = []

    def refuse(self, operation):
        self.calls.append(("refuse", operation))


RefusingBackend.__abstractmethods__ = frozenset()


@pytest.fixture
def world(monkeypatch):
    pg = ProcessGroup(RefusingBackend(2, 4), range(4), "0")
    monkeypatch.setattr(groups, "world", pg)
    return pg


@pytest.fixture
def sub(world):
    """Global ranks 3, 2 and 0, in this order: this process is group rank 1."""
    return ProcessGroup(RefusingBackend(1, 3), (3, 2, 0), "1")


def _refused(backend, name, error, text, call):
    """Check that a call fails by itself, before anything moves, and has taken its place among the group's."""
    backend.calls.clear()
    with pytest.raises(error, match=text):
        call()
    assert backend.calls == [("refuse", name)]


def test_bad_arguments_of_collectives_keep_their_place(sub):
    frozen = np.broadcast_to(0.0, (2,))
    rows = np.zeros((3, 2))
    lists = [np.zeros(2) for _ in range(3)]
    op = dist.ReduceOp
    for name, error, text, call in [
        ("barrier", ValueError, "timeout must be positive", lambda: dist.barrier(sub, timeout=-1)),
        ("monitored_barrier", TypeError, "timeout must be", lambda: dist.monitored_barrier(sub, "1")),
        ("broadcast", ValueError, "tensor cannot .* read-only", lambda: dist.broadcast(frozen, 0, sub)),
        ("broadcast", ValueError, "rank 1, given as src", lambda: dist.broadcast(A, 1, sub)),
        ("scatter", ValueError, "must be specified on source", lambda: dist.scatter(A, None, 2, sub)),
        ("scatter", ValueError, "must NOT be specified", lambda: dist.scatter(A, lists, 0, sub)),
        ("scatter", ValueError, "each of the 3 ranks .* got 2", lambda: dist.scatter(A, lists[:2], 2, sub)),
        (
            "scatter",
            ValueError,
            r"tensor, .*scatter_list\[1\].*\(3,\)",
            lambda: dist.scatter(np.zeros(3), lists, 2, sub),
        ),
        (
            "scatter",
            ValueError,
            r"tensor shares memory with scatter_list\[2\]",
            lambda: dist.scatter(rows[2], list(rows), 2, sub),
        ),
        ("scatter", TypeError, r"scatter_list\[0\] must be an array", lambda: dist.scatter(A, [1, 2, 3], 2, sub)),
        (
            "gather",
            ValueError,
            r"gather_list\[0\] shares memory with tensor",
            lambda: dist.gather(rows[0], list(rows), 2, sub),
        ),
        ("all_gather", ValueError, "each of the 3 ranks .* got 2", lambda: dist.all_gather(lists[:2], A, sub)),
        ("all_gather", TypeError, "tensor_list must be a list", lambda: dist.all_gather(rows, A, sub)),
        ("all_gather", ValueError, r"tensor_list\[0\] and .* share memory", lambda: dist.all_gather([A] * 3, A, sub)),
        (
            "all_gather",
            ValueError,
            r"tensor_list\[1\], .* float64 for .* int64",
            lambda: dist.all_gather(lists, np.zeros(2, int), sub),
        ),
        (
            "all_gather",
            ValueError,
            r"tensor_list\[2\] shares memory with tensor",
            lambda: dist.all_gather(list(rows), rows[2], sub),
        ),
        (
            "all_gather_into_tensor",
            ValueError,
            r"output_tensor must .* 3 times .* 6: got .*\(4,\).*\(2,\)",
            lambda: dist.all_gather_into_tensor(np.zeros(4), A, sub),
        ),
        (
            "all_gather_into_tensor",
            ValueError,
            "float32 for .*float64",
            lambda: dist.all_gather_single(np.zeros(6, "f4"), A, sub),
        ),
        (
            "all_gather_into_tensor",
            ValueError,
            "output_tensor shares memory with input_tensor",
            lambda: dist.all_gather_into_tensor(rows, rows[0], sub),
        ),
        ("all_to_all", ValueError, "each of the 3 .* got 4", lambda: dist.all_to_all(lists, [A] * 4, sub)),
        (
            "all_to_all",
            ValueError,
            r"output_tensor_list\[0\] shares memory with input_tensor_list\[0\]",
            lambda: dist.all_to_all(list(rows), list(rows), sub),
        ),
        (
            "all_to_all_single",
            ValueError,
            "4 rows, which 3 ranks",
            lambda: dist.all_to_all_single(np.zeros(4), np.zeros(4), None, None, sub),
        ),
        (
            "all_to_all_single",
            ValueError,
            r"input_split_sizes must be 3 numbers .* 3 rows of input, got \[1, 1\]",
            lambda: dist.all_to_all_single(np.zeros(3), np.zeros(3), [1, 1, 1], [1, 1], sub),
        ),
        (
            "all_to_all_single",
            ValueError,
            "output's part 1, .* of input's part 1",
            lambda: dist.all_to_all_single(np.zeros(3), np.zeros(3), [1, 2, 0], [1, 1, 1], sub),
        ),
        (
            "all_to_all_single",
            ValueError,
            "got 0-d",
            lambda: dist.all_to_all_single(np.zeros(()), np.zeros(3), group=sub),
        ),
        ("all_reduce", ValueError, "tensor cannot .* read-only", lambda: dist.all_reduce(frozen, group=sub)),
        ("all_reduce", TypeError, "op must be a member", lambda: dist.all_reduce(A, "sum", sub)),
        ("all_reduce", ValueError, r"needs a factor", lambda: dist.all_reduce(A, op.PREMUL_SUM, sub)),
        ("all_reduce", TypeError, r"BAND has no meaning for float64", lambda: dist.all_reduce(A, op.BAND, sub)),
        ("reduce", TypeError, r"MIN .*complex128", lambda: dist.reduce(A.astype(complex), 0, op.MIN, sub)),
        ("reduce", ValueError, r"Must specify dst", lambda: dist.reduce(A, group=sub)),
        (
            "reduce_scatter",
            ValueError,
            r"output shares memory with input_list\[0\]",
            lambda: dist.reduce_scatter(rows[0], list(rows), group=sub),
        ),
        ("reduce_scatter", TypeError, r"datetime64", lambda: dist.reduce_scatter(A.astype("M8[s]"), lists, group=sub)),
        (
            "reduce_scatter_tensor",
            ValueError,
            r"input must .* 3 times",
            lambda: dist.reduce_scatter_tensor(A, np.zeros(5), group=sub),
        ),
        (
            "all_gather_coalesced",
            ValueError,
            r"output_tensor_lists\[1\], .* must have 2 arrays, .* got 1",
            lambda: dist.all_gather_coalesced([[a] for a in lists], [A, A], sub),
        ),
        ("all_gather_coalesced", TypeError, "empty", lambda: dist.all_gather_coalesced([[]] * 3, [], sub)),
        (
            "all_reduce_coalesced",
            ValueError,
            r"tensors\[0\] and tensors\[1\] share memory",
            lambda: dist.all_reduce_coalesced([A, A], group=sub),
        ),
        (
            "all_reduce_coalesced",
            TypeError,
            r"BOR has no meaning for float64, the dtype of tensors\[1\]",
            lambda: dist.all_reduce_coalesced([np.zeros(2, int), A], op.BOR, sub),
        ),
    ]:
        _refused(sub.backend, name, error, text, call)


def test_reduce_ops():
    op = dist.ReduceOp
    assert repr(op.SUM) == "<ReduceOp.SUM: 0>"
    assert [op.__members__[name].value for name in op.__members__] == list(range(9))
    assert op(op.MAX) == op.RedOpType.MAX == op.MAX.op
    assert hash(op(op.MAX)) == hash(op.MAX)
    assert op.MAX != op.MIN
    assert isinstance(op.MAX, op)
    for factor in (0.5, np.array([[0.5]]), np.float32(0.5)):
        scaled = op.PREMUL_SUM(factor)
        assert (scaled.factor, scaled.op, scaled.name) == (0.5, op.PREMUL_SUM, "PREMUL_SUM")
        assert pickle.loads(pickle.dumps(scaled)) == scaled != op.PREMUL_SUM
    assert pickle.loads(pickle.dumps(op.BOR)) is op.BOR
    for bad in ("x", [1, 2], np.zeros(2), 1j, None):
        with pytest.raises(TypeError, match="must be a real number or an array of one"):
            op.PREMUL_SUM(bad)
    with pytest.raises(RuntimeError, match=r"Only PREMUL_SUM .* got ReduceOp.SUM"):
        op.SUM(2)
    with pytest.raises(RuntimeError, match="Only PREMUL_SUM with a factor"):
        op.SUM.factor  # noqa: B018
    with pytest.raises(TypeError, match="expected a member"):
        op(0)
    with pytest.warns(FutureWarning, match="reduce_op` is deprecated"):
        assert dist.reduce_op.PRODUCT is op.PRODUCT
    with pytest.raises(AttributeError, match="no member 'sum'"):
        dist.reduce_op.sum  # noqa: B018


def test_reduce_ops_of_torch_are_taken(world):
    c10d = pytest.importorskip("torch.distributed")
    for name, ours in dist.ReduceOp.__members__.items():
        theirs = getattr(c10d.ReduceOp, name)
        assert (ours.value, ours) == (theirs.value, theirs)
        if name != "PREMUL_SUM":
            assert dist.ReduceOp(c10d.ReduceOp(theirs)) == ours
    asked = []
    world.backend.all_reduce = lambda buffers, reduction: asked.append(tuple(reduction))
    dist.all_reduce(A, c10d.ReduceOp.MAX)
    dist.all_reduce(A, c10d.ReduceOp.PREMUL_SUM(0.25))
    dist.all_reduce(A, dist.ReduceOp.PREMUL_SUM(3))
    dist.all_reduce(A)
    assert asked == [("max", 1.0), ("premul_sum", 0.25), ("premul_sum", 3.0), ("sum", 1.0)]
