"""Every class of TensorDict through every way from one rank to another."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
from fleet import Fleet

import corral
from corral import LazyStackedTensorDict, PersistentTensorDict, TensorDict, lazy_stack

pytest.importorskip("h5py")
SIZE = 3
KINDS = ("dense", "torch", "lazy", "lazy last", "ragged", "nested lazy", "memmap", "torch memmap", "hdf5", "objects")


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(SIZE)
    yield ranks
    ranks.close()


def _array(rank, *shape):
    return np.arange(np.prod(shape), dtype="f4").reshape(shape) + 100 * rank


def make(kind, rank, folder):
    """Return a TensorDict of a kind, with values that tell the rank."""
    if kind in ("lazy", "lazy last", "ragged"):
        members = [
            TensorDict(
                a=_array(rank + 10 * i, 2, 3 + i * (kind == "ragged")),
                n={"b": _array(rank - i, 2).astype("i8")},
                batch_size=[2],
            )
            for i in range(2)
        ]
        return lazy_stack(members, 1 if kind == "lazy last" else 0)
    source = {"a": _array(rank, 2, 3), "n": {"b": _array(rank, 2).astype("i8")}, "c": _array(rank, 3, 2).T}
    if kind == "nested lazy":
        source["l"] = lazy_stack([TensorDict(x=_array(rank + i, 1 + i)) for i in range(2)])
    if kind == "objects":
        source |= {"s": f"rank {rank}", "n": {"b": _array(rank, 2), "t": [f"row {rank} {i}" * 300 for i in range(2)]}}
    td = TensorDict(source, batch_size=[2])
    if "torch" in kind:
        td = td.torch()
    Path(folder).mkdir(parents=True, exist_ok=True)
    if "memmap" in kind:
        td = td.memmap(Path(folder) / "memmap")
    return td.to_h5(Path(folder) / "file.h5") if kind == "hdf5" else td


def plain(td):
    """Return keys, dtypes and values, of lazy stacks member by member."""
    if isinstance(td, LazyStackedTensorDict):
        return [td.stack_dim, *map(plain, td.tensordicts)]
    if isinstance(td, TensorDict):
        return {key: plain(td.get(key)) for key in sorted(td.keys())}
    if isinstance(td, corral.TensorDictBase):
        return td.tolist()
    array = np.asarray(td)
    return str(array.dtype), array.tolist()


@contextlib.contextmanager
def place():
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def in_place(td, use):
    """Assert that an operation writes into the memory or the file that a TensorDict has."""
    file = isinstance(td, PersistentTensorDict)
    leaves = [] if file else list(td._leaves())
    values = [np.asarray(leaf) for leaf in leaves]
    use()
    assert all(one is other for one, other in zip(leaves, [] if file else td._leaves(), strict=True))
    for leaf, value in zip(leaves, values, strict=True):
        assert np.shares_memory(np.asarray(leaf), value) or not value.size


def expected(kind, rank, folder):
    with place() as other:
        found = make(kind, rank, other)
        result = plain(found)
        if kind == "hdf5":
            found.close()
    return result


def in_file(td, kind, folder):
    """Return what another one who opens the file finds there."""
    if "memmap" in kind:
        return plain(TensorDict.load(Path(folder) / "memmap"))
    if kind == "hdf5":
        td.close()
        td = PersistentTensorDict(filename=Path(folder) / "file.h5", batch_size=[2])
    return plain(td)


def _point_to_point(rank, size, kind):
    with place() as folder:
        td = make(kind, rank, folder)
        if rank == 0:
            td.send(1)
            td.isend(1)
            work = td.isend(1, return_early=True, init_tag=5)
            td.init_remote(2)
            work[0].wait()
        elif rank == 1:
            for receive in (td.recv, td.irecv):
                in_place(td, lambda receive=receive: receive(0))
                assert plain(td) == expected(kind, 0, folder)
                td.update_(make("dense" if kind == "hdf5" else kind, 7, f"{folder}/other"))
            works = td.irecv(0, return_premature=True, init_tag=5)
            for work in works:
                work.wait()
            assert in_file(td, kind, folder) == expected(kind, 0, folder)
        else:
            arrived = type(td).from_remote_init(0)
            assert plain(arrived) == expected(kind, 0, folder)
            assert isinstance(arrived, LazyStackedTensorDict) == isinstance(td, LazyStackedTensorDict)
            assert arrived.batch_size == td.batch_size


@pytest.mark.parametrize("kind", KINDS)
def test_point_to_point(fleet, kind):
    fleet(_point_to_point, kind)


def _from_one(rank, size, kind):
    with place() as folder:
        td = make(kind, rank, folder)
        assert plain(td.broadcast(2)) == expected(kind, 2, folder)
        tds = [make(kind, i + 5, f"{folder}/{i}") for i in range(size)] if rank == 1 and kind != "hdf5" else None
        if kind == "hdf5":
            tds = [make("dense", i + 5, folder) for i in range(size)] if rank == 1 else None
        arrived = td.scatter(1, tds)
        assert plain(arrived) == expected(kind, rank + 5, folder)
        in_place(td, lambda: td.broadcast(2, inplace=True))
        assert plain(td) == expected(kind, 2, folder)
        in_place(td, lambda: td.scatter(1, tds, inplace=True))
        assert in_file(td, kind, folder) == expected(kind, rank + 5, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_from_one_to_all(fleet, kind):
    fleet(_from_one, kind)


def _to_all(rank, size, kind):
    with place() as folder:
        td = make(kind, rank, folder)
        everyone = [expected(kind, i, folder) for i in range(size)]
        assert [plain(each) for each in td.all_gather()] == everyone
        for found in (td.gather(1), corral.gather(td, 1)):
            assert found is None if rank != 1 else [plain(each) for each in found] == everyone
        assert [plain(each) for each in corral.all_to_all([td] * size)] == everyone


@pytest.mark.parametrize("kind", KINDS)
def test_to_all(fleet, kind):
    fleet(_to_all, kind)


def _reductions(rank, size, kind):
    def total(of):
        return {
            path: sum(np.asarray(leaf, "f8") for leaf in leaves)
            for path, leaves in ((path, [dict(each)[path] for each in of]) for path, _ in of[0])
        }

    def leaves(td):
        return [(path, np.asarray(holder._source[key])) for path, holder, key, objects in td._slots() if not objects]

    with place() as folder:
        mine = [make(kind if kind != "hdf5" else "dense", i, f"{folder}/{i}") for i in range(size)]
        wanted = total([leaves(each) for each in mine])
        for name in ("all_reduce", "reduce"):
            td = make(kind, rank, f"{folder}/{name}")
            before = {path: leaf.copy() for path, leaf in leaves(td)}
            in_place(td, lambda td=td, name=name: getattr(td, name)(**({"dst": 1} if name == "reduce" else {})))
            for path, leaf in leaves(td):
                there = wanted[path] if name == "all_reduce" or rank == 1 else before[path]
                np.testing.assert_array_equal(leaf, there)
            if kind == "objects":
                assert td["s"] == f"rank {rank}"


@pytest.mark.parametrize("kind", KINDS)
def test_reductions(fleet, kind):
    fleet(_reductions, kind)
