"""The engines that :mod:`corral.distributed` can run on, each loaded when first asked for.

Examples
--------
>>> "shm" in names()
True
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from corral.backends.base import Backend

__all__ = ["DEFAULT", "Engine", "available", "hint", "load", "names", "register"]

DEFAULT = "shm"
"""Name of the backend used where none is asked for."""


class Engine(Protocol):
    """What a registered backend's class can do before there is an instance."""

    def create(self, rank: int, world_size: int, meet: Callable[[bytes], list[bytes]], timeout: float) -> Backend:
        """Make this rank's view of the group of all ranks.

        Parameters
        ----------
        rank, world_size
            This rank, and the number of ranks.
        meet
            Hands in this rank's bytes and returns those of all ranks, in rank order. May be called several times, by
            all ranks alike. Its attribute ``address``, if it has one, says where they meet.
        timeout
            Seconds that operations, and the creation itself, may take.
        """


class _Entry(NamedTuple):
    target: str | Engine
    hint: str
    requires: tuple[str, ...] = ()
    check: Callable[[], bool] | None = None


def _torch_has(engine: str) -> bool:
    from corral.backends.torch_engines import is_built  # which imports torch no more than this module does

    return is_built(engine)


_TORCH_HINT = "pip install torch as built for these devices (see https://pytorch.org)"
_entries: dict[str, _Entry] = {
    "shm": _Entry(
        "corral.backends.shm:ShmBackend",
        "reinstall corral from a wheel, or build it with `pip install .`",
        ("corral._core",),
    ),
    "gloo": _Entry("corral.backends.torch:GlooBackend", "pip install 'corral[torch]'", ("torch",)),
    "mpi": _Entry("corral.backends.mpi:MpiBackend", "pip install 'corral[mpi]'", ("mpi4py",)),
    "hybrid": _Entry(
        "corral.backends.hybrid:HybridBackend",
        "pip install 'corral[torch]' or 'corral[mpi]'",
        ("corral._core", "torch|mpi4py"),
    ),
    **{
        engine: _Entry(
            f"corral.backends.torch_engines:{engine.title()}Backend",
            _TORCH_HINT,
            ("torch",),
            functools.partial(_torch_has, engine),
        )
        for engine in ("nccl", "xccl", "ucc")
    },
}


def names() -> tuple[str, ...]:
    """Return the names of all registered backends, installed or not."""
    return tuple(_entries)


def available(name: str) -> bool:
    """Whether a backend of this name is registered and what it needs is installed. Imports none of it.

    Examples
    --------
    >>> available("shm"), available("carrier pigeon")
    (True, False)
    """
    entry = _entries.get(name.lower())
    if entry is None:
        return False
    needed = list(entry.requires)
    if isinstance(entry.target, str):  # of a package that is not loaded, its root: to look further would import it
        needed.append(entry.target.partition(":")[0].partition(".")[0])
    if not all(any(map(importlib.util.find_spec, modules.split("|"))) for modules in needed):
        return False
    return entry.check is None or entry.check()


def hint(name: str) -> str:
    """Return what to do to get a backend that is registered under this name.

    Examples
    --------
    >>> hint("mpi")
    "pip install 'corral[mpi]'"
    """
    return _entries[name.lower()].hint


def register(name: str, target: str | Engine, hint: str = "", requires: Sequence[str] = ()) -> None:
    """Make a backend known under a name.

    Parameters
    ----------
    name
        What users pass as ``backend=``; lower case.
    target
        Where its class is: ``"package.module:Class"``, imported when first used; or the class itself.
    hint
        What to do when the import fails, for the error message.
    requires
        Modules that it cannot do without, such as ``"mpi4py"``, or ``"torch|mpi4py"`` where one of them is enough, by
        which `available` judges.

    Examples
    --------
    >>> register("example", "example_package.engine:Engine", "pip install example-package")
    >>> load("example")
    Traceback (most recent call last):
        ...
    ModuleNotFoundError: backend 'example' is not available here ...; to get it: pip install example-package
    """
    if not name or name != name.lower():
        raise ValueError(f"a backend's name is lower case and not empty, got {name!r}")
    if isinstance(target, str) and target.count(":") != 1:
        raise ValueError(f"target must look like 'package.module:Class', got {target!r}")
    _entries[name] = _Entry(target, hint, tuple(requires))


def load(name: str) -> Engine:
    """Return the class of a backend, importing its module.

    Raises
    ------
    ValueError
        If no backend has this name.
    ImportError
        If it has one that cannot be imported here; the message says how to install it.
    """
    entry = _entries.get(name.lower())
    if entry is None:
        raise ValueError(f"unknown backend {name!r}; the known ones are {', '.join(map(repr, _entries))}")
    if not isinstance(entry.target, str):
        return entry.target
    module, _, attribute = entry.target.partition(":")
    try:
        backend: Engine = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        hint = f"; to get it: {entry.hint}" if entry.hint else ""
        raise type(error)(f"backend {name!r} is not available here ({error}){hint}") from error
    return backend
