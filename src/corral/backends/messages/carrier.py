"""The thread that drives what is under way while nobody waits for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from corral.backends.messages.turns import Gate

if TYPE_CHECKING:
    from corral.backends.messages.job import Job

__all__ = ["Carrier"]


class Carrier:
    """Has the lowest claim to a job's turn: whoever waits drives instead. There is no thread until it is called."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._gate = Gate()
        self._thread: threading.Thread | None = None

    def call(self) -> None:
        """Let it drive, as long as there is something under way."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="corral-messages", daemon=True)
            self._thread.start()
        self._gate.open()

    def end(self) -> None:
        """Let the thread end, now that the job is over."""
        self._gate.open()

    def _run(self) -> None:
        job = self._job
        while not job.closed:
            self._gate.wait()
            job.turns.take()
            try:
                while job.busy():
                    job.progress()
                    if job.turns.wanted:
                        job.turns.park(Gate(), None)
                    elif job.busy():
                        job.rest()
            finally:  # whatever happens to this thread, the others can go on
                job.turns.give()
