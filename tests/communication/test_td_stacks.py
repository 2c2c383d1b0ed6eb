"""`gather_and_stack` into every class of TensorDict, and the faults that users of other systems reported of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from fleet import Fleet

import corral
import corral.distributed as dist
from corral import NonTensorStack, PersistentTensorDict, TensorDict, lazy_stack
from corral.wire.errors import PickleError

pytest.importorskip("h5py")
SIZE = 3


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(SIZE)
    yield ranks
    ranks.close()


def _row(rank, **more):
    return TensorDict(a=np.arange(4) + 10 * rank, b={"c": np.arange(6.0).reshape(2, 3) * rank}, **more)


def _empty():
    return TensorDict(a=np.full((2, 4), -1), b={"c": np.full((2, 2, 3), -1.0)}, batch_size=[2])


def _is_stacked(td):
    assert td["a"].tolist() == [(np.arange(4) + 10 * rank).tolist() for rank in (1, 2)]
    assert td["b", "c"].tolist() == [(np.arange(6.0).reshape(2, 3) * rank).tolist() for rank in (1, 2)]


def _hdf5(rank, size):
    """Only the rows that come are written, in the file's dtypes; what the file has besides stays unread."""
    with tempfile.TemporaryDirectory() as folder:
        if rank:
            for td in (_row(rank), _row(rank, d=np.full(3, rank)), _row(rank).to_h5(Path(folder) / "row.h5")):
                assert corral.gather_and_stack(td, 0) is None
            return
        td = _empty()
        td["a"] = td["a"].astype("f4")
        td["more"] = np.ones((2, 5))
        td = td.to_h5(Path(folder) / "f.h5", chunks=True)
        reads = []
        td._source.__class__, kept = _watching(td._source.__class__, reads), td._source.__class__
        for _ in range(3):
            assert td.gather_and_stack(0) is td
        assert reads == []
        td._source.__class__ = kept
        td.close()
        td = PersistentTensorDict(filename=Path(folder) / "f.h5", batch_size=[2])
        _is_stacked(td)
        assert td["a"].dtype == np.float32
        assert td["d"].tolist() == [[1] * 3, [2] * 3]
        assert td["more"].tolist() == [[1.0] * 5] * 2
        td.close()


def _watching(kind, reads):
    class Watching(kind):
        def __getitem__(self, key):
            reads.append(key)
            return super().__getitem__(key)

    return Watching


def test_rows_are_written_to_the_file(fleet):
    fleet(_hdf5)


def _hdf5_objects(rank, size):
    with tempfile.TemporaryDirectory() as folder:
        row = TensorDict(a=float(rank), s=f"from {rank}", new=f"key {rank}", n={"s": "q"})
        source = TensorDict(a=np.zeros(2), s="old", st=["p", "q"], n={"s": "inner"}, batch_size=[2])
        td = row if rank else source.to_h5(Path(folder) / "f.h5")
        assert (td.gather_and_stack(0) is td) == (rank == 0)
        if rank == 0:
            assert (td["s"], td["a"].tolist()) == (["from 1", "from 2"], [1, 2])
            assert (td["new"], td["n", "s"], td["st"]) == (["key 1", "key 2"], ["q", "q"], ["p", "q"])
            td.close()
        sent = TensorDict(a=np.zeros(2), s="sent", st=["1", "2"], n={"s": "q"}, batch_size=[2])
        if rank == 0:
            sent.send(1)
        elif rank == 1:
            td = source.to_h5(Path(folder) / "g.h5")
            td.recv(0)
            assert (td["s"], td["st"], td["n", "s"]) == ("sent", ["1", "2"], "q")
            td.close()


def test_objects_are_written_to_the_file(fleet):
    fleet(_hdf5_objects)


def _hdf5_misfits(rank, size):
    with tempfile.TemporaryDirectory() as folder:
        made = _empty().to_h5(Path(folder) / "f.h5") if rank == 0 else None
        for sent, pattern in (
            (_row(rank).set("a", np.zeros(5)), r"'a' has shape \(5,\) on rank 1, but rows of shape \(4,\) on rank 0"),
            (_row(rank).set("s", {rank}), "'s' does not fit the file on rank 0: .* cannot be stored in an HDF5 file"),
            (_row(rank).set("a", "text"), "'a' is an array in the file on rank 0, but a str on rank 1"),
            (_row(rank).set("b", np.zeros(4)), "'b' is a PersistentTensorDict in the file on rank 0"),
            (_row(rank).set("z", np.zeros(4)), r"'z'.*locked"),
        ):
            if made is not None and "locked" in pattern:
                made.lock_()
            with pytest.raises(corral.MismatchError, match=pattern):
                corral.gather_and_stack(sent if made is None else made, 0)
        if made is not None:
            assert made["a"].tolist() == [[-1] * 4] * 2
            made.close()
    dist.barrier()


def test_what_does_not_fit_a_file_is_an_error_on_all_ranks(fleet):
    fleet(_hdf5_misfits)


def _mapped(rank, size, library):
    with tempfile.TemporaryDirectory() as folder:
        td = _row(rank) if rank else _empty()
        td = (td.torch() if library == "torch" else td).memmap(folder)
        assert (td.gather_and_stack(0) is td) == (rank == 0)
        if rank == 0:
            _is_stacked(TensorDict.load(folder))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_rows_are_written_to_mapped_files(fleet, library):
    fleet(_mapped, library)


def _steps(rank, lengths):
    return lazy_stack(
        [TensorDict(x=np.full((n, 2), 10 * rank + n), note=f"{rank}/{n}", batch_size=[n]) for n in lengths]
    )


def _ragged_members(rank, size):
    """12: each element of each stack arrives, whatever its length."""
    td = _steps(rank, [1 + rank, 4 - rank]) if rank else lazy_stack([_steps(0, [2, 3]), _steps(0, [3, 2])])
    assert (td.gather_and_stack(0) is td) == (rank == 0)
    if rank:
        return
    for sender in (1, 2):
        for step, n in zip(td[sender - 1].tensordicts, [1 + sender, 4 - sender], strict=True):
            assert step["x"].tolist() == [[10 * sender + n] * 2] * n
            assert step["note"] == f"{sender}/{n}"


def test_lazy_stacks_of_lazy_stacks(fleet):
    fleet(_ragged_members)


def _columns(rank, size):
    """A lazy stack along another dimension than the rows gets a part of each row into each member."""
    members = [TensorDict(x=np.zeros((2, 3)), batch_size=[2]) for _ in range(2)]
    memory = [member["x"] for member in members]
    td = TensorDict(x=np.arange(6.0).reshape(2, 3) * rank, y=np.array([rank, -rank]), batch_size=[2])
    if rank == 0:
        td = lazy_stack(members, 1)
    assert (td.gather_and_stack(0) is td) == (rank == 0)
    if rank == 0:
        assert td["x"].tolist() == [(np.arange(6.0).reshape(2, 3) * rank).tolist() for rank in (1, 2)]
        assert memory[1].tolist() == [[3.0, 4.0, 5.0], [6.0, 8.0, 10.0]]
        assert members[1]["y"].tolist() == [-1, -2]
    wrong = TensorDict(x=np.zeros((2, 4)), batch_size=[2])
    with pytest.raises(corral.MismatchError, match=r"'x' has shape \(2, 4\) on rank 1.*would get \(2, 4\).*\(2, 3\)"):
        corral.gather_and_stack(wrong if rank else td, 0)


def test_lazy_stacks_along_another_dimension(fleet):
    fleet(_columns)


def _variable(rank, size):
    """17: rows of different length go to a lazy stack; elsewhere, the error names key, ranks and shapes."""
    row = TensorDict(x=np.full((rank, 2), rank), same=np.zeros(3))
    lazy = lazy_stack([TensorDict(), TensorDict()])
    found = corral.gather_and_stack(row if rank else lazy, 0)
    assert rank or [x.shape for x in found.get("x", as_list=True)] == [(1, 2), (2, 2)]
    for there in (TensorDict(x=np.zeros((2, 1, 2)), batch_size=[2]), None):
        with pytest.raises(corral.MismatchError, match=r"'x' has shape \(2, 2\) on rank 2, but \(1, 2\) on rank 1"):
            corral.gather_and_stack(row if rank else there, 0)
    ragged = _steps(rank, [1, 2]) if rank else lazy_stack([TensorDict(x=np.zeros((3, 2)), batch_size=[3])] * 2)
    with pytest.raises(corral.MismatchError, match=r"rank 1 sends a lazy stack.*'x' has shapes \(1, 2\) and \(2, 2\)"):
        corral.gather_and_stack(ragged, 0)
    with pytest.raises(corral.MismatchError, match=r"lazy stack.*'x'.*\(1, 2\).*\(2, 2\)"):
        corral.gather_and_stack(ragged if rank else TensorDict(x=np.zeros((2, 2, 1, 2)), batch_size=[2, 2]), 0)
    assert [len(each) for each in corral.all_gather(row["x"])] == [0, 1, 2]


def test_rows_of_different_length(fleet):  # 17
    fleet(_variable)


def _structures(rank, size):
    """14 and 13: senders of different structure where the result is a list, or the destination lazy."""
    td = TensorDict({f"key {rank}": np.full(rank + 1, rank)})
    for tds in (td.all_gather(), corral.all_gather(td)):
        assert [list(each.keys()) for each in tds] == [["key 0"], ["key 1"], ["key 2"]]
    lazy = lazy_stack([TensorDict(), TensorDict()])
    found = (td if rank else lazy).gather_and_stack(0)
    assert rank or [list(each.keys()) for each in found.tensordicts] == [["key 1"], ["key 2"]]


def test_senders_of_different_structure(fleet):
    fleet(_structures)


def _objects(rank, size):
    """16: what is no array is kept, row by row, in every class that can hold it."""
    row = TensorDict(x=np.full(2, rank), name=f"rank {rank}", tags=[f"{rank}.{i}" for i in range(2)], batch_size=[2])
    stack = corral.stack([row, row]).lock_()
    names = stack.get("name")
    columns = corral.LazyStackedTensorDict(*corral.stack([row, row]).unbind(1), stack_dim=1)
    for there in (stack, lazy_stack([row.clone(), row.clone()]), columns, None):
        td = corral.gather_and_stack(row if rank else there, 0)
        assert rank == 0 or td is None
        if rank == 0:
            assert [td[i].get("name").tolist() for i in range(2)] == [["rank 1"] * 2, ["rank 2"] * 2]
            assert td["tags"] == [["1.0", "1.1"], ["2.0", "2.1"]]
    assert stack.get("name") is names
    assert isinstance(names, (NonTensorStack, corral.NonTensorData))
    with dist_without_pickle() as group:
        bad = TensorDict(x=np.zeros(2), name=object() if rank == 1 else "fine", batch_size=[2])
        with pytest.raises(PickleError, match="object"):
            corral.gather_and_stack(bad if rank else stack, 0, group)
        if rank == 1:
            with pytest.raises(PickleError, match="object"):
                bad.send(2, group=group)
        elif rank == 2:
            with pytest.raises(corral.MismatchError, match="rank 1 could not send its TensorDict"):
                row.recv(1, group=group)


class dist_without_pickle:
    def __enter__(self):
        self.group = dist.new_group(allow_pickle=False)
        return self.group

    def __exit__(self, *_):
        dist.destroy_process_group(self.group)


def test_objects_keep_their_rows(fleet):  # 16
    fleet(_objects)
