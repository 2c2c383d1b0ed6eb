"""Methods that move, repeat, cut, pad and select the batch: the same calls on corral's TensorDict and tensordict's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corral import TensorDict
from corral.arrays import library_of
from tests.tensordict.comparing import batches, compare, made_of, outcome, specs

dims = st.integers(-4, 4)
NUMBERS = ("float32", "int64", "float64", "int16")


def table(functions: dict[str, Callable[..., Any]]) -> Any:
    return pytest.mark.parametrize("function", functions.values(), ids=functions.keys())


def _zeros(leaf: Any) -> Any:
    """Return zeros in the place of what is not set: anything, also what is not a number."""
    return leaf.zero_() if library_of(leaf) == "torch" else np.zeros_like(leaf)


MOVES = {
    "movedim": lambda td, i, j, n: td.movedim(i, j),
    "movedim several": lambda td, i, j, n: td.movedim((i, j), (j, i)),
    "movedim unlike": lambda td, i, j, n: td.movedim((i, j), i),
    "moveaxis": lambda td, i, j, n: td.moveaxis(i, j),
    "swapaxes": lambda td, i, j, n: td.swapaxes(i, j),
    "swapdims": lambda td, i, j, n: td.swapdims(i, j),
    "flip": lambda td, i, j, n: td.flip(i),
    "flip several": lambda td, i, j, n: td.flip((i, j)),
    "fliplr": lambda td, i, j, n: td.fliplr(),
    "flipud": lambda td, i, j, n: td.flipud(),
    "roll": lambda td, i, j, n: td.roll(j, i),
    "roll several": lambda td, i, j, n: td.roll((2, j), (i, j)),
    "roll unlike": lambda td, i, j, n: td.roll((2, j), i),
    "roll all": lambda td, i, j, n: td.roll(j),
    "roll in place": lambda td, i, j, n: td.roll(j, i, inplace=True),
    "rot90": lambda td, i, j, n: td.rot90(j),
    "rot90 dims": lambda td, i, j, n: td.rot90(3, (i, j)),
    "repeat": lambda td, i, j, n: td.repeat(*n),
    "repeat list": lambda td, i, j, n: td.repeat(n),
    "repeat tensor": lambda td, i, j, n: td.repeat(torch.tensor(n, dtype=torch.int64)),
    "repeat in place": lambda td, i, j, n: td.repeat(*n, inplace=True),
    "repeat_interleave": lambda td, i, j, n: td.repeat_interleave(abs(j), dim=i),
    "repeat_interleave all": lambda td, i, j, n: td.repeat_interleave(2),
    "repeat_interleave in place": lambda td, i, j, n: td.repeat_interleave(2, dim=i, inplace=True),
    "repeat_interleave each": lambda td, i, j, n: td.repeat_interleave(
        torch.arange(td.shape[i] if td.ndim else 1), dim=i
    ),
    "repeat_interleave wrong": lambda td, i, j, n: td.repeat_interleave(torch.tensor([1] * 7), dim=i),
    "tile": lambda td, i, j, n: td.tile(tuple(n)),
    "tile int": lambda td, i, j, n: td.tile(2),
    "tile more": lambda td, i, j, n: td.tile((2, 1, 2, 1)),
    "tensor_split": lambda td, i, j, n: td.tensor_split(j, i),
    "tensor_split indices": lambda td, i, j, n: td.tensor_split(n, i),
    "tensor_split tensor": lambda td, i, j, n: td.tensor_split(torch.tensor(n, dtype=torch.int64), i),
    "narrow": lambda td, i, j, n: td.narrow(i, j, 1),
    "narrow more": lambda td, i, j, n: td.narrow(i, 0, abs(j)),
    "broadcast_to": lambda td, i, j, n: td.broadcast_to((*n, *td.shape)),
    "broadcast_to others": lambda td, i, j, n: td.broadcast_to(n),
    "expand_as": lambda td, i, j, n: td.expand_as(torch.zeros(2, *td.shape)),
    "atleast": lambda td, i, j, n: [td.atleast_1d(), td.atleast_2d(), td.atleast_3d()],
    "reshape in place": lambda td, i, j, n: td.reshape(-1, inplace=True),
    "flatten in place": lambda td, i, j, n: td.flatten(0, -1, inplace=True),
    "unflatten in place": lambda td, i, j, n: td.unflatten(i, (1, -1), inplace=True),
    "torch": lambda td, i, j, n: [
        torch.movedim(td, i, j),
        torch.flip(td, (i,)),
        torch.roll(td, j, i),
        torch.tile(td, (2,)),
        torch.narrow(td, i, 0, 1),
        torch.swapaxes(td, i, j),
        torch.broadcast_to(td, (2, *td.shape)),
        *torch.tensor_split(td, 2, i),
    ],
    "new_zeros": lambda td, i, j, n: td.new_zeros(*n),
    "new_zeros list": lambda td, i, j, n: td.new_zeros(n),
    "new_ones": lambda td, i, j, n: td.new_ones(*n, dtype=torch.float64),
    "new_full": lambda td, i, j, n: td.new_full(n, 7),
    "new_empty": lambda td, i, j, n: td.new_empty(*n).apply(_zeros, filter_empty=False),
}


@table(MOVES)
@settings(max_examples=25, deadline=None)
@given(specs(dtypes=NUMBERS, min_size=1), batches(), st.data())
def test_moves(function: Any, spec: Any, batch: Any, data: Any) -> None:
    some = st.integers(-len(batch), max(0, len(batch) - 1)) | dims
    i, j = data.draw(some), data.draw(some)
    sizes = st.lists(st.integers(0, 3), min_size=len(batch), max_size=len(batch)) | st.lists(
        st.integers(-1, 3), min_size=1, max_size=3
    )
    n = data.draw(sizes)
    if "repeat_interleave" in function.__code__.co_names:  # where tensordict takes dimensions that do not exist
        i = i % max(1, len(batch)) if data.draw(st.booleans()) else -9
    if function.__code__.co_names[0] == "repeat" and not batch:  # where tensordict fails
        return
    compare(lambda td: function(td, i, j, n), spec, batch)
    compare(lambda td: function(td.lock_(), i, j, n), spec, batch)


@settings(max_examples=60, deadline=None)
@given(specs(dtypes=NUMBERS), batches(min_dims=1), st.data())
def test_gather(spec: Any, batch: Any, data: Any) -> None:
    dim = data.draw(st.integers(-len(batch), len(batch) - 1))
    shape = [data.draw(st.integers(0, n)) for n in batch]
    shape[dim] = data.draw(st.integers(0, 4))
    length = batch[dim]
    index = torch.from_numpy(np.random.default_rng(0).integers(0, max(1, length), shape))
    if not length and index.numel():
        return
    compare(lambda td: td.gather(dim, index), spec, batch)
    compare(lambda td: torch.gather(td, dim, index), spec, batch)
    compare(lambda td: td.gather(dim, index, inplace=True), spec, batch)
    compare(lambda td: td.gather(dim, index, out=td.gather(dim, index).apply(lambda x: x * 0)), spec, batch)


def test_gather_of_indices_that_do_not_exist() -> None:
    td = TensorDict(a=np.arange(6).reshape(2, 3), batch_size=[2, 3])
    for index in ([[2]], [[-1]]):
        with pytest.raises(RuntimeError, match="index out of bounds"):
            td.gather(0, np.array(index))
    with pytest.raises(RuntimeError, match="larger than"):
        td.gather(0, np.zeros((1, 4), np.int64))
    with pytest.raises(RuntimeError, match="along dim 2"):
        td.gather(2, np.zeros((1, 3), np.int64))
    with pytest.raises(RuntimeError, match="Expected an integer array"):
        td.gather(0, np.zeros((1, 3)))


@settings(max_examples=60, deadline=None)
@given(specs(), batches(min_dims=1), st.data())
def test_masked_select(spec: Any, batch: Any, data: Any) -> None:
    count = data.draw(st.integers(1, len(batch)))
    mask = torch.from_numpy(np.random.default_rng(data.draw(st.integers(0, 99))).random(batch[:count]) < 0.5)
    compare(lambda td: td.masked_select(mask), spec, batch)
    compare(lambda td: td.masked_select(mask[..., None] if mask.ndim == td.ndim else mask), spec, batch)
    compare(lambda td: td.masked_select(mask, inplace=mask.ndim == 1), spec, batch)
    compare(lambda td: torch.masked_select(td, mask), spec, batch)


@settings(max_examples=60, deadline=None)
@given(specs(dtypes=NUMBERS), batches(), st.data())
def test_pad(spec: Any, batch: Any, data: Any) -> None:
    widths = data.draw(st.lists(st.integers(0, 2), max_size=2 * len(batch) + 1))
    compare(lambda td: td.pad(widths, value=3), spec, batch)
    compare(lambda td: td.pad(widths, inplace=True), spec, batch)


@settings(max_examples=40, deadline=None)
@given(specs(dtypes=NUMBERS, min_size=1), st.lists(st.integers(0, 3), min_size=1, max_size=3), st.data())
def test_pad_sequence(spec: Any, lengths: Any, data: Any) -> None:
    from tensordict import pad_sequence as theirs

    from corral.tensordict import pad_sequence as mine
    from tests.tensordict.comparing import build

    side = data.draw(st.sampled_from(["left", "right"]))
    mask = data.draw(st.sampled_from([False, True, "m", ("m", "n")]))
    more = data.draw(st.sampled_from([(), (2,)]))

    def padded(td: Any) -> Any:
        function = mine if isinstance(td, TensorDict) else theirs
        tds = [build(spec, (n, *more), type(td), made_of[-1]) for n in lengths]
        return function(tds, padding_value=5, return_mask=mask, padding_side=side)

    compare(padded, spec, (1,))


def test_pad_sequence_along_other_dimensions_and_into_another() -> None:
    from corral.tensordict import pad_sequence

    tds = [TensorDict(a=np.full((2, n), n), batch_size=[2]) for n in (1, 3)]
    result = pad_sequence(tds, 1, {"a": -1})
    assert result.batch_size == (2, 2)
    assert result["a"].tolist() == [[[1, -1, -1]] * 2, [[3, 3, 3]] * 2]
    out = result.new_zeros(2, 2)
    memory = out["a"]
    assert pad_sequence(tds, -1, 0, out) is out
    assert out["a"] is memory
    assert memory[0].tolist() == [[1, 0, 0]] * 2
    with pytest.raises(KeyError, match="name no entry"):
        pad_sequence(tds, 1, {"b": 0})
    with pytest.raises(ValueError, match="padding_side"):
        pad_sequence(tds, padding_side="top")
    with pytest.raises(RuntimeError, match="cannot be empty"):
        pad_sequence([])
    with pytest.raises(IndexError, match="out of range for the entry 'a'"):
        pad_sequence(tds, 2)


@pytest.mark.parametrize("dtype", ["float64", "int16", "uint8", "float32"])
@pytest.mark.parametrize("leaf", [np.asarray, torch.from_numpy])
def test_views_as_other_dtypes(dtype: str, leaf: Any) -> None:
    import tensordict

    values = np.arange(24, dtype="float32").reshape(2, 3, 4)
    td = TensorDict(a=leaf(values), n={"b": leaf(values * 2)}, batch_size=[2])
    theirs = tensordict.TensorDict(
        {"a": torch.from_numpy(values), "n": {"b": torch.from_numpy(values * 2)}}, batch_size=[2]
    )
    kind = np.dtype(dtype) if leaf is np.asarray else getattr(torch, dtype)
    result = td.view(kind)
    expected = theirs.view(getattr(torch, dtype))
    for key in ("a", ("n", "b")):
        assert np.array_equal(np.asarray(result[key]), expected[key].numpy())
    result["a"][0, 0, 0] = 0
    td["a"][0, 1] = 9
    assert np.array_equal(np.asarray(result["a"]), np.asarray(td["a"]).view(dtype)), "not a view"
    with pytest.raises(RuntimeError):
        TensorDict(a=leaf(np.zeros((2, 3), "int16")), batch_size=[2]).view(kind if kind not in INT16 else INT64[leaf])


INT16 = (np.dtype("int16"), torch.int16, np.dtype("uint8"), torch.uint8)
INT64 = {np.asarray: np.dtype("int64"), torch.from_numpy: torch.int64}


@pytest.mark.parametrize("data", [3, [1, 2], "array", "tensordict"])
def test_new_tensor(data: Any) -> None:
    import tensordict

    def call(kind: Any, leaf: Any) -> Any:
        td = kind({"a": leaf(np.zeros(3, "float32")), "n": {"b": leaf(np.zeros(2, "int64"))}}, batch_size=[])
        given: Any = data
        if data == "array":
            given = leaf(np.arange(6).reshape(2, 3))
        if data == "tensordict":
            given = kind({"a": leaf(np.arange(4)), "n": {"b": leaf(np.ones((4, 2)))}}, batch_size=[4])
        return outcome(lambda td: td.new_tensor(given), td)

    mine, error = call(TensorDict, torch.from_numpy)
    theirs, other = call(tensordict.TensorDict, torch.from_numpy)
    plain, third = call(TensorDict, np.asarray)
    assert (error is None) == (other is None) == (third is None), (error, other, third)
    if error is None:
        for key in ("a", ("n", "b")):
            assert torch.equal(mine[key], theirs[key])
            assert mine[key].dtype == theirs[key].dtype
            assert plain[key].tolist() == theirs[key].tolist()
        assert tuple(mine.batch_size) == tuple(theirs.batch_size) == tuple(plain.batch_size)


def test_jax_leaves_give_the_same_values() -> None:
    jax = pytest.importorskip("jax")
    values = np.arange(12, dtype="float32").reshape(2, 3, 2)
    plain = TensorDict(a=values, n={"b": values + 50}, batch_size=[2, 3])
    td = plain.convert("jax")
    index = np.array([[1, 0, 1]])
    for function in (
        lambda td: td.flip((0, 1)),
        lambda td: td.roll(1, 1),
        lambda td: td.roll(1),
        lambda td: td.rot90(),
        lambda td: td.rot90(2),
        lambda td: td.rot90(3),
        lambda td: td.repeat(2, 1),
        lambda td: td.repeat_interleave(np.array([1, 2]), dim=0),
        lambda td: td.tile((2,)),
        lambda td: td.pad([1, 2, -1, 0], value=4),
        lambda td: td.gather(0, index),
        lambda td: td.masked_select(np.array([False, True])),
        lambda td: td.new_full([2], 3),
        lambda td: td.new_tensor([1, 2]),
        lambda td: td.view(np.dtype("int32")),
        lambda td: td.movedim(0, 1),
        lambda td: td.tensor_split(2, 1)[0],
    ):
        mine, expected = function(td), function(plain)
        assert mine.batch_size == expected.batch_size
        for key in ("a", ("n", "b")):
            assert isinstance(mine[key], jax.Array)
            assert np.array_equal(np.asarray(mine[key]), expected[key])
