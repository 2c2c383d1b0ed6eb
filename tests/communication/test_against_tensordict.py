"""`gather_and_stack` beside that of tensordict over gloo, value by value."""

from __future__ import annotations

import numpy as np
import pytest
from fleet import Fleet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DTYPES = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128"),
]
LIBRARIES = ["numpy", "torch"]


@pytest.fixture(scope="module", params=[2, 3, 4])
def fleet(request):
    ranks = Fleet(request.param, gloo=True)
    yield ranks
    ranks.close()


def _tensor(shape, dtype, seed):
    import torch

    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 100, tuple(shape), generator=generator)
    if dtype == "bool":
        return values % 2 == 0
    return (values + 0.5 if "float" in dtype or "complex" in dtype else values).to(getattr(torch, dtype))


def _strided(tensor, layout):
    """Return a tensor of the same values with other strides."""
    import torch

    if layout == "transposed" and tensor.ndim > 1:
        return tensor.mT.contiguous().mT
    if layout == "gaps" and tensor.ndim > 0:
        memory = torch.zeros([2 * n + 1 for n in tensor.shape], dtype=tensor.dtype)
        view = memory[tuple(slice(1, 2 * n + 1, 2) for n in tensor.shape)]
        view.copy_(tensor)
        return view
    return tensor


def _tree(rank, root, size, spec, seed):
    """Return one rank's entries, as flat paths to tensors."""
    found = []
    for number, leaf in enumerate(spec["leaves"]):
        here = leaf["root"] if rank == root else leaf["sender"]
        if here is None:
            continue
        shape = leaf["shape"] if rank != root else [size - 1, *leaf["shape"]]
        tensor = _strided(_tensor(shape, here["dtype"], seed + 97 * rank + number), here["layout"])
        found.append((leaf["path"], tensor, here))
    return found if rank != root or not spec["reordered"] else found[::-1]


def _nested(entries):
    tree = {}
    for path, value in entries:
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return tree


def _compare(rank, size, spec, seed):
    import tensordict
    import torch

    import corral

    root = spec["dst"] % size
    batch = [size - 1] if rank == root else []
    tree = _tree(rank, root, size, spec, seed)
    theirs = tensordict.TensorDict(_nested([(p, t.clone()) for p, t, _ in tree]), batch_size=batch)
    theirs.gather_and_stack(root)

    def ours(tensor, here):
        if here["library"] == "numpy" and here["dtype"] != "bfloat16":
            return tensor.numpy()
        return (
            tensor.requires_grad_()
            if here["grad"] and here["layout"] == "rows" and tensor.is_floating_point()
            else tensor
        )

    leaves = [(path, ours(tensor, here)) for path, tensor, here in tree]
    td = corral.TensorDict(_nested(leaves), batch_size=batch)
    result = td.gather_and_stack(root)
    if rank != root:
        assert result is None
        return
    assert result is td
    for path, leaf in leaves:  # in place, in the very memory
        assert td[path] is leaf
    expected = dict(theirs.items(include_nested=True, leaves_only=True))
    got = {key if type(key) is str else tuple(key): td[key] for key in expected}
    assert set(map(str, td.keys(True, True))) == set(map(str, expected))
    for key, tensor in expected.items():
        value = got[key]
        mine = torch.from_numpy(value) if isinstance(value, np.ndarray) else value.detach()
        assert mine.dtype == tensor.dtype, key
        assert torch.equal(mine, tensor), key


def _side(may_lack):
    side = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(DTYPES),
            "layout": st.sampled_from(["rows", "transposed", "gaps"]),
            "library": st.sampled_from(LIBRARIES),
            "grad": st.booleans(),
        }
    )
    return st.one_of(st.none(), side) if may_lack else side


@st.composite
def specs(draw):
    paths = draw(
        st.lists(
            st.sampled_from([("a",), ("b",), ("c",), ("d", "x"), ("d", "y"), ("e", "f", "g")]),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    leaves = []
    for path in paths:
        sender = draw(_side(False))
        root = dict(sender) if draw(st.booleans()) else draw(_side(True))
        if root is not None:
            root["layout"] = draw(st.sampled_from(["rows", "transposed", "gaps"]))
            root["library"] = draw(st.sampled_from(LIBRARIES))
            if "complex" in sender["dtype"] and "complex" not in root["dtype"]:
                root["dtype"] = sender["dtype"]  # a cast that both warn of
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        leaves.append({"path": path, "shape": shape, "sender": sender, "root": root})
    return {"leaves": leaves, "dst": draw(st.integers(0, 3)), "reordered": draw(st.booleans())}


@given(specs(), st.integers(0, 1000))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_same_values(fleet, spec, seed):
    fleet(_compare, spec, seed)
