"""The engines that reach other hosts, on hosts of our own: values, traffic, and what is said of a lost link."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from corral import backends
from tests.hosts.jobs import Job, mpirun

pytestmark = pytest.mark.skipif(
    not os.environ.get("CORRAL_TEST_HOSTS"), reason="these take minutes: set CORRAL_TEST_HOSTS=1 to run them"
)

BETWEEN = Path(__file__).with_name("between.py")
ENGINES = ["gloo", "hybrid"]
TWO_AND_THREE = pytest.mark.parametrize("network", [2, 3], indirect=True, ids=["2 hosts", "3 hosts"])


@pytest.fixture(params=ENGINES)
def engine(request):
    if not backends.available(request.param):
        pytest.skip(f"there is no backend {request.param} here")
    return request.param


def run(network, ranks, function, engine, *arguments):
    """Run one of the functions of `between` on all hosts; return the lines that the ranks of each said."""
    job = Job().on_all(network, "-n", ranks, BETWEEN, function, engine, *arguments)
    lines = []
    for code, out, err in job.ended(timeout=150):
        assert code == 0, err
        lines.append([line.split("] ", 1)[1] for line in out.splitlines()])
    return lines


@TWO_AND_THREE
def test_every_operation_is_right(network, engine):
    for lines in run(network, 2, "all_operations", engine):
        assert len(lines) == 2
        assert all(re.fullmatch(r"ran \d\d+ operations", line) for line in lines)


@TWO_AND_THREE
def test_every_operation_is_right_under_mpirun(network, tmp_path):
    if not backends.available("mpi"):
        pytest.skip("there is no backend mpi here")
    lines = mpirun(network, 2, tmp_path, BETWEEN, "all_operations", "mpi")
    assert len(lines) == 2 * len(network.hosts)
    assert all(re.fullmatch(r"ran \d\d+ operations", line) for line in lines)


def test_a_link_that_drops_packets_costs_time_but_nothing_else(network, engine):
    for host in network:
        host.throttle("400mbit", "20kb")
    lines = run(network, 2, "many_bytes", engine, 3, 200_000)
    assert lines == [["ran 3 rounds"] * 2] * 2
    assert sum(host.dropped() for host in network) > 0


def traffic(network, ranks, kind, engine, size, rounds):
    """Return the bytes and packets out of, and into, each host, by one operation."""
    measured = {}
    for lines in run(network, ranks, "measured", engine, kind, size, rounds):
        (line,) = lines
        _, host, *numbers = line.split()
        measured[int(host)] = [int(number) / rounds for number in numbers]
    return measured


@pytest.mark.parametrize("kind", ["gather", "broadcast", "reduce"])
def test_the_link_carries_what_must_be_carried(network, kind):
    """Of a gather all ranks' data, of a broadcast or a reduction one array for each host."""
    if not backends.available("hybrid"):
        pytest.skip("there is no backend hybrid here")
    size, rounds = 16 << 20, 3
    measured = traffic(network, 2, kind, "hybrid", size, rounds)
    out = measured[0 if kind == "broadcast" else 1][0]
    payload = 2 * size if kind == "gather" else size
    assert payload <= out <= 1.05 * payload


@pytest.mark.parametrize("kind", ["gather", "broadcast", "reduce"])
def test_a_small_operation_is_one_message_for_each_host(networks, tmp_path, kind):
    from tests.hosts.namespaces import Network

    if not backends.available("hybrid"):
        pytest.skip("there is no backend hybrid here")
    packets = []
    for ranks in (1, 4):
        with Network(2, tmp_path) as network:
            packets.append(traffic(network, ranks, kind, "hybrid", 64, 200)[1])
    (_, out1, _, in1), (_, out4, _, in4) = packets
    assert out4 < 1.5 * out1  # as many messages as with one rank on each host
    assert in4 < 1.5 * in1


@pytest.mark.parametrize("network", [3], indirect=True)
def test_a_link_that_is_cut_in_a_gather_is_told_to_all_who_are_left(network, engine):
    job = Job().on_all(network, "-n", 2, BETWEEN, "until_cut", engine, 500_000)
    for launcher in job.launchers:
        for _ in range(2):
            assert launcher.stdout.readline().endswith("gathering\n")
    network[2].cut()
    told = {}
    for _, out, _ in job.ended(timeout=60):
        for line in out.splitlines():
            _, rank, seconds, kind, text = line.split("] ", 1)[1].split(" ", 4)
            told[int(rank)] = (float(seconds), kind, text)
    assert {0, 1, 2, 3} <= told.keys()
    for rank in range(4):
        seconds, kind, text = told[rank]
        assert seconds < 8 + 4, text
        assert kind in ("DistTimeoutError", "PeerLostError"), text
        assert re.search(r"ranks? (4|5)|ranks 4, 5", text), text
