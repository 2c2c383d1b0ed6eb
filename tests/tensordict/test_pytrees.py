"""TensorDicts as nodes of other libraries' trees."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import corral
from corral import TensorDict
from tests.tensordict.trees import plain


def example(kind: Any = TensorDict) -> Any:
    return kind(
        {"b": torch.arange(6).reshape(3, 2), "a": {"c": torch.ones(3)}},
        batch_size=[3],
    )


def test_torch() -> None:
    from torch.utils import _pytree as pytree

    mine, theirs = example(), example(tensordict.TensorDict)
    assert plain(pytree.tree_map(lambda x: x + 1, mine)) == plain(pytree.tree_map(lambda x: x + 1, theirs))
    for change in (lambda x: x[0], lambda x: x[None], lambda x: x.sum(), lambda x: x[:, None]):
        one, other = pytree.tree_map(change, mine), pytree.tree_map(change, theirs)
        assert plain(one) == plain(other)
    leaves, spec = pytree.tree_flatten(mine)
    assert len(leaves) == 2
    assert plain(pytree.tree_unflatten(leaves, spec)) == plain(mine)
    assert spec == pytree.tree_structure(mine.clone())
    assert spec == pytree.tree_structure(mine[:2])
    assert spec != pytree.tree_structure(mine.flatten_keys())
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(mine)[0]]
    assert paths == [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(theirs)[0]]


def test_vmap() -> None:
    td = example()
    found = torch.vmap(lambda row: row.apply(lambda x: x * 2))(td)
    assert plain(found["b"]) == plain(td["b"] * 2)
    assert plain(found["a", "c"]) == plain(td["a", "c"] * 2)


def test_optree() -> None:
    optree = pytest.importorskip("optree")
    td = TensorDict(b=np.arange(3), a={"c": np.ones(3)}, batch_size=[3])
    assert plain(optree.tree_map(lambda x: x + 1, td)) == plain(td + 1)
    leaves, spec = optree.tree_flatten({"x": td})
    assert len(leaves) == 2
    assert optree.tree_unflatten(spec, leaves)["x"].batch_size == (3,)
    assert ("x", "a", "c") in optree.tree_paths({"x": td})


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    td = TensorDict(b=jax.numpy.arange(3), a={"c": jax.numpy.ones(3)}, batch_size=[3])
    doubled = jax.jit(lambda tree: jax.tree_util.tree_map(lambda x: x * 2, tree))(td)
    assert isinstance(doubled, TensorDict)
    assert doubled["a", "c"].tolist() == [2, 2, 2]
    assert doubled.batch_size == (3,)
    slopes = jax.grad(lambda tree: (tree["a", "c"] ** 2).sum(), allow_int=True)(td)
    assert slopes["a", "c"].tolist() == [2, 2, 2]


def test_a_library_that_is_loaded_later_is_told() -> None:
    program = (
        "import sys, numpy as np, corral\n"
        "td = corral.TensorDict(a=np.arange(3))\n"
        "assert not {'torch', 'jax', 'optree'} & sys.modules.keys()\n"
        "import optree\n"
        "corral.TensorDict(a=np.arange(3))\n"
        "assert optree.tree_leaves(td)[0].tolist() == [0, 1, 2]\n"
        "import torch\n"
        "corral.TensorDict(a=np.arange(3))\n"
        "assert torch.utils._pytree.tree_leaves(td)[0].tolist() == [0, 1, 2]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def named(kind: Any, names: Any, device: Any = "cpu", zeros: Any = torch.zeros) -> Any:
    inner = kind({"x": zeros((2, 3, 4))}, batch_size=[2, 3, 4], names=[*(names or (None, None)), "depth"])
    return kind({"a": zeros((2, 3)), "n": inner}, batch_size=[2, 3], names=names, device=device)


def facts(td: Any) -> tuple[Any, ...]:
    return td.names, td.device, td["n"].names, td["n"].device, tuple(td.batch_size)


def test_names_and_devices_are_part_of_the_structure() -> None:
    from torch.utils import _pytree as pytree

    mine, theirs = named(TensorDict, ["time", "env"]), named(tensordict.TensorDict, ["time", "env"])
    changes: list[Any] = [lambda x: x + 1, lambda x: x[0], lambda x: x[None], lambda x: x.sum(), lambda x: x[:, None]]
    for change in changes:
        assert facts(pytree.tree_map(change, mine)) == facts(pytree.tree_map(change, theirs))
    for kind in (TensorDict, tensordict.TensorDict):
        one, other = (pytree.tree_structure(named(kind, names)) for names in (["time", "env"], ["x", "y"]))
        assert one != other
        assert one == pytree.tree_structure(named(kind, ["time", "env"]))
    optree = pytest.importorskip("optree")
    assert facts(optree.tree_map(lambda x: x + 1, mine)) == facts(mine)


def test_names_are_part_of_what_jax_has_compiled() -> None:
    jax = pytest.importorskip("jax")
    same = jax.jit(lambda td: td)
    for names in (["time", "env"], None, ["x", "y"]):
        td = named(TensorDict, names, None, jax.numpy.zeros)
        assert facts(same(td)) == facts(td) == facts(jax.tree.map(lambda x: x + 1, td))
    turned = jax.jit(lambda td: td.permute(1, 0))(named(TensorDict, ["time", "env"], None, jax.numpy.zeros))
    assert turned.names == ["env", "time"]


class Step(corral.TensorClass):
    """Its second field may be missing."""

    x: Any
    y: Any = None


class TheirStep(tensordict.TensorClass):
    x: Any
    y: Any = None


def stacks(library: Any, make: Any = torch.tensor) -> dict[str, Any]:
    """Return lazy stacks of all kinds."""
    kind: Any = library.TensorDict
    step: Any = Step if library is corral else TheirStep
    rows = [kind({"b": make([1.0, n]), "a": {"c": make([[n], [n + 1.0]])}}, batch_size=[2]) for n in (3.0, 4.0)]
    return {
        "even": library.lazy_stack([row.clone() for row in rows]),
        "second dimension": library.lazy_stack([row.clone() for row in rows], 1),
        "ragged": library.lazy_stack([kind({"b": make([1.0] * n)}) for n in (2, 3)]),
        "other keys": library.lazy_stack([kind({"b": make([1.0])}), kind({"b": make([2.0]), "c": make([3.0])})]),
        "of stacks": library.lazy_stack([library.lazy_stack(rows), library.lazy_stack(rows)]),
        "of tensorclasses": library.lazy_stack([step(make([1.0])), step(make([2.0]), make([3.0]))]),
        "nested": kind({"in": library.lazy_stack(rows), "z": make([0.0, 1.0])}, batch_size=[2]),
    }


def parts(td: Any) -> Any:
    """Return the members of lazy stacks, and other TensorDicts, in a form that can be compared."""
    members = getattr(td, "tensordicts", None)
    if members is not None:
        return tuple(td.batch_size), td.stack_dim, [parts(member) for member in members]
    if isinstance(td, (corral.TensorDictBase, tensordict.TensorDictBase)) or tensordict.is_tensorclass(td):
        return tuple(td.batch_size), {key: parts(td.get(key)) for key in td.keys()}  # noqa: SIM118
    return plain(td)


@pytest.mark.parametrize("name", stacks(corral))
def test_lazy_stacks_in_torch(name: str) -> None:
    from torch.utils import _pytree as pytree

    mine, theirs = stacks(corral)[name], stacks(tensordict)[name]
    if name == "of tensorclasses":  # which tensordict stacks for that, so that a field of some members is lost
        theirs = tensordict.lazy_stack([td.to_tensordict() for td in theirs.tensordicts])
    assert plain(pytree.tree_leaves(mine)) == plain(pytree.tree_leaves(theirs))
    found, expected = (pytree.tree_map(lambda x: x * 2, td) for td in (mine, theirs))
    assert parts(found) == parts(expected)
    assert type(found) is type(mine)
    paths = [[pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(td)[0]] for td in (mine, theirs)]
    assert paths[0] == paths[1]
    both = pytree.tree_map(lambda x, y: x + y, mine, mine.clone())
    assert parts(both) == parts(found)


@pytest.mark.parametrize("name", stacks(corral))
def test_lazy_stacks_in_jax_and_optree(name: str) -> None:
    jax, optree = pytest.importorskip("jax"), pytest.importorskip("optree")
    mine = stacks(corral, jax.numpy.array)[name]
    expected = parts(mine.apply(lambda x: x * 2))
    double = lambda tree: jax.tree.map(lambda x: x * 2, tree)  # noqa: E731
    assert parts(double(mine)) == expected
    compiled = jax.jit(double)(mine)
    assert parts(compiled) == expected
    assert type(compiled) is type(mine)
    assert parts(optree.tree_map(lambda x: x * 2, mine)) == expected
    assert len(jax.tree_util.tree_leaves_with_path(mine)) == len(optree.tree_paths(mine)) == len(jax.tree.leaves(mine))


def test_members_that_no_longer_fit_together() -> None:
    from torch.utils import _pytree as pytree

    ragged = stacks(corral)["ragged"]
    leaves, spec = pytree.tree_flatten(stacks(corral)["second dimension"])
    assert pytree.tree_unflatten([leaf.sum() for leaf in leaves], spec).batch_size == (2,)
    assert pytree.tree_map(lambda x: None, ragged) is None
    with pytest.raises(TypeError, match="in the place of a member"):
        pytree.tree_map(lambda td: 1.0, ragged, is_leaf=lambda each: isinstance(each, TensorDict))
    with pytest.raises(RuntimeError, match="as many"):
        pytree.tree_unflatten([leaves[0], leaves[1], leaves[2].sum(), leaves[3].sum()], spec)


def test_order_of_keys_does_not_matter() -> None:
    jax, optree = pytest.importorskip("jax"), pytest.importorskip("optree")
    one = TensorDict(b=jax.numpy.ones(2), a={"d": jax.numpy.zeros(2), "c": jax.numpy.ones(2)})
    other = TensorDict(a={"c": jax.numpy.ones(2) * 5, "d": jax.numpy.ones(2) * 6}, b=jax.numpy.ones(2) * 7)
    for tree_map in (jax.tree.map, optree.tree_map):
        added = tree_map(lambda x, y: x + y, one, other)
        assert plain(added) == plain(one + other)
        assert list(added.keys(True, True)) == list(one.keys(True, True))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert plain(jax.tree.leaves(one)) == plain(jax.tree.leaves(one.to_dict()))  # as dicts have them
    traced = []
    run = jax.jit(lambda td: traced.append(1) or td["b"] - td["a", "c"])
    assert (run(one).tolist(), run(other).tolist(), len(traced)) == ([0, 0], [2, 2], 1)


@pytest.mark.parametrize("value", ["ant", ("ant", 1), ["ant", "bee"]])
def test_objects_are_part_of_the_structure(value: Any) -> None:
    jax = pytest.importorskip("jax")
    from torch.utils import _pytree as pytree

    def make(value: Any, kind: Any = TensorDict, leaf: Any = jax.numpy.ones) -> Any:
        return kind({"a": leaf((2, 3)), "name": value}, batch_size=[2])

    td = make(value)
    assert len(jax.tree.leaves(td)) == 1
    traced = []
    run = jax.jit(lambda td: traced.append(td["name"]) or td.apply(lambda x: x + 1))
    for each in (td, td.clone(), make("other"), td):
        assert run(each)["name"] == each["name"]
        assert run(each)["a"].tolist() == [[2, 2, 2]] * 2
    assert traced == [td["name"], "other"]
    with pytest.raises(ValueError, match="pytree structure error"):
        jax.tree.map(lambda x, y: x + y, td, make("other"))
    mine, theirs = (make(value, kind, torch.ones) for kind in (TensorDict, tensordict.TensorDict))
    assert len(pytree.tree_leaves(mine)) == 1
    assert isinstance(value, list) or len(pytree.tree_leaves(theirs)) == 1  # of a stack, tensordict makes a leaf
    assert pytree.tree_map(lambda x: x + 1, mine)["name"] == td["name"]
    row = pytree.tree_map(lambda x: x[:, None] if isinstance(value, list) else x[0], mine)
    assert row["name"] == td["name"]
    assert row.batch_size == (2,) if isinstance(value, list) else (3,)


@pytest.mark.parametrize("make", [lambda n: {"x": n}, lambda n: ({"x": np.full(2, n)}, n), lambda n: np.full(2, n)])
def test_objects_that_change(make: Any) -> None:
    jax = pytest.importorskip("jax")

    def value_of(settings: Any) -> Any:
        inner = settings[0] if isinstance(settings, tuple) else settings
        return np.max(inner["x"] if isinstance(inner, dict) else inner)

    def change(settings: Any, n: int) -> None:
        inner = settings[0] if isinstance(settings, tuple) else settings
        inner["x" if isinstance(inner, dict) else ...] = n

    traced = []
    run = jax.jit(lambda td: traced.append(1) or (td * value_of(td["settings"])))
    settings, same = make(2), make(2)
    td, other = (TensorDict(a=jax.numpy.ones(2)).set_non_tensor("settings", each) for each in (settings, same))
    assert run(td)["settings"] is settings
    assert plain(jax.tree.map(lambda x, y: x + y, td, other)["a"]) == plain(td["a"] * 2)
    assert run(other)["a"].tolist() == [2, 2]
    assert len(traced) == 1
    change(settings, 3)
    assert run(td)["a"].tolist() == [3, 3]
    found = run(other)
    assert found["a"].tolist() == [2, 2]
    assert value_of(found["settings"]) == 2
    assert len(traced) == 2


def test_indices_in_a_compiled_function() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    td = TensorDict(a=jnp.arange(6.0).reshape(3, 2), n={"b": jnp.arange(3)}, batch_size=[3])
    rows = jnp.array([2, 0])
    calls: list[tuple[Any, Any]] = [
        (lambda td, i: td.gather(0, i), rows),
        (lambda td, i: td[i], rows),
        (lambda td, i: td[i], jnp.array(1)),
        (lambda td, i: td[None, i], jnp.array(1)),
        (lambda td, i: td[i], jnp.array([[0, 1], [2, 2]])),
    ]
    for call, index in calls:
        eager, compiled = call(td, index), jax.jit(call)(td, index)
        assert plain(compiled) == plain(eager)

    def write(td: Any, i: Any) -> Any:
        td[i] = td[0] * 5 + 1
        return td

    assert plain(jax.jit(write)(td, jnp.array(1))) == plain(write(td.clone(), 1))
    last = jax.lax.fori_loop(0, 3, lambda i, total: total + td[i], td[0] * 0)
    assert plain(last) == plain(td.sum(0))
    mask = jnp.array([True, False, True])
    for call in (lambda td, i: td[i], lambda td, i: td.masked_select(i), lambda td, i: td.repeat_interleave(i, 0)):
        with pytest.raises(TypeError, match="knows shapes and dtypes alone"):
            jax.jit(call)(td, mask)


def _mapped_over(jnp: Any) -> dict[str, Any]:
    inner = {"c": jnp.ones((3, 3)), "e": {}}
    return {
        "flat": TensorDict(a=jnp.ones((3, 2)), batch_size=[3]),
        "square": TensorDict(a=jnp.ones((3, 3)), batch_size=[3]),
        "nested": TensorDict(a=jnp.ones((3, 2)), b=inner, batch_size=[3]),
        "two dimensions": TensorDict(a=jnp.ones((3, 2, 4)), b=jnp.ones((3, 2)), batch_size=[3, 2]),
        "of a larger batch inside": TensorDict(
            a=jnp.ones((3, 4)), b=TensorDict(c=jnp.ones((3, 2)), batch_size=[3, 2]), batch_size=[3]
        ),
        "with an object": TensorDict(a=jnp.ones((3, 2)), note="some", batch_size=[3]),
        "lazy": corral.lazy_stack([TensorDict(a=jnp.ones((3, 2)), batch_size=[3]) for _ in range(2)], 0),
        "without a batch": TensorDict(a=jnp.ones((3, 2)), b={"c": jnp.ones((3, 1))}),
    }


def _sizes(td: Any) -> list[Any]:
    inner = [_sizes(value) for _, value in td.items() if isinstance(value, TensorDict)]
    return [tuple(td.batch_size), *inner]


@pytest.mark.parametrize("name", _mapped_over(np))
def test_batches_that_jax_maps_over(name: str) -> None:
    jax = pytest.importorskip("jax")
    td = _mapped_over(jax.numpy)[name]
    wanted = _sizes(td[:, 0] if name == "lazy" else td[0] if td.batch_size else td)
    kept = _sizes(td)
    if not td.batch_size:  # what has no batch gets one
        kept = [(3,), [(3,)]]
    seen = []

    def one(row: Any) -> Any:
        seen.append(_sizes(row))
        return row

    found = [
        jax.vmap(one)(td),
        jax.jit(jax.vmap(one))(td),
        jax.lax.map(one, td),
        jax.lax.scan(lambda carry, row: (carry, one(row)), 0.0, td)[1],
    ]
    assert seen == [wanted] * len(seen)
    assert len(seen) >= 4
    assert [_sizes(each) for each in found] == [kept] * 4
    assert [plain(jax.tree.leaves(each)) for each in found] == [plain(jax.tree.leaves(td))] * 4


def test_tensordicts_made_while_jax_maps() -> None:
    jax = pytest.importorskip("jax")
    td = TensorDict(a=jax.numpy.arange(6.0).reshape(3, 2), batch_size=[3])
    made = jax.lax.scan(lambda carry, row: (carry, TensorDict(q=row["a"].sum())), 0.0, td)[1]
    assert (made.batch_size, made["q"].tolist()) == ((3,), [1, 5, 9])
    assert jax.vmap(jax.vmap(lambda x: TensorDict(q=x)))(td["a"]).batch_size == (3, 2)
    carried = jax.lax.scan(lambda carry, row: (carry + row, carry), td[0] * 0, td)
    assert [each.batch_size for each in carried] == [(), (3,)]
    second = TensorDict(a=jax.numpy.ones((3, 2, 4)), batch_size=[3, 2])
    assert jax.vmap(lambda row: row, 1, 1)(second).batch_size == (3, 2)
    axes = jax.tree.map(lambda _: 0, td)
    assert jax.vmap(lambda row: row["a"].sum(), (axes,))(td).shape == (3,)
    assert jax.grad(lambda tree: jax.vmap(lambda row: row["a"].sum())(tree).sum())(td).batch_size == (3,)


def test_functions_of_jax_are_compiled_for_rows_and_batches_apart() -> None:
    jax = pytest.importorskip("jax")
    size = jax.jit(lambda td: jax.numpy.array([*td.batch_size, -1]))
    rows = TensorDict(a=jax.numpy.ones((3, 2)), batch_size=[3])
    assert jax.vmap(size)(rows).tolist() == [[-1]] * 3
    assert size(TensorDict(a=jax.numpy.ones(2), batch_size=[2])).tolist() == [2, -1]
    assert size(TensorDict(a=jax.numpy.ones(2))).tolist() == [-1]
