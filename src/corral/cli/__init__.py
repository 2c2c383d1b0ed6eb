"""The command line: ``corral`` or ``python -m corral``.

One module for each command, imported when the command is used; see :mod:`corral.cli.app` for how to add one.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments of this process name, and exit."""
    from corral.cli.app import app

    app(prog_name="corral")
