"""The TCP store between processes: who is let in, and what is said when one of them is gone."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import corral.distributed as dist
from corral.distributed.stores import tcp_wire as wire

MASTER = """
import sys
from corral.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True)
print(store.port, flush=True)
sys.stdin.read()
"""

CLIENT = """
import sys
from corral.distributed import TCPStore
try:
    store = TCPStore(sys.argv[1], int(sys.argv[2]), timeout=20)
    store.set("from", "the client")
    print("in")
except Exception as error:
    print(type(error).__name__, error)
"""


def _start(code, *arguments, **environment):
    environment = {**os.environ, **environment}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes, text=True, env=environment)


def _client(host, port, **environment):
    with _start(CLIENT, host, str(port), **environment) as client:
        return client.communicate(timeout=60)[0].strip()


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_clients_of_a_server_that_dies_are_told(how):
    with _start(MASTER) as master:
        port = int(master.stdout.readline())
        store = dist.TCPStore("127.0.0.1", port)
        other = store.clone()
        with ThreadPoolExecutor(4) as threads:
            waits = [
                threads.submit(store.get, "never"),
                threads.submit(store.barrier, "never a barrier", 2),
                threads.submit(other.queue_pop, "never"),
            ]
            assert store.add("n", 1) == 1
            if how == "killed":
                master.kill()
            else:
                master.stdin.close()
            for wait in waits:
                with pytest.raises(dist.DistNetworkError, match=f"127.0.0.1:{port}: the server is gone"):
                    wait.result(60)
        with pytest.raises(dist.DistNetworkError, match=f"127.0.0.1:{port}: the server is gone"):
            store.set("k", "v")
        if how == "ended":
            assert master.wait(60) == 0


def test_the_server_ends_with_the_masters_store():
    master = dist.TCPStore("127.0.0.1", 0, is_master=True)
    client, port = dist.TCPStore("127.0.0.1", master.port), master.port
    client.set("k", "v")
    del master
    gc.collect()
    with pytest.raises(dist.DistNetworkError, match="server is gone"):
        client.get("k")
    again = dist.TCPStore("127.0.0.1", port, is_master=True)  # the port is free again
    assert not again.check(["k"])
    names = {thread.name for thread in threading.enumerate()}
    del client, again
    gc.collect()
    assert "corral-store" in names
    assert not any(thread.name.startswith("corral-store") for thread in threading.enumerate())


def test_the_master_waits_for_all():
    with pytest.raises(dist.DistStoreError, match=r"timed out after 0.05 s: 1 of 2 processes have come"):
        dist.TCPStore("127.0.0.1", 0, 2, True, timeout=0.05)
    with socket.socket() as listener, ThreadPoolExecutor(1) as threads:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        made = threads.submit(dist.TCPStore, "127.0.0.1", port, 2, True, 30, master_listen_fd=listener.detach())
        client = dist.TCPStore("127.0.0.1", port, 2, timeout=30)
        master = made.result(30)
    client.set("k", "v")
    assert master.get("k") == b"v"
    assert (master.num_keys(), master.list_keys()) == (2, ["k"])
    assert dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False).num_keys() == 0


def test_no_master():
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(dist.DistNetworkError, match=f"127.0.0.1:{port} could not be reached for 0.05 s"):
            dist.TCPStore("127.0.0.1", port, timeout=0.05)
    with pytest.raises(dist.DistNetworkError, match=r"no-such-host\.invalid"):
        dist.TCPStore("no-such-host.invalid", 1, timeout=0.05)


def test_a_master_that_comes_late_is_waited_for():
    with socket.socket() as taken, ThreadPoolExecutor(1) as threads:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        client = threads.submit(dist.TCPStore, "127.0.0.1", port, timeout=30)
        master = dist.TCPStore("127.0.0.1", 0, is_master=True, master_listen_fd=taken.detach())
        client.result(30).set("k", "v")
        assert master.get("k") == b"v"


def test_arguments():
    master = dist.TCPStore("127.0.0.1", 0, 1, True)
    assert (master.host, master.port > 0, master.libuvBackend) == ("127.0.0.1", True, False)
    with pytest.raises(dist.DistNetworkError, match=f"cannot listen at 127.0.0.1:{master.port}.*in use"):
        dist.TCPStore("127.0.0.1", master.port, 1, True)
    for wrong in (
        lambda: dist.TCPStore("127.0.0.1", 1 << 16),
        lambda: dist.TCPStore("127.0.0.1", -1),
        lambda: dist.TCPStore("127.0.0.1", 0, 0, True),
        lambda: dist.TCPStore("127.0.0.1", 0, timeout=-1),
    ):
        with pytest.raises(ValueError, match="TCPStore"):
            wrong()
    for wrong in (lambda: dist.TCPStore(b"h", 1), lambda: dist.TCPStore("h", 1, secret=5)):
        with pytest.raises(TypeError, match="TCPStore"):
            wrong()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        with pytest.raises(ValueError, match="master_listen_fd is bound to port"):
            dist.TCPStore("127.0.0.1", 1, is_master=True, master_listen_fd=listener.detach())


def test_many_masters_of_one_process_share_a_port():
    first = dist.TCPStore("127.0.0.1", 0, is_master=True, multi_tenant=True)
    second = dist.TCPStore("127.0.0.1", first.port, is_master=True, multi_tenant=True)
    first.set("k", "v")
    assert second.get("k") == b"v"
    del first
    assert second.get("k") == b"v"


def test_on_ipv6():
    try:
        master = dist.TCPStore("::1", 0, is_master=True)
    except dist.DistNetworkError:
        pytest.skip("this host has no IPv6")
    dist.TCPStore("::1", master.port).set("k", "v")
    assert master.get("k") == b"v"


def test_processes_of_the_user_need_no_secret():
    master = dist.TCPStore("127.0.0.1", 0, is_master=True)
    assert _client("127.0.0.1", master.port) == "in"
    assert master.get("from") == b"the client"


def test_those_with_the_secret_are_let_in(monkeypatch):
    monkeypatch.setenv("CORRAL_SECRET", "of this job")
    master = dist.TCPStore("0.0.0.0", 0, is_master=True)  # which nobody could do without one
    assert _client("127.0.0.1", master.port) == "in"
    assert master.clone().get("from") == b"the client"
    assert master.get("from") == b"the client"
    dist.TCPStore("127.0.0.1", master.port, secret="what is in the environment counts")


def test_those_without_it_are_not(monkeypatch):
    monkeypatch.setenv("CORRAL_SECRET", "of this job")
    master = dist.TCPStore("127.0.0.1", 0, is_master=True)
    said = _client("127.0.0.1", master.port, CORRAL_SECRET="of another job")
    assert said.startswith(f"DistNetworkError TCPStore at 127.0.0.1:{master.port}: the server refuses this process: ")
    assert "CORRAL_SECRET" in said
    said = _client("127.0.0.1", master.port, CORRAL_SECRET="")
    assert said.startswith("DistNetworkError")
    assert "set CORRAL_SECRET" in said
    assert not master.check(["from"])
    monkeypatch.delenv("CORRAL_SECRET")
    master = dist.TCPStore("127.0.0.1", 0, is_master=True)
    said = _client("127.0.0.1", master.port, CORRAL_SECRET="of another job")
    assert "CORRAL_SECRET" in said
    assert not master.check(["from"])


def test_a_secret_as_an_argument():
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, secret="word")
    dist.TCPStore("127.0.0.1", master.port, secret=b"word").set("k", "v")
    assert master.get("k") == b"v"
    with pytest.raises(dist.DistNetworkError, match="another secret"):
        dist.TCPStore("127.0.0.1", master.port, secret="word2")


def test_other_hosts_need_a_secret():
    with pytest.raises(dist.DistNetworkError, match=r"0\.0\.0\.0 can be reached from other hosts.*set CORRAL_SECRET"):
        dist.TCPStore("0.0.0.0", 0, is_master=True)


def _impostor(listener, answer):
    made, _ = listener.accept()
    with made:
        made.recv(wire.MAX_HANDSHAKE)
        answer(made)


@pytest.mark.parametrize("what", ["knows no secret", "another protocol", "a huge frame"])
def test_a_client_does_not_believe_an_impostor(what):
    def answer(made):
        if what == "another protocol":
            made.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        elif what == "a huge frame":
            made.sendall(b"\xff" * 64)
        else:
            made.sendall(wire.frame(0, wire.Kind.CHALLENGE, [b"n" * wire.NONCE]))
            proof = wire.Frames()
            proof.feed(made.recv(wire.MAX_HANDSHAKE))
            _, _, (theirs,) = proof.next(wire.MAX_HANDSHAKE)
            made.sendall(wire.frame(0, wire.Kind.WELCOME, [theirs]))  # all that it can say: what it was told

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        impostor = threads.submit(_impostor, listener, answer)
        with pytest.raises(dist.DistNetworkError, match=r"poses as it|is no server of a TCPStore"):
            dist.TCPStore("127.0.0.1", listener.getsockname()[1], timeout=30, secret="word")
        impostor.result(30)


def test_without_a_secret_an_impostor_is_not_even_spoken_to():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(dist.DistNetworkError, match="set CORRAL_SECRET"):
            dist.TCPStore("127.0.0.1", listener.getsockname()[1], timeout=30)
        made, _ = listener.accept()
        with made:
            assert made.recv(1) == b""


def test_what_is_too_large_is_refused_and_the_store_goes_on():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with pytest.raises(ValueError, match=f"at most {wire.MAX_FRAME} bytes"):
        store.set("k", bytes(wire.MAX_FRAME))
    half = bytes(wire.MAX_FRAME // 2)
    store.append("k", half)
    store.append("k", half)
    with pytest.raises(ValueError, match="the answer is too long"):
        store.get("k")
    store.set("k", half)
    assert store.get("k") == half


def test_forks_have_connections_of_their_own():
    code = """
import os
from corral.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True, 20)
store.set("k", "v")
children = []
for i in range(3):
    child = os.fork()
    if not child:
        assert store.get("k") == b"v"
        store.set(f"from {i}", "a child")
        store.get("go")
        os._exit(0)
    children.append(child)
store.wait([f"from {i}" for i in range(3)])
store.set("go", "1")
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
assert store.get("k") == b"v"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_forks_copy_does_not_keep_a_dead_server_alive():
    code = """
import os, sys
from corral.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True)
child = os.fork()
if not child:
    sys.stdin.read()
    os._exit(0)
print(store.port, flush=True)
store.get("never")
"""
    with _start(code) as master:
        port = int(master.stdout.readline())
        store = dist.TCPStore("127.0.0.1", port)
        store.set("k", "v")
        master.kill()
        with pytest.raises(dist.DistNetworkError, match="the server is gone"):
            store.get("never")
        master.stdin.close()


def test_ctrl_c_interrupts_a_wait_and_takes_nothing():
    code = """
import os, signal, threading, time
from corral.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True, 30)
def interrupt():
    while not store._connection._requests:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    store.queue_pop("queue")
except KeyboardInterrupt:
    store.queue_push("queue", "x")
    print(store.queue_pop("queue"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "b'x'\n"), done.stderr


LEAVES_WORD = """
import sys
from corral.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]))
store.leave_word("lost", b"replaced")
store.leave_word("gone", b"it is gone")
if sys.argv[2] == "taken back":
    store.leave_word(None)
store.set("left", "1")
sys.stdin.read()
"""


@pytest.mark.parametrize("ends", ["is killed", "ends well", "taken back"])
def test_a_client_leaves_word_of_its_end(ends):
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=20)
    with _start(LEAVES_WORD, str(master.port), ends) as client, ThreadPoolExecutor() as pool:
        master.wait(["left"])
        assert not master.check(["gone"])
        waiting = pool.submit(master.get, "gone")  # is woken
        if ends == "is killed":
            client.kill()
        client.stdin.close()
        client.wait()
        if ends == "taken back":
            while len(master._server._clients) > 1:  # until the server has seen that it is gone
                pass
            master.set("gone", "by nobody")
        assert waiting.result() == (b"by nobody" if ends == "taken back" else b"it is gone")
    assert not master.check(["lost"])


def test_word_that_was_left_changes_no_key_that_is_set():
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=20)
    first, second = (dist.TCPStore("127.0.0.1", master.port) for _ in range(2))
    first.leave_word("end", b"first")
    second.leave_word("end", b"second")
    second.leave_word("other", b"second")
    master.set("end", "known")
    first.close()
    second.close()
    assert master.get("other") == b"second"
    assert master.get("end") == b"known"
    with pytest.raises(dist.DistNetworkError, match="this store was closed"):
        first.get("end")
