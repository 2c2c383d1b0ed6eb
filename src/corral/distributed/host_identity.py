"""A name for the host that a process runs on, by which ranks know whether they share one."""

from __future__ import annotations

import functools
import os
import socket

__all__ = ["host_identity", "kernel_identity"]


def host_identity() -> str:
    """Return a name of this host: the same for processes that share it, another one for all others.

    A network namespace counts as a host of its own. ``CORRAL_HOST_ID`` in the environment, if set, is the name.

    Examples
    --------
    >>> host_identity() == host_identity() != ""
    True
    """
    return os.environ.get("CORRAL_HOST_ID") or _found()


@functools.cache
def kernel_identity() -> str:
    """Return a name of the running kernel: the same for all processes of one machine, whatever its hosts are called.

    Examples
    --------
    >>> kernel_identity() != ""
    True
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


@functools.cache
def _found() -> str:
    try:
        return f"{kernel_identity()}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return kernel_identity()
