"""TensorDicts in files are sent, gathered and received into like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run

from corral import PersistentTensorDict, TensorDict, gather


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
