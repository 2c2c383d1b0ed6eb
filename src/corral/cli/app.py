"""The ``corral`` command and the list of its subcommands.

A subcommand is a module with a `typer.Typer` called ``app`` that has one command. To add one, add it to
`COMMANDS`.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
import typer.core
import typer.main

import corral

__all__ = ["COMMANDS", "app"]

COMMANDS = {
    "run": "corral.cli.run",
}
"""Where each subcommand is."""


class _LazyGroup(typer.core.TyperGroup):
    """A group of commands whose modules are imported only when one is used, or when all are listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = typer.main.get_command(importlib.import_module(module).app)
        command.name = cmd_name
        return command


app = typer.Typer(cls=_LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"corral {corral.__version__}")
        raise typer.Exit


_VERSION_OPTION = typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)


@app.callback()
def _corral(version: Annotated[bool, _VERSION_OPTION] = False) -> None:
    """Move nested batches of arrays between processes."""
