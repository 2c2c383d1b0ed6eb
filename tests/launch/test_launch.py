"""`corral.launch`: results, errors, and no process left, whatever happens."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

import corral
import corral.distributed as dist
from corral.launcher import LaunchError
from tests.launch.ending import wait_until_gone

# --- ranks that end well ---------------------------------------------------------------------------


def _who(rank, size, *args):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    return {
        "arguments": (rank, size, *args),
        "group": (dist.get_rank(), dist.get_world_size(), dist.get_backend()),
        "environment": [os.environ[name] for name in names],
        "job": (os.environ["MASTER_PORT"], os.environ["CORRAL_JOB"]),
        "left over": sorted(name for name in os.environ if name.startswith("TORCHELASTIC")),
        "process": os.getpid(),
    }


@pytest.mark.parametrize("size", [1, 3])
def test_results_come_in_rank_order(size, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("RANK", "17")
    results = corral.launch(_who, size, args=("a", 2))
    assert [result["arguments"] for result in results] == [(rank, size, "a", 2) for rank in range(size)]
    assert [result["group"] for result in results] == [(rank, size, "shm") for rank in range(size)]
    for rank, result in enumerate(results):
        assert result["environment"] == [str(rank), str(size), str(rank), str(size), "127.0.0.1"]
        assert result["left over"] == []
        assert not os.path.exists(f"/proc/{result['process']}")
    assert len({result["job"] for result in results}) == 1
    assert len({result["process"] for result in results} - {os.getpid()}) == size
    assert os.environ["RANK"] == "17"
    assert multiprocessing.active_children() == []


def _talk(rank, size):
    if rank == 0:
        value = [None] * size
        dist.gather_object(rank * rank, value)
        return value
    dist.gather_object(rank * rank)
    return None


def test_the_ranks_are_a_group():
    assert corral.launch(_talk, 3) == [[0, 1, 4], None, None]


def _large(rank, size):
    return bytes([rank]) * (3 << 20)


def test_large_results_arrive():
    assert corral.launch(_large, 2) == [bytes([rank]) * (3 << 20) for rank in range(2)]


def _exits_well(rank, size):
    sys.exit()


def _ends_the_group_itself(rank, size):
    dist.destroy_process_group()
    dist.init_process_group(init_method="env://")
    dist.barrier()
    dist.destroy_process_group()
    return rank


def test_a_rank_may_exit_well_or_end_its_group():
    assert corral.launch(_exits_well, 2) == [None, None]
    assert corral.launch(_ends_the_group_itself, 2) == [0, 1]


# --- ranks that fail -------------------------------------------------------------------------------


class Unkind(Exception):
    """An exception that cannot be rebuilt from its arguments."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def _fails(rank, size, how):
    dist.barrier()
    if rank == 1:
        if how == "raise":
            raise LookupError("of rank 1 alone")
        if how == "unkind":
            raise Unkind("one", "two")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            sys.exit(5)
        if how == "_exit":
            os._exit(0)
        if how == "result":
            return lambda: None
        if how == "ungrateful":
            return Ungrateful()
    if how not in ("result", "ungrateful"):
        dist.barrier()  # fails, as a consequence, or waits until it is ended
    return None


class Ungrateful:
    """Something that can be pickled, and not unpickled."""

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise OSError("not here")


def failure(*args, **options):
    started = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        corral.launch(*args, **options)
    assert time.monotonic() - started < 45
    assert multiprocessing.active_children() == []
    return caught.value


@pytest.mark.parametrize(
    ("how", "exitcode", "text"),
    [
        ("raise", 1, "rank 1 failed: LookupError: of rank 1 alone"),
        ("unkind", 1, "Unkind: one and two"),
        ("kill", -9, "rank 1 was killed by SIGKILL"),
        ("exit", 5, "rank 1 exited with code 5"),
        ("_exit", 0, "rank 1 exited with code 0 before its function had returned"),
        ("result", 1, "TypeError: the result, of type function, cannot be pickled"),
        ("ungrateful", 1, "rank 1 returned what cannot be unpickled here: OSError: not here"),
    ],
)
def test_the_rank_that_failed_is_the_one_reported(how, exitcode, text):
    error = failure(_fails, 3, (how,))
    assert (error.rank, error.exitcode) == (1, exitcode)
    assert text in str(error)
    assert "PeerLostError" not in str(error)


def test_the_traceback_is_the_ranks_own():
    error = failure(_fails, 2, ("raise",))
    assert 'raise LookupError("of rank 1 alone")' in error.traceback
    assert "in _fails" in error.traceback
    assert "launcher.py" not in error.traceback
    assert error.traceback.rstrip() in str(error)
    assert isinstance(error.__cause__, LookupError)
    assert error.__cause__.args == ("of rank 1 alone",)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_an_exception_that_cannot_be_rebuilt_is_shown_all_the_same():
    error = failure(_fails, 2, ("unkind",))
    assert error.__cause__ is None
    assert "Unkind: one and two" in error.traceback


def _leaves_early(rank, size):
    if rank == 0:
        dist.barrier()


def test_a_lost_peer_is_the_error_where_it_ended_well():
    error = failure(_leaves_early, 2)
    assert error.rank == 0
    assert isinstance(error.__cause__, dist.PeerLostError)
    assert error.__cause__.ranks == (1,)


def _never_comes(rank, size):
    if rank == 0:
        dist.barrier()
    else:
        signal.pause()


def test_the_timeout_is_the_groups():
    error = failure(_never_comes, 2, timeout=0.5)
    assert error.rank == 0
    assert isinstance(error.__cause__, dist.DistTimeoutError)


def _will_not_end(rank, size):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.barrier()
    if rank == 1:
        raise LookupError("of rank 1 alone")
    while True:
        signal.pause()


def test_ranks_that_will_not_end_are_made_to():
    assert failure(_will_not_end, 2).rank == 1


def test_an_unknown_backend_is_told():
    error = failure(_who, 2, backend="nothing")
    assert "unknown backend 'nothing'" in str(error)


# --- what cannot be started ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((_who, 0), ValueError, "nprocs must be positive, got 0"),
        ((_who, 2.0), TypeError, "nprocs must be an integer, got float"),
        ((_who, True), TypeError, "nprocs must be an integer, got bool"),
        (("f", 2), TypeError, "fn must be callable, got str"),
        ((lambda rank, size: None, 2), ValueError, r"<lambda> and its arguments must be picklable"),
        ((functools.partial(_who, lambda: 0), 2), ValueError, "must be picklable"),
        ((_who, 2, (lambda: 0,)), ValueError, "_who and its arguments must be picklable"),
    ],
)
def test_what_cannot_be_started_is_explained(arguments, error, text):
    with pytest.raises(error, match=text):
        corral.launch(*arguments)
    assert multiprocessing.active_children() == []


def test_an_interactive_function_is_explained():
    code = "import corral\ndef f(rank, size): pass\ncorral.launch(f, 2)\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "other processes cannot import f, which was defined interactively" in ended.stderr
    assert ended.returncode == 1


def test_a_script_without_a_guard_fails_and_leaves_nothing(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text("import corral\ndef f(rank, size): pass\ncorral.launch(f, 2)\n")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert 'if __name__ == "__main__":' in ended.stderr or "if __name__ == '__main__':" in ended.stderr
    assert "LaunchError: rank" in ended.stderr
    assert ended.returncode == 1


# --- a parent that ends early ----------------------------------------------------------------------

PARENT = """
import os, signal, sys
import corral
import corral.distributed as dist

def f(rank, size):
    os.write(1, b"%d\\n" % os.getpid())
    dist.barrier()
    while True:
        signal.pause()

if __name__ == "__main__":
    corral.launch(f, 3)
"""


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_its_parent(tmp_path, number, terminal):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, start_new_session=True) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(3)]
        # A terminal sends to the ranks as well.
        (os.killpg if terminal else os.kill)(parent.pid, number)
        _, err = parent.communicate(timeout=30)
        wait_until_gone(pids)
    assert parent.returncode == -number
    assert err.count(b"KeyboardInterrupt") == (number == signal.SIGINT)
    assert b"LaunchError" not in err


def _forks(rank, size, how):
    child = os.fork() if rank == 0 else None
    if child == 0:
        if how == "exits":
            sys.exit(0)
        if how == "raises":
            raise RuntimeError("only the child fails")
        return "the child's result"
    if child is not None:
        os.waitpid(child, 0)
    dist.barrier()
    return f"result of {rank}"


@pytest.mark.parametrize("how", ["exits", "raises", "returns"])
def test_a_child_that_a_rank_forks_is_not_the_rank(how):
    assert corral.launch(_forks, 2, (how,)) == ["result of 0", "result of 1"]
