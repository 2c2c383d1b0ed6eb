"""Objects to bytes and back: exact types, no code, no surprises from bytes that others made."""

from __future__ import annotations

import collections
import datetime
import math
import pickle
import subprocess
import sys
import zoneinfo

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import corral
from corral.wire import codec
from corral.wire.codec import CodecError, PickleError, dumps, loads


def same(a, b):
    """Whether two objects are the same in type and value, NaN, signs of zero and memory order included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or a.requires_grad != b.requires_grad:
            return False
        return bytes(a.detach().reshape(-1).view(torch.uint8)) == bytes(b.detach().reshape(-1).view(torch.uint8))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) and same(a[x], b[y]) for x, y in zip(a, b, strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    return a == b


zones = st.one_of(
    st.none(),
    st.just(datetime.UTC),
    st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)).map(datetime.timezone),
    st.just(datetime.timezone(datetime.timedelta(hours=1), "here")),
    st.just(zoneinfo.ZoneInfo("Europe/Berlin")),
)
hashable_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**100), 2**100),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters()),
    st.binary(),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(timezones=zones),
    st.timedeltas(),
)
arrays = hnp.arrays(
    st.one_of(
        hnp.scalar_dtypes(),
        hnp.unicode_string_dtypes(),
        hnp.byte_string_dtypes(),
        hnp.array_dtypes(hnp.scalar_dtypes()),
    ),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
scalars = st.one_of(hashable_scalars, st.floats(), st.complex_numbers(), st.binary().map(bytearray), arrays)
hashables = st.deferred(  # deferred, for its repr is long
    lambda: st.recursive(
        hashable_scalars,
        lambda s: st.one_of(st.lists(s, max_size=3).map(tuple), st.frozensets(s, max_size=3)),
    )
)
objects = st.deferred(
    lambda: st.recursive(
        scalars,
        lambda s: st.one_of(
            st.lists(s, max_size=4),
            st.lists(s, max_size=4).map(tuple),
            st.dictionaries(hashables, s, max_size=4),
            st.dictionaries(st.text(max_size=4), s, max_size=4),
            st.sets(hashables, max_size=4),
        ),
        max_leaves=8,
    )
)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@given(objects)
@settings(max_examples=200, deadline=None)
def test_round_trip(obj):
    assert same(loads(dumps(obj, False), False), obj)
    header, buffers = codec.encode(obj, False)
    assert same(codec.decode(header, buffers, False), obj)


@pytest.mark.parametrize(
    "obj",
    [
        -1,
        2**63,
        2**64,
        -(2**63) - 1,
        "\ud800",
        {"a": "\udfff", "b": 2**90},
        "é" * 100_000,
        b"x" * 100_000,
        -0.0,
        math.inf,
        [math.nan, (), [], {}, set(), frozenset()],
        {1: 2, True + 1: 3, None: 4, 1.5: 5, b"": 6},
        datetime.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
        np.float64(-0.0),
        np.bool_(True),
        np.datetime64("2026-11-30T01:02", "s"),
        np.array([1, 2], ">i8"),
        np.zeros((3, 0, 2), "f4"),
        np.array(["a", "bcd"]),
        np.zeros(2, [("x", "<f4"), ("y", ">i2", (2, 3))]),
        np.zeros(2, np.dtype([("x", "u1"), ("y", "f8")], align=True)),
    ],
    ids=lambda obj: repr(obj)[:30],
)
def test_particular_objects(obj):
    assert same(loads(dumps(obj, False), False), obj)


def test_strings_of_any_length():
    array = np.array([["a", "b" * 100], ["", "é"]], np.dtypes.StringDType())
    again = loads(dumps(array, False), False)
    assert again.dtype == array.dtype
    assert again.tolist() == array.tolist()


def test_nan_keeps_its_bits():
    array = np.array([0x7FF8000000000001, 0xFFF0000000000002], "u8").view("f8")
    assert loads(dumps(array)).tobytes() == array.tobytes()


def test_arrays_keep_their_order_and_can_be_written():
    array = np.arange(200.0).reshape(2, 100).T
    again = loads(dumps(array))
    assert again.flags.f_contiguous
    assert np.array_equal(again, array)
    again[0, 0] = 7
    for odd in (array[::-3], np.broadcast_to(array, (2, *array.shape))):
        assert np.array_equal(loads(dumps(odd)), odd)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "bool", "complex64", "uint16"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (40, 30)])
def test_tensors(dtype, shape):
    tensor = torch.ones(shape).to(getattr(torch, dtype))
    assert same(loads(dumps(tensor, False), False), tensor)
    assert same(
        loads(dumps(tensor.mT if len(shape) == 2 else tensor)),
        tensor.mT.contiguous() if len(shape) == 2 else tensor,
    )


def test_tensors_keep_gradients_and_parameters():
    assert loads(dumps(torch.ones(3, requires_grad=True), False), False).requires_grad
    parameter = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    assert same(loads(dumps(parameter, False), False), parameter)
    assert torch.equal(loads(dumps((torch.ones(2) + 1j).conj())), (torch.ones(2) + 1j).conj())


def test_tensors_are_numpys_where_torch_is_not_loaded():
    code = (
        "import sys; from corral.wire.codec import loads; a = loads(sys.stdin.buffer.read()); "
        "assert 'torch' not in sys.modules; print(type(a).__module__, a.dtype, a.tolist())"
    )
    data = dumps(torch.arange(3, dtype=torch.int16))
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.split() == [b"numpy", b"int16", b"[0,", b"1,", b"2]"]


def test_tensordicts():
    td = corral.TensorDict(a=np.ones((2, 3)), b={"c": torch.zeros(2)}, batch_size=[2])
    again = loads(dumps({"td": td}, False), False)["td"]
    assert type(again) is corral.TensorDict
    assert again.batch_size == td.batch_size
    assert same(again["a"], td["a"])
    assert same(again["b", "c"], td["b", "c"])
    assert loads(dumps(td.lock_())).is_locked


def test_arrays_stay_out_of_the_header():
    array = np.zeros(100_000)
    header, buffers = codec.encode({"a": array, "b": [array[:10]]})
    assert len(header) < 1000
    assert any(np.shares_memory(np.frombuffer(b, "u1"), array) for b in buffers)
    writable = [bytearray(b) for b in buffers]
    again = codec.decode(header, writable)["a"]
    assert np.shares_memory(again, np.frombuffer(writable[0], "u1"))


Point = collections.namedtuple("Point", "x y")


class Holder:
    def __init__(self, **entries):
        self.__dict__.update(entries)


def test_other_objects_are_pickled_one_by_one():
    obj = {"point": Point(1, [2]), "plain": [1], "ordered": collections.OrderedDict(a=np.ones(3))}
    again = loads(dumps(obj))
    assert again["point"] == obj["point"]
    assert type(again["point"]) is Point
    again["ordered"]["a"][0] = 5
    assert type(again["ordered"]) is collections.OrderedDict
    objects = np.array([1, "a"], object)
    assert loads(dumps(objects)).tolist() == [1, "a"]


def test_arrays_in_pickles_are_out_of_band():
    holder = Holder(array=np.arange(1000), tensor=torch.arange(1000.0))
    header, buffers = codec.encode(holder)
    assert len(header) < 500
    assert max(b.nbytes for b in buffers) == 8000
    again = codec.decode(header, [memoryview(b).toreadonly() for b in buffers])
    assert np.array_equal(again.array, holder.array)
    assert torch.equal(again.tensor, holder.tensor)
    again.array[0] = again.tensor[0] = 1  # both own their memory
    assert holder.array[0] == 0


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_pickles_are_refused_on_both_ends(how, monkeypatch):
    data = dumps([Holder()])
    allow = True
    if how == "environment":
        monkeypatch.setenv("CORRAL_PICKLE", "deny")
    else:
        allow = False
    with pytest.raises(PickleError, match=r"test_codec\.Holder.*refuses"):
        dumps([Holder()], allow)
    with pytest.raises(PickleError, match=r"test_codec\.Holder.*refuses"):
        loads(data, allow)
    assert loads(dumps({"a": (1,)}, allow), allow) == {"a": (1,)}
    assert {corral.distributed.DistBackendError, TypeError} <= set(PickleError.__mro__)


def test_what_cannot_be_pickled():
    with pytest.raises(PickleError, match="function"):
        dumps(lambda: None)


def test_containers_that_contain_themselves():
    loop = [1]
    loop.append(loop)
    with pytest.raises(ValueError, match="contains itself"):
        dumps(loop)
    entries = {}
    entries["a"] = (entries,)
    with pytest.raises(ValueError, match="contains itself"):
        dumps(entries)
    shared = [1]
    assert loads(dumps([shared, shared, {"a": shared}])) == [[1], [1], {"a": [1]}]


def test_depth():
    deep = ()
    for _ in range(300):
        deep = [deep]
    with pytest.raises(ValueError, match="too deep"):
        dumps(deep)
    fair = ()
    for i in range(190):
        fair = (fair,) if i % 2 else [fair]
    assert loads(dumps(fair)) == fair


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('code ran')",)


samples = [
    dumps(x)
    for x in (
        {"a": 1, "b": [2.0, None, "c"]},
        ({1, 2}, frozenset({3}), 2**80, 1j, bytearray(b"abc"), {(1, 2): 3}),
        [
            datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
            datetime.date(2026, 1, 1),
            datetime.timedelta(1),
        ],
        [np.arange(200.0), np.float32(1), np.zeros(2, [("x", "f4")]), torch.ones(3), "\ud800"],
        Bomb(),
        corral.TensorDict(a=np.zeros((2, 200)), batch_size=[2]),
    )
]


def harmless(data):
    try:
        loads(data, False)
    except (CodecError, PickleError):
        pass


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes(data):
    harmless(data)
    harmless(b"\xc1CR\x01" + data)


@given(st.sampled_from(samples), st.data())
@settings(max_examples=500, deadline=None)
def test_mutated_bytes(sample, data):
    changed = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    harmless(bytes(changed))
    harmless(bytes(changed[: data.draw(st.integers(0, len(changed)))]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
        b"\xd4\x01\x00",
        b"\xc1CR\x01" + b"\xff" * 12,
        b"\xc1CR\x01" + b"\xff" * 4 + b"\x00" * 8,
        b"\x01\x02",
    ],
    ids=lambda data: repr(data)[:30],
)
def test_hostile_bytes(data):
    with pytest.raises(CodecError):
        loads(data)


def _tagged(content):
    """Bytes of one array, as a hostile sender would write its description."""
    import struct

    import msgspec

    header = msgspec.msgpack.encode(content)
    return struct.pack("<4sIQ", b"\xc1CR\x01", 0, len(header)) + header


@pytest.mark.parametrize(
    "description",
    [
        ["<f8", [1 << 60], 0, b""],
        ["<f8", [-1], 0, b"12345678"],
        ["|O", [1], 0, b"12345678"],
        ["<f8", [1], 0, 0],
        ["|V999999999", [1 << 50], 0, b""],
        ["<f8", [1 << 62, 0], 0, b""],
        [["l", ["t", "x", "|O"]], [1], 0, b"12345678"],
        [["t", "<f8", 1 << 40], [1], 0, b"12345678"],
        ["<U1", [1], 0, b"\xff" * 4],
        [["l", ["t", "x", "u1"], ["t", "y", ">U1", ["t", 2]]], [1], 0, b"\0\0\0\0a\0\x11\0\0"],
    ],
    ids=repr,
)
def test_hostile_arrays(description):
    import msgspec

    from corral.wire import extensions

    ext = msgspec.msgpack.Ext(extensions._ARRAY, msgspec.msgpack.encode(description))
    with pytest.raises(CodecError):
        loads(_tagged(ext))


@pytest.mark.parametrize(
    "zone", ["Europe", "", "/etc/localtime", "..", "a" * 5000, "\0", "nowhere", 1, [1e300, 0, 0, None]]
)
def test_hostile_zones(zone):
    import msgspec

    from corral.wire import extensions

    ext = msgspec.msgpack.Ext(extensions._TIME, msgspec.msgpack.encode([1, 2, 3, 4, 0, zone]))
    with pytest.raises(CodecError):
        loads(_tagged(ext))


def test_one_buffer_cannot_become_many_arrays():
    header, buffers = codec.encode(np.zeros(1000))
    with pytest.raises(CodecError, match="two arrays"):
        codec.decode(b"\x92" + header + header, buffers)


def test_pickled_bytes_are_no_encoding():
    with pytest.raises(CodecError):
        loads(pickle.dumps([Bomb()]), False)
