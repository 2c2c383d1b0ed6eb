"""Whatever a rank sends: it is lost to the others if that makes no sense, and never more than that."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wires import Net, Wire

import corral.distributed as dist
from corral.backends.base import Operation
from corral.backends.messages import MessageBackend, frames
from corral.backends.messages.calls import Call
from corral.backends.messages.job import Job

_numbers = st.one_of(st.integers(0, 4), st.sampled_from([1 << 31, 1 << 62, (1 << 64) - 1]))


def _backend(rank):
    net = Net(["a", "b"])
    return net, MessageBackend(Job(Wire(net, rank)), "world", range(2), 0.05)


@st.composite
def _heads(draw):
    """Heads of all kinds, in the group and out of it, whole and cut."""
    context = draw(st.sampled_from([_backend(0)[1].context, 7]))
    numbers = draw(st.lists(_numbers, min_size=4, max_size=4))
    payload = draw(st.one_of(st.binary(max_size=200), st.just(Call(4).encode()), _entries()))
    flags = draw(st.integers(0, 3))
    head = frames.encode(
        draw(st.integers(0, 20)), context, *numbers, flags=flags, label=draw(st.integers(0, 50)), payload=payload
    )
    return head[: draw(st.sampled_from([len(head), len(head), len(head) // 2]))]


@st.composite
def _entries(draw):
    """Contributions that may lie about their sizes."""
    call = Call(draw(st.integers(0, 40)), root=draw(st.integers(-3, 3)), family=draw(st.integers(0, 70))).encode()
    blobs = draw(st.integers(-2, 3))
    size = draw(st.sampled_from([0, 3, 1 << 40]))
    rest = call + struct.pack("<iQ", draw(st.integers(-2, 3)), size) * max(blobs, 0) + bytes(draw(st.integers(0, 9)))
    lie = draw(st.sampled_from([0, 0, 0, 1, -1, 1 << 40]))
    return struct.pack("<QIIi", max(0, 20 + len(rest) + lie), draw(st.integers(0, 2)), len(call), blobs) + rest


@settings(deadline=None)
@given(st.lists(st.tuples(_heads(), st.sampled_from([0, 0, 24, 1000])), max_size=8), st.integers(0, 1))
def test_any_frames(sent, rank):
    net, backend = _backend(rank)
    target, source = np.full(3, 5.0), 1 - rank
    requests = [
        backend.batch([Operation("recv", [target], source)])[0],
        backend.ibarrier(),
        backend.iall_gather([np.zeros(3)], [[np.zeros(3)], [np.zeros(3)]]),
        backend.batch([Operation("send", [np.zeros(40_000)], source)])[0],
    ]
    for head, size in sent:
        net.put(source, rank, head, bytes(size))
    for request in requests * 2:
        request.is_completed()
        assert isinstance(request.exception(), dist.DistBackendError | None)
    backend.close(0.0)


def test_nonsense_names_its_sender():
    net, backend = _backend(0)
    net.put(1, 0, b"nonsense")
    with pytest.raises(dist.PeerLostError, match="rank 1 has sent what makes no sense"):
        backend.recv([np.zeros(3)], 1)
    backend.close(0.0)
