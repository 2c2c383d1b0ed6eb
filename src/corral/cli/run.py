"""``corral run``: start a script as the ranks of a job on this host."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated

import typer

from corral.cli.output import Prefixes
from corral.cli.supervisor import Supervisor

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


@app.command(context_settings={"allow_interspersed_args": False})  # what follows SCRIPT is its own
def run(
    script: _Script,
    arguments: _Arguments = None,
    ranks: _Ranks = None,
    module: _Module = False,
    no_prefix: _NoPrefix = False,
) -> None:
    """Run a script in several processes of this host that can form a group.

    Each finds its rank in the environment, so that `corral.distributed.init_process_group()` needs no
    arguments. When one fails, the others are ended, and its exit code is returned: 128 + the signal's number
    if a signal killed it.
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
    raise typer.Exit(Supervisor([*start, *(arguments or ())], size, prefixes).run())


def _has_module(name: str) -> bool:
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        del sys.path[0]
