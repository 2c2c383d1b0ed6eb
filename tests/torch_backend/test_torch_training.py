"""What is built on torch's groups, over corral: training, sharding, checkpoints."""

from __future__ import annotations

import pytest
from torch_jobs import run_torch


def _model():
    import torch

    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
    )


def _batches(rank, count=4):
    import torch

    place = torch.Generator().manual_seed(100 + rank)
    for _ in range(count):
        yield torch.rand(5, 1, 8, 8, generator=place), torch.randint(0, 3, (5,), generator=place)


def _train(model, rank, contexts=None):
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for images, labels in _batches(rank):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


def _ddp(rank, size, options):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    trained = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        model = _train(DistributedDataParallel(_model(), process_group=group, **options), rank)
        trained.append(model.module.state_dict())
    fresh = _model().state_dict()
    for name, value in trained[0].items():
        assert torch.equal(value, trained[1][name]), name
        assert not torch.equal(value, fresh[name]), name
    return sum(value.numel() for value in trained[0].values())


@pytest.mark.parametrize(
    "options", [{}, {"bucket_cap_mb": 0.0005, "gradient_as_bucket_view": True}, {"find_unused_parameters": True}]
)
def test_ddp_trains_as_over_gloo(options):
    # With two ranks, the order in which numbers are added cannot matter.
    assert run_torch(_ddp, 2, options)[0] > 400


def _ddp_sparse(rank, size):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    words = torch.randint(0, 50, (4, 6), generator=torch.Generator().manual_seed(rank))
    gradients = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        torch.manual_seed(1)
        model = DistributedDataParallel(torch.nn.EmbeddingBag(50, 3, sparse=True), process_group=group)
        model(words).square().sum().backward()
        gradients.append(model.module.weight.grad)
    assert gradients[0].is_sparse
    assert torch.equal(gradients[0].to_dense(), gradients[1].to_dense())


def test_ddp_with_sparse_gradients():
    run_torch(_ddp_sparse, 2)


def _ddp_hook(rank, size):
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    plain = _train(DistributedDataParallel(_model()), rank)
    hooked = DistributedDataParallel(_model())
    hooked.register_comm_hook(None, default_hooks.fp16_compress_hook)
    _train(hooked, rank)
    for one, other in zip(plain.parameters(), hooked.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.05)
        assert not torch.equal(one, other)


def test_ddp_with_a_hook_that_waits_for_futures():
    run_torch(_ddp_hook, 2)


def _fsdp(rank, size):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    trained = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3))
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        place = torch.Generator().manual_seed(rank)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.rand(4, 12, generator=place)).square().sum().backward()
            optimizer.step()
        assert model[0].weight.to_local().shape == (10 // size, 12)
        trained.append([parameter.full_tensor() for parameter in model.parameters()])
    for ours, theirs in zip(*trained, strict=True):
        assert torch.equal(ours, theirs)


def test_fsdp_trains_as_over_gloo():
    run_torch(_fsdp, 2)


def _dtensor(rank, size):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    whole = torch.arange(24.0).reshape(4, 6)
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("rows", "columns"))
    tensor = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert tensor.to_local().shape == (2, 6 // (size // 2))
    assert torch.equal(tensor.full_tensor(), whole)
    product = tensor @ tensor.T
    assert torch.equal(product.full_tensor(), whole @ whole.T)
    moved = tensor.redistribute(mesh, [Shard(1), Replicate()])
    assert torch.equal(moved.to_local(), whole.chunk(2, 1)[mesh.get_local_rank("rows")])
    total = type(tensor).from_local(whole * (rank + 1), mesh, [Partial(), Partial()]).full_tensor()
    assert torch.equal(total, whole * sum(range(1, size + 1)))


def test_dtensor():
    run_torch(_dtensor, 4)


def _checkpoint(rank, size, folder):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(10.0 * size).reshape(2 * size, 5)
    state = {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "whole": torch.tensor([1.5, 2.5]), "step": 12}
    checkpoint.save(state, checkpoint_id=folder)
    read = {
        "sharded": distribute_tensor(torch.zeros_like(whole), mesh, [Shard(1)]),
        "whole": torch.zeros(2),
        "step": 0,
    }
    checkpoint.load(read, checkpoint_id=folder)
    assert torch.equal(read["sharded"].full_tensor(), whole)
    assert read["whole"].tolist() == [1.5, 2.5]
    assert read["step"] == 12
    dist.barrier()


@pytest.mark.filterwarnings("ignore")
def test_checkpoints(tmp_path):
    run_torch(_checkpoint, 2, str(tmp_path / "checkpoint"))
