"""Arrays of every library as buffers: the values, in place where possible, or a clear refusal."""

from __future__ import annotations

import array
import ctypes
import mmap
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from corral.arrays import buffers
from corral.arrays.buffers import check_distinct, readable, writable

torch = pytest.importorskip("torch")


class Wrapped(NamedTuple):
    """Stands in for the core's buffer, which has no parts to look at."""

    view: object
    dtype: str


@pytest.fixture(autouse=True)
def _wrap(monkeypatch):
    from corral.arrays import torch_buffers

    monkeypatch.setattr(buffers, "wrap", Wrapped)
    monkeypatch.setattr(torch_buffers, "wrap", Wrapped)


def host(buffer) -> np.ndarray:
    """What the core would see in a buffer."""
    if isinstance(buffer, Wrapped):
        return np.asarray(buffer.view)
    if isinstance(buffer, torch.Tensor):
        assert buffer.is_cpu
        assert buffer.layout is torch.strided
        assert not buffer.is_conj()
        assert not buffer.is_neg()
        return buffer.detach().numpy()
    return np.asarray(buffer)


NATIVE = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("dtype", NATIVE)
def test_native_numpy_is_not_touched(dtype):
    a = np.arange(24).reshape(2, 3, 4).astype(dtype)
    for view in (a, a.T, a[::-1, :, ::2], a[:, 1], a[0, 0, 0:0], np.array(1, dtype)):
        assert readable(view) is view
        buffer, finish = writable(view)
        assert buffer is view
        assert finish is None


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("M8[ns]", "datetime64[ns]"),
        ("m8[s]", "timedelta64[s]"),
        ("U3", "str96"),
        ("S5", "bytes40"),
        ("V3", "void24"),
        (np.longdouble, np.dtype(np.longdouble).name),
        (np.clongdouble, np.dtype(np.clongdouble).name),
        ([("a", "<f4"), ("b", "u1", (2,))], "record[('a', '<f4'), ('b', '|u1', (2,))]"),
        (np.dtype([("a", "u1"), ("b", "<f8")], align=True), None),
    ],
)
def test_other_numpy_dtypes_travel_as_their_bits(dtype, name):
    dtype = np.dtype(dtype)
    source = np.frombuffer(bytes(range(1, 1 + 6 * dtype.itemsize)), dtype).reshape(2, 3)
    for view in (source, source.T, source[:, ::-1]):
        read = readable(view)
        assert name is None or read.dtype == name
        target = np.zeros((8, 9), dtype)[1 : 1 + 2 * view.shape[0] : 2, ::3][:, : view.shape[1]]
        buffer, finish = writable(target)
        assert finish is None
        assert buffer.dtype == read.dtype
        buffer.view[...] = read.view
        for field in dtype.names or (...,):
            assert target[field].tobytes() == view[field].tobytes()


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">c16", ">U2", ">M8[ms]", [("a", ">f4"), ("b", "u1")]])
def test_foreign_byte_order_travels_as_values(dtype):
    dtype = np.dtype(dtype)
    source = np.array([b"1", b"2", b"3"]).astype(dtype) if dtype.kind == "U" else np.arange(3).astype(dtype)
    read = readable(source)
    target = np.zeros_like(source)
    buffer, finish = writable(target)
    host(buffer)[...] = host(read)
    assert not np.array_equal(target, source)
    finish()
    assert np.array_equal(target, source)
    if dtype.kind in "fic":
        assert read.dtype.isnative
        assert np.array_equal(read, source)


def test_small_floats_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        a = np.arange(4).astype(getattr(ml_dtypes, name))
        read = readable(a)
        assert read.dtype == name
        target = torch.zeros(4, dtype=getattr(torch, name))
        assert writable(target)[0] is target  # the core names torch's dtypes alike
        assert read.view.itemsize == target.itemsize


@pytest.mark.parametrize("dtype", ["O", [("a", "O"), ("b", "f4")]])
def test_object_arrays_are_refused(dtype):
    with pytest.raises(TypeError, match=r"things has dtype .* Python objects.*gather_object"):
        readable(np.zeros(2, dtype), "things")
    with pytest.raises(TypeError, match="Python objects"):
        writable(np.zeros(2, dtype))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_numpy_subclasses():
    matrix = np.matrix([[1.0, 2.0]])
    assert type(readable(matrix)) is np.ndarray
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    with pytest.raises(TypeError, match="masked"):
        readable(masked)
    assert host(readable(np.ma.array([1.0, 2.0]))).tolist() == [1.0, 2.0]
    assert host(readable(np.float32(3))).shape == ()


def test_read_only_and_overlapping_numpy_are_refused():
    a = np.zeros(6)
    frozen = a.view()
    frozen.flags.writeable = False
    for bad in (frozen, frozen[::2], np.float32(1), np.zeros(3, "M8[s]").view()):
        if isinstance(bad, np.ndarray):
            bad.flags.writeable = False
        with pytest.raises(ValueError, match=r"out cannot be received into: it is read-only"):
            writable(bad, "out")
    stride = np.lib.stride_tricks.as_strided
    for bad in (stride(a, (3, 6), (0, 8)), stride(a, (3, 3), (8, 8)), stride(a, (2,), (4,))):
        assert readable(bad) is bad
        with pytest.raises(ValueError, match="out cannot be received into: some of its elements share memory"):
            writable(bad, "out")
    assert writable(stride(a, (2, 3), (0, 8))[:1])[1] is None  # one row of an expanded array is whole


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_interleaved_dimensions_do_not_overlap(library):
    a = np.zeros(8)
    target = np.lib.stride_tricks.as_strided(a, (3, 2), (16, 24))
    if library == "torch":
        target = torch.from_numpy(a).as_strided((3, 2), (2, 3))
    buffer, finish = writable(target)
    host(buffer)[...] = np.arange(6).reshape(3, 2)
    finish()
    assert np.array_equal(np.asarray(target), np.arange(6).reshape(3, 2))


def test_tensors_of_many_dimensions():
    t = torch.arange(512.0).reshape([2] * 9).permute(*range(8, -1, -1))
    assert readable(t).tolist() == t.flatten().tolist()
    target = torch.zeros([2] * 9).permute(*range(8, -1, -1))
    buffer, finish = writable(target)
    host(buffer)[...] = host(readable(t))
    finish()
    assert torch.equal(target, t)


def test_plain_tensors_are_not_touched():
    base = torch.arange(24.0).reshape(2, 3, 4)
    for t in (base, base.permute(2, 0, 1), base[:, ::2], base[0, 0, 0], base[:0]):
        assert readable(t) is t
        assert writable(t) == (t, None)
    assert readable(base.expand(2, 2, 3, 4)).shape == (2, 2, 3, 4)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.complex64, torch.bool):
        t = torch.zeros(3, dtype=dtype)
        assert readable(t) is t


def test_expanded_tensors_are_refused():
    a = torch.zeros(6)
    for bad in (
        a.expand(3, 6),
        a.as_strided((3, 3), (1, 1)),
        a[:1].expand(4),
        a.to_sparse().to_dense().expand(2, 6),
    ):
        with pytest.raises(ValueError, match=r"out cannot .* share memory.*torch.Tensor of shape"):
            writable(bad, "out")


def test_tensors_that_need_grad():
    leaf = torch.zeros(3, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(3))
    inner = leaf * 2
    for t in (leaf, parameter, inner):
        assert host(readable(t)).shape == (3,)
        buffer, finish = writable(t)
        host(buffer)[...] = 7
        if finish is not None:
            finish()
        assert t.tolist() == [7, 7, 7]


def test_lazily_conjugated_and_negated_tensors():
    z = torch.tensor([1 + 2j, 3 - 4j])
    for t in (z.conj(), z.conj().imag, z.conj().clone().conj(), z.reshape(1, 2).mH):
        assert np.array_equal(host(readable(t)), t.resolve_conj().resolve_neg().numpy())
        base = t.clone()
        buffer, finish = writable(t)
        host(buffer)[...] = host(readable(base)) * 2
        if finish is not None:
            finish()
        assert torch.equal(t.resolve_conj().resolve_neg(), base.resolve_conj().resolve_neg() * 2)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_tensors_travel_as_values():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    for t in (dense.to_sparse(), dense.to_sparse_csr()):
        assert np.array_equal(host(readable(t)), dense.numpy())
    target = torch.zeros(2, 2).to_sparse()
    buffer, finish = writable(target)
    host(buffer)[...] = dense.numpy()
    finish()
    assert torch.equal(target.to_dense(), dense)
    with pytest.raises(TypeError, match=r"out cannot .* layout is torch.sparse_csr"):
        writable(torch.zeros(2, 2).to_sparse_csr(), "out")


def test_tensors_without_values_are_refused():
    with pytest.raises(TypeError, match="x is on the meta device"):
        readable(torch.zeros(3, device="meta"), "x")
    with pytest.raises(TypeError, match="x is on the meta device"):
        writable(torch.zeros(3, device="meta"), "x")
    assert host(readable(torch._efficientzerotensor((2,)))).tolist() == [0, 0]
    with pytest.raises(TypeError, match="symbolic zero"):
        writable(torch._efficientzerotensor((2,)))


def test_tensor_subclasses_share_their_memory():
    class Sub(torch.Tensor):
        pass

    t = torch.arange(4.0).as_subclass(Sub)
    buffer, finish = writable(t)
    assert type(buffer) is torch.Tensor
    assert finish is None
    assert buffer.data_ptr() == t.data_ptr()
    assert host(readable(t.reshape(2, 2).T)).tolist() == [[0, 2], [1, 3]]


def test_wrapper_tensors_are_refused():
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(TypeError, match="TwoTensor"):
        readable(TwoTensor(torch.zeros(2), torch.zeros(2)))


def test_buffer_protocol_objects():
    for source in (b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), array.array("B", b"abcd")):
        assert bytes(host(readable(source)).tobytes()) == b"abcd"
    with mmap.mmap(-1, 4096) as memory:
        buffer, finish = writable(memory)
        host(buffer)[:4] = list(b"wxyz")
        assert finish is None
        assert memory[:4] == b"wxyz"
        del buffer
    numbers = array.array("d", [0, 0])
    writable(numbers)[0][...] = [1.5, 2.5]
    assert numbers.tolist() == [1.5, 2.5]
    assert host(readable((ctypes.c_int32 * 3)(1, 2, 3))).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"out .* read-only \(builtins.bytes\)"):
        writable(b"abcd", "out")


class OnlyDLPack:
    def __init__(self, inner):
        self.inner = inner

    def __dlpack__(self, **kwargs):
        return self.inner.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


@pytest.mark.parametrize(
    "inner", [np.arange(3.0), torch.arange(3.0), torch.arange(3.0).to(torch.bfloat16), torch.arange(6.0)[::2]]
)
def test_dlpack_objects(inner):
    source = OnlyDLPack(inner)
    buffer = readable(source)
    assert buffer.data_ptr() == inner.data_ptr() if isinstance(buffer, torch.Tensor) else True
    buffer, finish = writable(source)
    buffer[...] = buffer + 1
    assert finish is None
    assert inner[1] in (2, 3)


@pytest.mark.parametrize("thing", [[1.0], None, "text", 3, object(), {"a": 1}])
def test_what_is_no_array_is_refused(thing):
    with pytest.raises(TypeError, match=r"x must be an array .* but got builtins\."):
        readable(thing, "x")
    with pytest.raises(TypeError, match="x must be an array"):
        writable(thing, "x")


def test_jax_arrays():
    jnp = pytest.importorskip("jax.numpy")
    assert host(readable(jnp.arange(3.0))).tolist() == [0, 1, 2]
    assert readable(jnp.arange(3, dtype=jnp.bfloat16)).dtype == "bfloat16"
    with pytest.raises(TypeError, match=r"out .* never changes"):
        writable(jnp.arange(3.0), "out")


def test_distinct_arrays():
    a = np.zeros((4, 4))
    t = torch.from_numpy(a)
    for good in ([], [a], list(a), list(a.T), [np.zeros(3), np.zeros(3)], list(t), [a[0], t[1]], [a[:0], a]):
        check_distinct(good, "outs")
    check_distinct([a[::2], a[1::2], torch.zeros(2)], "outs")
    shared = np.zeros(3)
    for bad in (
        [shared] * 2,
        [shared] * 5,
        [a[0], t[0]],
        [a[:, 1], a[2]],
        [t, t[3:]],
        [shared, a, shared[1:]],
    ):
        with pytest.raises(ValueError, match=r"outs\[\d\] and outs\[\d\] share memory"):
            check_distinct(bad, "outs")


def test_no_library_is_imported_for_numpy():
    code = (
        "import sys, numpy as np\n"
        "from corral.arrays.buffers import readable, writable\n"
        "readable(np.zeros(3)); writable(np.zeros(3, '>f4')); readable(b'abc')\n"
        "print(sorted(m for m in ('torch', 'jax', 'cupy') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
