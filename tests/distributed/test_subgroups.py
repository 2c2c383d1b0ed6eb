"""Groups divided among subgroups: the same divisions as torch's, and messages that stay inside them."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist

NOWHERE = dist.GroupMember.NON_GROUP_MEMBER


def _members_gather(group, ranks):
    """Gather at the last member; every rank outside has another value."""
    assert dist.get_process_group_ranks(group) == list(ranks)
    assert dist.get_rank(group) == list(ranks).index(dist.get_rank())
    rows = [np.zeros(2) for _ in ranks] if dist.get_rank() == ranks[-1] else None
    dist.gather(np.array([1.0, 10.0]) * dist.get_rank(), rows, ranks[-1], group)
    if rows is not None:
        assert [row.tolist() for row in rows] == [[1.0 * rank, 10.0 * rank] for rank in ranks]


def _gloo(rank, size, folder):
    import torch.distributed as c10d

    c10d.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size)
    return c10d


def _described(module, mine, made):
    """What a division gave, in terms that both libraries have."""
    members = [g if isinstance(g, int) else module.get_process_group_ranks(g) for g in made]
    return None if mine is None else made.index(mine), members, module.get_pg_count()


def _divisions(rank, size, folder):
    c10d = _gloo(rank, size, folder)
    whole = {module: module.new_group(list(reversed(range(size))), sort_ranks=False) for module in (c10d, dist)}
    divisions = [
        lambda m: m.new_subgroups(1),
        lambda m: m.new_subgroups(group_size=size, group_desc="all of them"),
        lambda m: m.new_subgroups(2 if size == 4 else 1, whole[m]),
        lambda m: m.new_subgroups_by_enumeration([list(reversed(range(size)))]),
        lambda m: m.new_subgroups_by_enumeration([[size - 1]]),
        lambda m: m.new_subgroups_by_enumeration([[size - 1, 0], *([r] for r in range(1, size - 1))]),
    ]
    for divide in divisions:
        mine, made = divide(dist)
        assert _described(dist, mine, made) == _described(c10d, *divide(c10d))
        if mine is not None:
            _members_gather(mine, dist.get_process_group_ranks(mine))
    assert dist.new_subgroups(size, group_desc="of one")[0].group_desc == "of one"
    dist.barrier()
    c10d.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_divisions_are_those_of_torch(size, tmp_path):
    pytest.importorskip("torch")
    run(_divisions, size, str(tmp_path))


def _kind(call):
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def _refusals(rank, size, folder):
    c10d = _gloo(rank, size, folder)
    for refused in [
        lambda m: m.new_subgroups(),
        lambda m: m.new_subgroups(2),
        lambda m: m.new_subgroups(0),
        lambda m: m.new_subgroups(-1),
        lambda m: m.new_subgroups(4),
        lambda m: m.new_subgroups_by_enumeration([]),
        lambda m: m.new_subgroups_by_enumeration(None),
        lambda m: m.new_subgroups_by_enumeration([[0, 1], [2, 1]]),
        lambda m: m.new_subgroups_by_enumeration([[0, 0]]),
        lambda m: m.new_subgroups_by_enumeration([[0, 3]]),
    ]:
        assert _kind(lambda call=refused: call(dist)) is _kind(lambda call=refused: call(c10d)) is ValueError
    # Nothing was left half made: the next groups are the same ones on all ranks.
    mine, _ = dist.new_subgroups_by_enumeration([[0, 2], [1]])
    _members_gather(mine, [1] if rank == 1 else [0, 2])
    with pytest.raises(dist.MismatchError, match=r"rank 0: group \d+ of ranks \[0\]; rank 1: group \d+ of ranks \[1\]"):
        dist.new_subgroups_by_enumeration([[rank]])
    c10d.destroy_process_group()


def test_refusals_are_those_of_torch(tmp_path):
    pytest.importorskip("torch")
    run(_refusals, 3, str(tmp_path), environment={"LOCAL_WORLD_SIZE": ""})


def _by_host(rank, size):
    mine, made = dist.new_subgroups()
    assert len(made) == 2
    _members_gather(mine, [0, 1] if rank < 2 else [2, 3])


def test_the_launcher_says_how_many_ranks_a_host_has():
    run(_by_host, 4, environment={"LOCAL_WORLD_SIZE": "2"})


def _splits(rank, size):
    half = dist.split_group(split_ranks=[[0, 2], [3, 1]])
    _members_gather(half, [0, 2] if rank % 2 == 0 else [1, 3])
    assert half.group_desc == "default_pg:split:0"
    some = dist.split_group(split_ranks=[[2, 3]], group_desc="some", timeout=7, backend=f"cpu:{dist.get_backend()}")
    assert (some is None) == (rank < 2)
    if some is not None:
        assert (some.group_desc, some.backend.timeout) == ("some", 7)
        _members_gather(some, [2, 3])
    # Ranks in a split are those of the parent, whose members alone take part.
    parent = dist.new_group([3, 1, 2], sort_ranks=False)
    if rank != 0:
        pair = dist.split_group(parent, [[2, 0]])
        assert (pair is None) == (rank == 1)
        if pair is not None:
            _members_gather(pair, [3, 2])
            alone = dist.split_group(pair, [[0], [1]])
            _members_gather(alone, [rank])
            assert alone.group_name != pair.group_name
    else:
        with pytest.raises(ValueError, match="not part of the parent group"):
            dist.split_group(parent, [[0]])
        with pytest.raises(ValueError, match="this rank is not in the given group"):
            dist.new_subgroups(1, parent)
    assert dist.get_pg_count() == 2  # splits are made by members alone and do not count
    dist.barrier()


def test_splits():
    run(_splits, 4)


def _another_backend():
    return "shm" if dist.get_backend() == "gloo" else "gloo"


def _inside(rank, size):
    """Members divide their group while the rank outside goes on."""
    group = dist.new_group([3, 0, 1, 2][:size] if size < 4 else [3, 1], sort_ranks=False)
    if group != NOWHERE:
        for _ in range(2):
            mine, made = dist.new_subgroups(1, group)
            _members_gather(mine, [rank])
            assert [g if g == NOWHERE else "mine" for g in made] == (
                ["mine", NOWHERE] if rank == 3 else [NOWHERE, "mine"]
            )
        other = _another_backend()
        with pytest.raises(ValueError, match=f"backend of its parent group, '{dist.get_backend()}', got '{other}'"):
            dist.new_subgroups(1, group, backend=other)
    dist.barrier()


def test_a_subgroup_is_divided_by_its_members_alone():
    run(_inside, 4)


def _wrong_splits(rank, size):
    for splits, message in [
        (None, "cannot be None or empty"),
        ([], "cannot be None or empty"),
        ([[]], "cannot be empty"),
        ([[0, 0]], "duplicate ranks"),
        ([[0, 1], [1, 2]], r"Rank 1 has appeared in both subgroup \[0, 1\] and \[1, 2\]"),
        ([[0, 3]], "not global ranks"),
        ([[-1]], "not global ranks"),
    ]:
        with pytest.raises(ValueError, match=message):
            dist.split_group(split_ranks=splits)
    with pytest.raises(TypeError, match="split_ranks must be an integer"):
        dist.split_group(split_ranks=[["0"]])
    other = _another_backend()
    with pytest.raises(ValueError, match=f"backend of its parent group, '{dist.get_backend()}', got 'cpu:{other}'"):
        dist.split_group(split_ranks=[[0]], backend=f"cpu:{other}")
    group = dist.new_group([2, 0])
    with pytest.raises(dist.MismatchError, match=r"rank 0: .*ranks \[0\|1,2\].*rank 2: .*ranks \[0,1\|2\]"):
        dist.split_group(split_ranks=[[0, 1], [2]] if rank == 2 else [[0], [1, 2]])
    if rank != 1:
        with pytest.raises(dist.MismatchError, match=r"split_group .* rank 0: .*ranks \[0\]; rank 2: .*ranks \[2\]"):
            dist.split_group(group, [[dist.get_rank(group)]])
        _members_gather(dist.split_group(group, [[0, 1]]), [0, 2])
        dist.destroy_process_group(group)
        with pytest.raises(ValueError, match="not registered"):
            dist.split_group(group, [[0]])
    dist.barrier()


def test_wrong_splits_are_refused_on_all_ranks():
    run(_wrong_splits, 3)


def _life(rank, size):
    for _ in range(2):
        if dist.is_initialized():
            mine, made = dist.new_subgroups(1)
            split = dist.split_group(split_ranks=[[1, 0]])
            for group in made:
                dist.destroy_process_group(group)
            with pytest.raises(ValueError, match="can no longer be used"):
                dist.barrier(mine)
            dist.barrier(split)
            dist.destroy_process_group()
            with pytest.raises(ValueError, match="can no longer be used"):
                dist.barrier(split)


def test_subgroups_end():
    run(_life, 2)
