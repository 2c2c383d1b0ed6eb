"""Bytes that nobody's encoder made: reading them ends in an object or the codec's own error, in little memory."""

from __future__ import annotations

import datetime
import gc
import struct
import sys
import threading
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import corral
from corral.wire import codec, extensions
from corral.wire.codec import CodecError, PickleError, dumps, loads

torch = pytest.importorskip("torch")

MAGIC = b"\xc1CR\x01"
# An empty list takes one byte on the wire and 64 in memory; errors and what libraries remember take some, once.
TIMES, ONCE = 100, 1 << 20

pack = msgspec.msgpack.encode


def ext(code, content):
    """An extension, of any content."""
    return msgspec.msgpack.Ext(code, pack(content))


def raw_ext(code, content):
    return b"\xc9" + struct.pack(">Ib", len(content), code) + content


def framed(header, *buffers):
    """A message, of any header."""
    head = struct.pack(f"<4sIQ{len(buffers)}Q", MAGIC, len(buffers), len(header), *map(len, buffers)) + header
    for buffer in buffers:
        head += bytes(-len(head) % 16) + buffer
    return head


def harmless(data):
    """Read bytes, of either kind, and return what they are; ``None`` if they are refused."""
    result = None
    for given_ in (bytes(data), bytearray(data)):
        gc.collect(0)
        tracemalloc.start()
        try:
            result = loads(given_, False)
        except (CodecError, PickleError):
            result = None
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak <= TIMES * len(data) + ONCE
    return result


def refused(data):
    for given_ in (bytes(data), bytearray(data)):
        with pytest.raises((CodecError, PickleError)):
            loads(given_, False)
    harmless(data)


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('code ran')",)


SAMPLES = [
    dumps(x)
    for x in (
        {"a": 1, "b": [2.0, None, "c"], "d": {"e": b"f"}},
        ({1, 2}, frozenset({3}), 2**80, 1j, bytearray(b"abc"), {(1, 2): 3}, "x" * 70_000),
        [
            datetime.datetime(2026, 1, 1, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=1), "here")),
            datetime.date(2026, 1, 1),
            datetime.time(1, 2, 3, 4, tzinfo=datetime.UTC),
            datetime.timedelta(1, 2, 3),
        ],
        [np.arange(200.0), np.float32(1), np.zeros(2, [("x", "f4"), ("y", "M8[3s]", (2,))]), np.array(["a", "bc"])],
        [np.array([["a", "b" * 50]], np.dtypes.StringDType()), np.zeros((3, 4), "f2").T, np.zeros((0, 5), "c16")],
        [
            torch.ones(3, requires_grad=True),
            torch.ones((20, 20), dtype=torch.bfloat16),
            torch.nn.Parameter(torch.ones(1)),
        ],
        Bomb(),
        [Bomb(), np.array([1, "a"], object), np.zeros(2000)],
        corral.TensorDict(a=np.zeros((2, 200)), b={"c": torch.zeros(2)}, batch_size=[2]).lock_(),
    )
]


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes(data):
    harmless(data)
    harmless(MAGIC + data)
    harmless(framed(data))
    harmless(framed(data, data))


@given(st.integers(0, 255), st.binary(max_size=100), st.binary(max_size=600))
@settings(max_examples=300, deadline=None)
def test_any_extension(code, content, buffer):
    harmless(framed(raw_ext(code - 128, content), buffer))


plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.integers(-2, 5),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["<f4", "<U3", "|O", "M8[s]", "float32", "bool", "l", "t", "cpu", "UTC", "builtins.exec"]),
        st.binary(max_size=16),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(st.integers(1, 20), inner).map(lambda pair: ext(*pair)),
    ),
    max_leaves=15,
)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@given(st.integers(1, 20), plain, st.lists(st.binary(max_size=40), max_size=3))
@settings(max_examples=500, deadline=None)
def test_any_content_of_the_known_extensions(code, content, buffers):
    harmless(framed(pack(ext(code, content)), *buffers))


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=500, deadline=None)
def test_changed_bytes(sample, data):
    changed = bytearray(sample)
    places = st.one_of(st.integers(0, min(len(changed), 200) - 1), st.integers(0, len(changed) - 1))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(places)
        kind = data.draw(st.sampled_from(["set", "delete", "insert", "copy"]))
        if kind == "set":
            changed[at] = data.draw(st.integers(0, 255))
        elif kind == "delete" and len(changed) > 1:
            del changed[at : at + data.draw(st.integers(1, 20))]
        elif kind == "insert":
            changed[at:at] = data.draw(st.binary(min_size=1, max_size=20))
        else:
            changed[at:at] = changed[: data.draw(st.integers(1, 40))]
        if not changed:
            break
        places = st.integers(0, len(changed) - 1)
    harmless(changed)


@given(st.sampled_from(SAMPLES), st.integers(1, 200))
@example(SAMPLES[3], 1)
@settings(max_examples=100, deadline=None)
def test_bytes_missing_or_left_over(sample, count):
    refused(sample[: max(0, len(sample) - count)])
    refused(sample + bytes(count))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        MAGIC,
        MAGIC + b"\xff" * 12,
        MAGIC + struct.pack("<IQ", 0xFFFFFFFF, 1) + b"\xc0" * 100,
        MAGIC + struct.pack("<IQ", 0, 2**64 - 1) + b"\xc0" * 100,
        MAGIC + struct.pack("<IQQ", 1, 1, 2**64 - 1) + b"\xc0" * 100,
        MAGIC + struct.pack("<IQQQ", 2, 1, 2**64 - 16, 16) + b"\xc0" * 100,
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\x7f\xff\xff\xff" * 300,
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
        b"\x81\x91" * 100_000,
        b"\xd4\x01\x00",
        b"\x01\x02",
        b"\xa3\xff\xfe\xfd",
        b"\x81\x81\x01\x02\x03",
        b"\xc7\x0c\xff" + b"\xff" * 12,
    ],
    ids=lambda data: repr(data)[:30],
)
def test_sizes_and_depths_that_are_not_there(data):
    refused(data)
    if not data.startswith(b"\xc1"):
        refused(framed(data))


@pytest.mark.parametrize("code", [extensions._TUPLE, extensions._FROZENSET, extensions._DICT, extensions._TENSORDICT])
@pytest.mark.parametrize("depth", [500, 3000])
def test_nested_extensions(code, depth):
    data = b"\xc0"
    for _ in range(depth):
        data = raw_ext(code, b"\x91" + data)
    refused(framed(data))


@pytest.mark.parametrize("depth", [190, 390, 700, 5000])
@pytest.mark.parametrize("lists", [0, 3])
def test_the_stack_of_a_small_thread_is_enough(depth, lists):
    deep = b"\xc0"
    for level in range(depth):
        deep = b"\x91" + deep if level % (lists + 1) else raw_ext(extensions._TUPLE, b"\x91" + deep)
    outcomes = []

    def read():
        try:
            outcomes.append(type(loads(framed(deep), False)))
        except CodecError:
            outcomes.append(CodecError)

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert outcomes[0] in ((tuple, list) if depth == 190 else (tuple, list, CodecError))


@pytest.mark.parametrize("count", [1, 100, 3000])
def test_dtypes_in_dtypes(count):
    for step, inner in ((b"\x92\xa1l\x93\xa1t\xa1x", b""), (b"\x93\xa1t", b"\x01")):
        form = step * count + b"\xa3<f4" + inner * count
        harmless(framed(raw_ext(extensions._ARRAY, b"\x94" + form + b"\x91\x00\x00\xc4\x00")))
    fields = ["l", *(["t", f"f{i}", "u1"] for i in range(count))]
    harmless(framed(pack(ext(extensions._ARRAY, [fields, [0], 0, b""]))))


@pytest.mark.parametrize(
    "content",
    [
        ["<f8", [1 << 60], 0, b""],
        ["<f8", [-1], 0, b"12345678"],
        ["<f8", [2], 0, b"12345678"],
        ["<f8", [True], 0, b"12345678"],
        ["<f8", [2**64 - 1, 2**64 - 1, 8], 0, b"12345678"],
        ["<f8", [1 << 62, 0], 0, b""],
        ["<f8", [1] * 65, 0, b"12345678"],
        ["<f8", "1", 0, b"12345678"],
        ["<f8", [1], 0, 0],
        ["<f8", [1], 0, -1],
        ["<f8", [1], 0, 1 << 63],
        ["<f8", [1], 0, None],
        ["|O", [1], 0, b"12345678"],
        ["O", [1], 0, b"12345678"],
        ["|V999999999", [1 << 50], 0, b""],
        ["<U536870911", [1], 0, b""],
        ["<U1", [1], 0, b"\xff" * 4],
        ["M8[0s]", [1], 0, b"12345678"],
        [["l", ["t", "x", "m8[0s]"]], [1], 0, b"12345678"],
        [["l", ["t", "x", "|O"]], [1], 0, b"12345678"],
        [["l", ["t", "x", ["l", ["t", "y", "|O"]]]], [1], 0, b"12345678"],
        [["l", ["t", "x", "f4"], ["t", "x", "f4"]], [1], 0, b"12345678"],
        [["t", "<f8", 1 << 40], [1], 0, b"12345678"],
        [["t", "<f8", ["t", 1 << 31, 1 << 31, 1 << 31]], [1], 0, b""],
        [["l", ["t", "x", "u1"], ["t", "y", ">U1", ["t", 2]]], [1], 0, b"\0\0\0\0a\0\x11\0\0"],
        [{"names": ["a"], "formats": ["f4"]}, [1], 0, b"1234"],
        ["(1000000000,1000000000)f4", [0], 0, b""],
        [None, [1], 0, b"1"],
        [],
        [1, 2, 3, 4, 5],
        None,
    ],
    ids=lambda content: repr(content)[:50],
)
def test_arrays(content):
    for code in (extensions._ARRAY, extensions._JAX):
        refused(framed(pack(ext(code, content))))


@pytest.mark.parametrize(
    "content",
    [
        ["float32", [1], 0, "", b"123"],
        ["float32", [1 << 62, 1 << 62], 0, "", b"1234"],
        ["float32", [-1], 0, "", b"1234"],
        ["float32", [1], None, "", b"1234"],
        ["float32", [1], 0, "", 3],
        ["int32", [1], 2, "", b"1234"],
        ["Tensor", [1], 0, "", b"1234"],
        ["quint8", [0], 0, "", b""],
        ["_inductor", [1], 0, "", b"1234"],
        [["float32"], [1], 0, "", b"1234"],
    ],
    ids=lambda content: repr(content)[:50],
)
def test_tensors(content):
    loaded = set(sys.modules)
    refused(framed(pack(ext(extensions._TENSOR, content))))
    assert not [name for name in set(sys.modules) - loaded if "inductor" in name]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_of_torchs():
    for name, dtype in list(vars(torch).items()):
        if isinstance(dtype, torch.dtype):
            for size in (0, 1, 2, 4, 8, 16):
                for flags in (0, 2, 4, 7, 1 << 40):
                    harmless(framed(pack(ext(extensions._TENSOR, [name, [size and 1], flags, "", bytes(size)]))))


@pytest.mark.parametrize(
    ("code", "content"),
    [
        (extensions._SET, [[1]]),
        (extensions._FROZENSET, [{"a": 1}]),
        (extensions._DICT, [[[1]], [1]]),
        (extensions._DICT, [[1, 2], [1]]),
        (extensions._DICT, [{}, {}]),
        (extensions._TUPLE, {"a": 1}),
        (extensions._INT, 1.5),
        (extensions._COMPLEX_NUMBER, b"short"),
        (extensions._STR, b"\xff\xff"),
        (extensions._STR, 0),
        (extensions._BYTEARRAY, 10**9),
        (extensions._DATE, 0),
        (extensions._DATE, 10**9),
        (extensions._DATETIME, [1e300] * 9),
        (extensions._TIMEDELTA, [2**62] * 3),
        (extensions._SCALAR, ["<f8", b""]),
        (extensions._STRINGS, [[1 << 40], []]),
        (extensions._STRINGS, [[2], ["a", 1]]),
        (extensions._TENSORDICT, [{"a": 1}, [1 << 62], None, True]),
        (extensions._TENSORDICT, [{}, [-1], None, True]),
        (extensions._TENSORDICT, [{}, [], ["cpu"], True]),
        (extensions._PICKLE, ["builtins.exec", b"cos\nsystem\n(S'true'\ntR.", []]),
        (extensions._PICKLE, [1, b"", []]),
        (0, None),
        (99, None),
        (-1, None),
    ],
    ids=repr,
)
def test_other_values(code, content):
    refused(framed(pack(ext(code, content))))


def test_references_to_memory():
    array = ["<f8", [2], 0, 0]
    memory = bytes(16)
    assert isinstance(harmless(framed(pack(ext(extensions._ARRAY, array)), memory)), np.ndarray)
    refused(framed(pack([ext(extensions._ARRAY, array)] * 2), memory))  # two arrays, one memory
    refused(framed(pack(ext(extensions._ARRAY, ["<f8", [2], 0, 1])), memory))
    refused(framed(pack(ext(extensions._ARRAY, array)), memory[:-1]))
    refused(framed(pack(ext(extensions._ARRAY, ["<f8", [2], 0, ext(extensions._BYTEARRAY, 0)])), memory))
    refused(framed(pack(ext(extensions._PICKLE, ["a.b", 0, [0, 0]])), memory))


@pytest.mark.parametrize("unit", [b"\x90", b"\x80", b"\xd4\x07\x90", b"\xd4\x08\x90", b"\xa1a", b"\xd4\x05\x00"])
def test_much_of_little(unit):
    harmless(framed(b"\xdd" + struct.pack(">I", 20_000) + unit * 20_000))


def test_empty_buffers():
    harmless(framed(b"\xc0", *[b""] * 20_000))
    content = {f"{i:x}": {} for i in range(5_000)}
    harmless(framed(pack(ext(extensions._TENSORDICT, [content, [1] * 64, None, False]))))


def test_no_code_runs():
    """Whatever of a pickle's bytes are changed, and wherever they stand."""
    sample = dumps([Bomb()])
    assert b"code ran" in sample
    refused(sample)
    for at in range(len(sample)):
        for value in (0, 1, 0x90, 0xC4, 0xFF):
            harmless(sample[:at] + bytes([value]) + sample[at + 1 :])


def test_the_reader_survives_what_it_refused():
    for _ in range(3):
        refused(SAMPLES[6])
        refused(b"\x91" * 5000)
        assert loads(dumps({"a": (1, np.arange(200))}))["a"][1][-1] == 199
    with pytest.raises(CodecError):
        codec.decode(b"\x92\xc0", [])
