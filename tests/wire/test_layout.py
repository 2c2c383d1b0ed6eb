"""Trees of arrays as descriptions, and back."""

from __future__ import annotations

import array
import collections
import dataclasses

import msgspec
import numpy as np
import pytest
import tensordict
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import corral
from corral.wire import codec
from corral.wire.errors import CodecError, PickleError
from corral.wire.layout import Branch, Layout

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass(frozen=True)
class Record:
    x: object
    y: object


def round_trip(tree, **options):
    layout, leaves = Layout.of(tree)
    return Layout.from_bytes(layout.to_bytes()).rebuild(leaves, **options)


def test_every_container_comes_back():
    a, b = np.arange(3), torch.ones(2)
    tree = {"d": {1: a, (2, "x"): b}, "l": [a, []], "t": (b, ()), "n": Pair(a, "text"), "r": Record(b, None)}
    again = round_trip(tree)
    assert list(again) == list(tree)
    assert again["d"][1] is a
    assert again["d"][2, "x"] is b
    assert again["l"][0] is a
    assert again["l"][1] == []
    assert again["t"][1] == ()
    assert type(again["n"]) is Pair
    assert again["n"].right == "text"
    assert type(again["r"]) is Record
    assert again["r"].x is b
    assert again["r"].y is None


def test_tensordicts_come_back():
    leaf = np.zeros((2, 3))
    again = round_trip(corral.TensorDict(a=leaf, b={"c": np.ones(2)}, batch_size=[2]))
    assert type(again) is corral.TensorDict
    assert tuple(again.batch_size) == (2,)
    assert again["a"] is leaf
    theirs = tensordict.TensorDict({"a": torch.zeros(2, 3), "b": {"c": torch.ones(2)}}, batch_size=[2])
    again = round_trip(theirs)
    assert type(again) is tensordict.TensorDict
    assert (again == theirs).all()


def test_what_is_described():
    tree = [
        np.zeros((2, 0), ">i4"),
        torch.zeros(3, dtype=torch.bfloat16),
        array.array("d", [1.0]),
        np.float32(1),
    ]
    nodes = [node for _, node in Layout.of(tree, stacking=True)[0].arrays()]
    assert [(n.library, n.dtype, n.shape) for n in nodes] == [
        ("numpy", ">i4", [2, 0]),
        ("torch", "bfloat16", [3]),
        ("numpy", "<f8", [1]),
        ("numpy", "<f4", []),
    ]
    layout, leaves = Layout.of(tree)  # where nothing is stacked, a scalar is no array
    assert len(leaves) == 3
    assert type(layout.rebuild(leaves)[3]) is np.float32
    assert nodes[1].empty((4,)).shape == (4, 3)
    assert nodes[1].empty().dtype == torch.bfloat16


def test_like_converts():
    again = round_trip({"a": np.ones(2)}, like="torch")
    assert torch.equal(again["a"], torch.ones(2, dtype=torch.float64))


def test_objects_obey_the_rule_for_pickles():
    with pytest.raises(PickleError, match="Fraction"):
        Layout.of([__import__("fractions").Fraction(1)], allow_pickle=False)


def test_loops_are_refused():
    loop = {}
    loop["a"] = loop
    with pytest.raises(ValueError, match="contains itself"):
        Layout.of(loop)


def _branch(keys, children, kind="d", name="", batch=None):
    return msgspec.msgpack.encode(["b", kind, name, batch, codec.dumps(keys), children])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x90",
        _branch(["a"], []),
        _branch(["a", "a"], [["v", b"\x01"]] * 2),
        _branch([[1]], [["v", b"\x01"]]),
        _branch(["a"], [["a", "<f8", [1 << 60], "numpy"]]),
        _branch(["a"], [["a", "<f8", [-1], "numpy"]]),
        _branch(["a"], [["a", "|O", [1], "numpy"]]),
        _branch(["a"], [["a", "<f8", [1] * 65, "numpy"]]),
        b"\x96\xa1b\xa1d\xa0\xc0\xc4\x05\x91\xa1a\x91" * 5000,
    ],
    ids=lambda data: repr(data)[:20],
)
def test_hostile_layouts(data):
    with pytest.raises(CodecError):
        Layout.from_bytes(data)


@pytest.mark.parametrize(
    "name", ["os:system", "os:environ", "subprocess:Popen", "not.loaded:Pair", "", ":", "os:path.join"]
)
@pytest.mark.parametrize(("kind", "plain"), [("n", ("true",)), ("c", {"a": "true"})])
def test_no_class_of_the_senders_choosing(kind, plain, name):
    layout = Layout.from_bytes(_branch(["a"], [["v", codec.dumps("true")]], kind, name))
    again = layout.rebuild([])
    assert type(again) is type(plain)
    assert again == plain


@pytest.mark.parametrize("kind", ["?", "T", ""])
def test_unknown_containers(kind):
    with pytest.raises(CodecError):
        Layout.from_bytes(_branch(["a"], [["v", codec.dumps(1)]], kind)).rebuild([])


def test_records_of_other_fields_are_plain():
    name = f"{Pair.__module__}:Pair"
    values = [["v", codec.dumps(1)], ["v", codec.dumps(2)]]
    assert type(Layout.from_bytes(_branch(["left", "right"], values, "n", name)).rebuild([])) is Pair
    assert type(Layout.from_bytes(_branch(["left", "top"], values, "n", name)).rebuild([])) is tuple


def test_fingerprints():
    trees = [
        {"a": np.zeros(2)},
        {"a": np.zeros(3)},
        {"a": np.zeros(2, "f4")},
        {"b": np.zeros(2)},
        [np.zeros(2)],
        {"a": [np.zeros(2)]},
        {"a": torch.zeros(2, dtype=torch.float64)},
        {"a": 1},
    ]
    prints = [Layout.of(tree)[0].fingerprint() for tree in trees]
    assert {len(each) for each in prints} == {16}
    assert len(set(prints)) == len(trees)
    assert Layout.of({"a": np.ones(2)})[0].fingerprint() == prints[0]


@tensordict.tensorclass
class Class:
    x: torch.Tensor
    name: str


def test_what_tensordict_keeps_beside_tensors():
    stack = torch.stack([tensordict.TensorDict({"a": torch.ones(3), "s": s}) for s in "xy"])
    again = round_trip(stack)
    assert type(again) is tensordict.TensorDict
    assert again["s"] == ["x", "y"]
    one = round_trip(tensordict.TensorDict({"a": torch.ones(3), "s": "x"}))
    assert one["s"] == "x"
    made = round_trip(Class(torch.ones(3, 2), "hi", batch_size=[3]))
    assert type(made) is Class
    assert made.batch_size == (3,)
    assert made.name == "hi"
    lazy = round_trip(tensordict.lazy_stack([tensordict.TensorDict({"a": torch.ones(n), "s": "x"}) for n in (1, 2)]))
    assert type(lazy) is tensordict.LazyStackedTensorDict
    assert lazy[1]["a"].shape == (2,)
    assert lazy[1]["s"] == "x"
    several = round_trip(tensordict.lazy_stack([Class(torch.ones(n), f"{n}", batch_size=[]) for n in (1, 2)]))
    assert type(several) is Class
    assert [each.name for each in several] == ["1", "2"]
    numbers = tensordict.TensorDict({"n": tensordict.NonTensorStack(*map(tensordict.NonTensorData, (1, 2)))}, [2])
    assert type(round_trip(numbers).get("n")) is tensordict.NonTensorStack


sample = Layout.of({"a": np.zeros((2, 3)), "b": [torch.zeros(2), Pair(None, 1)]})[0].to_bytes()


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_mutated_layouts(data):
    changed = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        layout = Layout.from_bytes(bytes(changed))
        assert not isinstance(layout.root, Branch) or layout.entries() is not None
    except CodecError:
        pass


def _node(*shape):
    return ["a", "<f8", list(shape), "numpy"]


@pytest.mark.parametrize(
    "data",
    [
        _branch(["a"], [_node(3)], "T", batch=[2]),
        _branch(["a"], [_node()], "R", batch=[2]),
        _branch(["a"], [_node(2)], "T", batch=[-1]),
        _branch(["a"], [msgspec.msgpack.decode(_branch(["b"], [_node(3)], "T", batch=[3]))], "T", batch=[2]),
        _branch([1], [_node(2)], "T", batch=[2]),
        _branch([1], [_node(2)], "l"),
        _branch(["a"], [_node(2)], "d", batch=[2]),
        _branch([("a", "b")], [_node(2)], "c"),
    ],
)
def test_impossible_trees(data):
    with pytest.raises(CodecError):
        Layout.from_bytes(data)
