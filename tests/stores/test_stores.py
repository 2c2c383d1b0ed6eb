"""What holds for every store, in one process, in threads, and in many processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist


def test_timeouts_name_store_key_and_time(store):
    store.set_timeout(0.02)
    assert store.timeout == timedelta(milliseconds=20)
    store.set("there", "1")
    for call in (
        lambda: store.get("absent"),
        lambda: store.wait(["there", "absent"]),
        lambda: store.multi_get(["absent"]),
    ):
        with pytest.raises(
            dist.DistStoreError, match=r"Store\(.*timed out after 0.02 s.*absent.*set_timeout"
        ) as caught:
            call()
        assert isinstance(caught.value, TimeoutError)
        assert "there'" not in str(caught.value)
    with pytest.raises(dist.StoreTimeoutError, match=r"nobody has pushed to the queue of key '.*q'"):
        store.queue_pop("q")
    with pytest.raises(dist.StoreTimeoutError, match=r"1 of 3 have come to the barrier of key '.*b'"):
        store.barrier("b", 3)
    with pytest.raises(dist.StoreTimeoutError, match="after 0 s"):
        store.wait(["absent"], 0)
    store.wait(["there"], timedelta(0))
    store.wait([])
    assert store.multi_get([]) == []


def test_arguments_are_checked(store):
    for call in (
        lambda: store.set("k", 1),
        lambda: store.set(1, "v"),
        lambda: store.append("k", None),
        lambda: store.wait("k"),
        lambda: store.check(3),
        lambda: store.multi_get("k"),
        lambda: store.multi_set(["k"], "v"),
        lambda: store.add("k", 1.5),
        lambda: store.set_timeout("1"),
        lambda: store.wait(["k"], True),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (
        lambda: store.multi_set(["k", "l"], ["v"]),
        lambda: store.add("k", 1 << 63),
        lambda: store.barrier("k", 0),
        lambda: store.set_timeout(-1),
        lambda: store.wait(["k"], float("nan")),
    ):
        with pytest.raises(ValueError, match=r"multi_set|add|barrier|timeout"):
            call()
    assert not store.check(["k"])


def test_bytes_that_are_no_text_are_keys_and_values(store):
    store.set(b"k\xff", bytearray(b"\0\xff"))
    (key,) = store.list_keys()
    assert store.get(key) == b"\0\xff"
    store.set("big", bytes(range(256)) * 8000)
    assert store.get("big") == bytes(range(256)) * 8000


def test_counters(store):
    assert store.add("n", (1 << 63) - 1) == (1 << 63) - 1
    with pytest.raises(ValueError, match="does not fit into 64 bits"):
        store.add("n", 1)
    assert store.get("n") == b"9223372036854775807"
    for wrong in ("abc", "1_0", "1.5", "-", "9" * 30):
        store.set("w", wrong)
        with pytest.raises(ValueError, match=r"add to '.*w' on .*is no number|64 bits"):
            store.add("w", 1)
        assert store.get("w") == wrong.encode()


def test_waiting_threads_are_woken(store):
    with ThreadPoolExecutor(4) as threads:
        waits = [
            threads.submit(store.get, "a"),
            threads.submit(store.multi_get, ["a", "b"]),
            threads.submit(store.wait, ["a", "q"]),
            threads.submit(store.queue_pop, "r"),
        ]
        store.set("b", "2")
        store.queue_push("q", "x")
        store.queue_push("r", "y")
        store.set("a", "1")
        assert [wait.result(20) for wait in waits] == [b"1", [b"1", b"2"], None, b"y"]


def test_a_wait_does_not_hold_up_other_threads(store):
    """One object, no clone: while a thread waits, another one sets what it waits for."""
    started = threading.Event()
    got = []

    def wait():
        started.set()
        got.append(store.get("late"))

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    assert store.add("n", 1) == 1
    assert not got
    store.set("late", "now")
    thread.join(20)
    assert got == [b"now"]


def test_each_element_of_a_queue_goes_to_one(store):
    with ThreadPoolExecutor(4) as threads:
        taken = [threads.submit(lambda: [store.queue_pop("q") for _ in range(25)]) for _ in range(4)]
        for i in range(100):
            store.queue_push("q", str(i))
        lists = [[int(value) for value in each.result(20)] for each in taken]
    assert sorted(value for each in lists for value in each) == list(range(100))
    assert all(each == sorted(each) for each in lists)
    assert store.queue_len("q") == 0
    assert not store.check(["q"])


def test_a_pop_that_gave_up_takes_nothing(store):
    store.set_timeout(0.01)
    with pytest.raises(dist.StoreTimeoutError):
        store.queue_pop("q")
    store.queue_push("q", "x")
    assert store.queue_len("q") == 1
    assert store.queue_pop("q") == b"x"


def test_a_barrier_does_not_count_who_gave_up(store):
    with pytest.raises(dist.StoreTimeoutError):
        store.barrier("b", 2, 0.01)
    with pytest.raises(dist.StoreTimeoutError, match="1 of 2"):
        store.barrier("b", 2, timedelta(milliseconds=10))
    with ThreadPoolExecutor(2) as threads:
        for passed in [threads.submit(store.barrier, "b", 2, 20) for _ in range(2)]:
            assert passed.result(20) is None
    store.barrier("b", 2, 0)  # its name has served


def test_clones_share_what_they_hold(store):
    store.set_timeout(11)
    other = store.clone()
    assert type(other) is type(store)
    assert other.timeout == timedelta(seconds=11)
    other.set("k", "v")
    assert store.get("k") == b"v"
    assert other.add("n", 1) == 1
    assert store.add("n", 1) == 2


def test_a_store_of_ones_own():
    class Mine(dist.Store):
        def get(self, key):
            return f"my {key}".encode()

    assert dist.PrefixStore("p", Mine()).get("k") == b"my p/k"
    with pytest.raises(NotImplementedError, match="Mine does not implement set"):
        Mine().set("k", "v")
    with pytest.raises(TypeError, match=r"must be a corral\.distributed.Store"):
        dist.PrefixStore("p", {})


def _open(kind, folder, rank, size):
    """The same store on every rank; the default group tells the others the port."""
    if kind == "file":
        return dist.FileStore(f"{folder}/store", size)
    port = Path(folder, "port")
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, True, 20, wait_for_workers=False)
        port.write_text(str(store.port))
    dist.barrier()
    if rank:
        store = dist.TCPStore("127.0.0.1", int(port.read_text()), size, timeout=20)
    return dist.PrefixStore("part", store) if kind == "prefix" else store


def _work(rank, size, kind, folder):
    store = _open(kind, folder, rank, size)
    for i in range(40):
        store.add("count", i)
        store.append("letters", "abcd"[rank])
        store.queue_push("queue", f"{rank}.{i}")
        while True:  # take a lock by compare_set, and count while it is had
            if store.compare_set("lock", "free", f"{rank}") == str(rank).encode():
                break
            store.compare_set("lock", "", "free")
        held = int(store.get("held")) if store.check(["held"]) else 0
        store.set("held", str(held + 1))
        store.set("lock", "free")
    store.barrier("pushed", size)
    popped = [store.queue_pop("queue") for _ in range(40)]
    store.set(f"from {rank}", bytes([rank]) * 100_000)
    others = store.multi_get([f"from {other}" for other in range(size)])
    assert [value[:1] for value in others] == [bytes([other]) for other in range(size)]
    store.barrier("done", size)
    result = (store.get("count"), sorted(store.get("letters")), popped, store.queue_len("queue"))
    assert store.get("held") == str(40 * size).encode()
    store.barrier("read", size)
    dist.barrier()
    return result


@pytest.mark.parametrize("kind", ["file", "tcp", "prefix"])
def test_processes_share_it(kind, tmp_path):
    size = 3
    results = run(_work, size, kind, str(tmp_path))
    for count, letters, _, left in results:
        assert count == str(size * sum(range(40))).encode()
        assert bytes(letters) == b"a" * 40 + b"b" * 40 + b"c" * 40
        assert left == 0
    popped = [value for _, _, values, _ in results for value in values]
    assert sorted(popped) == sorted(f"{rank}.{i}".encode() for rank in range(size) for i in range(40))
    assert not (tmp_path / "store").exists()


def _meet(rank, size, kind, folder):
    store = _open(kind, folder, rank, size)
    dist.barrier()
    dist.destroy_process_group()
    for turn in range(2):  # one store serves for many groups, one after the other
        dist.init_process_group(store=store, rank=rank, world_size=size)
        rows = [np.empty(2) for _ in range(size)] if rank == 0 else None
        dist.gather(np.full(2, 10.0 * turn + rank), rows, 0)
        if rank == 0:
            assert [row[0] for row in rows] == [10.0 * turn + other for other in range(size)]
        dist.barrier()
        dist.destroy_process_group()
    store.barrier("all are done", size)
    return True


@pytest.mark.parametrize("kind", ["file", "tcp", "prefix"])
def test_groups_meet_in_it(kind, tmp_path):
    assert run(_meet, 3, kind, str(tmp_path)) == [True] * 3


def test_a_group_of_one_meets_in_any(store):
    dist.init_process_group(store=store, rank=0, world_size=1)
    try:
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()
