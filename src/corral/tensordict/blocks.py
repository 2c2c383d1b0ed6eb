"""With-blocks on what methods return: at the end of the block, the TensorDict takes over what was changed."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

__all__ = ["Blocks", "undone"]

F = TypeVar("F", bound=Callable[..., Any])
Inverse = Callable[[Any, Any, Mapping[str, Any]], Any]
"""Takes a result, the TensorDict that it was made of, and the arguments; returns what the latter takes over."""


class Blocks:
    """What makes results of `undone` methods context managers."""

    __slots__ = ()

    _origin: Any
    _blocks: list[Any]

    def __enter__(self) -> Self:
        blocks = getattr(self, "_blocks", None)
        if blocks is None:
            blocks = self._blocks = []  # type: ignore[misc]  # a slot of `Base`
        blocks.append(getattr(self, "_origin", None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        origin = self._blocks.pop()
        if origin is None:
            return
        function, reference, size, args, kwargs = origin
        td = reference()
        # A lock is taken back in any case; values of a block that failed are not written.
        if td is None or (kind is not None and not (function.__name__ in _LOCKS and issubclass(kind, Exception))):
            return
        given = inspect.signature(function).bind(td, *args, **kwargs)
        given.apply_defaults()
        _INVERSES[function.__name__](self, td, {**given.arguments, "size before": size})


def undone(function: F) -> F:
    """Let the result of a method be used in a with-block, at whose end the call is undone.

    The method's name is a key of the inverses below.
    """
    locks = function.__name__ in _LOCKS

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, size = locks and self.is_locked, self.batch_size
        out = function(self, *args, **kwargs)
        if isinstance(out, Blocks):
            changed = not locks or self.is_locked is not before
            out._origin = (function, weakref.ref(self), size, args, kwargs) if changed else None
        return out

    return call  # type: ignore[return-value]


_LOCKS = ("lock_", "unlock_")


def _write(td: Any, values: Any) -> None:
    if td.is_locked:
        td.update_(values.select(*td.keys(True, True), strict=False))
    else:
        td.update(values, inplace=False)


def _written(inverse: Inverse, in_place: Inverse | None = None) -> Inverse:
    """Return what writes the inverse of a result to the original, or undoes a call that changed it in place."""

    def undo(result: Any, td: Any, given: Mapping[str, Any]) -> None:
        if result is td and in_place is not None:
            in_place(result, td, given)
        else:
            _write(td, inverse(result, td, given))

    return undo


def _order(given: Mapping[str, Any], count: int) -> list[int]:
    dims = given["args"] if given["dims"] is None else (given["dims"],)
    if len(dims) == 1 and not isinstance(dims[0], int):
        dims = tuple(dims[0])
    dims = [int(dim) % count for dim in dims]
    return sorted(range(count), key=dims.__getitem__)


def _unflattened(result: Any, td: Any, given: Mapping[str, Any]) -> Any:
    size = given["size before"]
    if not size:
        return result.squeeze(0)
    start = 0 if given["start_dim"] is None else given["start_dim"] % len(size)
    end = len(size) - 1 if given["end_dim"] is None else given["end_dim"] % len(size)
    return result.unflatten(start, size[start : end + 1], inplace=result is td)


def _flattened(result: Any, td: Any, given: Mapping[str, Any]) -> Any:
    count, parts = len(result.batch_size), len(given["unflattened_size"])
    dim = given["dim"]
    start = count - parts + 1 + dim if dim < 0 else dim
    return result.flatten(start, start + parts - 1, inplace=result is td)


def _unsqueezed(result: Any, td: Any, given: Mapping[str, Any]) -> Any:
    if given["dim"] is None:
        raise RuntimeError("a with-block on squeeze() needs the dimension: pass dim")
    return result.unsqueeze(given["dim"]) if len(result.batch_size) != len(td.batch_size) else result


def _dropped(result: Any, td: Any, given: Mapping[str, Any]) -> Any:
    for _ in range(len(result.batch_size) - len(td.batch_size)):
        result = result.squeeze(0)
    return result


def _rolled(result: Any, td: Any, given: Mapping[str, Any]) -> Any:
    shifts = given["shifts"]
    back = -shifts if isinstance(shifts, int) else tuple(-shift for shift in shifts)
    return result.roll(back, given["dims"])


_INVERSES: dict[str, Inverse] = {
    "lock_": lambda result, td, given: result.unlock_(),
    "unlock_": lambda result, td, given: result.lock_(),
    "flatten_keys": _written(
        lambda result, td, given: result.unflatten_keys(given["separator"]),
        lambda result, td, given: td.unflatten_keys(given["separator"], inplace=True),
    ),
    "unflatten_keys": _written(
        lambda result, td, given: result.flatten_keys(given["separator"]),
        lambda result, td, given: td.flatten_keys(given["separator"], inplace=True),
    ),
    "view": _written(lambda result, td, given: result.view(td.batch_size)),
    "flatten": _written(_unflattened, _unflattened),
    "unflatten": _written(_flattened, _flattened),
    "permute": _written(lambda result, td, given: result.permute(_order(given, len(td.batch_size)))),
    "transpose": _written(lambda result, td, given: result.transpose(given["dim0"], given["dim1"])),
    "swapaxes": _written(lambda result, td, given: result.swapaxes(given["axis0"], given["axis1"])),
    "movedim": _written(lambda result, td, given: result.movedim(given["destination"], given["source"])),
    "squeeze": _written(_unsqueezed),
    "unsqueeze": _written(lambda result, td, given: result.squeeze(given["dim"])),
    "flip": _written(lambda result, td, given: result.flip(given["dims"])),
    "fliplr": _written(lambda result, td, given: result.fliplr()),
    "flipud": _written(lambda result, td, given: result.flipud()),
    "roll": _written(_rolled),
    "rot90": _written(lambda result, td, given: result.rot90(-given["k"], given["dims"])),
    **dict.fromkeys(("atleast_1d", "atleast_2d", "atleast_3d"), _written(_dropped)),
}
