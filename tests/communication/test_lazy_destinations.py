"""`gather_and_stack` into lazy stacks of lazy stacks, and into what has lazy stacks inside: every member is written."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from fleet import Fleet

import corral
import corral.distributed as dist
from corral import TensorClass, TensorDict, lazy_stack, stack
from corral.arrays.operations import stack as stack_arrays

SIZE = 3


class Step(TensorClass):
    obs: np.ndarray
    reward: np.ndarray


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(SIZE)
    yield ranks
    ranks.close()


def _plain(full, value):
    return TensorDict(a=full((3,), value), n={"b": full((1, 2), value + 100), "c": full((), value + 200)})


def _of_batch(full, value):
    return TensorDict(a=full((4, 3), value), n={"b": full((4,), value + 100)}, batch_size=[4])


def _with_objects(full, value):
    return TensorDict(a=full((3,), value), note=f"note {value}")


def _step(full, value):
    return Step(obs=full((3,), value), reward=full((), value + 100))


def _pair(make, dim=0):
    return lambda full, value: lazy_stack([make(full, value + 10 * i) for i in range(2)], dim)


def _inside(make):
    return lambda full, value: TensorDict(lazy=_pair(make)(full, value), q=full((2,), value), batch_size=[2])


def _dense(make):
    return lambda full, value: make(full, value).to_tensordict()


ROWS = {
    "dense": _plain,
    "objects": _with_objects,
    "tensorclass": _step,
    "lazy": _pair(_plain),
    "lazy along dimension 1": _pair(_of_batch, 1),
    "lazy of objects": _pair(_with_objects),
    "lazy of tensorclasses": _pair(_step),
    "lazy of lazy": _pair(_pair(_plain)),
    "lazy of lazy along dimension 1": _pair(_pair(_of_batch, 1), 1),
    "lazy inside": _inside(_plain),
    "lazy of lazy inside": _inside(_pair(_plain)),
    "lazy tensorclasses inside": _inside(_step),
    "lazy of dense with lazy inside": _pair(_inside(_plain)),
    "dict": lambda full, value: {"x": _pair(_plain)(full, value), "y": full((2,), value)},
}


def _full(library):
    if library == "numpy":
        return np.full
    import torch

    return lambda shape, value: torch.full(shape, float(value))


def _arrays(td):
    if isinstance(td, dict):
        return [array for each in td.values() for array in (_arrays(each) if hasattr(each, "items") else [each])]
    return list(td._leaves())


def _flat(td):
    """Every leaf that members hold, by what leads to it."""
    if getattr(td, "_holds_objects", False):
        return {(): td.tolist()}
    members = getattr(td, "tensordicts", None)
    if members is None and not hasattr(td, "items"):
        return {(): td.tolist() if hasattr(td, "tolist") else td}
    pairs = enumerate(members) if members is not None else td.items()
    return {(key, *path): leaf for key, value in pairs for path, leaf in _flat(value).items()}


def _gathers(rank, size, name, library, joined, sends):
    full, make = _full(library), ROWS[name]
    if rank:
        row = make(full, rank)
        assert corral.gather_and_stack(_densely(row) if sends == "dense" else row, 0) is None
        return
    rows, expected = ([make(full, value) for value in values] for values in ((-1, -2), (1, 2)))
    join = {"lazily": lazy_stack, "densely": stack}[joined]

    def joins(rows):
        if isinstance(rows[0], dict):
            return {"x": join([row["x"] for row in rows]), "y": stack_arrays([row["y"] for row in rows], 0)}
        return join(rows)

    td, wanted = joins(rows), joins(expected)
    before = _arrays(td)
    assert corral.gather_and_stack(td, 0) is td
    assert _flat(td) == _flat(wanted)
    after = _arrays(td)
    assert len(before) == len(after)
    assert all(one is other for one, other in zip(before, after, strict=True))


def _densely(td):
    if isinstance(td, dict):
        return {key: _densely(value) for key, value in td.items()}
    return td.to_tensordict() if hasattr(td, "to_tensordict") else td


@pytest.mark.parametrize("joined", ["lazily", "densely"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", ROWS)
def test_every_member_holds_what_was_sent(fleet, name, library, joined):
    fleet(_gathers, name, library, joined, "as it is")


@pytest.mark.parametrize("name", ["lazy", "lazy of lazy", "lazy inside", "lazy along dimension 1", "dict"])
def test_dense_rows_go_to_the_members_of_lazy_ones(fleet, name):
    fleet(_gathers, name, "numpy", "lazily", "dense")


def _mapped(rank, size):
    if rank:
        _pair(_plain)(np.full, rank).gather_and_stack(0)
        return
    with tempfile.TemporaryDirectory() as folder:
        td = lazy_stack([_pair(_plain)(np.full, -1) for _ in range(2)]).memmap(folder)
        td.gather_and_stack(0)
        wanted = _flat(lazy_stack([_pair(_plain)(np.full, value) for value in (1, 2)]))
        assert _flat(td) == wanted
        assert _flat(TensorDict.load_memmap(folder)) == wanted


def test_members_in_mapped_files_are_written(fleet):
    fleet(_mapped)


def _new_keys(rank, size):
    td = lazy_stack([TensorDict(a=np.full(3, rank), z=np.full(1, rank)) for _ in range(2)])
    if rank == 0:
        td = lazy_stack([lazy_stack([TensorDict(a=np.zeros(2)), TensorDict(a=np.zeros(3, "f4"))]) for _ in range(2)])
    td.gather_and_stack(0)
    if rank == 0:
        assert [[m["a"].tolist() for m in row.tensordicts] for row in td.tensordicts] == [[[i] * 3] * 2 for i in (1, 2)]
        assert td["z"].tolist() == [[[1], [1]], [[2], [2]]]


def test_members_get_new_keys_and_other_shapes(fleet):
    fleet(_new_keys)


def _misfits(rank, size):
    row = TensorDict(l=lazy_stack([TensorDict(a=np.zeros(4)) for _ in range(2)]), batch_size=[2])
    for rows, pattern in (
        (3, r"'l' has|lazy stack 'l'.*first dimension must be 2|must be 2, a row for each other rank"),
        (2, r"\('l', 'a'\) has shape \(2, 4\) on rank 1, of which a member of the lazy stack 'l' on rank 0 would get"),
    ):
        members = [TensorDict(a=np.zeros((rows, 3)), batch_size=[rows]) for _ in range(2)]
        tree = row if rank else {"l": lazy_stack(members, 1)}
        with pytest.raises(corral.MismatchError, match=pattern):
            corral.gather_and_stack(tree if rank == 0 else {"l": row["l"]}, 0)
    dist.barrier()


def test_what_does_not_fit_a_lazy_stack_inside_is_an_error_on_all_ranks(fleet):
    fleet(_misfits)
