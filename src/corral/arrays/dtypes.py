"""Names and numbers of element types: one table for the engine, for conversions and for error messages.

The engine compares the two ends' element types as numbers. Those of DLPack are its code and bits; any other type's is
a hash of its name. What this process has hashed it can name again, and so it can the types that are well known.
"""

from __future__ import annotations

from collections.abc import Iterator

from corral.digests import digest

__all__ = ["EXTENDED", "NARROW", "name_of", "number_of"]

EXTENDED: dict[str, tuple[int, int]] = {
    "bfloat16": (4, 16),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}
"""Number formats that NumPy has from ml_dtypes alone: DLPack's code and bits."""

NARROW = frozenset(
    {
        *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
        *("int1", "int2", "int4", "uint1", "uint2", "uint4"),
    }
)
"""Those of ml_dtypes with fewer bits than a byte, which have a byte for each element all the same."""

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}  # DLPack's codes
_HASHED = 1 << 63
_SEVERAL = 1 << 62
_MOST_NAMES = 4096

_codes = {(code << 16) | bits: name for name, (code, bits) in EXTENDED.items()}
_numbers: dict[str, int] = {name: number for number, name in _codes.items()}
_names: dict[int, str] = {}  # of the numbers that are hashes


def number_of(name: str) -> int:
    """Return the engine's number for a type that the buffer protocol cannot name.

    Examples
    --------
    >>> number_of("bfloat16") == (4 << 16) | 16, name_of(number_of("datetime64[ns]"))
    (True, 'datetime64[ns]')
    """
    number = _numbers.get(name)
    if number is None:
        if len(_names) >= _MOST_NAMES:  # a process that makes up types without end must not grow with them
            for old in _names.values():
                _numbers.pop(old, None)
            _names.clear()
        number = _numbers[name] = _hash(name)
        _names[number] = name
    return number


def name_of(number: int) -> str:
    """Return the name of the type that the engine knows by `number`, as error messages give it.

    Examples
    --------
    >>> name_of((2 << 16) | 32), name_of((6 << 16) | 8), name_of(1 << 62)
    ('float32', 'bool', 'several arrays')
    """
    if number & _HASHED:
        name = _names.get(number)
        if name is None:
            name = next((each for each in _well_known() if _hash(each) == number), None)
        return name or "a dtype whose name this process does not know"
    if number & _SEVERAL:
        return "several arrays"
    if number in _codes:
        return _codes[number]
    code, bits = number >> 16, number & 0xFFFF
    return "bool" if code == 6 else f"{_KINDS.get(code, 'dtype')}{bits}"


def _hash(name: str) -> int:
    number = int.from_bytes(digest(name.encode(), 8), "little")
    return number & (_SEVERAL - 1) | _HASHED


def _well_known() -> Iterator[str]:
    """Go through the types that a peer may use and this process has not."""
    yield from NARROW
    yield from ("float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2")
    for bits in range(1, 8):
        yield from (f"int{bits}", f"uint{bits}")
    for kind in ("datetime64", "timedelta64"):
        yield kind
        for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"):
            yield f"{kind}[{unit}]"
    yield from ("float96", "float128", "complex192", "complex256", "str", "bytes")
    for length in range(1, 1025):
        yield from (f"str{32 * length}", f"bytes{8 * length}", f"void{8 * length}")
