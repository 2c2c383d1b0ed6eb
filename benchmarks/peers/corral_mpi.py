"""corral over MPI, and mpi4py's own calls, in the same processes under ``mpirun``."""

from __future__ import annotations

import os

from mpi4py import MPI

from benchmarks.peers.corral_ import Corral
from benchmarks.peers.mpi4py_ import Mpi
from benchmarks.peers.ranks import serve

if __name__ == "__main__":
    os.environ |= {"RANK": str(MPI.COMM_WORLD.rank), "WORLD_SIZE": str(MPI.COMM_WORLD.size)}
    serve(Mpi(in_place=False), **{"corral/mpi": Corral("numpy", "mpi")})
