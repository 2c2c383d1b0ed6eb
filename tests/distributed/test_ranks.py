"""The harness itself: no rank of a test outlives the process that started it, however that ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.ending import wait_until_gone

STARTERS = {
    "run": "from ranks import run\n    run(wait, 3, timeout=600)",
    "fleet": "from fleet import Fleet\n    Fleet(3)(wait, timeout=600)",
}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("starter", STARTERS)
def test_no_rank_outlives_a_run_that_is_broken_off(starter, number, tmp_path):
    tests = Path(__file__).parents[1]
    (tmp_path / "waiting.py").write_text(
        "import os, signal\n"
        "def wait(rank, size):\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"
        "    while True:\n"
        "        signal.pause()\n"
    )
    path = tmp_path / "broken_off.py"
    path.write_text(
        "import sys\n"
        f"sys.path[:0] = [{str(tests / 'distributed')!r}, {str(tests / 'communication')!r}]\n"
        "from waiting import wait\n"
        f"if __name__ == '__main__':\n    {STARTERS[starter]}\n"
    )
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            pids = [int(process.stdout.readline()) for _ in range(3)]
            process.send_signal(number)
            process.wait(timeout=15)
            wait_until_gone(pids)
        finally:
            process.kill()
