"""Ranks find each other by an address alone; who does not come, or should not have, is named."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

import corral.distributed as dist
from corral.distributed import meeting_wire as wire
from corral.distributed.addresses import is_over_hosts, place
from corral.distributed.rendezvous import meet, resolve

RANK = """
import json, sys
from corral.distributed.rendezvous import meet
address, rank, size, timeout, payload = sys.argv[1:]
print("ready", flush=True)
try:
    got = meet(address, int(rank), int(size), payload.encode(), float(timeout))
    print(json.dumps({"got": [part.decode() for part in got]}))
except Exception as error:
    ranks = getattr(error, "ranks", None)
    print(json.dumps({"error": type(error).__name__, "text": str(error), "ranks": ranks}))
"""
"""A rank that goes to a meeting and says how that went."""

WELCOMED = """
import socket, sys, time
from corral.distributed import meeting_wire as wire
from corral.distributed.addresses import place
address, rank, size = sys.argv[1:]
deadline = time.monotonic() + 30
while True:
    guest = socket.socket(socket.AF_UNIX)
    try:
        guest.connect(place(address))
        break
    except ConnectionRefusedError:
        guest.close()
        assert time.monotonic() < deadline
guest.sendall(wire.hello(int(rank), int(size), b""))
welcome = wire.frame(wire.Kind.WELCOME)
assert guest.recv(len(welcome)) == welcome
print("welcomed", flush=True)
sys.stdin.read()
"""
"""A rank that comes, says that it is there, and then does nothing more."""


@pytest.fixture
def address(tmp_path):
    """An address that no other test uses; afterwards nothing may be left of it."""
    where = f"file://{tmp_path}/meeting"
    yield where
    assert not (tmp_path / "meeting").exists()
    with open("/proc/net/unix") as names:
        assert place(where)[1:].decode() not in names.read()


@pytest.fixture
def start():
    """Start processes that are gone when the test is over."""
    with contextlib.ExitStack() as stack:

        def start_process(code, *args, **options):
            process = subprocess.Popen(
                [sys.executable, "-c", code, *map(str, args)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                **options,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start_process


@pytest.fixture
def go(start):
    """Send a rank to a meeting."""

    def go_there(address, rank, size, timeout=30.0, payload=None, **options):
        return start(RANK, address, rank, size, timeout, f"of {rank}" if payload is None else payload, **options)

    return go_there


def outcome(process):
    """Wait for the end of a rank, and return what it said."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def connect(address):
    """Connect to rank 0 as soon as it is there."""
    deadline = time.monotonic() + 30
    while True:
        stranger = socket.socket(socket.AF_UNIX)
        try:
            stranger.connect(place(address))
            return stranger
        except ConnectionRefusedError:
            stranger.close()
            assert time.monotonic() < deadline


def everything(stream):
    """Read all that comes until the other end closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := stream.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


HEADER = struct.Struct("<4sII")


def failure(stream):
    """Return the error that rank 0 sends before it closes."""
    said = everything(stream)
    _, kind, length = HEADER.unpack_from(said)
    assert kind == wire.Kind.FAILURE
    assert len(said) == HEADER.size + length
    return wire.parse_failure(said[HEADER.size :])


def welcomed(address, rank, size, payload=b""):
    """Come as a rank, and return the connection when rank 0 has said that all is well."""
    guest = connect(address)
    guest.sendall(wire.hello(rank, size, payload))
    welcome = wire.frame(wire.Kind.WELCOME)
    assert guest.recv(len(welcome)) == welcome
    return guest


# --- where to meet ---------------------------------------------------------------------------------

ENVIRONMENT = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((None,), ("tcp://localhost:29500", 1, 4)),
        (("env://",), ("tcp://localhost:29500", 1, 4)),
        (("env://", 2), ("tcp://localhost:29500", 2, 4)),
        (("env://", 2, 3), ("tcp://localhost:29500", 2, 3)),
        (("env://?rank=0&world_size=2",), ("tcp://localhost:29500", 0, 2)),
        (("tcp://127.0.0.1:1", 0, 2), ("tcp://127.0.0.1:1", 0, 2)),
        (("tcp://127.0.0.1:1?rank=1&world_size=2",), ("tcp://127.0.0.1:1", 1, 2)),
        (("tcp://127.0.0.1:1?rank=1", 1, 2), ("tcp://127.0.0.1:1", 1, 2)),
        (("tcp://[::1]:1", 0, 1), ("tcp://[::1]:1", 0, 1)),
        (("file:///a/b", 0, 2), ("file:///a/b", 0, 2)),
        (("file:///a/b?rank=1&world_size=2",), ("file:///a/b", 1, 2)),
        (("file://localhost/a/b", 0, 2), ("file:///a/b", 0, 2)),
    ],
)
def test_an_address_a_rank_and_a_size_are_found(arguments, expected):
    assert resolve(*arguments, environ=ENVIRONMENT) == expected


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_variable_is_named(name, value):
    environ = {key: text for key, text in ENVIRONMENT.items() if key != name}
    if value is not None:
        environ[name] = value
    with pytest.raises(ValueError, match=f"environment variable {name} expected, but not set"):
        resolve(None, environ=environ)


@pytest.mark.parametrize(
    ("name", "value"), [("RANK", "one"), ("RANK", "-1"), ("WORLD_SIZE", "2.0"), ("MASTER_PORT", "65536")]
)
def test_a_variable_that_is_no_number_is_named(name, value):
    with pytest.raises(ValueError, match=f"environment variable {name} must be .*{value}"):
        resolve(None, environ=ENVIRONMENT | {name: value})


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("tcp://127.0.0.1", 0, 2), ValueError, "port number missing"),
        (("tcp://127.0.0.1:99999", 0, 2), ValueError, "[Pp]ort"),
        (("tcp://127.0.0.1:1", -1, 2), ValueError, "rank parameter missing"),
        (("tcp://127.0.0.1:1", 0), ValueError, "world size parameter missing"),
        (("tcp://127.0.0.1:1", 0, 0), ValueError, "world_size must be positive"),
        (("tcp://127.0.0.1:1", 2, 2), ValueError, "rank must be in 0 to 1"),
        (("tcp://127.0.0.1:1", -2, 2), ValueError, "rank must not be negative"),
        (("tcp://127.0.0.1:1?rank=x", -1, 2), ValueError, "rank=x in the URL"),
        (("tcp://127.0.0.1:1?rank=1", 0, 2), ValueError, "rank is 1 in the URL and 0 as an argument"),
        (("file://a/b", 0, 2), ValueError, "must be absolute"),
        (("file://", 0, 2), ValueError, "path missing"),
        (("http://127.0.0.1:1", 0, 2), RuntimeError, "No rendezvous handler for http://"),
        (("nowhere", 0, 2), RuntimeError, "must start with env://, tcp:// or file://"),
        ((5, 0, 2), TypeError, "init_method must be a string, got int"),
        (("tcp://127.0.0.1:1", "0", 2), TypeError, "rank must be an integer"),
    ],
)
def test_an_address_that_makes_no_sense_is_explained(arguments, error, text):
    with pytest.raises(error, match=text):
        resolve(*arguments, environ={})


def test_attempts_of_torchrun_do_not_meet_each_other():
    first = resolve(None, environ=ENVIRONMENT | {"TORCHELASTIC_RESTART_COUNT": "0"})
    second = resolve(None, environ=ENVIRONMENT | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert place(first.address) != place(second.address)


STORE = {"CORRAL_STORE": "node0:7", "CORRAL_JOB": "x"}
AGENT = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "r", "MASTER_ADDR": "node0"}


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        (STORE, "store://node0:7#CORRAL_JOB=x"),
        (AGENT | {"GROUP_WORLD_SIZE": "2"}, "torchrun://node0:29500#TORCHELASTIC_RUN_ID=r"),
        (AGENT | {"GROUP_WORLD_SIZE": "1"}, "tcp://127.0.0.1:29500#TORCHELASTIC_RUN_ID=r"),
    ],
)
def test_ranks_of_several_hosts_meet_in_the_store_of_who_started_them(environ, address):
    assert resolve(None, environ=ENVIRONMENT | environ) == (address, 1, 4)


@pytest.mark.parametrize(
    ("address", "over_hosts"),
    [
        ("tcp://127.0.0.1:1", False),
        ("tcp://[::1]:1", False),
        ("tcp://localhost:1", False),
        ("file:///x", False),
        ("tcp://192.0.2.1:1", True),
        ("tcp://[2001:db8::1]:1", True),
        ("tcp://no-such-host.invalid:1", True),
        ("store://127.0.0.1:1", True),
    ],
)
def test_with_a_secret_ranks_may_be_on_several_hosts(address, over_hosts, monkeypatch):
    monkeypatch.setenv("CORRAL_SECRET", "a secret")
    assert is_over_hosts(address) is over_hosts


def test_another_host_is_refused(monkeypatch):
    monkeypatch.delenv("CORRAL_SECRET", raising=False)
    with pytest.raises(ValueError, match=r"192\.0\.2\.1 is another host"):
        meet("tcp://192.0.2.1:29500", 0, 2, b"", 1.0)


def test_a_rank_alone_needs_no_socket(monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    assert meet("tcp://127.0.0.1:0", 0, 1, b"alone", 1.0) == [b"alone"]


def test_what_is_too_large_is_refused_before_anyone_is_met():
    with pytest.raises(ValueError, match="payload must be at most 1048576 bytes, got 1048577"):
        meet("tcp://127.0.0.1:1", 0, 2, bytes((1 << 20) + 1), 1.0)
    with pytest.raises(ValueError, match="world_size must be at most"):
        meet("tcp://127.0.0.1:1", 0, 1 << 20, b"", 1.0)


# --- meeting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_all_get_what_all_brought(address, go, order):
    ranks = [go(address, rank, 4, payload="x" * rank * 20000) for rank in order]
    for rank in ranks:
        assert outcome(rank) == {"got": ["", "x" * 20000, "x" * 40000, "x" * 60000]}


def test_the_largest_payloads_fit(address):
    import threading

    size = 4
    brought = [bytes([rank]) * wire.MAX_PAYLOAD for rank in range(size)]
    got = {}

    def go_there(rank):
        got[rank] = meet(address, rank, size, brought[rank], 30.0)

    threads = [threading.Thread(target=go_there, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == dict.fromkeys(range(size), brought)


def test_the_names_of_this_host_are_one(go):
    with socket.socket() as listener:  # somebody else's listener at the port does not matter
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        environ = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = [go(f"tcp://localhost:{port}", 0, 2), go("env://", 1, 2, env=environ)]
        for rank in ranks:
            assert outcome(rank) == {"got": ["of 0", "of 1"]}
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_file_that_is_there_already_is_left_alone(tmp_path, go):
    stale = tmp_path / "meeting"
    stale.write_text("of an earlier run")
    ranks = [go(f"file://{stale}", rank, 2) for rank in range(2)]
    assert [outcome(rank) for rank in ranks] == [{"got": ["of 0", "of 1"]}] * 2
    assert stale.read_text() == "of an earlier run"


def test_a_link_is_the_place_that_it_leads_to(tmp_path, go):
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    ranks = [go(f"file://{tmp_path}/folder/x", 0, 2), go(f"file://{tmp_path}/link/x", 1, 2)]
    assert [outcome(rank) for rank in ranks] == [{"got": ["of 0", "of 1"]}] * 2


AGAIN = """
import sys
from corral.distributed.rendezvous import meet
address, rank = sys.argv[1], int(sys.argv[2])
for i in range(300):
    got = meet(address, rank, 3, f"{i} {rank}".encode(), 30.0)
    assert got == [f"{i} {other}".encode() for other in range(3)], got
print("{}")
"""


def test_an_address_can_be_used_again_at_once(address, start):
    ranks = [start(AGAIN, address, rank) for rank in range(3)]
    assert [outcome(rank) for rank in ranks] == [{}] * 3


# --- those who do not come -------------------------------------------------------------------------


def test_missing_ranks_are_named_to_all_that_came(address, go):
    ranks = [go(address, rank, 5, timeout=1.0) for rank in (0, 2)]
    for rank in ranks:
        said = outcome(rank)
        assert said["error"] == "DistTimeoutError"
        assert "timed out after 1 s" in said["text"]
        assert "ranks 1, 3, 4 of 5 never came" in said["text"]


def test_rank_0_is_missed_by_all(address, go):
    for rank in [go(address, rank, 3, timeout=0.5) for rank in (1, 2)]:
        said = outcome(rank)
        assert said["error"] == "DistTimeoutError"
        assert "rank 0 of 3 never came" in said["text"]


def test_one_that_gives_up_ends_the_meeting_for_all(address, go):
    ranks = [go(address, 0, 4, timeout=60), go(address, 1, 4, timeout=60), go(address, 2, 4, timeout=1)]
    for rank in ranks:
        said = outcome(rank)
        assert said["error"] == "DistTimeoutError"
        assert "after 1 s" in said["text"]
        assert "rank 3 of 4 never came" in said["text"]


def test_a_rank_that_dies_while_waiting_is_named_to_all(address, go, start):
    host = go(address, 0, 4)
    with welcomed(address, 1, 4) as guest:
        dying = start(WELCOMED, address, 2, 4)
        assert dying.stdout.readline() == "welcomed\n"
        dying.send_signal(signal.SIGKILL)
        said = outcome(host)
        assert said["error"] == "PeerLostError"
        assert said["ranks"] == [2]
        assert f"rank 2 (process {dying.pid}) came, and was gone before all had come" in said["text"]
        told = failure(guest)
        assert (type(told).__name__, str(told), list(told.ranks)) == (said["error"], said["text"], [2])


def test_guests_learn_that_rank_0_died(address, go):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place(address))
        listener.listen()
        guest = go(address, 1, 3)
        connection, _ = listener.accept()
        connection.sendall(wire.frame(wire.Kind.WELCOME))
        connection.close()
        said = outcome(guest)
    assert said["error"] == "PeerLostError"
    assert said["ranks"] == [0]
    assert f"rank 0 (process {os.getpid()}) was gone before all had come" in said["text"]


def test_a_killed_rank_0_leaves_the_address_free(address, go, start):
    host = go(address, 0, 3)
    guest = start(WELCOMED, address, 1, 3)
    assert guest.stdout.readline() == "welcomed\n"
    host.send_signal(signal.SIGKILL)
    ranks = [go(address, rank, 2) for rank in range(2)]
    assert [outcome(rank) for rank in ranks] == [{"got": ["of 0", "of 1"]}] * 2


def test_a_rank_0_that_stands_still_is_named(address, go):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place(address))
        listener.listen()
        said = outcome(go(address, 1, 2, timeout=0.5))
    assert said["error"] == "DistTimeoutError"
    assert f"rank 0 (process {os.getpid()}) is there, but does not answer" in said["text"]


@pytest.mark.parametrize("rank", [0, 1])
def test_waiting_can_be_interrupted(address, go, rank):
    waiting = go(address, rank, 2, timeout=300)
    assert waiting.stdout.readline() == "ready\n"
    if rank == 0:
        connect(address).close()  # it waits
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=10)
    assert "KeyboardInterrupt" in err
    assert waiting.returncode == -signal.SIGINT


# --- those who should not have come ----------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"crr",
        b"crrl\x01",
        HEADER.pack(b"crrl", 1, 0xFFFFFFFF),
        HEADER.pack(b"crrl", 1, 1 << 21) + bytes(1000),
        HEADER.pack(b"crrl", 99, 0),
        HEADER.pack(b"crrl", 1, 0),
        HEADER.pack(b"crrl", 1, 5) + b"hello",
        wire.frame(wire.Kind.HELLO, struct.pack("<III", 1, 0xFFFFFFFF, 3)),
        wire.frame(wire.Kind.HELLO, struct.pack("<III", 1, 1, 0)),
        wire.frame(wire.Kind.RESULT, bytes(100)),
        wire.frame(wire.Kind.GIVE_UP, bytes(8)),
        wire.frame(wire.Kind.WELCOME),
        bytes(1 << 17),
    ],
)
def test_a_stranger_does_not_keep_the_ranks_from_meeting(address, go, said):
    host = go(address, 0, 3)
    with connect(address) as stranger, connect(address) as silent:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stranger.sendall(said)
        ranks = [host, go(address, 1, 3), go(address, 2, 3)]
        assert [outcome(rank) for rank in ranks] == [{"got": ["of 0", "of 1", "of 2"]}] * 3
        assert everything(stranger) == b""
        del silent


def test_a_crowd_of_strangers_does_not_either(address, go):
    host = go(address, 0, 2)
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connect(address))
        ranks = [host, go(address, 1, 2)]
        assert [outcome(rank) for rank in ranks] == [{"got": ["of 0", "of 1"]}] * 2


def test_a_rank_out_of_range_is_told_so_and_the_others_meet(address, go):
    host = go(address, 0, 2)
    with connect(address) as offender:
        offender.sendall(wire.hello(2, 2, b""))
        error = failure(offender)
    assert isinstance(error, dist.MismatchError)
    assert "rank 2 is out of range; valid ranks are 0 to 1" in str(error)
    ranks = [host, go(address, 1, 2)]
    assert [outcome(rank) for rank in ranks] == [{"got": ["of 0", "of 1"]}] * 2


def test_another_version_is_told_so_and_the_others_meet(address, go):
    host = go(address, 0, 2)
    with connect(address) as other:
        other.sendall(wire.frame(wire.Kind.HELLO, struct.pack("<III", 77, 1, 2)))
        assert b"speaks version 77 of the protocol" in everything(other)
    ranks = [host, go(address, 1, 2)]
    assert [outcome(rank) for rank in ranks] == [{"got": ["of 0", "of 1"]}] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_process_of_one_rank_is_told_so_and_the_others_meet(address, go, start, rank):
    first = [go(address, 0, 3)]
    guest = welcomed(address, 1, 3, b"of 1")
    said = outcome(go(address, rank, 3))
    assert said["error"] == "MismatchError"
    holder = first[0].pid if rank == 0 else os.getpid()
    assert f"rank {rank} has already come (process {holder})" in said["text"]
    assert "another job" in said["text"]
    first.append(go(address, 2, 3))
    assert [outcome(rank) for rank in first] == [{"got": ["of 0", "of 1", "of 2"]}] * 2
    assert wire.parse_result(everything(guest)[HEADER.size :], 3) == [b"of 0", b"of 1", b"of 2"]
    guest.close()


def test_another_world_size_is_told_to_all(address, go):
    host = go(address, 0, 3)
    with welcomed(address, 1, 3) as guest:
        offender = go(address, 2, 4)
        for said in (outcome(host), outcome(offender)):
            assert said["error"] == "MismatchError"
            assert f"rank 2 (process {offender.pid}) has world_size=4, rank 0 has world_size=3" in said["text"]
        assert str(failure(guest)) == said["text"]


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        HEADER.pack(b"crrl", 3, 0xFFFFFFFF),
        HEADER.pack(b"crrl", 77, 0),
        wire.result({0: b"", 1: b""}),
        wire.frame(wire.Kind.WELCOME) * 2,
        wire.frame(wire.Kind.WELCOME) + wire.result({0: b"", 1: b"", 2: b""}),
        wire.frame(wire.Kind.WELCOME) + wire.result({0: b""}),
        wire.frame(wire.Kind.WELCOME) + wire.frame(wire.Kind.RESULT, b"\xff\xff\xff\xff12345678"),
        wire.frame(wire.Kind.FAILURE, b""),
        wire.frame(wire.Kind.FAILURE, b"\xff" * 8),
        wire.hello(0, 2, b""),
    ],
)
def test_a_rank_0_that_is_none_is_not_believed(address, go, said):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place(address))
        listener.listen()
        guest = go(address, 1, 2)
        connection, _ = listener.accept()
        connection.sendall(said)
        result = outcome(guest)
        connection.close()
    assert result["error"] == "DistNetworkError"
    assert f"process {os.getpid()}, which holds it, does not speak as a rank" in result["text"]


OTHER_USER = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
end = socket.socket(socket.AF_UNIX)
name = bytes.fromhex(sys.argv[2])
if sys.argv[1] == "hold":
    end.bind(name)
    end.listen()
    print("held", flush=True)
    sys.stdin.read()
else:
    end.connect(name)
    try:
        end.sendall(bytes.fromhex(sys.argv[3]))
        print("got", end.recv(100))
    except (BrokenPipeError, ConnectionResetError):
        print("got nothing")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
class TestAnotherUser:
    @pytest.mark.parametrize("rank", [0, 1])
    def test_its_address_is_not_used(self, address, go, start, rank):
        other = start(OTHER_USER, "hold", place(address).hex())
        assert other.stdout.readline() == "held\n"
        said = outcome(go(address, rank, 2))
        assert said["error"] == "DistNetworkError"
        assert f"process {other.pid} of another user (uid 65534) holds it" in said["text"]

    def test_it_is_not_let_in(self, address, go, start):
        host = go(address, 0, 2)
        connect(address).close()
        other = start(OTHER_USER, "come", place(address).hex(), wire.hello(1, 2, b"evil").hex())
        out, _ = other.communicate(timeout=30)
        assert out in ("got nothing\n", "got b''\n")
        ranks = [host, go(address, 1, 2)]
        assert [outcome(rank) for rank in ranks] == [{"got": ["of 0", "of 1"]}] * 2
