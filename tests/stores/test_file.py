"""A file that several processes write: whatever happens to one of them, the others read what was written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import corral.distributed as dist
from corral.distributed.stores import file as file_module
from corral.distributed.stores import file_log

WRITER = """
import sys
from corral.distributed import FileStore
store = FileStore(sys.argv[1], 2)
print("ready", flush=True)
for i in range(1 << 40):
    store.multi_set(["a", "b"], [str(i) * 2000, str(i) * 2000])
"""


def test_a_writer_killed_at_any_moment_leaves_the_file_whole(tmp_path):
    path = str(tmp_path / "store")
    mine = dist.FileStore(path, 2)
    for turn in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as writer:
            assert writer.stdout.readline() == b"ready\n"
            for _ in range(20 + 7 * turn):
                a, b = mine.multi_get(["a", "b"])
                assert a == b
            writer.kill()
        a, b = mine.multi_get(["a", "b"])
        assert a == b
        mine.multi_set(["a", "b"], ["after", "after"])
        assert dist.FileStore(path, 100).multi_get(["a", "b"]) == [b"after", b"after"]
    del mine  # those that were killed do not keep the file
    assert not os.path.exists(path)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "written"
    store = dist.FileStore(str(path))
    store.set("first", "1")
    store.append("first", "2")
    store.queue_push("queue", "q")
    store.set("second", "other")
    store.delete_key("second")
    del store
    return path


def _contents(path):
    store = dist.FileStore(str(path))
    return {key: store.get(key) for key in store.list_keys()}, store.queue_len("queue")


WHOLE = ({"first": b"12"}, 1)


def test_half_a_record_does_not_count(written):
    whole = written.read_bytes()
    other = written.with_name("other")
    store = dist.FileStore(str(other))
    store.set("key", "value" * 20)
    record = other.read_bytes()[file_log._HEADER.size :]
    for cut in range(len(record) + 1):
        written.write_bytes(whole + record[:cut])
        assert _contents(written) == WHOLE
    store = dist.FileStore(str(written))
    store.set("short", "x")  # shorter than what was left there
    assert _contents(written) == ({"first": b"12", "short": b"x"}, 1)


def test_damage_is_an_error_and_never_another_value(written):
    whole = bytearray(written.read_bytes())
    for at in range(len(whole)):
        for mask in (0x01, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= mask
            written.write_bytes(damaged)
            with pytest.raises(dist.DistStoreError, match=r"damaged|is no file of a corral FileStore|has version"):
                _contents(written)
    for cut in range(1, len(whole)):
        written.write_bytes(whole[:cut])
        with pytest.raises(dist.DistStoreError, match=r"damaged|is no file"):
            _contents(written)
    written.write_bytes(whole)
    assert _contents(written) == WHOLE


def test_another_file_is_left_alone(tmp_path):
    path = tmp_path / "notes"
    path.write_text("my notes, which are dear to me")
    with pytest.raises(dist.DistStoreError, match="is no file of a corral FileStore"):
        dist.FileStore(str(path), 1)
    assert path.read_text() == "my notes, which are dear to me"
    for wrong in (tmp_path, tmp_path / "absent" / "store"):
        with pytest.raises(dist.DistStoreError, match="cannot open"):
            dist.FileStore(str(wrong), 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_refused(tmp_path):
    path = tmp_path / "store"
    path.touch()
    os.chown(path, 12345, -1)
    with pytest.raises(dist.DistStoreError, match="belongs to another user"):
        dist.FileStore(str(path), 1)


def test_it_is_for_this_user_alone(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    assert os.stat(store.path).st_mode & 0o777 == 0o600


def test_the_file_stays_until_all_have_come(tmp_path):
    path = str(tmp_path / "store")
    store = dist.FileStore(path, 2)
    store.set("k", "v")
    del store
    assert dist.FileStore(path, 2).get("k") == b"v"
    assert not os.path.exists(path)


def test_a_stopped_process_that_holds_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(file_module, "_LEAST_LIMIT", 0.02)
    store, other = dist.FileStore(str(tmp_path / "store")), dist.FileStore(str(tmp_path / "store"))
    store.set_timeout(0.02)
    with other._held("test"), pytest.raises(dist.StoreTimeoutError, match=r"set on FileStore.*stopped"):
        store.set("k", "v")
    store.set("k", "v")
    assert other.get("k") == b"v"


def test_a_change_that_fails_is_not_made(tmp_path, monkeypatch):
    store = dist.FileStore(str(tmp_path / "store"))
    store.set("k", "1")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(dist.DistStoreError, match="No space left"):
            store.set("k", "2")
    assert store.get("k") == b"1"
    assert store.add("n", 1) == 1


def test_a_fork_uses_it_too(tmp_path):
    code = """
import os, sys
from corral.distributed import FileStore
store = FileStore(sys.argv[1], 2)
store.set("k", "v")
child = os.fork()
if not child:
    store.set("from", "child")
    os._exit(store.get("k") != b"v")
assert os.waitpid(child, 0)[1] == 0
assert store.get("from") == b"child"
"""
    path = str(tmp_path / "store")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not os.path.exists(path)


def test_ctrl_c_interrupts_a_wait(tmp_path):
    code = """
import sys
from corral.distributed import FileStore
store = FileStore(sys.argv[1], 1)
print("ready", flush=True)
try:
    store.get("absent")
except KeyboardInterrupt:
    store.set("k", "v")
    print(store.get("k"))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    # The signal may come just before the wait, which is not what this is about, but must not be swallowed either.
    assert out == "b'v'\n" or "KeyboardInterrupt" in errors
