"""How the ranks of a group agree on what is about to be moved, or all raise the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from corral.distributed.errors import DistBackendError, MismatchError
from corral.wire.errors import PickleError
from corral.wire.layout import Layout

if TYPE_CHECKING:
    from corral.distributed.groups import ProcessGroup

__all__ = ["agree", "is_refusal", "raise_refusal", "refusal"]

_LAYOUT, _ERROR, _PICKLE_ERROR, _NOTHING = b"L", b"E", b"P", b"N"
_Plan = TypeVar("_Plan")


def refusal(error: Exception, rank: int) -> bytes:
    """Return the message by which a rank tells the others of its error, so that they raise it too."""
    kind = _PICKLE_ERROR if isinstance(error, PickleError) else _ERROR
    text = str(error) if isinstance(error, MismatchError) else f"rank {rank}: {type(error).__name__}: {error}"
    return kind + text.encode(errors="replace")


def is_refusal(message: bytes | memoryview) -> bool:
    """Whether a message is one that `refusal` made."""
    return message[:1] in (_ERROR, _PICKLE_ERROR)


def raise_refusal(operation: str, message: bytes | memoryview) -> NoReturn:
    """Raise the error that a refusal tells of."""
    raised: type[DistBackendError] = PickleError if message[:1] == _PICKLE_ERROR else MismatchError
    raise raised(f"{operation}: {bytes(message[1:]).decode(errors='replace')}")


def agree(
    pg: ProcessGroup,
    root: int,
    operation: str,
    describe: Callable[[], Layout | None],
    decide: Callable[[list[Layout | None]], _Plan],
) -> _Plan | None:
    """Show every rank's layout to the root, and do what it decides.

    Parameters
    ----------
    pg, root
        The group, and the rank in it that decides.
    operation
        What is to be done, for error messages.
    describe
        Returns this rank's layout, or ``None`` where it sends nothing. What it raises, all ranks raise.
    decide
        Called on the root with every rank's layout, in rank order. What it raises, all ranks raise.

    Returns
    -------
    On the root what `decide` returned, elsewhere ``None``.

    Raises
    ------
    MismatchError, PickleError
        On every rank, with the same text.
    """
    rank = pg.ranks[pg._rank]
    try:
        layout = describe()
        payload = _NOTHING if layout is None else _LAYOUT + layout.to_bytes()
    except Exception as error:
        payload = refusal(error, rank)
    shown = pg.backend.gather_bytes(payload, root, operation=operation)
    plan: _Plan | None = None
    verdict: bytes | None = None
    if shown is not None:
        refused = [each for each in shown if is_refusal(each)]
        if refused:
            verdict = bytes(refused[0])
        else:
            try:
                plan = decide([None if each[:1] == _NOTHING else Layout.from_bytes(each[1:]) for each in shown])
                verdict = b""
            except Exception as error:
                verdict = refusal(error, rank)
    verdict = pg.backend.broadcast_bytes(verdict, root, operation=operation)
    if verdict:
        raise_refusal(operation, verdict)
    return plan
