"""What can go wrong between an object and its bytes."""

from __future__ import annotations

from corral.distributed.errors import DistBackendError

__all__ = ["CodecError", "PickleError"]


class CodecError(DistBackendError, ValueError):
    """Bytes that are no encoding of an object, or an object that has none."""


class PickleError(DistBackendError, TypeError):
    """An object that only pickle can carry, where pickles are denied."""
