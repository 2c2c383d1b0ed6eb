"""What holds for the whole run: hung tests say where, and nothing is left behind."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

import pytest
from engines import EVERYWHERE, KINDS, PROGRAM, VARIABLE, on_torch
from hypothesis import settings

faulthandler.enable()

# A change is judged by the same examples on every machine. To look for new ones: HYPOTHESIS_PROFILE=search.
# No deadlines: how long an example takes says something about the machine, and nothing about what is tested.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A job that a shell started in the background ignores Ctrl-C, and so would every rank that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--backend",
        default="shm",
        help=f"what the tests' ranks run on: {', '.join(KINDS)}, or the backend of --backend-program (default: shm)",
    )
    parser.addoption("--backend-program", metavar="FILE", help="a program that registers that backend")


def pytest_configure(config):
    config.addinivalue_line("markers", "also(*backends): run it on these backends, too, in a run that is about shm")
    config.addinivalue_line("markers", "gpu: it needs a GPU; tests/gpu/run.sh runs all of these")
    config.addinivalue_line("markers", "everywhere: run it on every backend in a run that is about shm")
    config.addinivalue_line("markers", "only(*backends): it is about what only these backends have")


def pytest_generate_tests(metafunc):
    """Run a test on the backend that the run is about, and those on which it is always to run."""
    main = metafunc.config.getoption("backend")
    marker = metafunc.definition.get_closest_marker("also")
    others = EVERYWHERE if metafunc.definition.get_closest_marker("everywhere") else marker.args if marker else ()
    if others and main == "shm":
        metafunc.parametrize("backend", [main, *others], indirect=True)


@pytest.fixture(autouse=True)
def backend(request, monkeypatch):
    """The backend of the ranks that the test starts."""
    name = getattr(request, "param", request.config.getoption("backend"))
    only = request.node.get_closest_marker("only")
    if only is not None and name.removesuffix("-copy") not in only.args:
        pytest.skip(f"it is about {' and '.join(only.args)}")
    monkeypatch.setenv(VARIABLE, name)
    program = request.config.getoption("backend_program")
    if program is not None:
        monkeypatch.setenv(PROGRAM, str(Path(program).resolve()))
    if on_torch():
        pytest.importorskip("torch")
    return name


def _children() -> set[int]:
    """Processes of this one, other than the helpers that multiprocessing keeps for the whole run."""
    mine = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        if parent == os.getpid() and not any(helper in command for helper in (b"resource_tracker", b"forkserver")):
            mine.add(int(entry.name))
    return mine


# Open MPI's segments, and multiprocessing's semaphores: those of a process that was killed stay, in use by nobody,
# until the program that started it ends, which may be another one of this machine.
_OF_OTHERS = ("sm_segment", "sem.mp-")


def _files() -> set[str]:
    """What corral could have left: almost everything in /dev/shm, and what is named after it in /tmp."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    shared = {f"/dev/shm/{name}" for name in names if not name.startswith(_OF_OTHERS)}
    return shared | {f"/tmp/{name}" for name in os.listdir("/tmp") if "corral" in name}


def _used() -> set[str]:
    """Files of shared memory that some process has: other programs of this machine, at work meanwhile."""
    used = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            used.update(line.split(maxsplit=5)[-1] for line in (entry / "maps").read_text().splitlines())
            used.update(os.readlink(end) for end in (entry / "fd").iterdir())
        except OSError:  # it has ended, or is another user's
            continue
    return used


@pytest.fixture(scope="session", autouse=True)
def nothing_left():
    files, children = _files(), _children()
    yield
    left = _files() - files - _used()
    assert left & _files() == set()  # but for what another program has removed meanwhile
    assert _children() - children == set()
