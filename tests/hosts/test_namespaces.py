"""The hosts of our own are what they should be, and nothing of them is left."""

import os
import subprocess
import sys

import pytest

from tests.hosts.namespaces import Network

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
SEND = "import socket; s = socket.create_connection(('host1', int(input())), 30); s.sendall(bytes(1 << 20)); s.recv(1)"
TAKE = (
    "import socket\n"
    "s = socket.create_server(('', 0))\n"
    "print(s.getsockname()[1], flush=True)\n"
    "made = s.accept()[0]\n"
    "print(len(made.makefile('rb').read(1 << 20)), flush=True)\n"
)


@pytest.mark.parametrize("network", [3], indirect=True)
def test_hosts_reach_each_other_by_name_and_have_names_of_their_own(network):
    assert [host.run("hostname").strip() for host in network] == ["host0", "host1", "host2"]
    code = "import socket; print([socket.getaddrinfo(f'host{n}{v}', 1)[0][4][0] for n in range(3) for v in ('', '-6')])"
    addresses = [address for host in network for address in (host.address, host.address6)]
    for host in network:
        assert host.run(sys.executable, "-c", code).strip() == repr(addresses)


def test_traffic_is_counted(network):
    first, second = network
    before = first.counters(), second.counters()
    taker = second.start([sys.executable, "-c", TAKE], **PIPES)
    sender = first.start([sys.executable, "-c", SEND], stdin=subprocess.PIPE, **PIPES)
    sender.stdin.write(taker.stdout.readline())
    sender.stdin.close()
    assert int(taker.stdout.readline()) == 1 << 20
    sender.wait(30)
    gone, come = first.counters() - before[0], second.counters() - before[1]
    assert 1 << 20 <= gone.bytes_out <= 1.1 * (1 << 20)
    assert 1 << 20 <= come.bytes_in <= 1.1 * (1 << 20)


def test_a_link_can_be_cut_and_mended(network):
    first, second = network
    code = f"import socket; socket.create_connection(('{second.address}', 1), 0.2)"
    first.start([sys.executable, "-c", code], **PIPES).wait(30)
    refused = first.start([sys.executable, "-c", code], **PIPES)
    assert "ConnectionRefusedError" in refused.communicate(timeout=30)[1]
    second.cut()
    lost = first.start([sys.executable, "-c", code], **PIPES)
    assert "TimeoutError" in lost.communicate(timeout=30)[1]
    second.mend()
    refused = first.start([sys.executable, "-c", code], **PIPES)
    assert "ConnectionRefusedError" in refused.communicate(timeout=30)[1]


def test_nothing_is_left(networks, tmp_path):
    with Network(2, tmp_path) as network:
        inside = {os.readlink(f"/proc/{host.holder.pid}/ns/net") for host in network}
        network[0].start(["sleep", "600"])
        pids = [host.holder.pid for host in network]
    assert len(inside) == 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    left = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                left.add(os.readlink(f"/proc/{entry}/ns/net"))
            except OSError:
                continue
    assert not inside & left
