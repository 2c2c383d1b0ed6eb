"""Whatever anybody sends to the server of a TCP store, it serves the others."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corral.distributed as dist
from corral.distributed.stores import service, tcp_server
from corral.distributed.stores import tcp_wire as wire
from corral.distributed.stores.tcp_wire import Frames, Kind, frame, integer

SECRET = b"of this job"


@pytest.fixture(scope="module")
def master():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET)


def _goes_on(master):
    """The server works, for those that are in and for a new one."""
    key = f"k{random.random()}"
    dist.TCPStore("127.0.0.1", master.port, timeout=30, secret=SECRET).set(key, "v")
    assert master.get(key) == b"v"
    assert master.delete_key(key)


def _stranger(master):
    made = socket.create_connection(("127.0.0.1", master.port), timeout=30)
    made.settimeout(30)
    return made


def _hear(made, frames, limit=wire.MAX_FRAME):
    """Return the next frame; ``None`` if the server has hung up."""
    while (said := frames.next(limit)) is None:
        try:
            data = made.recv(1 << 16)
        except ConnectionResetError:
            return None
        if not data:
            return None
        frames.feed(data)
    return said


def _insider(master):
    """Somebody who knows the secret and then misbehaves."""
    made, frames, ours = _stranger(master), Frames(), wire.nonce()
    made.sendall(frame(0, Kind.HELLO, [wire.MAGIC, wire.VERSION, ours]))
    _, kind, (theirs,) = _hear(made, frames)
    assert kind is Kind.CHALLENGE
    made.sendall(frame(0, Kind.PROOF, [wire.proof(SECRET, b"client", ours, theirs)]))
    _, kind, (proof,) = _hear(made, frames)
    assert kind is Kind.WELCOME
    assert proof == wire.proof(SECRET, b"server", ours, theirs)
    return made, frames


HELLO = frame(0, Kind.HELLO, [wire.MAGIC, wire.VERSION, b"n" * wire.NONCE])

STRANGE = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a huge length": struct.pack("<IIB", 0xFFFFFFFF, 0, Kind.HELLO),
    "a length above that of a handshake": struct.pack("<IIB", wire.MAX_HANDSHAKE + 1, 0, Kind.HELLO),
    "an unknown kind": struct.pack("<IIB", 0, 0, 200),
    "a request before the handshake": frame(1, Kind.SET, [b"/k", b"v"]),
    "a proof before the hello": frame(0, Kind.PROOF, [b"p" * 32]),
    "a wrong proof": HELLO + frame(0, Kind.PROOF, [b"p" * 32]),
    "an empty proof": HELLO + frame(0, Kind.PROOF, [b""]),
    "a proof of two fields": HELLO + frame(0, Kind.PROOF, [b"p" * 32, b""]),
    "two hellos": HELLO + HELLO,
    "a short nonce": frame(0, Kind.HELLO, [wire.MAGIC, wire.VERSION, b"n"]),
    "no magic": frame(0, Kind.HELLO, [b"xxxx", wire.VERSION, b"n" * wire.NONCE]),
    "another version": frame(0, Kind.HELLO, [wire.MAGIC, b"\x09", b"n" * wire.NONCE]),
    "a field that is longer than its frame": struct.pack("<IIBI", 8, 0, Kind.HELLO, 0xFFFFFFFF) + b"1234",
    "half a length of a field": struct.pack("<IIBH", 2, 0, Kind.HELLO, 1),
    "the server's own words": frame(0, Kind.WELCOME, [b"p" * 32]),
}


@pytest.mark.parametrize("what", STRANGE)
def test_strangers_are_refused(master, what):
    with _stranger(master) as made:
        made.sendall(STRANGE[what])
        frames = Frames()
        said = []
        while (heard := _hear(made, frames, wire.MAX_HANDSHAKE)) is not None:
            said.append(heard[1])
        assert set(said) <= {Kind.CHALLENGE, Kind.REFUSED}
        if said:  # else the reset came before it
            assert said[-1] is Kind.REFUSED or said == [Kind.CHALLENGE]
    assert not master.check(["k"])
    _goes_on(master)


def test_a_proof_cannot_be_used_again(master):
    """Somebody who has listened to a client says the same."""
    frames, ours = Frames(), wire.nonce()
    proof = b""
    for turn in range(2):
        with _stranger(master) as made:
            frames = Frames()
            made.sendall(frame(0, Kind.HELLO, [wire.MAGIC, wire.VERSION, ours]))
            _, _, (theirs,) = _hear(made, frames)
            if turn == 0:
                proof = wire.proof(SECRET, b"client", ours, theirs)
            made.sendall(frame(0, Kind.PROOF, [proof]))
            assert _hear(made, frames)[1] is (Kind.WELCOME if turn == 0 else Kind.REFUSED)


INSIDE = {
    "a huge length": struct.pack("<IIB", 0xFFFFFFFF, 1, Kind.SET),
    "a length above the limit": struct.pack("<IIB", wire.MAX_FRAME + 1, 1, Kind.SET),
    "an unknown kind": struct.pack("<IIB", 0, 1, 99),
    "an answer": frame(1, Kind.DONE, []),
    "a hello": HELLO,
    "too few fields": frame(1, Kind.SET, [b"/k"]),
    "too many fields": frame(1, Kind.ADD, [b"/k", integer(1), b""]),
    "a short number": frame(1, Kind.ADD, [b"/k", b"1"]),
    "a key without a value": frame(1, Kind.MULTI_SET, [b"/a", b"1", b"/b"]),
    "no queue": frame(1, Kind.POP, []),
    "a will of one field": frame(1, Kind.WILL, [b"/k"]),
    "one number for two requests": frame(1, Kind.GET, [b"/never"]) * 2,
    "a field that is longer than its frame": struct.pack("<IIBI", 8, 1, Kind.SET, 0xFFFFFFFF) + b"1234",
    "many empty fields": struct.pack("<IIB", 4 * (wire.MAX_FIELDS + 1), 1, Kind.CHECK) + bytes(4 * wire.MAX_FIELDS + 4),
}


@pytest.mark.parametrize("what", INSIDE)
def test_what_no_client_says_ends_the_connection(master, what):
    made, frames = _insider(master)
    with made:
        made.sendall(INSIDE[what])
        said = _hear(made, frames)
        assert said is None or said[1] is Kind.REFUSED
        assert _hear(made, frames) is None
    _goes_on(master)


@pytest.mark.parametrize("cut", [1, 4, 8, 9, 12, 20])
def test_half_messages_then_gone(master, cut):
    for data in (HELLO, frame(1, Kind.SET, [b"/half", b"value"])):
        made = _stranger(master) if data is HELLO else _insider(master)[0]
        with made:
            made.sendall(data[:cut])
            if cut % 2:  # gone with a reset
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _goes_on(master)
    assert not master.check(["half"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=4), st.booleans())
def test_any_bytes(master, parts, inside):
    made = _insider(master)[0] if inside else _stranger(master)
    with made, contextlib.suppress(ConnectionError):  # it may hang up in the midst of them
        for part in parts:
            made.sendall(part)
    assert master.add("alive", 1) > 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(Kind), st.lists(st.binary(max_size=9), max_size=4)), max_size=6))
def test_any_requests(master, requests):
    made, _ = _insider(master)
    with made, contextlib.suppress(ConnectionError):
        for number, (kind, fields) in enumerate(requests, 1):
            made.sendall(frame(number, kind, fields))
    assert master.add("alive", 1) > 0


def test_a_flood_of_connections_does_not_keep_others_out(master):
    with contextlib.ExitStack() as stack:
        for turn in range(6 * tcp_server.MAX_STRANGERS):
            made = stack.enter_context(_stranger(master))
            if turn % 3 == 0:
                with contextlib.suppress(ConnectionError):
                    made.sendall(HELLO[: turn % len(HELLO)])
        _goes_on(master)
        assert len(master._server._strangers) <= tcp_server.MAX_STRANGERS
    _goes_on(master)


def test_a_handshake_that_never_ends(monkeypatch):
    monkeypatch.setattr(tcp_server, "STRANGER_SECONDS", 1.0)
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET)
    with _stranger(master) as silent, _stranger(master) as begun, _stranger(master) as slow:
        begun.sendall(HELLO)
        with contextlib.suppress(ConnectionError):
            for at in range(len(HELLO)):  # each byte is answered by another's whole request
                slow.sendall(HELLO[at : at + 1])
                master.set("k", "v")
        frames = Frames()
        assert _hear(begun, frames)[1] is Kind.CHALLENGE
        assert _hear(begun, frames) is None
        for made in (silent, slow):
            with contextlib.suppress(ConnectionError):
                while made.recv(1 << 10):
                    pass
    _goes_on(master)


def test_a_long_frame_that_never_ends_takes_what_has_come_and_no_more(master):
    made, _ = _insider(master)
    with made:
        made.sendall(struct.pack("<IIB", wire.MAX_FRAME, 1, Kind.SET) + b"x" * 100)
        _goes_on(master)
        assert max(len(client.frames) for client in master._server._clients) <= 109


def test_a_client_that_takes_no_answers(master):
    value = bytes(1 << 20)
    master.set("large", value)
    made, frames = _insider(master)
    with made:
        for number in range(1, 201):  # 200 MiB, if they were all answered
            made.sendall(frame(number, Kind.GET, [b"/large"]))
        _goes_on(master)
        assert max(len(client.outgoing) for client in master._server._clients) < 32 << 20
        for _ in range(200):  # and when it does take them, they are all there
            _, kind, fields = _hear(made, frames)
            assert (kind, fields) == (Kind.DONE, [value])
    assert master.delete_key("large")


def test_more_waits_than_a_client_may_have(master):
    made, frames = _insider(master)
    with made:
        for number in range(service.MAX_WAITS):
            made.sendall(frame(number, Kind.GET, [b"/never"]))
        made.sendall(frame(service.MAX_WAITS, Kind.GET, [b"/never"]))
        number, kind, _ = _hear(made, frames)
        assert (number, kind) == (service.MAX_WAITS, Kind.INVALID)
        made.sendall(frame(0, Kind.CANCEL))
        assert _hear(made, frames) == (0, Kind.NOTHING, [b"/never"])
        _goes_on(master)
    _goes_on(master)


def test_those_who_wait_and_are_gone_are_forgotten(master):
    made, _ = _insider(master)
    with made:
        for number, kind in enumerate([Kind.GET, Kind.POP, Kind.WAIT]):
            made.sendall(frame(number, kind, [b"/gone"]))
        made.sendall(frame(9, Kind.BARRIER, [b"/gone barrier", integer(2)]))
        master.wait(["gone barrier"])
        assert master.get("gone barrier") == b"1"
    while master.get("gone barrier") != b"0":  # until the server has seen that it is gone
        pass
    master.queue_push("gone", "x")
    assert master.queue_pop("gone", block=False) == b"x"
    assert not master._server._service._waits
