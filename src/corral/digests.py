"""Short digests, which tell names and descriptions apart. They keep nothing secret."""

from __future__ import annotations

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL, a third of all memory that a worker takes for corral
except ImportError:  # a Python that has moved it
    from hashlib import blake2b

__all__ = ["digest"]


def digest(data: bytes, size: int) -> bytes:
    """Return a digest of `size` bytes, the same in every process.

    Examples
    --------
    >>> digest(b"world", 4) == digest(b"world", 4) != digest(b"other", 4)
    True
    """
    found: bytes = blake2b(data, digest_size=size).digest()
    return found
