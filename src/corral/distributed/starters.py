"""What starters of processes tell each process in its environment: which rank it is, of how many, of which job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Starter", "starter_of"]


class Starter(NamedTuple):
    """The environment variables of one starter."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    job: tuple[str, ...]
    """Variables that together name the job, as no other job on the host is named; none where it has no name."""
    one_host: tuple[str, str] = ("", "")
    """A variable that has, where all ranks are on one host, this value, or that of the variable so named."""

    def spans_hosts(self, environ: Mapping[str, str]) -> bool:
        """Whether the job's ranks are on several hosts, as far as the starter says.

        Examples
        --------
        >>> environ = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
        >>> starter_of(environ).spans_hosts(environ | {"SLURM_STEP_NUM_NODES": "2"})
        True
        """
        name, value = self.one_host
        return bool(environ.get(name)) and environ[name] != environ.get(value, value)


_STARTERS = (
    Starter("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", ()),
    Starter(
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        ("PMIX_NAMESPACE",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ),
    # A batch script itself has a rank, but is no step of the job.
    Starter(
        "srun",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        ("SLURM_STEP_NUM_NODES", "1"),
    ),
    Starter("mpiexec (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ()),
)


def starter_of(environ: Mapping[str, str]) -> Starter:
    """Return whose variables an environment has; torchrun's where it has nobody's.

    Examples
    --------
    >>> starter_of({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}).name
    'srun'
    >>> starter_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}).name
    'torchrun'
    """
    for starter in _STARTERS:
        if all(environ.get(name) for name in (starter.rank, starter.world_size, *starter.job)):
            return starter
    return _STARTERS[0]
