"""Cutting arrays into parts, reading before writing, and telling apart what is read from what is written."""

from __future__ import annotations

import array
import itertools

import numpy as np
import pytest

from corral.arrays.apart import check_apart
from corral.arrays.parts import count, divide, divide_to_fill, dtype_of, split
from corral.arrays.updating import updatable


def layouts_of(shape):
    total = int(np.prod(shape))
    a = np.arange(total).reshape(shape)
    yield a
    yield np.asfortranarray(a)
    wide = np.zeros([2 * n for n in shape], int)
    view = wide[(*(slice(None, None, 2) for _ in shape), ...)]
    view[...] = a
    yield view
    yield a[::-1] if shape else a


@pytest.mark.parametrize("shape", [(), (6,), (6, 2), (2, 6), (3, 4), (1, 12), (4, 3, 2), (0, 3), (3, 0)])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_equal_parts_of_any_shape(shape, library):
    for a, parts in itertools.product(layouts_of(shape), (1, 2, 3, 6)):
        if a.size % parts:
            continue
        if library == "torch":
            torch = pytest.importorskip("torch")
            if any(step < 0 for step in a.strides):
                continue
            a = torch.from_numpy(a).to(torch.float32)
        values = a.flatten().tolist()
        size = len(values) // parts
        read = [part.flatten().tolist() for part in divide(a, parts, "input")]
        assert read == [values[i * size : (i + 1) * size] for i in range(parts)]
        filled, finish = divide_to_fill(a, parts, "output")
        for i, part in enumerate(filled):
            part[...] = part.reshape(-1).reshape(part.shape) * 0 - i - 1
        if finish is not None:
            finish()
        assert a.flatten().tolist() == [-i - 1 for i in range(parts) for _ in range(size)]


def test_rows_of_any_object():
    memory = array.array("h", [1, 2, 3, 4])
    first, rest, none = split(memory, [1, 3, 0], "output", True)
    rest[:] = [7, 8, 9]
    assert (first.tolist(), memory.tolist(), none.size) == ([1], [1, 7, 8, 9], 0)
    assert [bytes(part) for part in split(b"abc", [2, 1], "input")] == [b"ab", b"c"]
    assert (count(memory), count(b"abc"), count(np.zeros(()))) == (4, 3, 1)
    assert (dtype_of(memory), dtype_of(b"abc"), dtype_of(np.zeros(1, ">i4"))) == ("int16", "uint8", "int32")
    with pytest.raises(TypeError, match="input must be an array"):
        split([1, 2], [1, 1], "input")


def test_parts_of_other_libraries():
    torch = pytest.importorskip("torch")
    sparse = torch.sparse_coo_tensor([[1]], [5.0], (4,), check_invariants=True)
    assert [part.tolist() for part in divide(sparse, 2, "input")] == [[0, 5], [0, 0]]
    with pytest.raises(TypeError, match=r"output cannot be received into in parts: its layout is torch\.sparse_coo"):
        divide_to_fill(sparse, 2, "output")
    leaf = torch.zeros(4, requires_grad=True)
    for part in divide_to_fill(leaf, 2, "output")[0]:
        part[...] = 3
    assert leaf.tolist() == [3] * 4
    jax = pytest.importorskip("jax")
    assert [part.tolist() for part in divide(jax.numpy.arange(4), 2, "input")] == [[0, 1], [2, 3]]
    with pytest.raises(TypeError, match="never changes"):
        divide_to_fill(jax.numpy.arange(4), 2, "output")


def test_updatable_holds_the_values():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in ("f8", ">f8", ">i2", "M8[s]", ml_dtypes.bfloat16):
        a = np.arange(6).astype(dtype).reshape(2, 3)
        for view in (a, a.T, np.lib.stride_tricks.as_strided(a, (3, 2), (a.itemsize * 2, a.itemsize))):
            before = view.tolist()
            buffer, finish = updatable(view)
            held = np.asarray(getattr(buffer, "exporter", buffer))
            native = view.astype(view.dtype.newbyteorder("="))
            assert held.tobytes() == native.tobytes()
            if finish is not None:
                finish()
            assert view.tolist() == before
    torch = pytest.importorskip("torch")
    lazy = torch.tensor([1 + 2j]).conj()
    buffer, finish = updatable(lazy)
    assert buffer.tolist() == [1 - 2j]
    buffer *= 2
    finish()
    assert lazy.tolist() == [2 - 4j]


def test_apart_is_exact():
    rng = np.random.default_rng(7)
    whole = np.zeros((4, 6))
    found = 0
    for _ in range(400):

        def view(a=whole):
            for axis in (0, 1):
                low, high = sorted(rng.integers(0, a.shape[axis] + 1, 2))
                a = a[(slice(None),) * axis + (slice(low, high, rng.integers(1, 3)),)]
            return a.T if rng.random() < 0.5 else a

        outputs, inputs = [view() for _ in range(2)], [view() for _ in range(3)]
        shared = {(i, j) for i in range(2) for j in range(3) if np.shares_memory(outputs[i], inputs[j])}
        if not shared:
            check_apart(outputs, inputs, "output[]", "input[]")
            continue
        found += 1
        with pytest.raises(ValueError, match=r"output\[\d\] shares memory with input\[\d\]") as caught:
            check_apart(outputs, inputs, "output[]", "input[]")
        assert any(f"output[{i}] shares memory with input[{j}]" in str(caught.value) for i, j in shared)
    assert 50 < found < 350


def test_the_same_elements_may_be_allowed():
    a = np.zeros((3, 4))
    check_apart([a[1]], [a[0], a[1:2].reshape(1, 2, 2), a[2]], "output", "input[]", [(0, 1)])
    for other in (a[1, ::-1], a[1, :3], a[1:, :2], a[1].reshape(2, 2).T):
        with pytest.raises(ValueError, match="output shares memory with input"):
            check_apart([a[1]], [other], "output", "input", [(0, 0)])
    torch = pytest.importorskip("torch")
    t = torch.from_numpy(a)
    check_apart([t[0]], [a[1]], "output", "input")
    with pytest.raises(ValueError, match="output shares memory with input"):
        check_apart([t], [a[1]], "output", "input")
