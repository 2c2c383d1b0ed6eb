"""Turn torch's tensors into buffers. Imported only where torch already is."""

from __future__ import annotations

import torch
from torch.autograd.graph import increment_version

from corral.arrays.buffers import (
    Buffer,
    Finish,
    Handler,
    describe,
    refuse_overlap,
    wrap,
)
from corral.arrays.overlap import Extent, is_nested, overlaps_itself

__all__ = ["nested_error", "register", "subclass_handler"]

_CORE_DTYPES = frozenset(
    dtype
    for name in (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if (dtype := getattr(torch, name, None)) is not None
)
_CORE_DIMENSIONS = 8
_strided = torch.strided


def register(handlers: dict[type, Handler]) -> None:
    """Enter torch's types into `handlers`, and tell the core how to read them without Python."""
    handlers[torch.Tensor] = handlers[torch.nn.Parameter] = Handler(_read, _write, _extent)
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    try:
        from corral import _core
    except ImportError:
        return
    if capsule is not None and hasattr(_core, "register_torch"):
        _core.register_torch(torch.Tensor, torch.nn.Parameter, capsule, increment_version, _CORE_DTYPES)


def _read(tensor: torch.Tensor, name: str) -> Buffer:
    if tensor.is_nested:
        raise nested_error(name)
    if tensor.dtype not in _CORE_DTYPES and tensor.layout is _strided and not tensor.is_quantized:
        return _wrap(_read(_bytes(tensor, name), name), tensor)
    if not (tensor.is_cpu and tensor.layout is _strided):
        with torch.no_grad():
            tensor = _to_host(tensor.detach(), name)
    if tensor.is_neg() or (tensor.is_complex() and tensor.is_conj()) or tensor._is_zerotensor():
        tensor = _materialize(tensor)
    if tensor.is_quantized:
        return tensor.detach().dequantize()
    if tensor.ndim > _CORE_DIMENSIONS:
        tensor = tensor.detach().reshape(-1)
    return tensor


def _write(tensor: torch.Tensor, name: str) -> tuple[Buffer, Finish | None]:
    if tensor.is_nested:
        raise nested_error(name)
    if tensor.layout is _strided:
        direct = tensor.is_contiguous()
        if not direct:
            size = tensor.itemsize
            strides = [step * size for step in tensor.stride()]
            direct = is_nested(tensor.shape, strides, size)
            if not direct and overlaps_itself(tensor.shape, strides, size):
                raise refuse_overlap(tensor, name)
        if tensor.dtype not in _CORE_DTYPES and not tensor.is_quantized:
            buffer, finish = _write(_bytes(tensor, name), name)
            # The engine itself tells autograd of the tensors that it writes; this one it does not see.
            return _wrap(buffer, tensor), finish or (lambda: increment_version(tensor))
        if (
            direct
            and not tensor.is_quantized
            and tensor.ndim <= _CORE_DIMENSIONS
            and tensor.is_cpu
            and not (tensor.is_complex() and tensor.is_conj())
            and not tensor.is_neg()
            and not tensor._is_zerotensor()
        ):
            return tensor, None
    return _stage(tensor, name)


def _stage(tensor: torch.Tensor, name: str) -> tuple[Buffer, Finish]:
    """Return host memory that stands in for a tensor that the core cannot write."""
    _refuse_no_data(tensor, name)
    if tensor._is_zerotensor():
        raise TypeError(f"{name} cannot be received into: it is a symbolic zero and has no memory")
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        raise TypeError(f"{name} cannot be received into: its layout is {tensor.layout}; use a dense tensor")
    dtype = torch.float32 if tensor.is_quantized else tensor.dtype
    staging = torch.empty(tensor.shape, dtype=dtype, pin_memory=tensor.is_cuda)

    def finish() -> None:
        with torch.no_grad():
            tensor.copy_(staging if tensor.layout is _strided else staging.to_sparse())

    return _read(staging, name), finish


def _to_host(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return the values of a tensor that is sparse or on a device as a dense one in host memory."""
    _refuse_no_data(tensor, name)
    if tensor.layout is not _strided:
        tensor = tensor.to_dense()
    if tensor.is_cpu:
        return tensor
    if not tensor.is_cuda:
        return tensor.cpu()
    staging = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return staging.copy_(tensor)


def _refuse_no_data(tensor: torch.Tensor, name: str) -> None:
    if tensor.is_meta:
        raise TypeError(f"{name} is on the meta device and has no values ({describe(tensor)})")


def nested_error(name: str) -> TypeError:
    """Return the error for a tensor that has rows of several lengths."""
    return TypeError(
        f"{name} is a nested torch tensor, which has no one shape: pass its components (.unbind()), or its .values() "
        "and .offsets() where its layout is torch.jagged"
    )


def _materialize(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        plain = torch.empty(tensor.shape, dtype=tensor.dtype)
        return plain.copy_(tensor.detach())


def _bytes(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a tensor of a dtype that the core does not know, and torch itself may not copy, as its bytes."""
    try:
        return tensor.detach().unsqueeze(-1).view(torch.uint8)
    except RuntimeError as error:
        raise TypeError(f"{name} has dtype {tensor.dtype}, which has no plain bytes") from error


def _wrap(view: torch.Tensor, tensor: torch.Tensor) -> Buffer:
    """Return what `_bytes` made of a tensor with the name of its dtype."""
    return wrap(view.numpy(), str(tensor.dtype).removeprefix("torch."))


def _extent(tensor: torch.Tensor) -> Extent:
    if tensor.layout is not _strided or tensor.is_nested:
        return Extent(f"tensor {id(tensor)}", 1, (), (), 1)  # one byte in a space of its own
    size = tensor.itemsize
    strides = tuple(s * size for s in tensor.stride())
    return Extent(str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), strides, size)


def _plain(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return the plain tensor in the memory of one of a subclass."""
    if tensor.is_nested:
        raise nested_error(name)
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().as_subclass(torch.Tensor)
        if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
            try:
                empty = plain.numel() != 0 and plain.untyped_storage().nbytes() == 0
                empty = empty or (plain.numel() != 0 and plain.data_ptr() == 0)
            except RuntimeError:
                empty = True
            if empty or type(plain) is not torch.Tensor:
                raise TypeError(f"{name} is a {type(tensor).__qualname__}, which has no memory of its own")
    return plain


subclass_handler = Handler(
    lambda tensor, name: _read(_plain(tensor, name), name),
    lambda tensor, name: _write(_plain(tensor, name), name),
    lambda tensor: _extent(tensor if tensor.is_nested else _plain(tensor, "tensor")),
)
