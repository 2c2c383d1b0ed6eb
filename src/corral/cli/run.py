"""``corral run``: start a script as the ranks of a job, on this host or on several."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from typing import Annotated

import typer

from corral.cli.hosts import Hosts, parse_address
from corral.cli.output import Prefixes
from corral.cli.supervisor import Supervisor
from corral.distributed.addresses import is_loopback
from corral.distributed.errors import DistError
from corral.processes import Job

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_Script = Annotated[str, typer.Argument(help="A Python script.", show_default=False)]
_Arguments = Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Its arguments.", show_default=False)]
_Ranks = Annotated[
    int | None,
    typer.Option("-n", "--ranks", min=1, help="How many processes to start.", show_default="number of cores"),
]
_Module = Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is the name of a module, as for `python -m`.")]
_NoPrefix = Annotated[
    bool, typer.Option("--no-prefix", help="Leave the output as it is, without the rank before each line.")
]


_Hosts = Annotated[int, typer.Option("--nnodes", min=1, help="How many hosts the job runs on.")]
_Host = Annotated[
    int | None,
    typer.Option("--node-rank", min=0, help="Which of them this one is: 0 for the first.", show_default=False),
]
_Meeting = Annotated[
    str | None,
    typer.Option(
        "--rdzv", metavar="HOST:PORT", help="An address of the first host, and a free port there.", show_default=False
    ),
]
_SecretFile = Annotated[
    str | None,
    typer.Option(
        "--secret-file",
        metavar="PATH",
        help="A file with the secret that all hosts of the job share, where CORRAL_SECRET has none.",
        show_default=False,
    ),
]
_Patience = Annotated[float, typer.Option("--rdzv-timeout", min=0.0, help="Seconds to wait for the other hosts.")]
_Grace = Annotated[
    float,
    typer.Option("--grace", min=0.0, help="Seconds that a process has to end when it is asked to, before SIGKILL."),
]


@app.command(context_settings={"allow_interspersed_args": False})  # what follows SCRIPT is its own
def run(
    script: _Script,
    arguments: _Arguments = None,
    ranks: _Ranks = None,
    module: _Module = False,
    no_prefix: _NoPrefix = False,
    nnodes: _Hosts = 1,
    node_rank: _Host = None,
    rdzv: _Meeting = None,
    secret_file: _SecretFile = None,
    rdzv_timeout: _Patience = 300.0,
    grace: _Grace = 10.0,
) -> None:
    """Run a script in several processes that can form a group, on this host or, with `--nnodes`, on several.

    Each finds its rank in the environment, so that `corral.distributed.init_process_group()` needs no
    arguments. When one fails, the others are ended, on all hosts, and its exit code is returned: 128 + the signal's
    number if a signal killed it.
    """
    if module:
        if not _has_module(script):
            raise typer.BadParameter(f"there is no module named {script!r}", param_hint="SCRIPT")
        start = [sys.executable, "-m", script]
    else:
        if not os.path.exists(script):
            raise typer.BadParameter(f"there is no file {script!r}", param_hint="SCRIPT")
        start = [sys.executable, script]
    prefixes = None if no_prefix else Prefixes()
    size = len(os.sched_getaffinity(0)) if ranks is None else ranks
    command = [*start, *(arguments or ())]
    if secret_file is not None:
        os.environ["CORRAL_SECRET"] = _secret_of(secret_file)
    if nnodes == 1 and rdzv is None:
        raise typer.Exit(Supervisor(command, Job.create(size), prefixes, grace).run())
    host, port = _meeting_place(nnodes, node_rank, rdzv)
    assert node_rank is not None
    try:
        hosts = Hosts(node_rank, nnodes, host, port, size, rdzv_timeout)
    except DistError as error:
        print(f"corral run: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    with contextlib.closing(hosts):
        code = Supervisor(command, hosts.job, prefixes, grace, hosts).run()
    raise typer.Exit(code)


def _secret_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            secret = file.read().strip()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path!r}: {error.strerror}", param_hint="--secret-file") from None
    if not secret:
        raise typer.BadParameter(f"{path!r} is empty", param_hint="--secret-file")
    return secret


def _meeting_place(nnodes: int, node_rank: int | None, rdzv: str | None) -> tuple[str, int]:
    """Return where the launchers meet, if what was said of the hosts is sound."""
    if rdzv is None:
        raise typer.BadParameter("a job on several hosts needs HOST:PORT of the first", param_hint="--rdzv")
    if node_rank is None or node_rank >= nnodes:
        raise typer.BadParameter(
            f"must be 0 to {nnodes - 1}, another one on each of the {nnodes} hosts", param_hint="--node-rank"
        )
    try:
        host, port = parse_address(rdzv)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--rdzv") from None
    if not os.environ.get("CORRAL_SECRET") and host != "localhost" and not is_loopback(host):
        raise typer.BadParameter(
            f"{host} can be reached from other hosts, and who may join the job must be known: give all hosts the same "
            "secret, in CORRAL_SECRET or a --secret-file",
            param_hint="--rdzv",
        )
    return host, port


def _has_module(name: str) -> bool:
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        del sys.path[0]
