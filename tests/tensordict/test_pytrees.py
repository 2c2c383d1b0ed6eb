"""TensorDicts as nodes of other libraries' trees."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

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
