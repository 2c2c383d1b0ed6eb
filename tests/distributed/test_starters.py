"""Processes that others start: torchrun, mpirun, srun, mpiexec."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from corral.distributed.addresses import resolve
from corral.distributed.introspection import get_node_local_rank

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_NAMESPACE": "prterun-host-1@1",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "5",
    "SLURM_LOCALID": "2",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2"}
MASTER = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (OPEN_MPI, ("tcp://localhost:0#PMIX_NAMESPACE=prterun-host-1%401", 1, 4)),
        (SLURM, ("tcp://localhost:0#SLURM_JOB_ID=7&SLURM_STEP_ID=0", 3, 5)),
        (MPICH | MASTER, ("tcp://localhost:29500", 2, 3)),
        (OPEN_MPI | MASTER, ("tcp://localhost:29500", 1, 4)),
        # Ranks on several hosts meet by MPI.
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            ("mpi://localhost:0#PMIX_NAMESPACE=prterun-host-1%401", 1, 4),
        ),
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
            ("tcp://localhost:0#PMIX_NAMESPACE=prterun-host-1%401", 1, 4),
        ),
        (SLURM | {"SLURM_STEP_NUM_NODES": "2"}, ("mpi://localhost:0#SLURM_JOB_ID=7&SLURM_STEP_ID=0", 3, 5)),
        (SLURM | {"SLURM_STEP_NUM_NODES": "1"}, ("tcp://localhost:0#SLURM_JOB_ID=7&SLURM_STEP_ID=0", 3, 5)),
        # Whoever sets torchrun's variables under another starter means them.
        (OPEN_MPI | MASTER | {"RANK": "0", "WORLD_SIZE": "2"}, ("tcp://localhost:29500", 0, 2)),
    ],
)
def test_rank_size_and_job_are_found(environ, expected):
    assert resolve(environ=environ) == expected


def test_a_batch_script_is_no_rank():
    environ = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    with pytest.raises(ValueError, match="environment variable RANK expected"):
        resolve(environ=environ)


@pytest.mark.parametrize(
    ("environ", "expected"), [({"LOCAL_RANK": "3"}, 3), (OPEN_MPI, 1), (SLURM, 2), (MPICH, 2), (SLURM | MASTER, 2)]
)
def test_the_rank_in_the_host_is_found(environ, expected, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert get_node_local_rank() == expected


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "rank.py"
    path.write_text(
        "import sys\n"
        "from corral.distributed.rendezvous import meet, resolve\n"
        "address, rank, size = resolve()\n"
        "for turn in range(3):\n"
        "    got = meet('env://', rank, size, f'{turn} {rank}'.encode(), 30)\n"
        "    assert got == [f'{turn} {other}'.encode() for other in range(size)], got\n"
        "assert 'torch' not in sys.modules\n"
        "print(f'met {rank}\\n', end='', flush=True)\n"
    )
    return str(path)


def _check(start, **more):
    ended = subprocess.run(start, capture_output=True, text=True, timeout=120, **more)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split("\n")) == ["", "met 0", "met 1"]


def test_ranks_of_torchrun_meet(script):
    pytest.importorskip("torch")
    _check([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", script])


def test_ranks_of_mpirun_meet(script):
    mpirun = Path(sysconfig.get_path("scripts")) / "mpirun"
    if not mpirun.exists():
        pytest.skip("Open MPI is not installed in this environment")
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    _check([str(mpirun), *as_root, "--oversubscribe", "-n", "2", sys.executable, script], env=environ)
