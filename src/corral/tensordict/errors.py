"""Errors of more than one class: what torch raises for a mistake, and what tensordict does.

tensordict's methods differ in the class that they raise for one and the same mistake, and differ from torch. A program
that was written for either catches these.
"""

from __future__ import annotations

__all__ = ["DimensionError", "InplaceWriteError", "InvalidKeyError", "KeyThroughLeafError"]


class DimensionError(IndexError, ValueError, RuntimeError):
    """A dimension is given that a batch does not have, or dimensions that do not go together."""


class InplaceWriteError(RuntimeError, ValueError):
    """A value does not fit the entry that it is to be written into."""


class InvalidKeyError(TypeError, ValueError, KeyError):
    """What is given as a key is neither a string nor a tuple of strings."""

    __str__ = Exception.__str__


class KeyThroughLeafError(ValueError, KeyError):
    """A nested key leads through an entry that is an array."""
