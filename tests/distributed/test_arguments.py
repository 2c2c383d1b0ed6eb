"""What the functions check before, and what they ask of, a backend: with one that only takes notes."""

from __future__ import annotations

import inspect
import itertools
from datetime import timedelta

import numpy as np
import pytest

import corral.distributed as dist
from corral.backends.base import Backend
from corral.distributed import groups
from corral.distributed.groups import ProcessGroup

NOWHERE = dist.GroupMember.NON_GROUP_MEMBER


class DoneRequest:
    def __init__(self, source=None):
        self._source = source

    def wait(self, timeout=None):
        pass

    def is_completed(self):
        return True

    def exception(self):
        return None

    def source(self):
        return self._source


class NotingBackend(Backend):
    """Does nothing, and remembers what it was asked to do."""

    name = "noting"

    def __init__(self, rank, size, timeout=300.0):
        self.rank, self.size, self.timeout = rank, size, timeout
        self.calls = []

    def split(self, ranks, name, timeout=None):
        return NotingBackend(list(ranks).index(self.rank), len(ranks), timeout or self.timeout)

    def send(self, buffers, dst, tag=0, timeout=None):
        self.calls.append(("send", list(buffers), dst, tag))

    def recv(self, buffers, src, tag=0, timeout=None):
        self.calls.append(("recv", list(buffers), src, tag))
        for buffer in buffers:
            buffer[...] = 5
        return 0 if src is None else src

    def batch(self, operations):
        self.calls.append(("batch", list(operations)))
        return [DoneRequest(op.peer if op.kind == "recv" else None) for op in operations]

    def barrier(self, timeout=None):
        self.calls.append(("barrier", timeout))

    def ibarrier(self):
        return DoneRequest()

    def gather(self, buffers, into, root, timeout=None, operation="gather"):
        self.calls.append(("gather", list(buffers), into, root))

    def igather(self, buffers, into, root, operation="gather"):
        self.gather(buffers, into, root)
        return DoneRequest()

    def gather_bytes(self, payload, root, timeout=None, operation=""):
        return [payload] * self.size if root == self.rank else None

    def all_gather_bytes(self, payload, timeout=None, operation=""):
        return [payload] * self.size

    def refuse(self, operation):
        self.calls.append(("refuse", operation))

    def close(self, timeout=None):
        self.calls.append(("close",))


NotingBackend.__abstractmethods__ = frozenset()  # it need not do what these tests do not ask for


@pytest.fixture
def world(monkeypatch):
    """A default group of four in which this process is rank 2."""
    pg = ProcessGroup(NotingBackend(2, 4), range(4), "0")
    monkeypatch.setattr(groups, "world", pg)
    return pg


@pytest.fixture
def sub(world):
    """Global ranks 3, 2 and 0, in this order: this process is group rank 1."""
    return ProcessGroup(NotingBackend(1, 3), (3, 2, 0), "1")


A = np.zeros(2)


def test_signatures_are_those_of_torch():
    c10d = pytest.importorskip("torch.distributed")
    for name in dist.__all__:
        ours, theirs = getattr(dist, name), getattr(c10d, name, None)
        if not inspect.isfunction(ours) or not inspect.isfunction(theirs):
            continue
        expected = [
            (p.name, p.default) for p in inspect.signature(theirs).parameters.values() if not p.name.startswith("_")
        ]
        actual = [
            (p.name, p.default)
            for p in inspect.signature(ours).parameters.values()
            if p.kind is p.POSITIONAL_OR_KEYWORD or p.name in inspect.signature(theirs).parameters
        ]
        if name == "get_process_group_ranks":  # a default where torch has none
            actual[0] = (actual[0][0], inspect.Parameter.empty)
        assert actual == expected, name


def test_ranks(world, sub):
    assert dist.get_rank() == 2
    assert dist.get_world_size() == 4
    assert dist.get_rank(sub) == 1
    assert dist.get_world_size(sub) == 3
    assert dist.get_rank(NOWHERE) == dist.get_world_size(NOWHERE) == -1
    assert [dist.get_global_rank(sub, i) for i in range(3)] == [3, 2, 0]
    assert [dist.get_group_rank(sub, i) for i in (3, 2, 0)] == [0, 1, 2]
    assert dist.get_process_group_ranks(sub) == [3, 2, 0]
    assert dist.get_process_group_ranks(None) == [0, 1, 2, 3]
    assert dist.get_backend() == dist.get_backend(sub) == "noting"
    assert dist.group.WORLD is dist.GroupMember.WORLD is world
    with pytest.raises(ValueError, match=r"Global rank 1.* not part of group '1'.*3, 2, 0"):
        dist.get_group_rank(sub, 1)
    with pytest.raises(ValueError, match="Group rank 3 is not part"):
        dist.get_global_rank(sub, 3)
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.get_backend(NOWHERE)
    with pytest.raises(ValueError, match="not registered"):
        dist.get_rank("group")


def test_nothing_works_before_init():
    assert not dist.is_initialized()
    assert dist.group.WORLD is None
    calls = [
        dist.get_rank,
        dist.get_world_size,
        dist.get_backend,
        dist.barrier,
        dist.new_group,
        lambda: dist.send(A, 1),
        lambda: dist.recv(A),
        lambda: dist.isend(A, 1),
        lambda: dist.irecv(A),
        lambda: dist.gather(A),
        lambda: dist.scatter(A),
        lambda: dist.broadcast(A, 0),
        lambda: dist.reduce(A, 0),
        lambda: dist.all_reduce(A),
        lambda: dist.all_reduce_coalesced([A]),
        lambda: dist.all_gather([A], A),
        lambda: dist.all_gather_coalesced([[A]], [A]),
        lambda: dist.all_gather_into_tensor(A, A),
        lambda: dist.all_to_all([A], [A]),
        lambda: dist.all_to_all_single(A, A),
        lambda: dist.reduce_scatter(A, [A]),
        lambda: dist.reduce_scatter_tensor(A, A),
        dist.monitored_barrier,
        lambda: dist.gather_object(1),
        lambda: dist.P2POp(dist.isend, A, 1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="Default process group has not been initialized"):
            call()
    with pytest.raises(ValueError, match="no default group"):
        dist.destroy_process_group()


# (function, name of its rank argument, whether a rank must be given, whether it may be this rank)
OPERATIONS = [
    (dist.send, "dst", True, False),
    (dist.isend, "dst", True, True),
    (dist.recv, "src", False, False),
    (dist.irecv, "src", False, True),
    (lambda a, **k: dist.P2POp(dist.isend, a, **k), "peer", True, False),
    (lambda a, **k: dist.P2POp(dist.irecv, a, **k), "peer", True, False),
    (lambda a, **k: dist.gather(a, None, **k), "dst", False, True),
    (lambda a, **k: dist.scatter(a, None, **k), "src", False, True),
    (dist.broadcast, "src", True, True),
    (dist.reduce, "dst", True, True),
    (lambda a, **k: dist.gather_object(1, None, **k), "dst", False, True),
]


@pytest.mark.parametrize(("call", "name", "needed", "self_allowed"), OPERATIONS)
def test_rank_arguments(world, sub, call, name, needed, self_allowed):
    a = np.zeros(2)
    for pg in (None, sub):
        with pytest.raises(ValueError, match=rf"(?s)both.*group_{name}.* {name}|{name}.*group_{name}"):
            call(a, group=pg, **{name: 0, f"group_{name}": 0})
        if needed:
            with pytest.raises(ValueError, match=rf"Must specify {name} or group_{name}"):
                call(a, group=pg)
        for bad in (4, -1, 99):
            with pytest.raises(ValueError, match=rf"rank {bad}, given as {name}, is not part"):
                call(a, group=pg, **{name: bad})
            with pytest.raises(ValueError, match=rf"Group rank {bad} is not part.*group_{name} must be in 0 to"):
                call(a, group=pg, **{f"group_{name}": bad})
        for bad in ("1", 1.0, [1]):
            with pytest.raises(TypeError, match=rf"{name} must be an integer"):
                call(a, group=pg, **{name: bad})
            with pytest.raises(TypeError, match=rf"group_{name} must be an integer"):
                call(a, group=pg, **{f"group_{name}": bad})
        if not self_allowed:
            with pytest.raises(ValueError, match="should not be the same as the rank of the current process"):
                call(a, group=pg, **{name: 2})
    with pytest.raises(ValueError, match=r"Global rank 1, given as .*3, 2, 0"):
        call(a, group=sub, **{name: 1})
    if not self_allowed:
        with pytest.raises(ValueError, match="should not be the same"):
            call(a, group=sub, **{f"group_{name}": 1})


@pytest.mark.parametrize(
    ("keywords", "in_world", "in_sub"),
    [({"dst": 0}, 0, 2), ({"dst": 3}, 3, 0), ({"group_dst": 0}, 0, 0), ({"dst": np.int64(3)}, 3, 0)],
)
def test_ranks_reach_the_backend_as_group_ranks(world, sub, keywords, in_world, in_sub):
    dist.send(A, **keywords)
    assert world.backend.calls[-1] == ("send", [A], in_world, 0)
    dist.send(A, group=sub, tag=7, **keywords)
    assert sub.backend.calls[-1] == ("send", [A], in_sub, 7)
    dist.isend(A, group=sub, **keywords)
    assert sub.backend.calls[-1][1][0][2:] == (in_sub, 0)
    dist.gather(A, group=sub, **keywords)
    assert sub.backend.calls[-1][2:] == (None, in_sub)
    dist.gather(A, **keywords)
    assert world.backend.calls[-1][2:] == (None, in_world)


def test_recv_returns_the_global_rank(world, sub):
    a = np.zeros(2)
    assert dist.recv(a, 3) == 3
    assert a.tolist() == [5, 5]
    assert dist.recv(a) == 0
    assert dist.recv(a, group=sub) == 3
    assert dist.recv(a, group_src=2, group=sub) == 0
    assert dist.recv(a, 0, sub, 4) == 0
    assert sub.backend.calls[-1] == ("recv", [a], 2, 4)
    big = np.zeros(2, ">f8")
    assert dist.recv(big, 3) == 3
    assert big.tolist() == [5, 5]


def test_gather_goes_to_global_rank_0_by_default(world, sub):
    dist.gather(A, group=sub)
    assert sub.backend.calls[-1][3] == 2  # global rank 0 is group rank 2
    other = ProcessGroup(NotingBackend(0, 2), (2, 3), "2")
    with pytest.raises(ValueError, match="Global rank 0, given as dst, is not part"):
        dist.gather(A, group=other)


def test_outsiders_get_a_warning_and_return(world):
    calls = {
        "send": (lambda: dist.send(A, 0, NOWHERE), None),
        "recv": (lambda: dist.recv(A, 0, NOWHERE), -1),
        "isend": (lambda: dist.isend(A, group_dst=0, group=NOWHERE), None),
        "irecv": (lambda: dist.irecv(A, group=NOWHERE), None),
        "barrier": (lambda: dist.barrier(NOWHERE), None),
        "gather": (lambda: dist.gather(A, group=NOWHERE), None),
        "scatter": (lambda: dist.scatter(A, group=NOWHERE), None),
        "broadcast": (lambda: dist.broadcast(A, 0, NOWHERE), None),
        "reduce": (lambda: dist.reduce(A, 0, group=NOWHERE), None),
        "all_reduce": (lambda: dist.all_reduce(A, group=NOWHERE), None),
        "all_reduce_coalesced": (lambda: dist.all_reduce_coalesced([A], group=NOWHERE), None),
        "all_gather": (lambda: dist.all_gather([A], A, NOWHERE), None),
        "all_gather_coalesced": (lambda: dist.all_gather_coalesced([[A]], [A], NOWHERE), None),
        "all_gather_into_tensor": (lambda: dist.all_gather_into_tensor(A, A, NOWHERE), None),
        "all_to_all": (lambda: dist.all_to_all([A], [A], NOWHERE), None),
        "all_to_all_single": (lambda: dist.all_to_all_single(A, A, group=NOWHERE), None),
        "reduce_scatter": (lambda: dist.reduce_scatter(A, [A], group=NOWHERE), None),
        "reduce_scatter_tensor": (lambda: dist.reduce_scatter_tensor(A, A, group=NOWHERE), None),
        "monitored_barrier": (lambda: dist.monitored_barrier(NOWHERE), None),
        "gather_object": (lambda: dist.gather_object(1, group=NOWHERE), None),
    }
    for name, (call, result) in calls.items():
        with pytest.warns(UserWarning, match=f"Running {name} on global rank 2 which does not belong") as seen:
            assert call() == result
        assert seen[0].filename == __file__
    with pytest.raises(ValueError, match="not part of the given group"):
        dist.P2POp(dist.isend, A, 0, NOWHERE)
    with pytest.raises(TypeError, match="group must be a ProcessGroup"):
        dist.send(A, 0, "group")


def test_tags(world):
    for bad in (-1, 2**31, 1.5, None, "1"):
        for call in (
            lambda tag: dist.send(A, 0, tag=tag),
            lambda tag: dist.recv(A, 0, tag=tag),
            lambda tag: dist.isend(A, 0, tag=tag),
            lambda tag: dist.irecv(A, 0, tag=tag),
            lambda tag: dist.P2POp(dist.isend, A, 0, tag=tag),
        ):
            with pytest.raises(ValueError, match="tag must be an integer in 0 to"):
                call(bad)
    dist.send(A, 0, tag=2**31 - 1)


def test_bad_arrays_move_nothing(world, sub):
    expanded = np.broadcast_to(np.zeros(3), (2, 3))
    window = np.lib.stride_tricks.as_strided(np.zeros(4), (2, 3), (8, 8))
    for pg in (None, sub):
        for bad, text in ((expanded, "read-only"), (window, "share memory")):
            for call in (dist.recv, dist.irecv):
                with pytest.raises(ValueError, match=f"tensor cannot be received into: .*{text}"):
                    call(bad, 0, pg)
            with pytest.raises(ValueError, match=text):
                dist.P2POp(dist.irecv, bad, 0, pg)
        for call in (
            dist.send,
            dist.recv,
            dist.isend,
            dist.irecv,
            lambda a, r, g: dist.gather(a, dst=r, group=g),
        ):
            with pytest.raises(TypeError, match="tensor must be an array"):
                call([1.0], 0, pg)
    # A collective keeps its place among the group's; a message has none.
    assert world.backend.calls == sub.backend.calls == [("refuse", "gather")]


def test_p2pop_keeps_its_arguments(world, sub):
    op = dist.P2POp(dist.isend, A, 0, sub, 3)
    assert (op.op, op.tensor is A, op.peer, op.group, op.tag, op.group_peer) == (
        dist.isend,
        True,
        0,
        sub,
        3,
        2,
    )
    op = dist.P2POp(dist.irecv, A, group_peer=0, group=sub)
    assert (op.op, op.peer, op.group, op.tag, op.group_peer) == (dist.irecv, 3, sub, 0, 0)
    assert dist.P2POp(dist.irecv, A, 1).group is world
    for bad in (dist.send, "isend", None, lambda: None):
        with pytest.raises(ValueError, match="Invalid ``op``"):
            dist.P2POp(bad, A, 0)


def test_p2pop_repr_says_who_sends_what_to_whom(world, sub):
    send = repr(dist.P2POp(dist.isend, A, 0, sub, 3))
    recv = repr(dist.P2POp(dist.irecv, np.zeros((2, 3), np.int8), 3, sub))
    assert "isend pg=1, group_src=1, group_dst=2, global ranks 2 -> 0, tag=3" in send
    assert "irecv pg=1, group_src=0, group_dst=1, global ranks 3 -> 2" in recv
    assert "(2, 3)" in recv
    assert "int8" in recv


def test_batch(world, sub):
    into = np.zeros(2)
    works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, into, 0, sub), dist.P2POp(dist.isend, A, 3, sub, 5)])
    assert [work.wait() for work in works] == [True, True]
    (name, operations) = sub.backend.calls[-1]
    assert name == "batch"
    assert [(op.kind, op.peer, op.tag) for op in operations] == [("recv", 2, 0), ("send", 0, 5)]
    assert works[0].result() == [into]
    assert works[0].source_rank() == 2


def test_batch_refuses(world, sub):
    a, b = dist.P2POp(dist.isend, A, 0), dist.P2POp(dist.isend, A, 0, sub)
    for bad in ([], None, (a,), [a, 1], a):
        with pytest.raises(ValueError, match="Invalid ``p2p_op_list``"):
            dist.batch_isend_irecv(bad)
    with pytest.raises(ValueError, match=r"All ops need to use the same group.*'0' and '1'"):
        dist.batch_isend_irecv([a, b])
    with pytest.raises(ValueError, match="share memory"):
        dist.batch_isend_irecv([dist.P2POp(dist.irecv, A, 0), dist.P2POp(dist.irecv, A[1:], 1)])
    assert world.backend.calls == []


def test_gather_lists(world):
    rows = np.zeros((4, 2))
    dist.gather(A, list(rows), dst=2)
    assert [into[0].base is rows for into in world.backend.calls[-1][2]] == [True] * 4
    uneven = [np.zeros(i) for i in range(4)]
    dist.gather(A, uneven, dst=2)
    for bad in (None, []):
        with pytest.raises(ValueError, match="``gather_list`` must be specified on destination"):
            dist.gather(A, bad, dst=2)
    with pytest.raises(ValueError, match="must NOT be specified on non-destination"):
        dist.gather(A, uneven, dst=1)
    with pytest.raises(ValueError, match=r"each of the 4 ranks of the group, got 3"):
        dist.gather(A, uneven[:3], dst=2)
    with pytest.raises(ValueError, match=r"gather_list\[0\] and gather_list\[\d\] share memory"):
        dist.gather(A, [rows[0]] * 4, dst=2)
    with pytest.raises(TypeError, match=r"gather_list\[3\] must be an array"):
        dist.gather(A, [*uneven[:3], [1.0]], dst=2)
    with pytest.raises(TypeError, match="gather_list must be a list of arrays"):
        dist.gather(A, rows, dst=2)
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"gather_list\[1\] cannot be received into: it is read-only"):
        dist.gather(A, [uneven[0], frozen, *uneven[2:]], dst=2)
    work = dist.gather(A, list(rows), dst=2, async_op=True)
    assert work.wait()
    assert len(work.result()) == 4


def test_gather_object_lists(world):
    out = [None] * 4
    dist.gather_object({"a": [1, "x"]}, out, dst=2)
    assert out == [{"a": [1, "x"]}] * 4
    dist.gather_object(1, None, dst=0)
    with pytest.raises(ValueError, match="expected a list of 4"):
        dist.gather_object(1, None, dst=2)
    for size in (0, 3, 5):
        with pytest.raises(ValueError, match=rf"each of the 4 ranks of the group, got {size}"):
            dist.gather_object(1, [None] * size, dst=2)
    with pytest.raises(TypeError, match=r"must be a list of 4, .*got tuple"):
        dist.gather_object(1, (None,) * 4, dst=2)
    for given in ([None] * 4, []):
        with pytest.raises(ValueError, match="must NOT be specified on non-destination ranks"):
            dist.gather_object(1, given, dst=0)


def test_barrier_timeouts(world, sub):
    dist.barrier()
    dist.barrier(timeout=timedelta(seconds=3))
    dist.barrier(group=sub, timeout=0.5)
    assert [call[1] for call in world.backend.calls + sub.backend.calls] == [None, 3.0, 0.5]
    assert dist.barrier(async_op=True).wait()
    for bad, error in (("1", TypeError), (0, ValueError), (-1.0, ValueError), (float("nan"), ValueError)):
        with pytest.raises(error, match="timeout must be"):
            dist.barrier(timeout=bad)


def test_new_group(world):
    by_all = [dist.new_group([3, 2]), dist.new_group([0, 2]), dist.new_group()]
    assert [g.ranks for g in by_all] == [(2, 3), (0, 2), (0, 1, 2, 3)]
    assert dist.new_group([3, 2], sort_ranks=False).ranks == (3, 2)
    assert dist.new_group([0, 1]) == NOWHERE
    alone = [dist.new_group([2, 3], use_local_synchronization=True) for _ in range(2)]
    assert dist.new_group([0, 1], use_local_synchronization=True) == NOWHERE
    made = [*by_all, *alone]
    assert len({g.group_name for g in made}) == len(made)
    for bad, text in (
        ([0, 0], "duplicate"),
        ([4], "Rank 4 is out of range.*0 to 3"),
        ([-1], "out of range"),
        ([], "empty"),
    ):
        with pytest.raises(ValueError, match=text):
            dist.new_group(bad)
    with pytest.raises(ValueError, match="unknown backend 'none'"):
        dist.new_group([0, 2], backend="none")
    dist.destroy_process_group(by_all[0])
    assert by_all[0].backend.calls[-1] == ("close",)
    for call in (lambda: dist.send(A, 3, by_all[0]), lambda: dist.get_rank(by_all[0])):
        with pytest.raises(ValueError, match=r"can no longer be used|not registered"):
            call()
    dist.destroy_process_group(NOWHERE)
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.destroy_process_group(by_all[0])
    dist.destroy_process_group()
    assert all(g.closed for g in made)
    assert not dist.is_initialized()


def test_new_group_disagreement_is_told_to_all(world, monkeypatch):
    def all_gather_bytes(payload, operation):
        return [payload, b"9:0,1", payload, payload]

    monkeypatch.setattr(world.backend, "all_gather_bytes", all_gather_bytes)
    with pytest.raises(
        dist.MismatchError, match=r"rank 0: group \d+ of ranks \[1,2\]; rank 1: group 9 of ranks \[0,1\]"
    ):
        dist.new_group([1, 2])


def test_init_arguments(world):
    with pytest.raises(ValueError, match="default process group twice"):
        dist.init_process_group()
    groups.set_world(None)
    with pytest.raises(ValueError, match="both init_method and store"):
        dist.init_process_group(init_method="env://", store=object())
    with pytest.raises(ValueError, match=r"unknown backend 'no-such'.*'shm'"):
        dist.init_process_group("no-such")
    with pytest.raises(TypeError, match=r"timeout must be a datetime.timedelta or a number"):
        dist.init_process_group(timeout="5")
    for size, rank in itertools.product((0, -1, 2), (-1, 2)):
        with pytest.raises(ValueError, match="if using store"):
            dist.init_process_group(store=object(), world_size=size, rank=rank)
