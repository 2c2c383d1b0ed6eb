"""The machine itself: one thread's ``memcpy`` between two blocks whose pages have been touched."""

from __future__ import annotations

import ctypes
from typing import ClassVar

from benchmarks.peers.contender import Contender, Job, Jobs
from benchmarks.peers.ranks import serve
from benchmarks.workloads import Workload


class Copy(Job):
    """libc's ``memcpy`` of one workload, leaf by leaf."""

    def __init__(self, machine: Machine, workload: Workload) -> None:
        self.workload = workload
        self.source, self.target = workload.rows(1), workload.stack(1)
        # libc's own memcpy; ctypes.memmove is memmove, which takes another path in some libcs.
        memcpy = ctypes.CDLL(None).memcpy
        memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        memcpy.restype = ctypes.c_void_p
        blocks = [(self.target[key].ctypes.data, array.ctypes.data, array.nbytes) for key, array in self.source.items()]

        def step() -> None:
            for target, source, size in blocks:
                memcpy(target, source, size)

        self.step = step

    def verify(self, version: int) -> None:
        """Compare the copy with its source."""
        self.workload.fill(self.source, 1, version)
        self.step()
        self.workload.check(self.target, range(1, 2), version)


class Machine(Contender):
    """A single rank."""

    rank = 0
    size = 1
    jobs: ClassVar[Jobs] = {"gather_and_stack": Copy}

    def barrier(self) -> None:
        """Return at once: there is nobody to wait for."""


if __name__ == "__main__":
    serve(Machine())
