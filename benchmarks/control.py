"""How the runner talks with the ranks: JSON lines over a Unix socket, one connection for each rank.

Every rank sleeps in a read of its own connection while another team is measured: no team's waiting costs
the others any processor time.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

__all__ = ["ADDRESS", "Line", "connect"]

ADDRESS = "CORRAL_BENCH_CONTROL"
"""Environment variable that holds the path of the runner's socket."""


class Line:
    """One end of a connection that carries a JSON value on each line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")

    def send(self, **message: Any) -> None:
        """Send one message."""
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Return the next message, or ``None`` if the other end is gone."""
        self._connection.settimeout(timeout)
        line = self._reader.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
        self._connection.close()


def connect(rank: int) -> Line:
    """Join the runner as `rank`."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[ADDRESS])
    line = Line(connection)
    line.send(rank=rank)
    return line
