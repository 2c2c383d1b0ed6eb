"""Names of element types: the engine knows numbers, errors give names."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from corral import _core
from corral.arrays import dtypes
from corral.arrays.dtypes import EXTENDED, NARROW, name_of, number_of


def test_the_tables_hold_what_ml_dtypes_has():
    for name in (*EXTENDED, *NARROW):
        kind = np.dtype(getattr(ml_dtypes, name))
        assert kind.name == name
        assert kind.itemsize == (EXTENDED[name][1] // 8 if name in EXTENDED else 1)


@pytest.mark.parametrize(
    "name", ["datetime64[ns]", "timedelta64[h]", "str96", "bytes8", "void24", "bits8", "int4", "float4_e2m1fn_x2"]
)
def test_well_known_names_of_others_are_found(name, monkeypatch):
    number = number_of(name)
    monkeypatch.setattr(dtypes, "_names", {})  # as in a process that has never met the type
    assert name_of(number) == name


def test_names_that_are_used_are_remembered():
    name = "record[('x', '<f4'), ('y', '|u1')]"
    number = number_of(name)
    assert name_of(number) == name
    assert number >> 62 == 2  # the mark of a hash, and not that of several arrays
    assert name_of(number ^ 1) == "a dtype whose name this process does not know"


def test_memory_does_not_grow_with_names(monkeypatch):
    monkeypatch.setattr(dtypes, "_MOST_NAMES", 10)
    monkeypatch.setattr(dtypes, "_names", {})
    monkeypatch.setattr(dtypes, "_numbers", dict(dtypes._numbers))
    before = len(dtypes._numbers)
    for i in range(100):
        number_of(f"made up {i}")
    assert len(dtypes._names) <= 10
    assert len(dtypes._numbers) <= before + 10
    assert name_of(number_of("made up 99")) == "made up 99"
    assert _core.Buffer(np.zeros(3, np.uint8), number_of("made up 99")).exporter.tolist() == [0, 0, 0]
