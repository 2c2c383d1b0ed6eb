"""Meshes: the same ranks, coordinates, groups and refusals as torch's, and messages along each dimension."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
from ranks import run

import corral.distributed as dist
from corral.distributed.mesh import current_mesh
from corral.distributed.mesh_arguments import overrides_of
from corral.distributed.mesh_layout import Layout


def _gloo(rank, size, folder):
    import torch.distributed as c10d

    c10d.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size)
    return c10d


def _outcome(call):
    """A result in terms that both libraries have, or the kind of an error."""
    try:
        result = call()
    except Exception as error:
        return type(error)
    return result.tolist() if hasattr(result, "tolist") else result


def _described(module, mesh):
    """All that a mesh says about itself."""
    groups = _outcome(mesh.get_all_groups)
    return {
        "repr": repr(mesh),
        "mesh": _outcome(lambda: mesh.mesh),
        "shape": tuple(mesh.shape),
        "ndim": mesh.ndim,
        "names": mesh.mesh_dim_names,
        "device": mesh.device_type,
        "sizes": [mesh.size(), *(mesh.size(dim) for dim in range(mesh.ndim)), mesh.size(-1)],
        "rank": mesh.get_rank(),
        "coordinate": mesh.get_coordinate(),
        "local": [_outcome(lambda dim=dim: mesh.get_local_rank(dim)) for dim in range(mesh.ndim)],
        "alone": _outcome(mesh.get_local_rank),
        "groups": groups
        if isinstance(groups, type)
        else [
            (module.get_process_group_ranks(g), module.get_rank(g), g is module.group.WORLD, g.group_desc)
            for g in groups
        ],
        "made": module.get_pg_count(),
    }


def _same(c10d, theirs, ours):
    expected, actual = _described(c10d, theirs), _described(dist, ours)
    assert actual == expected
    return ours


def _gather_along(mesh):
    """Gather in the group of every dimension: the values of the ranks along it, in the mesh's order."""
    for group in mesh.get_all_groups():
        ranks = dist.get_process_group_ranks(group)
        rows = [np.zeros(1) for _ in ranks] if dist.get_rank() == ranks[0] else None
        dist.gather(np.full(1, 1.0 + dist.get_rank()), rows, ranks[0], group)
        if rows is not None:
            assert [row.item() for row in rows] == [1.0 + rank for rank in ranks]


SHAPES = {
    2: [(2,), (2, 1), (1, 2), (1,), (1, 1, 2)],
    3: [(3,), (3, 1), (2,), (1, 3)],
    4: [(4,), (2, 2), (2, 1, 2), (4, 1), (3,), (1, 2), (2, 2, 1)],
}
LISTS = {
    2: [[1, 0], [[1], [0]], [1]],
    3: [[2, 0], [[2, 1, 0]], [[0], [2]]],
    4: [[3, 1, 0, 2], [[3, 1], [0, 2]], [[0, 2], [1, 3]], [[[1], [3]]], [2, 1]],
}


def _meshes(rank, size, folder):
    import torch

    c10d = _gloo(rank, size, folder)
    for shape in SHAPES[size]:
        for names in (None, ("dp", "cp", "tp")[: len(shape)]):
            theirs, ours = (m.init_device_mesh("cpu", shape, mesh_dim_names=names) for m in (c10d, dist))
            _gather_along(_same(c10d, theirs, ours)) if rank < ours.size() else _same(c10d, theirs, ours)
    for ranks in LISTS[size]:
        theirs = c10d.DeviceMesh("cuda", ranks)
        for given in (ranks, np.array(ranks, np.int8), torch.tensor(ranks)):
            ours = dist.DeviceMesh("cuda", given)
            assert ours.mesh.tolist() == ranks
            if rank in np.array(ranks):
                _gather_along(ours)
            if given is not ranks:  # the same groups again, so that both have made equally many
                theirs = c10d.DeviceMesh("cuda", ranks)
        _same(c10d, theirs, ours)
    dist.barrier()
    c10d.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_meshes_are_those_of_torch(size, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("torch makes other groups where there is CUDA")
    run(_meshes, size, str(tmp_path), timeout=120)


def _slices(rank, size, folder):
    c10d = _gloo(rank, size, folder)
    names = ("dp", "cp", "tp")
    theirs, ours = (m.init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=names) for m in (c10d, dist))
    for key in ["dp", "cp", "tp", ("dp",), ("dp", "cp"), ("cp", "tp"), ("dp", "tp"), ("cp", "dp"), ("tp", "cp"), names]:
        _gather_along(_same(c10d, theirs[key], ours[key]))
        assert ours[key] == ours[key]
        assert hash(ours[key]) == hash(ours[key])
        assert (ours[key] is ours) == (theirs[key] is theirs)
        assert ours[key].get_all_groups() == [ours.get_group(n) for n in ours[key].mesh_dim_names]
    _gather_along(_same(c10d, theirs["dp", "tp"]["tp"], ours["dp", "tp"]["tp"]))
    assert ours["dp"] != ours["tp"]
    assert ours["dp", "tp"] != ours

    # Flattened dimensions are known to the mesh that they come from.
    for key, name in [(("dp", "tp"), None), (("dp", "cp"), "both"), (("cp",), "other")]:
        flat = [m[key]._flatten(name) for m in (theirs, ours)]
        _gather_along(_same(c10d, *flat))
        again = name or "_".join(key)
        assert ours[key]._flatten(name) is flat[1]
        assert ours[again] == flat[1]
        assert dist.get_process_group_ranks(ours.get_group(again)) == c10d.get_process_group_ranks(
            theirs.get_group(again)
        )
        _same(c10d, theirs[again], ours[again])
    _same(c10d, theirs["both", "tp"], ours["both", "tp"])
    assert ours["dp"]._flatten() is not None
    assert repr(ours["dp"]._flatten()) == repr(theirs["dp"]._flatten())

    for refused in [
        lambda m: m["x"],
        lambda m: m["dp", "x"],
        lambda m: m["tp", "dp"],
        lambda m: m["dp", "dp"],
        lambda m: m["dp", "both"],
        lambda m: m["dp_tp", "tp"],
        lambda m: m["dp"]["tp"],
        lambda m: m["dp"]["both"],
        lambda m: m.get_group(),
        lambda m: m.get_group("x"),
        lambda m: m.get_group(3),
        lambda m: m.get_local_rank(),
        lambda m: m.get_local_rank("x"),
        lambda m: m.size(3),
        lambda m: m["dp"]._flatten("tp"),
        lambda m: m["tp"]._flatten("both"),
    ]:
        expected = _outcome(lambda call=refused: call(theirs))
        assert isinstance(expected, type), expected
        assert _outcome(lambda call=refused: call(ours)) is expected
    dist.barrier()
    c10d.destroy_process_group()


def test_slices_are_those_of_torch(tmp_path):
    pytest.importorskip("torch")
    run(_slices, 4, str(tmp_path), timeout=120)


def _refusals(rank, size, folder):
    c10d = _gloo(rank, size, folder)
    for refused in [
        lambda m: m.DeviceMesh("cpu"),
        lambda m: m.DeviceMesh("cpu", [0, 0]),
        lambda m: m.DeviceMesh("cpu", [0, 7]),
        lambda m: m.DeviceMesh("cpu", [[0, 1], [2]]),
        lambda m: m.DeviceMesh("cpu", list(range(size + 1))),
        lambda m: m.DeviceMesh("cpu", [0, 1], backend_override=((None, None),) * 2),
        lambda m: m.init_device_mesh("cpu:0", (size,)),
        lambda m: m.init_device_mesh("cpu", (size, 2)),
        lambda m: m.init_device_mesh("cpu", (size,), mesh_dim_names=("a", "b")),
        lambda m: m.init_device_mesh("cpu", (size, 1), mesh_dim_names=("a", "a")),
        lambda m: m.init_device_mesh("cpu", (size,), backend_override={1: "gloo"}),
        lambda m: m.init_device_mesh("cpu", (size,), backend_override={"a": "gloo"}),
        lambda m: m.init_device_mesh("cpu", (size,))["a"],
        lambda m: m.init_device_mesh("cpu", (size,))._flatten(),
        lambda m: m.DeviceMesh("cpu", list(range(size)), _init_backend=False).get_group(),
        lambda m: m.DeviceMesh.from_group(m.group.WORLD, "cpu", [0, 1]),
        lambda m: m.DeviceMesh.from_group([], "cpu"),
        lambda m: m.DeviceMesh.from_group([m.group.WORLD] * 2, "cpu"),
        lambda m: m.DeviceMesh.from_group([m.group.WORLD] * 2, "cpu", [[0, 1, 2]]),
        lambda m: m.DeviceMesh.from_group([m.group.WORLD] * 2, "cpu", [0, 1, 2], mesh_dim_names=("a",)),
    ]:
        expected = _outcome(lambda call=refused: call(c10d))
        assert isinstance(expected, type), expected
        assert _outcome(lambda call=refused: call(dist)) is expected
    # Stricter than torch, which goes on with other ranks than were asked for.
    with pytest.raises(TypeError, match="global ranks, which are integers, got float64"):
        dist.DeviceMesh("cpu", [0.0, 1.5])
    for empty in (0, []):
        with pytest.raises(ValueError, match="at least one dimension and one rank"):
            dist.DeviceMesh("cpu", empty)
    with pytest.raises(RuntimeError, match="got 2 names"):
        dist.DeviceMesh("cpu", [0, 1, 2], mesh_dim_names=("a", "b"))
    with pytest.raises(ValueError, match=r"unknown backend 'pigeon'"):
        dist.init_device_mesh("cpu", (1, size), backend_override={0: "pigeon"})
    with pytest.raises(dist.MismatchError, match=r"rank 0: .*\[0\]; rank 1: .*\[1\]; rank 2: .*\[2\]"):
        dist.DeviceMesh("cpu", [[rank]], mesh_dim_names=("a", "b"))
    c10d.destroy_process_group()


def test_refusals_are_those_of_torch(tmp_path):
    pytest.importorskip("torch")
    run(_refusals, 3, str(tmp_path))


def _from_groups(rank, size, folder):
    c10d = _gloo(rank, size, folder)
    one = [m.DeviceMesh.from_group(m.group.WORLD, "cpu", mesh_dim_names=("all",)) for m in (c10d, dist)]
    _gather_along(_same(c10d, *one))
    ranks = [[0, 2], [3, 1]]
    several = []
    for module in (c10d, dist):
        rows, _ = module.new_subgroups_by_enumeration(ranks)
        columns, _ = module.new_subgroups_by_enumeration([[0, 3], [2, 1]])
        several.append(module.DeviceMesh.from_group([columns, rows], "cpu", ranks, mesh_dim_names=("dp", "tp")))
    ours = _same(c10d, *several)
    _gather_along(ours)
    _gather_along(_same(c10d, several[0]["tp"], ours["tp"]))
    with pytest.raises(ValueError, match=r"group 0 must have the ranks along dimension 0"):
        dist.DeviceMesh.from_group(
            [ours.get_group("tp"), ours.get_group("dp")], "cpu", ranks, mesh_dim_names=("dp", "tp")
        )
    dist.barrier()
    c10d.destroy_process_group()


def test_meshes_of_groups_are_those_of_torch(tmp_path):
    pytest.importorskip("torch")
    run(_from_groups, 4, str(tmp_path))


def _copies(rank, size):
    mesh = dist.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    flat = mesh["dp", "tp"]._flatten("all")
    for copied in (copy.deepcopy(mesh), pickle.loads(pickle.dumps(mesh))):
        assert copied == mesh
        assert hash(copied) == hash(mesh)
        assert copied.get_all_groups() == mesh.get_all_groups()
        assert copied["dp"].get_group() is mesh.get_group("dp")
        assert copied["all"] == flat
        assert copied["all"].get_group() is flat.get_group()
    written = pickle.dumps(mesh)
    dist.destroy_process_group()
    read = pickle.loads(written)
    assert read.shape == (2, size // 2)
    with pytest.raises(RuntimeError, match="not initialized"):
        read.get_group("dp")
    return written


def test_copies_have_the_groups_of_their_process():
    written = run(_copies, 2)[0]
    mesh = pickle.loads(written)
    assert mesh.mesh.tolist() == [[0], [1]]


def _entered(rank, size):
    mesh = dist.init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    with pytest.raises(RuntimeError, match="No device mesh is currently active"):
        current_mesh()
    other = dist.DeviceMesh("cuda", [1, 0])
    seen = []
    with mesh as entered, other:
        assert entered is mesh
        assert current_mesh() is other

        def look():
            with pytest.raises(RuntimeError, match="No device mesh"):
                current_mesh()
            seen.append("nothing")

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        with pytest.raises(KeyError, match="again"), mesh:
            raise KeyError("again")
        assert current_mesh() is other
    assert seen == ["nothing"]
    with pytest.raises(RuntimeError, match="No device mesh"):
        current_mesh()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    assert repr(mesh) == "DeviceMesh((dp=2), 'cpu', stride=(1,), Mesh: [0, 1])"


def test_entering_a_mesh():
    run(_entered, 2)


def _outside(rank, size):
    mesh = dist.DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("a", "b"))
    if rank == 2:
        with pytest.raises(IndexError, match="rank 2 is not in"):
            mesh.get_group("b")
        assert mesh.get_coordinate() is None
        with pytest.raises(RuntimeError, match="rank 2 is in none of the submeshes DeviceMesh"):
            _ = mesh["a"].mesh
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        assert repr(mesh["a"]) == "DeviceMesh((a=1), 'cpu', stride=((),), Mesh: None)"
        with pytest.raises(IndexError, match="rank 2 is not in"):
            mesh["a"].get_group()
        assert mesh["b"].mesh.tolist() == [0, 1]
    else:
        assert mesh["a"].mesh.tolist() == [rank]
        _gather_along(mesh)
    dist.barrier()


def test_ranks_outside_a_mesh():
    run(_outside, 3)


def _by_itself(rank, size):
    dist.destroy_process_group()
    mesh = dist.init_device_mesh("cpu", (1,))
    assert dist.is_initialized()
    assert mesh.get_group() is dist.group.WORLD


def test_a_mesh_makes_the_default_group():
    run(_by_itself, 1, environment={"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})


def test_layouts_reach_every_rank_once():
    layout = Layout.of_shape((2, 3, 4))
    for kept in [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]:
        part = Layout(tuple(layout.axes[dim] for dim in kept))
        everywhere = part.everywhere(24)
        ranks = np.arange(24).reshape(2, 3, 4)
        left = [dim for dim in range(3) if dim not in kept]
        assert everywhere.tolist() == ranks.transpose(left + list(kept)).reshape(-1, *part.shape).tolist()
        flat = part.flattened()
        assert flat.offsets().tolist() == part.offsets().reshape(-1).tolist()
        assert flat.everywhere(24).tolist() == everywhere.reshape(len(everywhere), -1).tolist()
        assert not part.overlaps()
    assert layout.flattened() == Layout((((24, 1),),))
    assert Layout((layout.axes[0], layout.axes[2])).flattened().strides == ((12, 1),)
    assert Layout((layout.axes[0], layout.axes[0])).overlaps()
    assert not Layout((layout.axes[2], layout.axes[0])).descends()


def test_overrides():
    options = object()
    given = {0: "shm", "b": options, 2: ("shm", options)}
    assert overrides_of(given, 4, ("a", "b", "c", "d")) == [
        ("shm", None),
        (None, options),
        ("shm", options),
        (None, None),
    ]
    assert set(given) == {0, "b", 2}
    with pytest.raises(RuntimeError, match="redundant dim index 0 and name a"):
        overrides_of({0: "shm", "a": "shm"}, 1, ("a",))
    with pytest.raises(RuntimeError, match=r"invalid keys .* \['x'\], expected integers in range \[0, 1\)"):
        overrides_of({"x": "shm"}, 1, ("a",))


def test_torchs_module_names():
    from corral.distributed import device_mesh

    assert device_mesh.DeviceMesh is dist.DeviceMesh
    assert dist.device_mesh is device_mesh
