"""Overlap tests against brute force: what memory do the elements really touch?"""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corral._core import lie_apart
from corral.arrays.buffers import register_torch
from corral.arrays.overlap import Extent, overlaps_itself, share_memory

_shapes = st.integers(1, 3).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 4), min_size=n, max_size=n),
        st.lists(st.integers(-20, 20), min_size=n, max_size=n),
    )
)


def touched(address: int, shape, strides, itemsize: int) -> list[int]:
    return [
        address + sum(i * s for i, s in zip(index, strides, strict=True)) + byte
        for index in itertools.product(*map(range, shape))
        for byte in range(itemsize)
    ]


@settings(deadline=None, max_examples=300)
@given(_shapes, st.integers(1, 8))
def test_overlaps_itself_is_exact(dims, itemsize):
    shape, strides = dims
    places = touched(0, shape, strides, itemsize)
    assert overlaps_itself(shape, strides, itemsize) == (len(set(places)) < len(places))


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(_shapes, st.integers(0, 60)), min_size=2, max_size=4), st.integers(1, 4))
def test_share_memory_is_exact(arrays, itemsize):
    extents = [Extent("cpu", 4096 + at, tuple(sh), tuple(st_), itemsize) for (sh, st_), at in arrays]
    places = [set(touched(e.address, e.shape, e.strides, itemsize)) for e in extents]
    pairs = {(i, j) for i, j in itertools.combinations(range(len(extents)), 2) if places[i] & places[j]}
    found = share_memory(extents)
    assert (found in pairs) if pairs else found is None


@given(st.lists(st.integers(0, 100), min_size=2, max_size=6), st.integers(1, 24))
def test_equal_arrays_at_any_distances(addresses, step):
    extents = [Extent("cpu", 4096 + a, (3,), (step,), 4) for a in addresses]
    places = [set(touched(e.address, e.shape, e.strides, 4)) for e in extents]
    expected = any(a & b for a, b in itertools.combinations(places, 2))
    assert (share_memory(extents) is not None) == expected


def test_large_arrays_cost_nothing():
    rows = [Extent("cpu", 1 << 30 | i << 40, (1 << 20, 1 << 10), (1 << 12, 4), 4) for i in range(64)]
    columns = [Extent("cpu", 1 << 30 | i * 4, (1 << 30,), (256,), 4) for i in range(64)]
    assert share_memory(rows) is None
    assert share_memory(columns) is None
    assert share_memory([*rows, rows[5]]) == (5, 64)


def test_other_address_spaces_are_apart():
    host = Extent("cpu", 4096, (4,), (8,), 8)
    assert share_memory([host, host._replace(space="cuda:0"), host._replace(space="cuda:1")]) is None
    assert share_memory([host, host._replace(space="cuda:0"), host]) == (0, 2)


@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_rows_and_columns(order):
    a = np.zeros((5, 7), order=order)
    for parts in (list(a), list(a.T)):
        extents = [Extent("cpu", p.__array_interface__["data"][0], p.shape, p.strides, 8) for p in parts]
        assert share_memory(extents) is None


register_torch()
_slices = st.tuples(st.integers(-12, 12), st.integers(-12, 12), st.sampled_from([-3, -2, -1, 1, 2, 3]))


@given(st.lists(st.tuples(_slices, st.booleans()), min_size=2, max_size=5))
def test_what_the_core_takes_for_apart_is_apart(slices):
    whole = np.zeros(24, "i2")
    arrays = [(torch.from_numpy(whole)[a:b] if s == 1 and t else whole[a:b:s]) for (a, b, s), t in slices]
    numbers = [a.numpy() if isinstance(a, torch.Tensor) else a for a in arrays]
    pairs = [*itertools.combinations(numbers, 2)]
    if lie_apart(arrays):
        assert not any(np.shares_memory(a, b) for a, b in pairs)
    spans = [sorted(np.lib.array_utils.byte_bounds(a)) for a in numbers if a.size]
    if all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(spans))):
        assert lie_apart(arrays)


def test_the_core_leaves_what_it_cannot_read_to_others():
    assert not lie_apart([np.zeros(2), object()])
    assert not lie_apart([np.zeros(2), np.array([None])])
    assert lie_apart([])


def test_arrays_of_ctypes_which_tell_no_strides():
    matrix = ((ctypes.c_int16 * 3) * 2)()
    assert lie_apart([np.zeros(3)[1:], matrix, (ctypes.c_double * 3)()])
    assert not lie_apart([matrix, np.frombuffer(matrix, "i2")[2:4]])
