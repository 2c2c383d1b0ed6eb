"""What goes wrong between objects and bytes."""

from __future__ import annotations

from corral.distributed.errors import DistBackendError

__all__ = ["CodecError", "PickleError"]


class CodecError(DistBackendError, ValueError):
    """Bytes that are no encoded object."""


class PickleError(DistBackendError, TypeError):
    """An object that could travel only as a pickle, where pickles are refused or where it failed."""
