"""Point to point between real processes: values, strides, dtypes, order, batches, failures to match."""

from __future__ import annotations

import os
import threading

import ml_dtypes
import numpy as np
import pytest
from ranks import DTYPES, LAYOUTS, in_layout, run, values

import corral.distributed as dist

SHAPES = [(), (0,), (1,), (5,), (4, 4), (0, 3), (2, 3, 4)]


def _ring(rank, size, shapes, dtypes):
    right, left = (rank + 1) % size, (rank - 1) % size
    for i, shape in enumerate(shapes):
        for dtype in dtypes:
            for there in LAYOUTS:
                for here in LAYOUTS:
                    mine, _ = in_layout(values(shape, dtype, 100 * i + rank), there)
                    expected = values(shape, dtype, 100 * i + left)
                    blank = np.zeros(shape, dtype)
                    target, memory = in_layout(blank, here)
                    around = memory.copy()
                    if rank % 2 == 0 and not (size % 2 and rank == size - 1):
                        dist.send(mine, right)
                        source = dist.recv(target, left)
                    else:
                        source = dist.recv(target, left)
                        dist.send(mine, right)
                    assert source == left
                    where = f"{dtype} {shape} {there} -> {here}"
                    np.testing.assert_array_equal(target, expected, err_msg=where)
                    target[...] = blank
                    np.testing.assert_array_equal(memory, around, err_msg=f"{where}: wrote beside the array")
    dist.barrier()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_dtype_and_layout(size):
    run(_ring, size, SHAPES, DTYPES if size == 2 else DTYPES[::5])


@pytest.mark.parametrize("direct", ["1", "0"])
def test_large_arrays(direct):
    run(_ring, 2, [(700, 900), (3, 200_000)], ["u1", "f8"], environment={"CORRAL_SHM_DIRECT": direct})


def _shape_of_the_report(rank, size):
    a = np.arange(16.0).reshape(4, 4)
    b = np.zeros((4, 4))
    if rank == 0:
        dist.send(a.T, 1)
        dist.send(a[:, 1], 1)
        dist.send(np.broadcast_to(np.float64(7), (2, 2)), 1)
    else:
        dist.recv(b, 0)
        assert np.array_equal(b, a.T)
        dist.recv(b[1], 0)
        assert np.array_equal(b[1], a[:, 1])
        dist.recv(b[::2, ::-2], 0)
        assert np.array_equal(b[::2, ::-2], np.full((2, 2), 7.0))


@pytest.mark.also("sockets")
def test_transposed_matrix_column_and_broadcast():
    run(_shape_of_the_report, 2)


def _matching(rank, size):
    if rank == 0:
        for i in range(10):
            dist.send(np.array([i]), 1, tag=i % 2)
            dist.send(np.array([100 + i]), 2)
        dist.barrier()
        # From anyone: each sender's messages keep their order.
        got = {1: [], 2: []}
        a = np.zeros(1, int)
        for _ in range(20):
            source = dist.recv(a)
            got[source].append(int(a[0]))
        assert got == {r: [1000 * r + i for i in range(10)] for r in (1, 2)}
    else:
        a = np.zeros(1, int)
        if rank == 1:
            odd = [dist.recv(a, 0, tag=1) * 0 + int(a[0]) for _ in range(5)]
            even = [dist.recv(a, 0) * 0 + int(a[0]) for _ in range(5)]
            assert (even, odd) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
        else:
            assert [dist.recv(a, 0) * 0 + int(a[0]) for _ in range(10)] == list(range(100, 110))
        dist.barrier()
        for i in range(10):
            dist.send(np.array([1000 * rank + i]), 0)


@pytest.mark.everywhere
def test_messages_match_by_source_and_tag_in_order():
    run(_matching, 3)


def _mismatches(rank, size):
    if rank == 0:
        dist.send(np.arange(3, dtype=np.float32), 1)
        dist.send(np.arange(4, dtype=np.int32), 1)
        dist.send(np.zeros(1 << 20), 1)
        dist.send(np.array(["2026-01-01"], "M8[D]"), 1)
        dist.send(np.zeros(1, ml_dtypes.bfloat16), 1)
        dist.send(np.arange(5.0), 1)
    else:
        a = np.full(4, 9, np.float32)
        with pytest.raises(dist.MismatchError, match=r"12 bytes.* 16 bytes"):
            dist.recv(a, 0)
        with pytest.raises(dist.MismatchError, match=r"int32.*float32"):
            dist.recv(a, 0)
        with pytest.raises(dist.MismatchError, match=r"8388608 bytes.* 16 bytes|float64.*float32"):
            dist.recv(a, 0)
        with pytest.raises(dist.MismatchError, match=r"is of datetime64\[D\], the receiving array of datetime64\[s\]"):
            dist.recv(np.zeros(1, "M8[s]"), 0)
        import torch

        with pytest.raises(dist.MismatchError, match=r"is of bfloat16, the receiving array of float8_e5m2"):
            dist.recv(torch.zeros(2, dtype=torch.float8_e5m2), 0)
        assert a.tolist() == [9] * 4
        b = np.zeros(5)
        dist.recv(b, 0)
        assert b.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.everywhere
def test_what_does_not_fit_is_told_consumed_and_leaves_the_group_usable():
    run(_mismatches, 2)


def _refused_receives(rank, size):
    if rank == 0:
        dist.send(np.ones(3), 1)
        return
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for bad in (frozen, np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,))):
        for call in (dist.recv, dist.irecv):
            with pytest.raises(ValueError, match="tensor cannot be received into"):
                call(bad, 0)
        assert bad.tolist() == [0, 0, 0]
    a = np.zeros(3)
    dist.recv(a, 0)
    assert a.tolist() == [1, 1, 1]


def test_read_only_and_overlapping_targets_are_refused_before_the_message_is_taken():
    run(_refused_receives, 2)


def _neighbors(rank, size, order, count):
    """Exchange with both neighbors, in an order in the list that differs from rank to rank."""
    peers = sorted({(rank + 1) % size, (rank - 1) % size})
    receives, sends = [], []
    for peer in peers:
        for i in range(count):
            target = np.zeros(3 + i % 5)
            receives.append(dist.P2POp(dist.irecv, target, peer, tag=i % 3))
            message = values((3 + i % 5,), "f8", 1000 * rank + i)
            sends.append(dist.P2POp(dist.isend, message, peer, tag=i % 3))
    if order == "receives first":
        operations = receives + sends
    elif order == "sends first":
        operations = sends + receives
    else:
        operations = sends + receives if rank % 2 else receives + sends
    for work in dist.batch_isend_irecv(operations):
        assert work.wait()
    for peer, start in zip(peers, range(0, len(receives), count), strict=True):
        for tag in range(3):
            got = [op.tensor for op in receives[start : start + count] if op.tag == tag]
            sent = [values((3 + i % 5,), "f8", 1000 * peer + i) for i in range(count) if i % 3 == tag]
            for one, other in zip(got, sent, strict=True):
                assert np.array_equal(one, other)


@pytest.mark.parametrize("order", ["receives first", "sends first", "different"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_batches_of_any_order(size, order):
    run(_neighbors, size, order, 4)


def test_a_thousand_operations():
    run(_neighbors, 2, "receives first", 500)


def _some_ranks(rank, size):
    """Only two of four take part in the first operation of a group."""
    group = dist.new_group()
    if rank in (1, 3):
        peer = 4 - rank
        target = np.zeros(200_000)
        operations = [
            dist.P2POp(dist.irecv, target, peer, group),
            dist.P2POp(dist.isend, np.full(200_000, float(rank)), peer, group),
        ]
        works = dist.batch_isend_irecv(operations)
        assert all(work.wait() for work in works)
        assert works[0].source_rank() == peer
        assert (target == peer).all()
    dist.barrier()


@pytest.mark.also("sockets")
def test_a_batch_of_only_some_ranks():
    run(_some_ranks, 4)


def _staged(rank, size):
    """Receives that go through other memory: foreign byte order, and dimensions that interleave."""
    memory = np.zeros(8)
    targets = [
        np.zeros(6, ">f8"),
        np.lib.stride_tricks.as_strided(memory, (3, 2), (16, 24)),
        np.zeros((2, 3), "f8")[:, ::-1],
    ]
    if rank == 0:
        for call in (dist.send, lambda *a: dist.isend(*a).wait()):
            for _ in targets:
                call(np.arange(1.0, 7.0), 1)
        return
    for receive in (dist.recv, lambda *a: dist.irecv(*a).wait()):
        for target in targets:
            receive(target, 0)
            assert target.ravel().tolist() == [1, 2, 3, 4, 5, 6]
            target[...] = 0


def test_staged_receives():
    run(_staged, 2)


def _asynchronous(rank, size):
    peer = 1 - rank
    for length in (3, 500_000):
        target = np.zeros(length)
        receive = dist.irecv(target, peer)
        send = dist.isend(np.full(length, float(rank)), peer)
        assert receive.wait()
        assert send.wait(5.0)
        assert receive.is_completed()
        assert send.is_completed()
        assert receive.exception() is None
        assert receive.result()[0] is target
        assert (target == peer).all()
    dist.barrier()
    never = dist.irecv(np.zeros(3), peer, tag=99)
    assert not never.is_completed()
    with pytest.raises(dist.DistTimeoutError, match=rf"recv.*rank {peer}"):
        never.wait(0.05)
    dist.barrier()


@pytest.mark.also("sockets")
def test_asynchronous_operations():
    run(_asynchronous, 2)


def _to_self(rank, size):
    for length in (2, 300_000):
        target = np.zeros(length)
        receive = dist.irecv(target, rank)
        dist.isend(np.full(length, 7.0), rank).wait()
        receive.wait()
        assert (target == 7).all()


@pytest.mark.also("sockets")
def test_asynchronous_to_self():
    run(_to_self, 2)


def _sends_and_leaves(rank, size, how):
    if rank == 0:
        dist.isend(np.full(3, 5.0), 1)
        dist.isend(np.full(400_000, 6.0), 1)
        if how == "destroy":
            dist.destroy_process_group()
        elif how == "exit":
            raise SystemExit(0)
        return
    a, b = np.zeros(3), np.zeros(400_000)
    started = threading.Event()
    threading.Timer(0.2, started.set).start()  # the sender is at its exit by then
    started.wait()
    dist.recv(a, 0)
    dist.recv(b, 0)
    assert (a == 5).all()
    assert (b == 6).all()


@pytest.mark.also("sockets")
@pytest.mark.parametrize("how", ["destroy", "return"])
def test_what_was_sent_arrives_though_the_sender_leaves(how):
    run(_sends_and_leaves, 2, how)


def _two_threads(rank, size):
    groups = [dist.new_group() for _ in range(2)]
    errors = []

    def work(group, number):
        try:
            a = np.zeros(1)
            for i in range(200):
                if rank == 0:
                    dist.send(np.array([1000.0 * number + i]), 1, group)
                else:
                    dist.recv(a, 0, group)
                    assert a[0] == 1000 * number + i
                dist.barrier(group)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(g, n)) for n, g in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.also("sockets")
def test_two_groups_in_two_threads():
    run(_two_threads, 2)


def _objects_with_memory(rank, size):
    if rank == 0:
        dist.send(b"abcd", 1)
        dist.send(memoryview(bytearray(b"efgh")), 1)
    else:
        first, second = bytearray(4), np.zeros(4, np.uint8)
        dist.recv(first, 0)
        dist.recv(second, 0)
        assert bytes(first) == b"abcd"
        assert second.tobytes() == b"efgh"
        assert "torch" not in __import__("sys").modules or dist.get_backend() in ("gloo", "hybrid")


def test_buffer_protocol_objects():
    run(_objects_with_memory, 2)


def _nothing_left(rank, size):
    dist.isend(np.zeros(3), (rank + 1) % size)
    return sorted(name for name in os.listdir("/dev/shm") if "corral" in name)


def test_nothing_is_left_behind():
    assert run(_nothing_left, 2) == [[], []]
