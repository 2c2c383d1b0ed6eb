"""TensorDicts of plain arrays, whose description is remembered by how they look: what looks alike may not be alike."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
from ranks import run

import corral
from corral import TensorDict
from corral._core import survey


def _looks(*trees: Any, write: bool = False) -> list[bytes | None]:
    seen = [survey(tree, np.ndarray, write) for tree in trees]
    return [None if each is None else each[0] for each in seen]


class Word(enum.StrEnum):
    """Keys that are strings of another type."""

    A = "a"


def test_what_looks_alike() -> None:
    torch = pytest.importorskip("torch")
    corral.arrays.buffers.register_torch()
    first = TensorDict(a=np.arange(3.0), b={"c": np.ones((3, 2), "i2")}, batch_size=3)
    for same in (first.clone(), first[:], TensorDict({k: first[k] for k in ("a", "b")}, batch_size=3)):
        assert len(set(_looks(first, same, same.to_dict() and first))) == 1
    others = [
        TensorDict(a=np.arange(3.0), b={"c": np.ones((3, 2), "u2")}, batch_size=3),
        TensorDict(a=np.arange(3.0), b={"d": np.ones((3, 2), "i2")}, batch_size=3),
        TensorDict(a=np.arange(3.0), b={"c": np.ones((3, 2, 1), "i2")}, batch_size=3),
        TensorDict(a=np.arange(3.0), b={"c": np.ones((3, 2), "i2")}, batch_size=()),
        TensorDict(b={"c": np.ones((3, 2), "i2")}, a=np.arange(3.0), batch_size=3),
        TensorDict(a=torch.arange(3.0, dtype=torch.float64), b={"c": np.ones((3, 2), "i2")}, batch_size=3),
        TensorDict(a=np.arange(3.0), b={"c": np.ones((3, 2), "i2")}, batch_size=3, device="cpu"),
        first.to_dict(),
        {"a": first["a"], "b": first["b"]},
    ]
    looks = _looks(first, *others)
    assert None not in looks
    assert len(set(looks)) == len(looks)


def test_what_is_not_plain() -> None:
    torch = pytest.importorskip("torch")
    corral.arrays.buffers.register_torch()
    x = np.arange(6.0)
    fixed = x.copy()
    fixed.flags.writeable = False
    for odd in (
        TensorDict(a=np.arange(3, dtype=">i4")),
        TensorDict(a=np.zeros(2, np.longdouble)),
        TensorDict(a=np.zeros(2, "M8[s]")),
        TensorDict(a=np.zeros(2, [("x", "i4")])),
        TensorDict(a=np.ma.masked_array([1.0, 2.0], [True, False])),
        TensorDict(a=torch.ones(2).to_sparse()),
        TensorDict(a=torch.ones(2, dtype=torch.complex64).conj()),
        TensorDict(a=torch.ones((1,) * 9)),
        TensorDict(a="text", b=x),
        TensorDict(a=x, names=["n"], batch_size=6),
        corral.lazy_stack([TensorDict(a=x), TensorDict(a=x)]),
        {"a": [x]},
        {1: x},
        {Word.A: x},
        3,
        None,
    ):
        assert _looks(odd) == [None], odd
    for odd in (
        TensorDict(a=fixed),
        TensorDict(a=x, b=x),
        TensorDict(a=x[:4], b=x[2:]),
        TensorDict(a=np.broadcast_to(x, (2, 6))),
        TensorDict(a=torch.ones(1).expand(3)),
    ):
        assert _looks(odd) != [None]
        assert _looks(odd, write=True) == [None], odd
    for plain in (TensorDict(a=x[:3], b=x[3:]), TensorDict(a=x.reshape(2, 3).T[:, ::-1]), TensorDict(a=x[:0], b=x)):
        assert _looks(plain, write=True) != [None]


def test_a_look_does_not_count_as_writing() -> None:
    torch = pytest.importorskip("torch")
    corral.arrays.buffers.register_torch()
    x = torch.ones(3)
    before = x._version
    assert survey(TensorDict(a=x), np.ndarray, True) is not None
    assert x._version == before


def _shapes(rank: int) -> list[TensorDict]:
    x, y = np.arange(4.0) + 10 * rank, np.arange(4.0) + 10 * rank + 5
    return [
        TensorDict(a=x, b=x),
        TensorDict(a=x, b=y),
        TensorDict(b=y, a=x),
        TensorDict(a=y, b=x),
        TensorDict(b=x, a=x),
        TensorDict(a=x[::-1], b=y[::2].repeat(2)),
    ]


def _alike(rank: int, size: int) -> Any:
    pytest.importorskip("torch")
    for number, mine in enumerate(_shapes(rank)):
        expected = _shapes(1 - rank)[number].to_dict()
        if rank:
            mine.send(0)
        target = TensorDict(b=np.zeros(4), a=np.zeros(4))
        target.recv(1 - rank)
        assert {k: v.tolist() for k, v in target.items()} == {k: v.tolist() for k, v in expected.items()}, number
        if not rank:
            mine.send(1)
        for each in (mine.all_gather()[1 - rank], corral.all_gather({"t": mine})[1 - rank]["t"]):
            assert list(each.keys()) == list(expected)
            assert {k: v.tolist() for k, v in each.items()} == {k: v.tolist() for k, v in expected.items()}, number
        source = mine.broadcast(1)
        assert source.is_consolidated() == bool(rank)
        wanted = _shapes(1)[number]
        assert {k: v.tolist() for k, v in source.items()} == {k: v.tolist() for k, v in wanted.items()}, number
    sums = []
    for number in (1, 2, 3):
        mine = _shapes(rank)[number]
        mine.all_reduce()
        sums.append({key: mine[key].tolist() for key in ("a", "b")})
    shared = _shapes(rank)[0]
    kept = shared["a"].copy()
    with pytest.raises((ValueError, corral.distributed.MismatchError), match="share memory"):
        shared.all_reduce()
    assert (shared["a"] == kept).all()
    return sums


def test_leaves_in_any_order_and_in_one_place() -> None:
    expected = []
    for first, second in zip(_shapes(0)[1:4], _shapes(1)[1:4], strict=True):
        expected.append({key: (first[key] + second[key]).tolist() for key in ("a", "b")})
    assert run(_alike, 2) == [expected, expected]


def _narrow(rank: int, size: int) -> Any:
    torch = pytest.importorskip("torch")
    for dtype in (torch.int2, torch.uint4, torch.int8):
        for number in range(3):  # what is remembered is of the second call on
            values = torch.tensor([1, 0, rank, number], dtype=torch.int8)
            td = TensorDict(x=values.view(dtype), b=torch.arange(2))
            for each in (td.all_gather()[1 - rank], corral.all_gather({"t": td})[1 - rank]["t"]):
                assert each["x"].dtype is dtype
                assert each["x"].view(torch.int8).tolist() == [1, 0, 1 - rank, number]
            source = td.broadcast(1)
            assert source["x"].dtype is dtype
            assert source["x"].view(torch.int8).tolist() == [1, 0, 1, number]
            assert source is not td
            bytes_ = TensorDict(x=values, b=torch.arange(2))
            into = TensorDict(x=torch.zeros(1, 4, dtype=torch.int8).view(dtype), b=torch.zeros(1, 2).long())
            if dtype is not torch.int8:
                with pytest.raises(corral.MismatchError, match="'x'"):
                    (bytes_ if rank else into).gather_and_stack(0)
            elif rank:
                bytes_.gather_and_stack(0)
            else:
                assert into.gather_and_stack(0)["x"].tolist() == [[1, 0, 1, number]]


def _sparse(rank: int, size: int) -> Any:
    torch = pytest.importorskip("torch")
    td = TensorDict(
        s=torch.eye(2).to_sparse() * (rank + 1), q=torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)
    )
    found = td.broadcast(0)
    assert found is not td
    return found["s"].to_dense().tolist()


def test_integers_of_less_than_a_byte() -> None:
    run(_narrow, 2)


@pytest.mark.filterwarnings("ignore")
def test_the_source_has_what_cannot_be_consolidated() -> None:
    assert run(_sparse, 2) == [[[1, 0], [0, 1]]] * 2
