"""Check that src/corral/_core.pyi is what the native module says it is; with --write, make it so."""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path

from nanobind.stubgen import ReplacePattern, StubGen

import corral._core

PATH = Path(__file__).parent.parent / "src" / "corral" / "_core.pyi"

# Python shows __buffer__ from 3.12 on, type checkers want it always, and the stub is to be the same on all versions.
PATTERNS = [
    pattern
    for name in ("Piece", "Received", "SharedMemory")
    for pattern in (
        ReplacePattern(re.compile(rf"{name}\.__buffer__$"), [], 0),
        ReplacePattern(
            re.compile(rf"{name}\.__suffix__$"), ["def __buffer__(self, flags: int, /) -> memoryview: ...", ""], 0
        ),
    )
]


def main() -> int:
    generator = StubGen(corral._core, patterns=PATTERNS)
    generator.put(corral._core)
    text = generator.get()
    if "--write" in sys.argv[1:]:
        PATH.write_text(text)
        return 0
    current = PATH.read_text() if PATH.exists() else ""
    drift = list(difflib.unified_diff(current.splitlines(), text.splitlines(), PATH.name, "generated", lineterm=""))
    print("\n".join(drift))
    if drift:
        print("the stub is out of date: run `make stubs`")
    return bool(drift)


if __name__ == "__main__":
    sys.exit(main())
