"""What is a view and what a copy, and memory that processes share."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import corral
from corral import TensorDict
from tests.tensordict.trees import fill, forms, plain

SOURCE = {"a": fill((4, 6, 2), "float32", 1), "n": {"i": fill((4, 6), "int64", 100), "b": fill((4, 6, 1), "bool", 0)}}

RESULTS: dict[str, Callable[[Any], Any]] = {
    "row": lambda td: td[0],
    "slice": lambda td: td[1:3],
    "two dimensions": lambda td: td[1, 2:5],
    "new dimension": lambda td: td[:, None],
    "dots": lambda td: td[..., 0],
    "integers": lambda td: td[torch.tensor([0, 2])],
    "list": lambda td: td[[0, 2]],
    "mask": lambda td: td[torch.tensor([True, False, True, False])],
    "reshape": lambda td: td.reshape(-1),
    "reshape of a transposed one": lambda td: td.transpose(0, 1).reshape(24),
    "view": lambda td: td.view(2, 2, 6),
    "flatten": lambda td: td.flatten(0, 1),
    "unflatten": lambda td: td.unflatten(1, (2, 3)),
    "permute": lambda td: td.permute(1, 0),
    "transpose": lambda td: td.transpose(0, 1),
    "squeeze": lambda td: td.unsqueeze(1).squeeze(1),
    "unsqueeze": lambda td: td.unsqueeze(0),
    "unbind": lambda td: td.unbind(1)[3],
    "split": lambda td: td.split([1, 3])[1],
    "chunk": lambda td: td.chunk(3, 1)[2],
    "select": lambda td: td.select("a"),
    "exclude": lambda td: td.exclude("a"),
    "flatten keys": lambda td: td.flatten_keys(),
    "clone": lambda td: td.clone(),
    "copy": lambda td: td.copy(),
    "shallow clone": lambda td: td.clone(recurse=False),
    "to_dict": lambda td: td.to_dict(),
    "stack": lambda td: torch.stack([td, td]),
    "cat": lambda td: torch.cat([td, td]),
    "sum": lambda td: td + 0,
    "numpy": lambda td: td.numpy(),
}


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, (torch.Tensor, np.ndarray)):
        return [tree]
    return [leaf for value in tree.values() for leaf in leaves(value)]


def flip(leaf: Any) -> None:
    leaf[...] = 1 - leaf if "bool" not in str(leaf.dtype) else (leaf == 0)


@pytest.mark.parametrize("name", RESULTS)
def test_views_and_copies_are_tensordicts(name: str) -> None:
    """Changing a result changes the original exactly where it does in tensordict."""
    seen = []
    for td in forms(SOURCE, (4, 6)):
        result = RESULTS[name](td)
        for leaf in leaves(result):
            flip(leaf)
        seen.append(plain(td))
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]


def test_an_expanded_numpy_leaf_is_no_copy_and_read_only() -> None:
    td = corral.TensorDict(a=np.arange(3.0).reshape(1, 3), batch_size=[1])
    big = td.expand(5)["a"]
    assert np.shares_memory(big, td["a"])
    assert not big.flags.writeable


def mixed() -> corral.TensorDict:
    return corral.TensorDict(
        a=fill((3, 4), "float32", 0),
        t=torch.arange(100, 106).view(3, 2),
        h={"bf": torch.arange(3).to(torch.bfloat16), "none": np.zeros((3, 0))},
        c=fill((3, 2), "complex64", 50).T.copy().T,
        batch_size=[3],
    )


def test_consolidated_leaves_lie_in_one_buffer() -> None:
    td = mixed()
    one = td.consolidate()
    assert plain(one) == plain(td)
    addresses = sorted(
        x.__array_interface__["data"][0] if isinstance(x, np.ndarray) else x.data_ptr()
        for x in one.values(True, True)
        if 0 not in x.shape
    )
    assert addresses[-1] - addresses[0] < 64 * len(addresses)
    assert all(address % 64 == 0 for address in addresses)


def test_pickles_hold_values() -> None:
    td = mixed().lock_()
    other = pickle.loads(pickle.dumps(td))
    assert plain(other) == plain(td)
    assert other.is_locked
    assert other["h"].is_locked
    assert type(other["a"]) is np.ndarray
    assert type(other["t"]) is torch.Tensor


def change(td: corral.TensorDict, queue: Any) -> None:
    td["a"][1, 2] = -5
    td["t"][2, 1] = -6
    td["h", "bf"][0] = -7
    queue.put((td.is_shared(), td["rows"].tolist()))
    queue.put(td[1:])


def test_a_spawned_process_maps_the_same_memory() -> None:
    td = mixed().share_()
    assert td.is_shared()
    assert td.is_locked
    sent = td.clone(recurse=False).set("rows", td["a"][::-1, ::2])  # strides are kept, too
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=change, args=(sent, queue))
    process.start()
    assert queue.get(timeout=60) == (True, [[8.0, 10.0], [4.0, -5.0], [0.0, 2.0]])
    back = queue.get(timeout=60)
    back["a"][0, 0] = 77
    process.join(60)
    assert process.exitcode == 0
    assert td["a"][1, 2] == -5
    assert td["a"][1, 0] == 77
    assert td["t"][2, 1] == -6
    assert td["h", "bf"][0] == -7


def _grads(connection: Any) -> None:
    td = connection.recv()
    connection.send([(type(td[key]).__name__, td[key].requires_grad) for key in GRADS])


GRADS = {"a": ("Tensor", True), "p": ("Parameter", True), "f": ("Parameter", False), "n": ("Tensor", False)}


def test_sharing_keeps_requires_grad() -> None:
    td = TensorDict(
        a=torch.arange(3.0).requires_grad_(),
        p=torch.nn.Parameter(torch.ones(2)),
        f=torch.nn.Parameter(torch.zeros(2), requires_grad=False),
        n=torch.arange(3),
        x=np.arange(3),
    ).share_()
    assert td.is_shared()
    assert {key: (type(td[key]).__name__, td[key].requires_grad) for key in GRADS} == GRADS
    assert td["a"].is_leaf
    assert td["a"].tolist() == [0, 1, 2]
    (td["a"] * 2).sum().backward()
    assert td["a"].grad.tolist() == [2, 2, 2]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_grads, args=(theirs,))
    child.start()
    ours.send(td)
    assert ours.recv() == list(GRADS.values())
    child.join()
    assert child.exitcode == 0


def test_nested_tensors_are_refused_by_name() -> None:
    parts = [torch.zeros(2), torch.zeros(3)]
    with pytest.warns(UserWarning, match="nested tensors"):
        nested = torch.nested.nested_tensor(parts)
    for entries in ({"camera": nested}, {"x": {"camera": nested}}):
        for size in ([], [2]):
            with pytest.raises(TypeError, match=r"'camera' is a nested torch tensor.*unbind"):
                TensorDict(entries, batch_size=size)
    jagged = TensorDict(x={"camera": torch.nested.nested_tensor(parts, layout=torch.jagged)})
    for call in (jagged.share_, jagged.consolidate):
        with pytest.raises(TypeError, match=r"\('x', 'camera'\) is a nested torch tensor"):
            call()


@pytest.mark.parametrize("like", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [1 << 50, (1 << 40, 1 << 40), (1 << 31, 1 << 31), 1 << 90])
def test_too_much_shared_memory_is_a_memory_error(shape: Any, like: str) -> None:
    with pytest.raises(MemoryError, match=r"corral\.empty: cannot allocate \d+ bytes \(.* GiB\).*float32: ask"):
        corral.empty(shape, like=like)


def test_other_pickles_of_shared_memory_hold_values() -> None:
    td = mixed().share_()
    other = pickle.loads(pickle.dumps(td))
    other["a"][0, 0] = 9
    assert td["a"][0, 0] == 0
    assert not other.is_shared()


def test_numpy_users_need_not_import_torch() -> None:
    import subprocess

    code = (
        "import sys, numpy as np, corral\n"
        "td = corral.TensorDict(a=np.arange(6).reshape(2, 3), b={'c': [1, 2]}, batch_size=[2])\n"
        "td = corral.stack([td, td + 1]).reshape(-1)[1:]; td.share_(); repr(td); td.consolidate()\n"
        "print(td['b', 'c'].tolist(), [m for m in ('torch', 'jax', 'cupy') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[2, 2, 3] []"


def _many(kind: Any, gradient: bool) -> Any:
    """Entries of one TensorDict that are enough to be copied together: of several dtypes, strides and origins."""
    entries: dict[str, Any] = {f"x{i}": torch.arange(i, i + 12.0).reshape(4, 3) for i in range(6)}
    entries |= {"t": torch.arange(12).reshape(3, 4).t(), "e": torch.ones(4, 1).expand(4, 3), "c": torch.zeros(4, 0)}
    entries["w"] = torch.arange(4.0).requires_grad_(gradient)
    return kind(entries, batch_size=[4])


@pytest.mark.parametrize("gradient", [False, True])
def test_many_tensors_are_cloned_as_each_alone(gradient: bool) -> None:
    td, expected = _many(TensorDict, gradient), _many(tensordict.TensorDict, gradient)
    for copy, theirs in ((td.clone(), expected.clone()), (td[1:3].clone(), expected[1:3].clone())):
        assert list(copy.keys()) == list(theirs.keys())
        for key, leaf in copy.items():
            assert torch.equal(leaf, theirs[key])
            assert leaf.stride() == theirs[key].stride()
            assert leaf.data_ptr() != td[key].data_ptr() or not leaf.numel()
    if gradient:
        td.clone()["w"].sum().backward()
        assert td["w"].grad.tolist() == [1.0] * 4


def test_many_tensors_are_cloned_under_a_transform_of_torch() -> None:
    td = TensorDict({f"x{i}": torch.arange(i, i + 12.0).reshape(4, 3) for i in range(10)}, batch_size=[4])

    def function(row: torch.Tensor) -> torch.Tensor:
        copy = TensorDict({f"x{i}": row + i for i in range(10)}, batch_size=[]).clone()
        return sum(copy.values())

    assert torch.equal(torch.vmap(function)(td["x0"]), td["x0"] * 10 + 45)
