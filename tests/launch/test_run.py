"""`corral run`: output by rank, exit codes, signals, and no process left, whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.launch.ending import wait_until_gone

CORRAL = [sys.executable, "-m", "corral"]
RUN = [*CORRAL, "run"]
PIPES = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.fixture
def script(tmp_path):
    """Write a script, and return its path."""

    def write(code):
        path = tmp_path / "script.py"
        path.write_text("import os, signal, subprocess, sys\nrank = int(os.environ['RANK'])\n" + code)
        return str(path)

    return write


def run(*arguments, **options):
    started = time.monotonic()
    ended = subprocess.run([*RUN, *arguments], timeout=60, **(PIPES | options))
    assert time.monotonic() - started < 45
    return ended


@contextlib.contextmanager
def running(*arguments, **options):
    with subprocess.Popen([*RUN, *arguments], **(PIPES | options)) as process:
        try:
            yield process
        finally:
            process.kill()


def by_rank(text):
    """Return each rank's lines, in order."""
    lines = {}
    for line in text.splitlines():
        rank, rest = re.fullmatch(r"\[(\d+)\] (.*)", line).groups()
        lines.setdefault(int(rank), []).append(rest)
    return dict(sorted(lines.items()))


# --- scripts that end well -------------------------------------------------------------------------


def test_each_rank_finds_its_place_in_the_environment(script, monkeypatch):
    monkeypatch.setenv("GROUP_RANK", "3")
    monkeypatch.setenv("GROUP_OF_THE_USER", "kept")
    path = script(
        "names = 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR PYTHONUNBUFFERED '\n"
        "names += 'GROUP_RANK GROUP_OF_THE_USER'\n"
        "print(*(os.environ.get(name) for name in names.split()), sys.argv[1:])\n"
        "print(os.environ['MASTER_PORT'], os.environ['CORRAL_JOB'], file=sys.stderr)\n"
    )
    ended = run("-n", "3", path, "-n", "7", "--", "--no-prefix", "a b")
    arguments = ["-n", "7", "--", "--no-prefix", "a b"]
    expected = {rank: [f"{rank} 3 {rank} 3 127.0.0.1 1 None kept {arguments}"] for rank in range(3)}
    assert by_rank(ended.stdout) == expected
    jobs = by_rank(ended.stderr)
    assert list(jobs) == [0, 1, 2]
    assert jobs[0] == jobs[1] == jobs[2]
    assert ended.returncode == 0


def test_the_ranks_can_form_a_group_without_heavy_imports(script):
    path = script(
        "import corral.distributed as dist\n"
        "dist.init_process_group()\n"
        "dist.barrier()\n"
        "heavy = {'torch', 'jax', 'cupy', 'typer', 'rich'} & set(sys.modules)\n"
        "print(dist.get_rank(), dist.get_world_size(), sorted(heavy))\n"
        "dist.destroy_process_group()\n"
    )
    ended = run("-n", "4", path)
    assert by_rank(ended.stdout) == {rank: [f"{rank} 4 []"] for rank in range(4)}
    assert (ended.stderr, ended.returncode) == ("", 0)


def test_a_module_can_be_run(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "tool.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    ended = run("-n", "2", "-m", "package.tool", "-m", "x", cwd=tmp_path)
    assert by_rank(ended.stdout) == {rank: ["__main__ ['-m', 'x']"] for rank in range(2)}
    assert ended.returncode == 0


def test_there_are_as_many_ranks_as_cores(script):
    ended = run(script("print(os.environ['WORLD_SIZE'])\n"))
    cores = len(os.sched_getaffinity(0))
    assert by_rank(ended.stdout) == {rank: [str(cores)] for rank in range(cores)}


def test_rank_0_has_the_input(script):
    ended = run("-n", "2", script("print(sys.stdin.read())\n"), stdin=None, input="given")
    assert by_rank(ended.stdout) == {0: ["given"], 1: [""]}


# --- output ----------------------------------------------------------------------------------------


def test_lines_are_never_torn(script):
    path = script(
        "import random\n"
        "random.seed(rank)\n"
        "for i in range(400):\n"
        "    line = f'{i} ' + 'abcd'[rank] * random.randrange(5000)\n"
        "    out = sys.stdout if i % 2 else sys.stderr\n"
        "    at = random.randrange(len(line))\n"
        "    out.write(line[:at])\n"
        "    out.write(line[at:] + '\\n')\n"
    )
    ended = run("-n", "4", path, stderr=subprocess.STDOUT)
    lines = by_rank(ended.stdout)
    assert list(lines) == [0, 1, 2, 3]
    for rank, said in lines.items():
        assert all(re.fullmatch(r"\d+ " + "abcd"[rank] + "*", line) for line in said)
        for parity in (0, 1):  # the order within a stream is kept
            numbers = [int(line.split()[0]) for line in said if int(line.split()[0]) % 2 == parity]
            assert numbers == list(range(parity, 400, 2))


def test_each_stream_goes_to_its_own_and_last_lines_need_no_end(script):
    path = script("sys.stdout.write(f'out\\n\\nof {rank}')\nsys.stderr.write(f'err\\rof {rank}')\n")
    ended = subprocess.run([*RUN, "-n", "2", path], capture_output=True, timeout=60)
    assert sorted(ended.stdout.split(b"\n")) == sorted(
        [b"[0] out", b"[0] ", b"[0] of 0", b"[1] out", b"[1] ", b"[1] of 1", b""]
    )
    assert sorted(ended.stderr.split(b"\n")) == sorted([b"[0] err\rof 0", b"[1] err\rof 1", b""])


def test_a_line_is_shown_when_it_is_whole_not_when_the_rank_ends(script):
    path = script("print('first', end='')\nprint(' and last')\nsignal.pause()\n")
    with running("-n", "1", path) as process:
        assert process.stdout.readline() == "[0] first and last\n"


def test_very_long_lines_are_whole(script):
    ended = run("-n", "2", script("print('ab'[rank] * 3_000_000)\n"))
    said = by_rank(ended.stdout)
    assert {rank: "".join(parts) for rank, parts in said.items()} == {0: "a" * 3_000_000, 1: "b" * 3_000_000}


def test_the_prefix_can_be_left_out(script):
    path = script("sys.stdout.write(f'out {rank}\\n')\nsys.stderr.write(f'err {rank}\\n')\n")
    ended = run("-n", "2", "--no-prefix", path)
    assert sorted(ended.stdout.splitlines()) == ["out 0", "out 1"]
    assert sorted(ended.stderr.splitlines()) == ["err 0", "err 1"]


def test_a_terminal_gets_colors_unless_it_should_not(script):
    path = script("print('x')\n")
    for extra, expected in (({}, b"\x1b[36m[0]\x1b[0m x\r\n"), ({"NO_COLOR": "1"}, b"[0] x\r\n")):
        ours, theirs = os.openpty()
        environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        environ |= {"TERM": "xterm", **extra}
        ended = subprocess.run([*RUN, "-n", "1", path], stdout=theirs, env=environ, timeout=60)
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the terminal is closed
            while part := os.read(ours, 1000):
                said += part
        os.close(ours)
        assert said == expected
        assert ended.returncode == 0


def test_a_reader_that_goes_ends_the_ranks(script):
    path = script("print(os.getpid())\nwhile True:\n    print('x' * 1000)\n")
    with running("-n", "2", path) as process:
        pids = [int(process.stdout.readline().split()[1])]
        process.stdout.close()
        assert process.wait(timeout=15) == 128 + signal.SIGPIPE
        wait_until_gone(pids)
        assert "Traceback" not in process.stderr.read()


# --- scripts that fail -----------------------------------------------------------------------------

WAIT = "while True:\n    signal.pause()\n"


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("sys.exit(7)", 7, "exited with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        ("os.abort()", 134, "was killed by SIGABRT"),
        ("raise LookupError('of rank 1')", 1, "exited with code 1"),
    ],
)
def test_one_that_fails_ends_all_and_is_named(script, how, code, text):
    path = script(f"print(os.getpid())\nsys.stdin.close()\nif rank == 1:\n    {how}\n{WAIT}")
    ended = run("-n", "3", path)
    pids = {rank: int(lines[0]) for rank, lines in by_rank(ended.stdout).items()}
    assert ended.returncode == code
    assert ended.stderr.splitlines()[-1] == f"corral run: rank 1 (process {pids[1]}) {text}"
    assert ended.stderr.count("corral run") == 1
    assert ("[1] LookupError: of rank 1" in ended.stderr) == ("LookupError" in how)
    wait_until_gone(pids.values(), 0)


def test_the_first_to_fail_is_named_not_those_that_miss_it(script):
    path = script(
        "import corral.distributed as dist\n"
        "dist.init_process_group()\n"
        "dist.barrier()\n"
        "if rank == 1:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.barrier()\n"
    )
    ended = run("-n", "3", path)
    assert ended.returncode == 137
    assert re.search(r"corral run: rank 1 \(process \d+\) was killed by SIGKILL\n$", ended.stderr)


def test_those_that_will_not_end_are_made_to(script):
    path = script(
        "import corral.distributed as dist\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getpid())\n"
        "dist.init_process_group()\n"
        "dist.destroy_process_group()\n"
        f"if rank == 0:\n    sys.exit(3)\n{WAIT}"
    )
    ended = run("-n", "2", "--grace", "1", path)
    assert ended.returncode == 3
    wait_until_gone([int(lines[0]) for lines in by_rank(ended.stdout).values()], 0)


def test_a_rank_may_clean_up_when_it_is_ended(script):
    path = script(
        "def end(number, frame):\n    print('cleaned up')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "import corral.distributed as dist\n"
        "dist.init_process_group()\n"
        "dist.destroy_process_group()\n"
        f"if rank == 0:\n    sys.exit(3)\n{WAIT}"
    )
    ended = run("-n", "2", path)
    assert ended.returncode == 3
    assert by_rank(ended.stdout) == {1: ["cleaned up"]}


@pytest.mark.parametrize("end", ["sys.exit(1)", "sys.exit(0)", WAIT])
def test_the_ranks_own_children_end_as_well(script, end):
    path = script(
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"print(child.pid, os.getpid())\n{end}"
    )
    with running("-n", "2", path) as process:
        pids = [int(pid) for _ in range(2) for pid in process.stdout.readline().split()[1:]]
        if end is WAIT:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        wait_until_gone(pids, 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere.py"], "there is no file 'nowhere.py'"),
        (["-m", "nowhere"], "there is no module named 'nowhere'"),
        (["-m", "nowhere.at.all"], "there is no module named 'nowhere.at.all'"),
        (["-n", "0", __file__], "--ranks"),
        (["-n", "two", __file__], "--ranks"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_run_is_explained(arguments, text):
    ended = run(*arguments, env=os.environ | {"COLUMNS": "200"})
    assert ended.returncode == 2
    assert text in ended.stderr


# --- signals ---------------------------------------------------------------------------------------

LISTEN = (
    "def show(number, frame):\n"
    "    print(signal.Signals(number).name)\n"
    "    if number not in (signal.SIGUSR1, signal.SIGUSR2):\n"
    "        sys.exit(0)\n"
    "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):\n"
    "    signal.signal(number, show)\n"
    "print('ready')\n" + WAIT
)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_reach_every_rank(script, name):
    with running("-n", "3", script(LISTEN)) as process:
        for said in ("ready", "SIGUSR1", "SIGUSR2", name):
            if said != "ready":
                process.send_signal(signal.Signals[said])
            assert sorted(process.stdout.readline() for _ in range(3)) == [f"[{r}] {said}\n" for r in range(3)]
        assert process.wait(timeout=15) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ranks_that_end_by_a_signal_are_not_blamed(script, name):
    path = script(f"print(os.getpid())\n{WAIT}")
    with running("-n", "3", path) as process:
        pids = [int(process.stdout.readline().split()[1]) for _ in range(3)]
        number = signal.Signals[name]
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 128 + number
        assert err.splitlines()[-1] == f"corral run: ended by {name}"
        wait_until_gone(pids, 0)


def test_insisting_ends_ranks_that_do_not_listen(script):
    path = script(f"signal.signal(signal.SIGINT, lambda *_: print('no'))\nprint(os.getpid())\n{WAIT}")
    with running("-n", "1", path) as process:
        pid = int(process.stdout.readline().split()[1])
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "[0] no\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=15) == 128 + signal.SIGINT
        wait_until_gone([pid], 0)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_ranks_that_do_not_end_by_a_signal_are_made_to(script, name):
    path = script(
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; '\n"
        "    'signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); time.sleep(600)'], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n    signal.signal(number, lambda *_: None)\n"
        f"print(os.getpid(), child.pid)\n{WAIT}"
    )
    with running("-n", "2", "--grace", "0.5", path) as process:
        pids = [int(pid) for _ in range(2) for pid in process.stdout.readline().split()[1:]]
        process.send_signal(signal.Signals[name])
        _, err = process.communicate(timeout=20)
        assert process.returncode == 128 + signal.Signals[name]
        assert err.splitlines()[-1] == f"corral run: ended by {name}"
        wait_until_gone(pids, 0)


def test_a_rank_has_its_grace_to_end_in(script):
    path = script(
        "def end(number, frame):\n    print('ending')\n    sys.stdin.readline()\n    sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, end)\nprint('ready')\n{WAIT}"
    )
    with running("-n", "1", "--grace", "inf", path, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "[0] ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "[0] ending\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(timeout=15) == 0


def test_a_signal_that_is_ignored_stays_so(script):
    path = script("print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)\nsignal.pause()\n")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what is started now inherits it
    try:
        with running("-n", "1", path) as process:
            assert process.stdout.readline() == "[0] True\n"
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=15) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("prefix", [[], ["--no-prefix"]])
def test_no_rank_outlives_corral_run(script, prefix):
    path = script(f"os.write(1, b'%d\\n' % os.getpid())\n{WAIT}")
    with running("-n", "3", *prefix, path) as process:
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(3)]
        process.kill()
        wait_until_gone(pids)


# --- the command itself ----------------------------------------------------------------------------


def test_the_version_and_the_commands_are_shown():
    import corral

    ended = subprocess.run([*CORRAL, "--version"], **PIPES, timeout=60)
    assert (ended.stdout, ended.returncode) == (f"corral {corral.__version__}\n", 0)
    ended = subprocess.run([*CORRAL, "--help"], **PIPES, timeout=60)
    assert "run" in ended.stdout
    assert ended.returncode == 0
    ended = subprocess.run([*CORRAL, "walk"], **PIPES, timeout=60)
    assert "No such command 'walk'" in ended.stderr
    assert ended.returncode == 2


def test_only_the_command_that_is_used_is_loaded():
    code = "import sys, corral.cli.app; print('corral.cli.run' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], **PIPES, timeout=60)
    assert ended.stdout == "False\n"
