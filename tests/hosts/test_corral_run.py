"""`corral run --nnodes`: a job on several hosts starts, and ends, as one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.hosts.jobs import PORT, Job, mpirun
from tests.launch.ending import wait_until_gone

WAIT = "while True:\n    signal.pause()\n"
TWO_AND_THREE = pytest.mark.parametrize("network", [2, 3], indirect=True, ids=["2 hosts", "3 hosts"])


@pytest.fixture
def script(tmp_path):
    """Write a script, and return its path."""

    def write(code):
        path = tmp_path / "script.py"
        path.write_text(
            "import json, os, signal, sys, time\n"
            "rank = int(os.environ['RANK'])\n"
            "def wait_for(path):\n"
            "    while not os.path.exists(path):\n"
            "        time.sleep(0.01)\n" + code
        )
        return str(path)

    return write


@pytest.fixture
def job():
    return Job()


# --- jobs that end well ----------------------------------------------------------------------------

SHOW = (
    "names = 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE NODE_RANK MASTER_ADDR'\n"
    "print(*(os.environ[name] for name in names.split()), os.environ['MASTER_PORT'], os.environ['CORRAL_JOB'])\n"
)


@TWO_AND_THREE
def test_each_rank_finds_its_place_in_the_environment(network, job, script):
    nodes = len(network.hosts)
    size = 2 * nodes
    common = set()
    for node, (code, out, err) in enumerate(job.on_all(network, "-n", 2, script(SHOW)).ended()):
        assert (code, err) == (0, "")
        lines = sorted(out.splitlines())
        assert len(lines) == 2
        for local, line in enumerate(lines):
            rank = 2 * node + local
            prefix, place = f"[{rank}] ", f"{rank} {size} {local} 2 {node} {nodes} {node} 10.77.0.1 "
            assert line.startswith(prefix + place)
            common.add(line.removeprefix(prefix + place))
    assert len(common) == 1  # the port and the job


def test_hosts_may_have_different_numbers_of_ranks(network, job, script):
    path = script("print(os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'])\n")
    job.start(network[1], "-n", 3, path, nodes=2)
    job.start(network[0], "-n", 1, path, nodes=2)
    (code1, out1, _), (code0, out0, _) = job.ended()
    assert (code0, code1) == (0, 0)
    assert out0.splitlines() == ["[0] 0 0 4"]
    assert sorted(out1.splitlines()) == ["[1] 1 0 4", "[2] 2 1 4", "[3] 3 2 4"]


MEET = (
    "from corral.distributed.rendezvous import meet\n"
    "from corral.distributed.host_identity import host_identity\n"
    "size = int(os.environ['WORLD_SIZE'])\n"
    "for attempt in range(3):\n"
    "    said = json.dumps([rank, attempt, os.environ['NODE_RANK'], host_identity()]).encode()\n"
    "    print(json.dumps([json.loads(each) for each in meet(METHOD, rank, size, said, 30)]))\n"
)


@TWO_AND_THREE
@pytest.mark.parametrize("method", ["env://", "tcp://10.77.0.1:30000", "tcp://[fd77::1]:30000", "tcp://host0:30000"])
def test_ranks_meet_again_and_again_and_learn_who_shares_a_host(network, job, script, method):
    path = script(MEET.replace("METHOD", repr(method)))
    nodes = len(network.hosts)
    told = []
    for code, out, err in job.on_all(network, "-n", 2, path).ended():
        assert code == 0, err
        assert err == ""
        told += [json.loads(line.split("] ", 1)[1]) for line in out.splitlines()]
    assert len(told) == 3 * 2 * nodes
    identities = {(node, identity) for meeting in told for _, _, node, identity in meeting}
    assert len({identity for _, identity in identities}) == len(identities) == nodes
    for meeting in told:
        assert [rank for rank, *_ in meeting] == list(range(2 * nodes))
        assert [node for _, _, node, _ in meeting] == [str(rank // 2) for rank in range(2 * nodes)]
        assert len({attempt for _, attempt, _, _ in meeting}) == 1
    assert sorted(meeting[0][1] for meeting in told) == sorted([0, 1, 2] * 2 * nodes)


@pytest.mark.parametrize("rdzv", [f"[fd77::1]:{PORT}", f"host0:{PORT}", f"host0-6:{PORT}"])
def test_launchers_meet_at_other_kinds_of_addresses(network, job, script, rdzv):
    path = script(MEET.replace("METHOD", "'env://'"))
    for code, out, err in job.on_all(network, "-n", 1, path, rdzv=rdzv).ended():
        assert (code, err) == (0, "")
        assert len(out.splitlines()) == 3


def test_launchers_of_one_host_need_no_secret(job, script):
    from corral.processes import free_port
    from tests.hosts.namespaces import Host

    class Here(Host):
        def __init__(self):
            self.number, self._started = 0, []

        def command(self, arguments):
            return list(arguments)

    here, rdzv = Here(), f"127.0.0.1:{free_port('127.0.0.1')}"
    path = script(MEET.replace("METHOD", "'env://'"))
    for node in range(2):
        job.start(here, "-n", 2, path, nodes=2, node=node, secret=None, rdzv=rdzv)
    assert [(code, err) for code, _, err in job.ended()] == [(0, "")] * 2


def test_ranks_of_torchrun_meet_in_its_store(network, tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "script.py"
    path.write_text(
        "import os, sys\n"
        "from corral.distributed.rendezvous import meet, resolve\n"
        "for attempt in range(2):\n"
        "    address, rank, size = resolve()\n"
        "    got = meet(address, rank, size, f'{rank} {attempt}'.encode(), 30)\n"
        "os.write(1, f'{address.partition(chr(58))[0]} {b\" \".join(got).decode()}\\n'.encode())\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "CORRAL_SECRET"} | {"OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    where = ["--master-addr=10.77.0.1", f"--master-port={PORT}"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    agents = [
        host.start([*start, f"--node-rank={host.number}", *where, str(path)], env=environ, **pipes) for host in network
    ]
    for agent in agents:
        out, err = agent.communicate(timeout=120)
        assert agent.returncode == 0, err
        assert out.splitlines() == ["torchrun 0 1 1 1 2 1 3 1"] * 2


def test_ranks_of_mpirun_meet_by_mpi(network, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "from corral.distributed.host_identity import host_identity\n"
        "from corral.distributed.rendezvous import meet, resolve\n"
        "for attempt in range(2):\n"
        "    address, rank, size = resolve()\n"
        "    said = f'{rank} {host_identity()}'.encode() * (rank + attempt)\n"
        "    got = meet(address, rank, size, said, 30)\n"
        "print(address.partition(':')[0], [len(part) // len(f'{r} {host_identity()}') for r, part in enumerate(got)],"
        " len({part.split(str(r).encode() + b' ')[-1] for r, part in enumerate(got)}))\n"
    )
    assert mpirun(network, 2, tmp_path, path) == ["mpi [1, 2, 3, 4] 2"] * 4


# --- who may join ----------------------------------------------------------------------------------


def test_a_secret_from_a_file_is_as_good(network, job, script, tmp_path):
    file = tmp_path / "secret"
    file.write_text("a secret\n")
    path = script("print(os.environ['CORRAL_SECRET'])\n")
    job.start(network[0], "-n", 1, path, nodes=2)
    job.start(network[1], "-n", 1, "--secret-file", file, path, nodes=2, secret=None)
    assert [(code, out, err) for code, out, err in job.ended()] == [(0, f"[{n}] a secret\n", "") for n in range(2)]


def test_without_a_secret_no_job_of_several_hosts_starts(network, job, script):
    path = script("print('started')\n")
    for code, out, err in job.on_all(network, "-n", 1, path, secret=None).ended():
        assert (code, out) == (2, "")
        assert "10.77.0.1 can be reached from other hosts" in err
        assert "CORRAL_SECRET" in err


def test_a_wrong_secret_is_refused_and_the_others_say_who_is_missing(network, job, script):
    path = script("print('started')\n")
    job.start(network[0], "-n", 1, "--rdzv-timeout", 8, path, nodes=2)
    job.start(network[1], "-n", 1, "--rdzv-timeout", 60, path, nodes=2, secret="another")
    (code0, out0, err0), (code1, out1, err1) = job.ended()
    assert (code0, out0, code1, out1) == (1, "", 1, "")
    assert "refuses this process: it has another secret" in err1
    assert "host 1 of 2 never came" in err0


@pytest.mark.parametrize("secret", [None, "another"])
def test_a_rank_without_the_secret_is_refused(network, script, secret):
    """Ranks that something else than `corral run` has started."""
    code = (
        "import sys\n"
        "from corral.distributed.rendezvous import meet\n"
        f"print(meet('tcp://10.77.0.1:{PORT}', int(sys.argv[1]), 2, b'', float(sys.argv[2])))\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "CORRAL_SECRET"}
    told = []
    options = {"stderr": subprocess.PIPE, "text": True}
    with_secret, other = environ | {"CORRAL_SECRET": "a secret"}, {} if secret is None else {"CORRAL_SECRET": secret}
    started = [
        network[0].start([sys.executable, "-c", code, "0", "8"], env=with_secret, **options),
        network[1].start([sys.executable, "-c", code, "1", "60"], env=environ | other, **options),
    ]
    for process in started:
        told.append(process.communicate(timeout=60)[1])
        assert process.returncode == 1
    assert "rank 1 of 2 never came" in told[0]
    assert ("set CORRAL_SECRET to the same on all of them" if secret is None else "it has another secret") in told[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"nodes": 2, "node": 2}, "must be 0 to 1"),
        ({"nodes": 2, "rdzv": "host0"}, "must be HOST:PORT"),
        ({"nodes": 2, "rdzv": "host0:0"}, "must be HOST:PORT"),
        ({"nodes": 2, "rdzv": "host0:70000"}, "--rdzv"),
    ],
)
def test_what_makes_no_sense_is_explained(network, job, script, arguments, text):
    job.start(network[0], script(""), **arguments)
    ((code, _, err),) = job.ended()
    assert code == 2
    assert text in err


def test_launchers_that_disagree_are_told(network, job, script):
    path = script("print('started')\n")
    job.start(network[0], "-n", 1, path, nodes=2)
    job.start(network[1], "-n", 1, path, nodes=3)
    for code, out, err in job.ended():
        assert (code, out) == (1, "")
        assert "host 0 has --nnodes=2" in err
        assert "host 1 has --nnodes=3" in err


# --- jobs that fail --------------------------------------------------------------------------------


def ends_everywhere(job, pids, code, text, but=()):
    """Check that all launchers end with a code and a message, and all ranks are gone."""
    started = time.monotonic()
    for number, (got, _, err) in enumerate(job.ended()):
        if number not in but:
            assert (got, err.splitlines()[-1:]) == (code, [f"corral run: {text}"])
    assert time.monotonic() - started < 30
    wait_until_gone(pids)


@TWO_AND_THREE
@pytest.mark.parametrize(
    ("how", "code", "text"),
    [("sys.exit(7)", 7, "exited with code 7"), ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL")],
)
@pytest.mark.parametrize("node", [0, 1])
def test_one_that_fails_ends_the_job_on_all_hosts(network, job, script, how, code, text, node, tmp_path):
    rank = 2 * node + 1
    path = script(f"print(os.getpid())\nif rank == {rank}:\n    wait_for({str(tmp_path / 'go')!r})\n    {how}\n{WAIT}")
    job.on_all(network, "-n", 2, path)
    lines = [launcher.stdout.readline() for launcher in job.launchers for _ in range(2)]
    pids = {int(line[1]): int(line.split()[1]) for line in lines}
    (tmp_path / "go").touch()
    ends_everywhere(job, pids.values(), code, f"rank {rank} (process {pids[rank]}) on host {node} (host{node}) {text}")


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("network", [3], indirect=True)
def test_a_launcher_that_is_killed_ends_the_job(network, job, script, victim):
    path = script(f"print(os.getpid())\n{WAIT}")
    pids = [int(line) for line in job.on_all(network, "-n", 2, path).lines(2)]
    job.launchers[victim].kill()
    started = time.monotonic()
    for number, (code, _, err) in enumerate(job.ended()):
        if number != victim:
            assert code == 1
            assert f"corral run: the launcher of host {victim} " in err.splitlines()[-1]
    assert time.monotonic() - started < 30
    wait_until_gone(pids)


@pytest.mark.parametrize("network", [3], indirect=True)
def test_a_host_that_is_cut_off_ends_the_job(network, job, script):
    path = script(f"print(os.getpid())\n{WAIT}")
    pids = [int(line) for line in job.on_all(network, "-n", 1, path).lines(1)]
    network[2].cut()
    told = [err.splitlines()[-1] for _, _, err in job.ended()]
    assert [launcher.returncode for launcher in job.launchers] == [1, 1, 1]
    assert told[0] == told[1] == "corral run: the launcher of host 2 (host2) is gone"
    assert told[2].startswith("corral run: the launcher of host 0 is gone")
    wait_until_gone(pids)


@pytest.mark.parametrize("when", ["at work", "when its own ranks have ended"])
def test_a_signal_to_one_launcher_ends_the_job(network, job, script, when):
    path = script(f"print(os.getpid())\nif rank == 0 and {when!r} != 'at work':\n    sys.exit(0)\n{WAIT}")
    pids = [int(line) for line in job.on_all(network, "-n", 1, path).lines(1)]
    if when != "at work":
        wait_until_gone(pids[:1])
    job.launchers[0].send_signal(signal.SIGINT)
    ends_everywhere(job, pids, 130, "ended by SIGINT on host 0 (host0)")


def test_a_host_whose_ranks_are_through_waits_for_the_others(network, job, script, tmp_path):
    path = script(f"print(os.getpid())\nif rank:\n    wait_for({str(tmp_path / 'go')!r})\n    sys.exit(9)\n")
    pids = [int(line) for line in job.on_all(network, "-n", 1, path).lines(1)]
    wait_until_gone(pids[:1])
    (tmp_path / "go").touch()
    ends_everywhere(job, pids, 9, f"rank 1 (process {pids[1]}) on host 1 (host1) exited with code 9")
