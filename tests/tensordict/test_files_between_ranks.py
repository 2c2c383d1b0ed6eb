"""TensorDicts in files are sent, gathered and received into like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist
from corral import MismatchError, PersistentTensorDict, TensorDict, gather


def rows(rank: int) -> TensorDict:
    return TensorDict(a=np.arange(4) + 10 * rank, b={"c": np.arange(6.0).reshape(2, 3) * rank}, batch_size=[])


def _gather(rank: int, size: int, folder: str, form: str) -> Any:
    path = Path(folder) / str(rank)
    td = TensorDict(a=np.zeros((size - 1, 4)), b={"c": np.zeros((size - 1, 2, 3))}, batch_size=[size - 1])
    if rank:
        td = rows(rank)
    td = td.memmap(path) if form == "memmap" else td.to_h5(path)
    everything = gather(td, 0)
    result = td.gather_and_stack(0)
    assert (result is td) == (rank == 0)
    if rank:
        return None
    assert everything[1]["a"].tolist() == rows(1)["a"].tolist()
    if form == "hdf5":
        td.close()
        td = PersistentTensorDict(filename=path, batch_size=[size - 1])
    else:
        td = TensorDict.load(path)
    return td["a"].tolist(), td["b", "c"].tolist()


@pytest.mark.parametrize("form", ["memmap", "hdf5"])
def test_gather_and_stack_writes_into_the_files(tmp_path: Path, form: str) -> None:
    if form == "hdf5":
        pytest.importorskip("h5py")
    found = run(_gather, 3, str(tmp_path), form)[0]
    assert found[0] == [rows(rank)["a"].tolist() for rank in (1, 2)]
    assert found[1] == [rows(rank)["b", "c"].tolist() for rank in (1, 2)]


def _gather_into_a_closed_file(rank: int, size: int, path: str) -> str:
    if rank == 0:
        TensorDict(a=np.zeros((size - 1, 2)), b=np.zeros((size - 1, 2)), batch_size=[size - 1]).to_h5(path).close()
    td = TensorDict.from_h5(path) if rank == 0 else TensorDict(a=np.full(2, rank), b=np.full(2, rank))
    with pytest.raises(MismatchError, match=r"in a file on rank 0 that is open for reading only: open it with"):
        td.gather_and_stack(dst=0)
    dist.barrier()
    if rank:
        return ""
    found = float(np.sum(td["a"]))
    td.close()
    return str(found)


def test_a_file_for_reading_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    assert run(_gather_into_a_closed_file, 3, str(tmp_path / "x.h5"))[0] == "0.0"
