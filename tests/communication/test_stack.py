"""What `gather_and_stack` does beyond tensordict's: trees of all kinds, new stacks, errors on every rank."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
from fleet import Fleet

import corral
import corral.distributed as dist
from corral.wire.errors import PickleError

SIZE = 3
Pair = collections.namedtuple("Pair", "left right")


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(SIZE)
    yield ranks
    ranks.close()


def _values(rank, *shape):
    return np.arange(float(np.prod(shape, dtype=int))).reshape(shape) + 100 * rank


def _stack(root, *shape):
    return np.stack([_values(rank, *shape) for rank in range(SIZE) if rank != root])


def _every_root(rank, size):
    for root in range(size):
        tree = (
            {"a": np.zeros((2, 4)), "b": {"c": np.zeros(2)}}
            if rank == root
            else {"a": _values(rank, 4), "b": {"c": _values(rank)}}
        )
        kept = tree["a"]
        result = corral.gather_and_stack(tree, root)
        assert result is (tree if rank == root else None)
        if rank == root:
            assert tree["a"] is kept
            assert np.array_equal(kept, _stack(root, 4))
            assert np.array_equal(tree["b"]["c"], _stack(root))


def test_every_root(fleet):
    fleet(_every_root)


def _new_stacks(rank, size):
    one = corral.gather_and_stack(None if rank == 1 else _values(rank, 2, 3), 1)
    mine = {
        "p": Pair(_values(rank, 2), [_values(rank)]),
        "t": corral.TensorDict(x=_values(rank, 4), batch_size=[4]),
    }
    tree = corral.gather_and_stack(None if rank == 1 else mine, dst=1)
    if rank != 1:
        assert one is None
        assert tree is None
        return
    assert np.array_equal(one, _stack(1, 2, 3))
    assert type(tree["p"]) is Pair
    assert np.array_equal(tree["p"].left, _stack(1, 2))
    assert np.array_equal(tree["p"].right[0], _stack(1))
    assert tuple(tree["t"].batch_size) == (2, 4)
    assert np.array_equal(tree["t"]["x"], _stack(1, 4))


def test_new_stacks(fleet):
    fleet(_new_stacks)


def _keys(rank, size):
    td = (
        corral.TensorDict(own=np.ones(2), b=np.zeros(2, "i4"), a=np.zeros((2, 2)), batch_size=[2])
        if rank == 0
        else corral.TensorDict(
            a=_values(rank, 2), b=_values(rank), new=_values(rank, 3), deep={"x": {"y": _values(rank)}}
        )
    )
    td.gather_and_stack(0)
    if rank == 0:
        assert td["own"].tolist() == [1, 1]
        assert td["b"].dtype == "i4"
        assert np.array_equal(td["b"], _stack(0))
        assert np.array_equal(td["a"], _stack(0, 2))
        assert np.array_equal(td["new"], _stack(0, 3))
        assert np.array_equal(td["deep", "x", "y"], _stack(0))
        assert tuple(td["deep"].batch_size) == (2,)


def test_keys_of_one_side_and_another_order(fleet):
    fleet(_keys)


def _locked(rank, size):
    td = corral.TensorDict(a=np.zeros((2, 2)), batch_size=[2]) if rank == 0 else corral.TensorDict(a=_values(rank, 2))
    td.lock_().gather_and_stack(0)
    if rank == 0:
        assert np.array_equal(td["a"], _stack(0, 2))


def test_a_locked_destination_is_written(fleet):
    fleet(_locked)


def _kinds(rank, size):
    import tensordict
    import torch

    td = tensordict.TensorDict(
        {"a": torch.zeros(2, 3), "b": {"c": torch.zeros(2)}}
        if rank == 0
        else {"a": torch.from_numpy(_values(rank, 3)).float(), "b": {"c": torch.tensor(rank)}},
        batch_size=[2] if rank == 0 else [],
    )
    kept = td["a"]
    assert corral.gather_and_stack(td, 0) is (td if rank == 0 else None)
    if rank == 0:
        assert td["a"] is kept
        assert np.array_equal(kept.numpy(), _stack(0, 3))
        assert td["b", "c"].tolist() == [1, 2]

    values = torch.from_numpy(_values(rank, 4))
    odd = [values.to_sparse(), torch.nn.Parameter(values), values.conj(), np.asarray(_values(rank, 4), ">f8")]
    for leaf in odd:
        into = {"a": torch.nn.Parameter(torch.zeros(2, 4, dtype=torch.float64))}
        corral.gather_and_stack(into if rank == 0 else {"a": leaf}, 0)
        if rank == 0:
            assert np.array_equal(into["a"].detach().numpy(), _stack(0, 4))
    into = [np.zeros((2, 4), ">f4"), (np.zeros((4, 2)).T,)]
    corral.gather_and_stack(into if rank == 0 else [_values(rank, 4), (values,)], 0)
    if rank == 0:
        assert np.array_equal(into[0], _stack(0, 4))
        assert np.array_equal(into[1][0], _stack(0, 4))
    assert np.array_equal(values.numpy(), _values(rank, 4))


def test_leaves_and_containers_of_many_kinds(fleet):
    fleet(_kinds)


def _mixed(rank, size):
    import torch

    for kinds in (["int64", "float32"], ["uint8", "int8"], ["bfloat16", "float16"], ["bool", "int16"]):
        values = [torch.arange(3).to(getattr(torch, kind)) * 77 for kind in kinds]
        stack = torch.stack(values)
        new = corral.gather_and_stack(None if rank == 0 else {"a": values[rank - 1]}, 0)
        for dtype in ("float64", "int16", "uint8"):
            into = {"a": torch.zeros(2, 3, dtype=getattr(torch, dtype))}
            corral.gather_and_stack(into if rank == 0 else {"a": values[rank - 1]}, 0)
            mine = values[rank - 1].float().numpy() if rank == 2 else values[rank - 1]
            other = {"a": torch.zeros(2, 3, dtype=getattr(torch, dtype))}
            corral.gather_and_stack(other if rank == 0 else {"a": mine}, 0)  # one of NumPy's, one of torch's
            if rank == 0:
                assert torch.equal(into["a"], torch.zeros_like(into["a"]).copy_(stack))
                wanted = torch.stack([values[0], values[1].float()])
                assert torch.equal(other["a"], torch.zeros_like(other["a"]).copy_(wanted))
        if rank == 0:
            assert new["a"].dtype == stack.dtype
            assert torch.equal(new["a"], stack)


def test_senders_of_several_dtypes(fleet):
    fleet(_mixed)


def _objects(rank, size):
    import tensordict
    import torch

    tree = {"a": np.zeros((2, 3)) if rank == 0 else _values(rank, 3), "s": f"rank {rank}", "loss": rank / 2}
    if rank == 0:
        tree["loss"] = np.zeros(2, "f4")
    for _ in range(2):  # the second time there are lists already
        corral.gather_and_stack(tree, 0)
    if rank == 0:
        assert tree["s"] == ["rank 1", "rank 2"]
        assert tree["loss"].tolist() == [0.5, 1.0]
        assert np.array_equal(tree["a"], _stack(0, 3))
    td = tensordict.TensorDict({"a": torch.zeros(2 if rank == 0 else ())}, batch_size=[2] if rank == 0 else [])
    if rank:
        td["s"] = f"rank {rank}"
    for _ in range(2):
        corral.gather_and_stack(td, 0)
    if rank == 0:
        assert type(td.get("s")) is tensordict.NonTensorStack
        assert td["s"] == ["rank 1", "rank 2"]
    ours = corral.TensorDict(batch_size=[2]) if rank == 0 else {"loss": rank / 2, "more": {"n": rank}}
    corral.gather_and_stack(ours, 0)
    if rank == 0:
        assert ours["loss"].tolist() == [0.5, 1.0]
        assert ours["more", "n"].tolist() == [1, 2]


def test_what_is_not_an_array(fleet):
    fleet(_objects)


@dataclasses.dataclass
class Record:
    x: object
    y: object


def _at_once(rank, size):
    from corral.tensordict import communication

    def leaf(*shape):
        return np.zeros((2, *shape)) if rank == 0 else _values(rank, *shape)

    def leaves(tree):
        return [leaf for item in (tree.x, tree.y) for leaf in (item.values() if type(item) is dict else item)]

    trees = [
        [leaf(3), (leaf(), leaf(2, 2))],
        Pair(leaf(3), {"a": [leaf()]}),
        {"a": {"b": (leaf(3),)}, "c": leaf()},
        Record([leaf(3), leaf()], {"a": leaf(2)}),
        collections.OrderedDict(a=leaf(3)),
    ]

    def refuse(*_):
        raise AssertionError("the engine did not do it alone")

    negotiate, communication._negotiate = communication._negotiate, refuse
    try:
        for tree in trees:
            assert corral.gather_and_stack(tree, 0) is (tree if rank == 0 else None)
    finally:
        communication._negotiate = negotiate
    if rank == 0:
        assert np.array_equal(trees[0][0], _stack(0, 3))
        assert np.array_equal(trees[0][1][1], _stack(0, 2, 2))
        assert np.array_equal(trees[1].right["a"][0], _stack(0))
        assert np.array_equal(trees[2]["a"]["b"][0], _stack(0, 3))
        assert [leaf.shape for leaf in leaves(trees[3])] == [(2, 3), (2,), (2, 2)]
        assert np.array_equal(trees[3].y["a"], _stack(0, 2))
        assert np.array_equal(trees[4]["a"], _stack(0, 3))


def test_any_nesting_is_one_operation_of_the_engine(fleet):
    fleet(_at_once)


def _interleaved(rank, size):
    """Leaves that lie between each other's elements, but never in one place."""
    from corral.tensordict import communication

    whole = np.zeros((2, 7))
    every = np.zeros((2, 6))
    trees = [
        {"a": whole[:, :4], "b": whole[:, 4:]},  # columns of one matrix: cleared row by row
        {"a": every[:, ::2], "b": every[:, 1::2]},  # every second element
        {"a": np.zeros((2, 0)), "b": np.zeros((4, 3))[1::2], "c": np.zeros((3, 2))[::-1].T},
    ]
    asked = []
    negotiate = communication._negotiate
    communication._negotiate = lambda *arguments: asked.append(len(asked)) or negotiate(*arguments)
    try:
        for tree in trees:
            mine = tree if rank == 0 else {key: _values(rank, *leaf.shape[1:]) for key, leaf in tree.items()}
            corral.gather_and_stack(mine, 0)
            if rank == 0:
                assert all(np.array_equal(leaf, _stack(0, *leaf.shape[1:])) for leaf in tree.values())
            asked.append("|")
    finally:
        communication._negotiate = negotiate
    return asked


def test_leaves_that_interleave(fleet):
    assert fleet(_interleaved) == [["|", 1, "|", "|"]] * SIZE


def _batch_sizes(rank, size):
    """Batch sizes that the senders share, whatever those of the destination, are learned in one call."""
    import tensordict
    import torch

    from corral.tensordict import communication

    def make(kind, mine, theirs):
        size = mine if rank == 0 else theirs
        leaf = torch.zeros(2, 3, 4) if rank == 0 else torch.full((3, 4), float(rank))
        return kind({"a": leaf, "n": kind({"b": leaf.clone()}, batch_size=size)}, batch_size=size)

    communication._register()
    counts, asked = [], []
    negotiate = communication._negotiate
    communication._negotiate = lambda *arguments: asked.append(1) or negotiate(*arguments)
    try:
        for kind in (corral.TensorDict, tensordict.TensorDict):
            for mine, theirs in (([2], [3, 4]), ([2, 3], [3]), ([2], []), ([], [3]), ([2, 3, 4], [3])):
                asked.clear()
                for _ in range(3):
                    td = make(kind, mine, theirs)
                    corral.gather_and_stack(td, 0)
                    if rank == 0:
                        assert list(td.batch_size) == mine
                        assert td["n", "b"].tolist() == [[[float(r)] * 4] * 3 for r in (1, 2)]
                counts.append(len(asked))
        plain = {"a": np.zeros(3), "n": {"b": np.zeros(3)}}
        for _ in range(2):  # some senders have no batch size
            into = corral.TensorDict(a=np.ones((2, 3)), n={"b": np.ones((2, 3))}, batch_size=[2])
            corral.gather_and_stack((into, plain, corral.TensorDict(plain, batch_size=[3]))[rank], 0)
            assert into["a"].sum() == (0 if rank == 0 else 6)
    finally:
        communication._negotiate = negotiate
    return counts


def test_batch_sizes_of_the_senders_are_learned(fleet):
    # In the last case the senders have the batch size that they had before.
    assert fleet(_batch_sizes) == [2 * [1, 1, 1, 1, 0]] * SIZE


def _groups(rank, size):
    pair = dist.new_group([2, 0])
    if rank == 1:
        with pytest.warns(UserWarning, match="does not belong"):
            assert corral.gather_and_stack({"a": np.zeros(3)}, 0, pair) is None
        return
    tree = {"a": np.zeros((1, 3)) if rank == 0 else _values(rank, 3)}
    corral.gather_and_stack(tree, group=pair, group_dst=0)
    if rank == 0:
        assert np.array_equal(tree["a"], _values(2, 3)[None])
    with pytest.raises(ValueError, match="group_dst"):
        corral.gather_and_stack(tree, 0, pair, group_dst=1)
    with pytest.raises(ValueError, match="Global rank 1"):
        corral.gather_and_stack(tree, 1, pair)


def test_groups(fleet):
    fleet(_groups)


def _read_only():
    array = np.zeros((2, 3))
    array.flags.writeable = False
    return array


def _locked_td(**entries):
    return corral.TensorDict(entries, batch_size=[2]).lock_()


def _two(rank):
    return {"a": _values(rank, 3), "b": {"c": _values(rank, 3)}}


def _loop():
    loop = [np.zeros(3)]
    loop.append(loop)
    return loop


ERRORS = {
    "keys": (
        lambda rank: {"b": _values(0, 3)} if rank == 2 else {"a": np.zeros((2, 3)) if rank == 0 else _values(1, 3)},
        r"rank 2 .*'a'.*rank 1 .*\(3,\)",
    ),
    "an extra key": (
        lambda rank: (
            {"a": np.zeros((2, 3))}
            if rank == 0
            else {"a": _values(1, 3), **({"x": {"y": _values(0)}} if rank == 2 else {})}
        ),
        r"rank 1 .*\('x', 'y'\).*rank 2",
    ),
    "shapes": (
        lambda rank: {"a": {"b": np.zeros((2, 3)) if rank == 0 else np.zeros(2 + rank)}},
        r"\('a', 'b'\).*\(4,\) on rank 2.*\(3,\) on rank 1",
    ),
    "a row": (
        lambda rank: {"a": np.zeros((2, 3)) if rank == 0 else np.zeros(4)},
        r"'a'.*\(4,\) on rank 1.*\(3,\) on rank 0",
    ),
    "the first dimension": (
        lambda rank: {"a": np.zeros((3, 4)) if rank == 0 else np.zeros(4)},
        r"'a'.*\(3, 4\) on rank 0.*must be 2.*rank 1.*\(4,\)",
    ),
    "a scalar destination": (
        lambda rank: {"a": np.zeros(())},
        r"'a'.*\(\) on rank 0.*must be 2",
    ),
    "the batch size": (
        lambda rank: (
            corral.TensorDict(a=np.zeros((3, 4)), batch_size=[3]) if rank == 0 else corral.TensorDict(a=np.zeros(4))
        ),
        r"\(3,\).*rank 0|rank 0.*\(3,\)",
    ),
    "an expanded view": (
        lambda rank: {"a": np.lib.stride_tricks.as_strided(np.zeros(3), (2, 3), (0, 8)) if rank == 0 else np.zeros(3)},
        r"rank 0.*'a'.*share memory.*\(2, 3\).*rank 1.*\(3,\)",
    ),
    "read-only": (
        lambda rank: {"a": _read_only() if rank == 0 else np.zeros(3)},
        r"rank 0.*'a'.*read-only.*\(2, 3\).*rank 1.*\(3,\)",
    ),
    "a locked destination": (
        lambda rank: _locked_td(a=np.zeros((2, 3))) if rank == 0 else {"a": np.zeros(3), "b": np.zeros(4)},
        r"rank 1 .*'b'.*\(4,\).*rank 0.*locked",
    ),
    "one array under two keys": (
        lambda rank: {"a": (twice := np.zeros((2, 3))), "b": {"c": twice}} if rank == 0 else _two(rank),
        r"'a' and \('b', 'c'\) share memory on rank 0",
    ),
    "overlapping slices": (
        lambda rank: (
            {"a": (whole := np.zeros((3, 3)))[:2], "x": np.zeros((2, 9)), "b": {"c": whole[1:]}}
            if rank == 0
            else {**_two(rank), "x": np.zeros(9)}
        ),
        r"'a' and \('b', 'c'\) share memory on rank 0",
    ),
    "overlapping columns": (
        lambda rank: {"a": (whole := np.zeros((2, 5)))[:, :3], "b": {"c": whole[:, 2:]}} if rank == 0 else _two(rank),
        r"'a' and \('b', 'c'\) share memory on rank 0",
    ),
    "overlapping torch tensors, to be cast": (
        lambda rank: (
            {"a": (twice := __import__("torch").zeros(2, 3)), "b": {"c": twice.view(2, 3)}} if rank == 0 else _two(rank)
        ),
        r"'a' and \('b', 'c'\) share memory on rank 0",
    ),
    "one sparse tensor under two keys": (
        lambda rank: (
            {"a": (twice := __import__("torch").eye(2, 3).to_sparse()), "b": {"c": twice}} if rank == 0 else _two(rank)
        ),
        r"'a' and \('b', 'c'\) share memory on rank 0",
    ),
    "batch sizes": (
        lambda rank: corral.TensorDict(a=np.zeros((2, 3, 4)[rank > 0 :]), batch_size=[(2,), (3,), (3, 4)][rank]),
        r"the tree has the batch size \(3, 4\) on rank 2, but \(3,\) on rank 1",
    ),
    "batch sizes of nested TensorDicts": (
        lambda rank: {
            "a": corral.TensorDict(
                {"b": corral.TensorDict(c=np.zeros((2, 3)[rank > 0 :]), batch_size=[(2,), (3,), ()][rank])},
                batch_size=(2,) if rank == 0 else (),
            )
        },
        r"\('a', 'b'\) has the batch size \(\) on rank 2, but \(3,\) on rank 1",
    ),
    "a container for an array": (
        lambda rank: {"a": {"b": np.zeros((2, 3))} if rank == 0 else np.zeros(3)},
        r"'a'.*rank 0.*rank 1.*\(3,\)",
    ),
    "an array for a container": (
        lambda rank: {"a": np.zeros((2, 3)) if rank == 0 else {"b": np.zeros(3)}},
        r"'a'.*\(2, 3\).*rank 0.*rank 1",
    ),
    "nothing to send": (lambda rank: {"a": np.zeros((2, 3))} if rank == 0 else None, r"rank 1 passed None"),
    "an object for an array": (
        lambda rank: {"a": np.zeros((2, 3)) if rank == 0 else "text"},
        r"'a'.*\(2, 3\).*rank 0.*a str on rank 1",
    ),
    "an array of objects": (
        lambda rank: {"a": np.zeros((2, 3)) if rank == 0 else np.zeros(3, object)},
        r"'a'.*\(2, 3\).*rank 0.*objects on rank 1",
    ),
    "an array for an object": (
        lambda rank: {"a": "text" if rank == 0 else np.zeros(3)},
        r"'a'.*a str on rank 0.*\(3,\).*rank 1",
    ),
    "numbers for rows": (
        lambda rank: {"a": np.zeros((2, 3)) if rank == 0 else 1.5},
        r"'a'.*\(\) on rank 1.*\(3,\) on rank 0",
    ),
    "an object in a tuple": (
        lambda rank: (np.zeros((2, 3)) if rank == 0 else np.zeros(3), "text"),
        r"1 is a str on rank 1.*rank 0.*cannot be replaced",
    ),
    "text for numbers": (
        lambda rank: {"a": np.zeros((2, 3)) if rank == 0 else np.array(["1", "2", "x"])},
        r"'a' of rank 1 \(shape \(3,\)\).*rank 0 \(shape \(2, 3\)\).*<U1 cannot be cast to float64",
    ),
    "dates for numbers": (
        lambda rank: {"a": __import__("torch").zeros(2, 3) if rank == 0 else np.zeros(3, "M8[s]")},
        r"'a' of rank 1.*datetime64\[s\] cannot be cast to float32",
    ),
    "dtypes with none in common": (
        lambda rank: {"a": np.zeros((2, 3)) if rank == 0 else np.zeros(3, "M8[s]" if rank == 1 else "f4")},
        r"'a' has the dtypes datetime64\[s\], float32",
    ),
    "a longer list": (
        lambda rank: [np.zeros((2, 3))] if rank == 0 else [np.zeros(3), np.zeros(4)],
        r"rank 1 sends 1 \(shape \(4,\)\).*list on rank 0",
    ),
    "another record": (
        lambda rank: {"a": Pair(np.zeros((2, 3)), np.zeros(2)) if rank == 0 else {"x": np.zeros(3)}},
        r"rank 1 sends \('a', 'x'\) \(shape \(3,\)\).*Pair on rank 0",
    ),
    "a container that contains itself": (
        lambda rank: _loop() if rank == 1 else {"a": np.zeros((2, 3)) if rank == 0 else np.zeros(3)},
        r"rank 1.*contains itself",
    ),
    "a batch that does not fit": (
        lambda rank: (
            corral.TensorDict(a=np.zeros((2, 5)), batch_size=[2, 5])
            if rank == 0
            else {"a": np.zeros(5), "b": np.zeros(4)}
        ),
        r"'b'.*\(4,\).*rank 1.*\(2, 5\).*rank 0",
    ),
}


def _error(rank, size, name):
    make, match = ERRORS[name]
    tree = make(rank)
    before = repr(tree)
    with pytest.raises(dist.MismatchError, match=match) as raised:
        corral.gather_and_stack(tree, 0)
    assert repr(tree) == before
    good = {"a": np.zeros((2, 3)) if rank == 0 else _values(rank, 3)}
    corral.gather_and_stack(good, 0)  # the group stays usable
    if rank == 0:
        assert np.array_equal(good["a"], _stack(0, 3))
    return str(raised.value)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_raised_on_every_rank(fleet, name):
    texts = fleet(_error, name)
    assert len(set(texts)) == 1


class Secret:
    pass


def _pickles(rank, size):
    tree = {"a": np.zeros((2, 3)) if rank == 0 else np.zeros(3), "b": Secret() if rank == 1 else np.zeros(2)}
    with pytest.raises(PickleError, match=r"rank 1.*Secret"):
        corral.gather_and_stack(tree, 0)
    with pytest.raises(PickleError, match=r"rank 1.*Secret"):
        corral.gather(tree, 0)
    dist.barrier()


def test_pickles_are_refused_on_every_rank(monkeypatch):
    monkeypatch.setenv("CORRAL_PICKLE", "deny")
    ranks = Fleet(SIZE)
    try:
        ranks(_pickles)
    finally:
        ranks.close()
