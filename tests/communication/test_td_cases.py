"""Faults that users of other systems reported of moving whole dictionaries: each is right here."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from fleet import Fleet
from td_trees import plain

import corral
import corral.distributed as dist
from corral import TensorDict

SIZE = 3


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(SIZE)
    yield ranks
    ranks.close()


def _ragged(rank):
    return [TensorDict(frames=np.full((n + rank, 2), 10 * rank + n), batch_size=[n + rank]) for n in range(4)]


def _lists(rank, size):
    """Point-to-point of dictionaries that do not stack is broken elsewhere, or ends after the first element."""
    expected = plain(_ragged(0))
    if rank == 0:
        corral.send({"steps": _ragged(0)}, 1)
        for td in _ragged(0):
            td.init_remote(1)
        for td in _ragged(0):
            td.isend(1, return_early=True)[0].wait()
    elif rank == 1:
        assert plain(corral.recv(0)["steps"]) == expected
        assert [plain(TensorDict.from_remote_init(0)) for _ in range(4)] == expected
        tds = [TensorDict(frames=np.zeros((n, 2), int), batch_size=[n]) for n in range(4)]
        works = [work for td in tds for work in td.irecv(0, return_premature=True)]
        for work in works:
            work.wait()
        assert plain(tds) == expected


def test_each_element_arrives(fleet):  # 12
    fleet(_lists)


def _uneven(rank, size):
    """Nobody gets more than what was sent to it: no rank's data are padded to the largest."""
    rows = 1 << 20 if rank == 1 else 3
    td = TensorDict(a=np.full(rows, rank, "u1"), batch_size=[rows])
    tds = td.all_gather()
    assert [int(each["a"].size) for each in tds] == [3, 1 << 20, 3]
    for source, each in enumerate(tds):
        base = each["a"]
        while base.base is not None:
            base = base.base
        assert base.nbytes == each["a"].nbytes
        assert np.all(each["a"] == source)
    gathered = td.gather(2)
    assert (gathered is None) == (rank != 2)
    assert gathered is None or [each.batch_size[0] for each in gathered] == [3, 1 << 20, 3]


def test_nothing_is_padded(fleet):  # 13
    fleet(_uneven)


def _unknown(rank, size):
    """No rank but the source knows what comes."""
    source = TensorDict(a=np.arange(3.0), n={"b": np.ones((3, 2), "i2"), "m": {"c": np.zeros(3, "c8")}}, batch_size=[3])
    td = source if rank == 1 else TensorDict()
    assert plain(td.broadcast(1)) == plain(source)
    if rank == 1:
        td.init_remote(0)
        td.init_remote(use_broadcast=True)
    else:
        if rank == 0:
            assert plain(TensorDict.from_remote_init(1)) == plain(source)
        result = TensorDict.from_remote_init(1, use_broadcast=True)
        assert plain(result) == plain(source)
        assert result.batch_size == (3,)
        assert result["n"].batch_size == (3,)
    assert [plain(each) for each in (source if rank else TensorDict()).all_gather()] == [[], *[plain(source)] * 2]
    parts = [TensorDict({f"key {i}": np.full(i, i)}, batch_size=[i]) for i in range(size)] if rank == 1 else None
    assert plain(TensorDict().scatter(1, parts)) == plain(TensorDict({f"key {rank}": np.full(rank, rank)}))


def test_structures_need_not_be_known(fleet):  # 14
    fleet(_unknown)


def _every_dtype(rank, size):
    import ml_dtypes
    import torch

    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16"]
    names += ["float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]

    def make(value):
        td = TensorDict(batch_size=[2])
        for name in names:
            kind = getattr(ml_dtypes, name, None) or np.dtype(name)
            td["numpy", name] = np.full((2, 3), value).astype(kind)
            td["torch", name] = torch.full((2, 3), value).to(getattr(torch, name))
        return td

    def read(td):
        return {
            key: np.asarray(leaf.to(torch.complex128) if key[0] == "torch" else leaf.astype("c16")).tolist()
            for key, leaf in td.items(True, True)
        }

    td = make(rank)
    assert read(td.broadcast(2)) == read(make(2))
    assert [read(each) for each in td.all_gather()] == [read(make(i)) for i in range(size)]
    assert read(td.scatter(0, [make(i + 2) for i in range(size)] if rank == 0 else None)) == read(make(rank + 2))
    assert td.broadcast(2, inplace=True) is td
    assert read(td) == read(make(2))
    td.scatter(0, [make(i + 2) for i in range(size)] if rank == 0 else None, inplace=True)
    assert read(td) == read(make(rank + 2))
    if rank == 0:
        make(7).send(1)
        make(9).isend(1)
    elif rank == 1:
        td.recv(0)
        assert read(td) == read(make(7))
        td.irecv(0)
        assert read(td) == read(make(9))
    eight = [("numpy", name) for name in names[-2:]] + [("torch", name) for name in names[-2:]]
    td = make(rank + 1)
    with pytest.raises(TypeError, match="8-bit floats cannot be reduced"):
        td.all_reduce()
    for key in eight:
        del td[key]
    expected = {key: value for key, value in read(make(6)).items() if key not in eight}
    before = read(td)
    td.reduce(0)
    assert read(td) == (expected if rank == 0 else before)
    td = make(rank + 1)
    for key in eight:
        del td[key]
    td.all_reduce()
    assert read(td) == expected


def test_every_dtype_in_every_operation(fleet):  # 15
    fleet(_every_dtype)


def _strings(rank, size):
    """What is not an array comes along with its row."""
    rows = {"obs": np.full(3, rank), "task": f"task {rank}", "info": {"seed": rank, "tags": ["x"] * rank}}
    gathered = corral.gather([rows, {"td": TensorDict(a=np.ones(rank)), "name": "second"}], 0)
    if rank == 0:
        assert [each[0]["task"] for each in gathered] == ["task 0", "task 1", "task 2"]
        assert [each[0]["info"]["tags"] for each in gathered] == [[], ["x"], ["x", "x"]]
        assert [each[1]["name"] for each in gathered] == ["second"] * 3
        assert [each[1]["td"]["a"].tolist() for each in gathered] == [[], [1.0], [1.0, 1.0]]
    rows["info"] = {"seed": rank, "tags": [f"tag {rank}"]}
    stack = corral.gather_and_stack(None if rank == 0 else rows, 0)
    if rank == 0:
        assert stack["task"] == ["task 1", "task 2"]
        assert stack["info"] == {"seed": [1, 2], "tags": [["tag 1", "tag 2"]]}
        assert stack["obs"].tolist() == [[1] * 3, [2] * 3]


def test_strings_keep_their_rows(fleet):  # 16
    fleet(_strings)


def test_arguments_are_those_of_tensordict():
    import tensordict

    names = "send recv isend irecv init_remote from_remote_init broadcast all_gather scatter reduce all_reduce"
    for name in names.split():
        theirs = inspect.signature(getattr(tensordict.TensorDict, name)).parameters
        mine = inspect.signature(getattr(TensorDict, name)).parameters
        wanted = [each for each in theirs if not each.startswith("_")]
        assert list(mine)[: len(wanted)] == wanted, name
        for key in wanted:
            assert mine[key].kind == theirs[key].kind, (name, key)
            if theirs[key].default is not inspect.Parameter.empty:
                assert mine[key].default == theirs[key].default, (name, key)
        for key in list(mine)[len(wanted) :]:  # ours alone
            assert mine[key].kind == inspect.Parameter.KEYWORD_ONLY, (name, key)


def test_nothing_is_loaded_before_it_is_needed():
    import subprocess
    import sys

    code = "import sys, corral; corral.TensorDict(a=[1]); print([m for m in sys.modules if m.endswith('.moving')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_without_a_group():
    td = TensorDict(a=np.zeros(2))
    for call in (
        td.all_reduce,
        td.all_gather,
        td.gather,
        lambda: td.send(0),
        lambda: td.reduce(0),
        lambda: td.irecv(0),
    ):
        with pytest.raises(ValueError, match="Default process group has not been initialized"):
            call()
    assert not dist.is_initialized()
