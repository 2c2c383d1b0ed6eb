"""Every dtype that torch has travels by every way, those too that NumPy, DLPack and torch's own copies lack."""

from __future__ import annotations

import warnings

import pytest
import torch
from fleet import Fleet

import corral
import corral.distributed as dist

NAMES = sorted({str(each).removeprefix("torch.") for each in vars(torch).values() if isinstance(each, torch.dtype)})
PLAIN = [name for name in NAMES if not name.startswith(("qint", "quint"))]
QUANTIZED = [name for name in NAMES if name not in PLAIN]
PACKED = ("quint4x2", "quint2x4")  # which torch can neither index nor make a like of


@pytest.fixture(scope="module")
def fleet():
    ranks = Fleet(2)
    yield ranks
    ranks.close()


def _values(name, seed):
    """Two rows of random bits; of numbers, where not all bits are one."""
    dtype = getattr(torch, name)
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, (2, 6), generator=generator).bool()
    return torch.randint(0, 256, (2, 6 * dtype.itemsize), dtype=torch.uint8, generator=generator).view(dtype)


def _bits(tensor):
    return tensor.detach().unsqueeze(-1).view(torch.uint8).contiguous().numpy().tobytes()


def _same(one, other):
    return one.dtype is other.dtype and one.shape == other.shape and _bits(one) == _bits(other)


def _plain(rank, size):
    for seed, name in enumerate(PLAIN):
        values = _values(name, seed)
        for sent in (values, values.T, values[:, ::2], values[1], values[0, 0]):
            if rank == 1:
                dist.send(sent, 0)
            else:
                dist.recv(into := torch.empty(sent.shape, dtype=sent.dtype), 1)
                assert _same(into, sent), name
        deep = values.reshape(2, 1, 1, 1, 3, 1, 1, 2, 1)  # more dimensions than the engine takes
        if rank == 1:
            dist.isend(deep, 0).wait()
            dist.send(values, 0)
        else:
            into = torch.zeros(deep.numel() * deep.itemsize, dtype=torch.uint8).view(deep.dtype).view(deep.shape)
            dist.irecv(into, 1).wait()
            assert _same(into, deep), name
            memory = torch.zeros(2 * values.numel() * values.itemsize, dtype=torch.uint8).view(values.dtype)
            gaps = memory.view(6, 2, 2)[..., 1].T  # with other elements between
            dist.recv(gaps, 1)
            assert _same(gaps, values), name
            assert not any(_bits(memory.view(6, 2, 2)[..., 0]))
        lists = [torch.empty_like(values) for _ in range(size)] if rank == 0 else None
        dist.gather(values, lists)
        out = [None] * size if rank == 0 else None
        dist.gather_object({"a": values, "t": values.T}, out)
        trees = corral.gather(corral.TensorDict(a=values, n={"b": values[:, 1:4:2]}, batch_size=[2]), 0)
        stack = corral.gather_and_stack(None if rank == 0 else {"a": values, "t": values.T}, 0)
        into = corral.TensorDict(a=torch.empty_like(values)[None], batch_size=[1])
        corral.gather_and_stack(into if rank == 0 else corral.TensorDict(a=values), 0)
        if rank == 0:
            assert all(_same(each, values) for each in lists), name
            assert all(_same(each["a"], values) and _same(each["t"], values.T) for each in out), name
            assert all(_same(each["a"], values) for each in trees), name
            assert all(_same(each["n", "b"], values[:, 1:4:2]) for each in trees), name
            assert _same(stack["a"][0], values), name
            assert _same(stack["t"][0], values.T), name
            assert _same(into["a"][0], values), name


def test_plain_dtypes(fleet):
    fleet(_plain)


def _quantized(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will drop them
        if name in PACKED:
            rows = torch.tensor([0.1, 0.2]), torch.tensor([0.0, 0.0])
            return torch.quantize_per_channel(torch.arange(8.0).view(2, 4) / 10, *rows, 0, getattr(torch, name))
        return torch.quantize_per_tensor(torch.arange(8.0).view(2, 4), 0.5, 0, getattr(torch, name))


def _numbers(rank, size):
    for name in QUANTIZED:
        sent = _quantized(name)
        numbers = sent.dequantize()
        assert numbers.sum() != 0
        into = [torch.zeros(2, 4) for _ in range(size)] if rank == 0 else None
        dist.gather(sent, into)
        if rank == 0:
            dist.recv(one := torch.zeros(2, 4), 1)
        else:
            dist.send(sent, 0)
        trees = corral.gather({"a": sent}, 0)
        out = [None] * size if rank == 0 else None
        dist.gather_object([sent], out)
        stack = corral.gather_and_stack(None if rank == 0 else {"a": sent}, 0)
        if rank == 0:
            assert all(torch.equal(each, numbers) for each in (*into, one, stack["a"][0]))
            assert all(torch.equal(tree["a"], numbers) for tree in trees)
            assert all(each.dtype is sent.dtype and torch.equal(each.int_repr(), sent.int_repr()) for [each] in out)
        if name in PACKED:
            continue
        if rank == 0:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                quantized = torch.quantize_per_tensor(torch.zeros(2, 4), 0.5, 0, sent.dtype)
            dist.recv(quantized, 1)
            assert torch.equal(quantized.int_repr(), sent.int_repr())
        else:
            dist.send(sent, 0)


@pytest.mark.filterwarnings("ignore")
def test_quantized_dtypes_are_sent_as_the_numbers_that_they_stand_for(fleet):
    fleet(_numbers)


def _mismatches(rank, size):
    bits = torch.zeros(4, dtype=torch.uint8)
    if rank == 1:
        dist.send(bits.view(torch.float4_e2m1fn_x2), 0)
        dist.send(bits.view(torch.int4), 0)
    else:
        with pytest.raises(dist.MismatchError, match="of float4_e2m1fn_x2, the receiving array of uint8"):
            dist.recv(bits, 1)
        with pytest.raises(dist.MismatchError, match="of int4, the receiving array of uint4"):
            dist.recv(bits.view(torch.uint4), 1)
    tree = {"a": torch.zeros(1, 4) if rank == 0 else bits.view(torch.int4)}
    with pytest.raises(dist.MismatchError, match=r"'a' of rank 1.*int4 cannot be cast to float32"):
        corral.gather_and_stack(tree, 0)
    with pytest.raises(dist.MismatchError, match=r"rank 0: .*'a' \(int4\) cannot become an array of numpy"):
        corral.gather({"a": bits.view(torch.int4)}, 0, like="numpy")


def test_dtypes_that_do_not_fit_are_named(fleet):
    fleet(_mismatches)
