"""torch.vmap over a dimension of the batch: of dense TensorDicts, nested ones and lazy stacks."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import corral
from corral import NonTensorData, NonTensorStack, TensorDict
from corral.tensordict import DimensionError
from tests.tensordict.test_lazy_methods import form, values
from tests.tensordict.test_lazy_rows import container, stack

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensordict


def dense(library: Any) -> Any:
    nested = library.TensorDict({"c": values(100, 2, 3, 2)}, batch_size=[2, 3, 2])
    return library.TensorDict({"a": values(0, 2, 3, 4), "n": nested}, batch_size=[2, 3], names=["x", "y"])


def within(library: Any) -> Any:
    return library.TensorDict({"l": stack(library, 1, True), "a": values(0, 2, 2)}, batch_size=[2])


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "the same": lambda row: row,
    "arithmetic": lambda row: row + 1,
    "apply": lambda row: row.apply(lambda x: x * 2),
    "a tensor": lambda row: row.get("a").sum(),
    "several": lambda row: (row, row.get("a") * 2, {"again": row * 3}),
    "a new dimension": lambda row: row.unsqueeze(0),
    "sizes": lambda row: row.get("a") * (10 * len(row.batch_size) + len(row.get("n").batch_size)),
}


def outcome(make: Callable[[Any], Any], library: Any, function: Any, in_dims: Any, out_dims: Any) -> Any:
    found = torch.vmap(function, in_dims, out_dims)(make(library))
    parts = torch.utils._pytree.tree_flatten(found, is_leaf=lambda x: hasattr(x, "batch_size"))[0]
    return [(form(part), container(part)) if hasattr(part, "batch_size") else form(part) for part in parts]


@pytest.mark.parametrize("in_dims", [0, 1, -1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_dense(name: str, in_dims: int) -> None:
    mine = outcome(dense, corral, FUNCTIONS[name], in_dims, 0)
    # tensordict takes negative dimensions for those of the leaves
    assert mine == outcome(dense, tensordict, FUNCTIONS[name], in_dims % 2, 0)


@pytest.mark.parametrize(("dim", "ragged"), [(0, False), (1, False), (0, True), (1, True)])
@pytest.mark.parametrize("out_dims", [0, 1])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("a tensor", "several", "sizes")])
def test_lazy_along_the_members(name: str, out_dims: int, dim: int, ragged: bool) -> None:
    def make(library: Any) -> Any:
        return stack(library, dim, ragged)

    found = [outcome(make, library, FUNCTIONS[name], 1 - dim, out_dims) for library in (corral, tensordict)]
    assert found[0] == found[1]
    assert outcome(make, corral, FUNCTIONS[name], -1 - dim, out_dims) == found[0]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("out_dims", [0, 1, -1])
@pytest.mark.parametrize("name", ["the same", "arithmetic", "apply", "a tensor", "several", "sizes"])
def test_lazy_along_the_stack(name: str, out_dims: int, dim: int) -> None:
    """tensordict gives each row all of the stack; what a row is, its dense copy says."""
    td = stack(corral, dim, False)
    out = 0 if name == "a tensor" else out_dims
    found, wanted = (torch.vmap(FUNCTIONS[name], dim, out)(each) for each in (td, td.to_tensordict()))
    assert form(found) == form(wanted)


@pytest.mark.parametrize("name", ["the same", "arithmetic"])
def test_lazy_within(name: str) -> None:
    found = [outcome(within, library, FUNCTIONS[name], 0, 0) for library in (corral, tensordict)]
    assert found[0] == found[1]


def test_members_that_differ_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"vmap: along the stack dimension 0.*'a'"):
        torch.vmap(lambda row: row)(stack(corral, 0, True))


def test_rows_have_the_names_that_are_left() -> None:
    seen = []

    def function(row: Any) -> Any:
        seen.append((row.names, tuple(row.batch_size), tuple(row["n"].batch_size), tuple(row["a"].shape)))
        return row

    found = torch.vmap(function, 1, 1)(dense(corral))
    assert seen == [(["x"], (2,), (2, 2), (2, 4))]
    assert found.names == ["x", None]


def test_arguments_that_are_not_mapped() -> None:
    td, factor = dense(corral), torch.tensor([1.0, 2.0])
    found = torch.vmap(lambda row, by, whole, more=0: (row * by + whole["a"].sum() * 0, whole["a"]), (0, 0, None))(
        td, factor, td, more=1
    )
    assert found[0]["a"].tolist() == [td[0]["a"].tolist(), (td[1]["a"] * 2).tolist()]
    assert found[1].shape == (2, 2, 3, 4)
    nested = torch.vmap(lambda args: args["td"] * args["by"], ({"td": 0, "by": None},))({"td": td, "by": factor[1]})
    assert nested["a"].tolist() == (td["a"] * 2).tolist()


def test_nested_chunked_and_random() -> None:
    td = dense(corral)
    twice = torch.vmap(torch.vmap(lambda row: row + 1))(td)
    assert twice.batch_size == (2, 3)
    assert twice["n", "c"].tolist() == (td["n", "c"] + 1).tolist()
    chunked = torch.vmap(lambda row: row + 1, 1, chunk_size=2)(td)
    assert chunked["a"].tolist() == (td["a"] + 1).movedim(1, 0).tolist()
    noise = torch.vmap(lambda row: row["a"] * 0 + torch.randn(4), randomness="different")(td)
    assert noise.shape == (2, 3, 4)


def test_objects() -> None:
    td = TensorDict(a=torch.zeros(2, 1), s="one", st=NonTensorStack("x", "y"), batch_size=[2])
    found = torch.vmap(lambda row: row.set("t", "new"))(td)
    assert (found["s"], found["st"], found["t"], found.batch_size) == ("one", ["x", "y"], "new", (2,))
    assert found.get("t").batch_size == (2,)
    assert torch.vmap(lambda row: NonTensorData("u"))(td).batch_size == (2,)


def test_dimensions_that_there_are_not() -> None:
    for in_dims, out_dims in ((2, 0), (-3, 0), (0, 2), (0, -3)):
        with pytest.raises(DimensionError, match="vmap"):
            torch.vmap(lambda row: row, in_dims, out_dims)(dense(corral))


def test_tensors_go_the_way_of_torch() -> None:
    made = torch.vmap(lambda x: TensorDict(q=x))(torch.arange(6.0).reshape(3, 2))
    assert made["q"].shape == (3, 2)
    with pytest.raises(ValueError, match="at least one Tensor"):
        torch.vmap(lambda x: x, (None,))(torch.zeros(2))
    assert torch.vmap(lambda x, y: (x, y), (0, None), (0, None))(torch.zeros(2), torch.ones(3))[1].shape == (3,)


OUTPUTS: dict[str, tuple[Any, Any, Any]] = {
    "tuple": (lambda row: (row,), (1,), lambda found: found[0]),
    "last": (lambda row: (row,), (-1,), lambda found: found[0]),
    "dict": (lambda row: {"q": row}, {"q": 1}, lambda found: found["q"]),
    "one for all": (lambda row: [row, row], 1, lambda found: found[1]),
    "one of two": (lambda row: (row["a"], row), (0, 1), lambda found: found[1]),
    "single": (lambda row: row, (1,), lambda found: found),
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("make", [dense, lambda library: stack(library, 1, False)])
def test_dimensions_for_single_outputs(make: Any, name: str) -> None:
    function, out_dims, pick = OUTPUTS[name]
    found, expected = (
        pick(torch.vmap(function, 0, out_dims)(make(corral))),
        torch.vmap(lambda row: row, 0, 1)(make(corral)),
    )
    assert found.batch_size == expected.batch_size
    assert (found == expected).all()
    assert all(leaf.shape == expected[key].shape for key, leaf in found.items(True, True))


def test_outputs_that_are_not_mapped() -> None:
    whole = TensorDict(z=torch.ones(2), batch_size=[2])
    row, same = torch.vmap(lambda row: (row, whole), out_dims=(1, None))(dense(corral))
    assert (row.shape, same.shape, same["z"].tolist()) == ((3, 2), (2,), [1, 1])
    with pytest.raises(ValueError, match="depends on what is mapped over"):
        torch.vmap(lambda row: row, out_dims=None)(dense(corral))
    with pytest.raises(ValueError, match="not compatible"):
        torch.vmap(lambda row: (row, row), out_dims=(0, 0, 0))(dense(corral))


class Holder(NamedTuple):
    td: Any


@pytest.mark.parametrize(
    "hold", [Holder, lambda td: collections.OrderedDict(td=td), lambda td: collections.deque([td])]
)
def test_within_any_container_that_torch_takes_apart(hold: Any) -> None:
    def take(held: Any) -> Any:
        (td,) = held.values() if isinstance(held, dict) else held
        return td["a"]

    for td in (dense(corral), stack(corral, 0, False), stack(corral, 1, False)):
        assert torch.equal(torch.vmap(take, -1)(hold(td)), torch.vmap(lambda row: row["a"], -1)(td))
