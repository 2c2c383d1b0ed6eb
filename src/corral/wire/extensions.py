"""The values that MessagePack has no type for: one extension each, with its number on the wire."""

from __future__ import annotations

import datetime
import struct
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from corral.wire import array_values as arrays
from corral.wire import entries, moments, pickles
from corral.wire.errors import CodecError

__all__ = ["MAX_DEPTH", "SCALARS", "Reader", "Unsendable", "Writer"]

MAX_DEPTH = 200
"""Levels of nesting that an object may have: a message must not exhaust its reader's stack."""

SCALARS = frozenset({type(None), bool, int, float, str})
"""Types that MessagePack gives back as they were: integers of 64 bits, strings of Unicode."""

_KEYS = SCALARS | {bytes}
_LONG = 1 << 16  # length from which strings go beside the header
_COMPLEX = struct.Struct("<dd")

(
    _INT,
    _COMPLEX_NUMBER,
    _STR,
    _BYTES,
    _BYTEARRAY,
    _TUPLE,
    _SET,
    _FROZENSET,
    _DICT,
    _DATETIME,
    _DATE,
    _TIME,
    _TIMEDELTA,
    _ARRAY,
    _SCALAR,
    _TENSOR,
    _JAX,
    _STRINGS,
    _TENSORDICT,
    _PICKLE,
    _ENTRY,
) = range(1, 22)

_pack = msgspec.msgpack.Encoder().encode


class Unsendable(Exception):
    """An object that cannot be sent, whatever its scalars."""


class Writer:
    """Turns an object into one that MessagePack can say."""

    __slots__ = ("allow_pickle", "buffers", "path", "tagged", "trusted")

    def __init__(self, allow_pickle: bool, trusted: frozenset[type]) -> None:
        self.allow_pickle = allow_pickle
        self.trusted = trusted
        self.buffers: list[memoryview] = []
        self.path: set[int] = set()
        self.tagged = False

    def walk(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in self.trusted:
            return obj
        if kind is list:
            if self.trusted.issuperset(map(type, obj)):
                return obj
            self.enter(obj)
            items = [self.walk(item) for item in obj]
            self.path.discard(id(obj))
            return items
        if kind is dict:
            return self.dict(obj)
        write = _writers.get(kind)
        if write is None:
            write = _writer_of(kind)
        return write(self, obj)

    def dict(self, obj: dict[Any, Any]) -> Any:
        self.enter(obj)
        result: Any
        if self.trusted.issuperset(map(type, obj)):
            trusted, walk = self.trusted, self.walk
            result = {key: value if type(value) in trusted else walk(value) for key, value in obj.items()}
        else:
            keys = [self.walk(key) for key in obj]
            values = [self.walk(value) for value in obj.values()]
            if _KEYS.issuperset(map(type, keys)):
                result = dict(zip(keys, values, strict=True))
            else:
                result = self.tag(_DICT, [keys, values])
        self.path.discard(id(obj))
        return result

    def enter(self, obj: Any) -> None:
        if id(obj) in self.path:
            raise Unsendable(f"a {type(obj).__name__} contains itself, and cannot be sent")
        if len(self.path) >= MAX_DEPTH:
            raise Unsendable(f"the object's containers lie too deep ({MAX_DEPTH} levels can be sent)")
        self.path.add(id(obj))

    def sequence(self, code: int, obj: Any) -> Ext:
        self.enter(obj)
        items = list(obj) if self.trusted.issuperset(map(type, obj)) else [self.walk(item) for item in obj]
        self.path.discard(id(obj))
        return self.tag(code, items)

    def tag(self, code: int, content: Any) -> Ext:
        self.tagged = True
        return Ext(code, _pack(content))

    def memory(self, memory: Any) -> Any:
        """Put memory into the header, or beside it and its number into the header."""
        if type(memory) is bytes and len(memory) <= arrays.INLINE:
            return memory
        view = memoryview(memory)
        if view.nbytes <= arrays.INLINE:
            return view.tobytes()
        self.buffers.append(view)
        self.tagged = True
        return len(self.buffers) - 1

    def pickle(self, obj: Any) -> Ext:
        data, pieces = pickles.freeze(obj, self.allow_pickle)
        refs = [self.memory(piece) for piece in pieces]
        return self.tag(_PICKLE, [pickles.type_name(type(obj)), self.memory(data), refs])


def _write_int(w: Writer, obj: int) -> Any:
    if -(1 << 63) <= obj < 1 << 64:
        return obj
    return w.tag(_INT, w.memory(obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True)))


def _write_str(w: Writer, obj: str) -> Any:
    if len(obj) < _LONG:
        try:
            obj.encode()
        except UnicodeEncodeError:
            pass
        else:
            return obj
    return w.tag(_STR, w.memory(obj.encode("utf-8", "surrogatepass")))


def _write_bytes(w: Writer, obj: bytes) -> Any:
    return obj if len(obj) < _LONG else w.tag(_BYTES, w.memory(obj))


def _write_array(w: Writer, obj: np.ndarray[Any, Any]) -> Any:
    if not arrays.is_plain(obj.dtype):
        if obj.dtype.kind == "T" and obj.dtype == np.dtypes.StringDType():
            return w.tag(_STRINGS, [list(obj.shape), w.walk(obj.ravel().tolist())])
        return w.pickle(obj)
    form, shape, flags, memory = arrays.describe_numpy(obj)
    return w.tag(_ARRAY, [form, shape, flags, w.memory(memory)])


def _write_scalar(w: Writer, obj: np.generic) -> Any:
    array = np.asarray(obj)
    if not arrays.is_plain(array.dtype):
        return w.pickle(obj)
    form, _, _, memory = arrays.describe_numpy(array)
    return w.tag(_SCALAR, [form, w.memory(memory)])


def _write_tensor(w: Writer, obj: Any) -> Any:
    torch = sys.modules["torch"]
    if obj.layout is not torch.strided or obj.is_quantized or obj.is_nested or obj.device.type == "meta":
        return w.pickle(obj)
    name, shape, flags, memory = arrays.describe_torch(obj)
    device = "" if obj.device.type == "cpu" else str(obj.device)
    return w.tag(_TENSOR, [name, shape, flags, device, w.memory(memory)])


def _write_jax(w: Writer, obj: Any) -> Any:
    form, shape, flags, memory = arrays.describe_numpy(np.asarray(obj))
    return w.tag(_JAX, [form, shape, flags, w.memory(memory)])


def _write_cupy(w: Writer, obj: Any) -> Any:
    form, shape, flags, memory = arrays.describe_numpy(obj.get())
    return w.tag(_ARRAY, [form, shape, flags, w.memory(memory)])


def _write_tensordict(w: Writer, obj: Any) -> Any:
    w.enter(obj)
    device = getattr(obj, "device", None)
    content = [
        w.walk(dict(obj._source)),
        list(map(int, obj.batch_size)),
        None if device is None else str(device),
        bool(getattr(obj, "is_locked", False)),
    ]
    if obj._names is not None:
        content.append(w.walk(list(obj._names)))
    w.path.discard(id(obj))
    return w.tag(_TENSORDICT, content)


def _write_moment(code: int, pack: Callable[[Any], list[Any] | None]) -> Callable[[Writer, Any], Any]:
    def write(w: Writer, obj: Any) -> Any:
        parts = pack(obj)
        return w.pickle(obj) if parts is None else w.tag(code, parts)

    return write


_writers: dict[type, Callable[[Writer, Any], Any]] = {
    type(None): lambda w, obj: obj,
    bool: lambda w, obj: obj,
    float: lambda w, obj: obj,
    int: _write_int,
    str: _write_str,
    bytes: _write_bytes,
    complex: lambda w, obj: w.tag(_COMPLEX_NUMBER, _COMPLEX.pack(obj.real, obj.imag)),
    bytearray: lambda w, obj: w.tag(_BYTEARRAY, w.memory(obj)),
    tuple: lambda w, obj: w.sequence(_TUPLE, obj),
    set: lambda w, obj: w.sequence(_SET, obj),
    frozenset: lambda w, obj: w.sequence(_FROZENSET, obj),
    datetime.datetime: _write_moment(_DATETIME, moments.pack_datetime),
    datetime.time: _write_moment(_TIME, moments.pack_time),
    datetime.date: lambda w, obj: w.tag(_DATE, obj.toordinal()),
    datetime.timedelta: lambda w, obj: w.tag(_TIMEDELTA, moments.pack_delta(obj)),
    np.ndarray: _write_array,
    np.memmap: _write_array,
}


def _write_entry(w: Writer, obj: Any) -> Any:
    w.enter(obj)
    found = entries.parts(obj)
    kind, inner, rest = found if found is not None else ("L", obj.tensordicts, [obj.stack_dim])
    content = [kind, w.walk(inner), rest]
    more = obj._device if found is not None else obj._stack_name
    if more is not None:
        content.append(w.walk(more))
    w.path.discard(id(obj))
    return w.tag(_ENTRY, content)


def _writer_of(kind: type) -> Callable[[Writer, Any], Any]:
    """Choose how objects of a type met for the first time travel."""
    module = kind.__module__.partition(".")[0]
    write: Callable[[Writer, Any], Any] = Writer.pickle
    if issubclass(kind, np.generic):
        write = _write_scalar if module in ("numpy", "ml_dtypes") else Writer.pickle
    elif module == "torch" and kind in (sys.modules["torch"].Tensor, sys.modules["torch"].nn.Parameter):
        write = _write_tensor
    elif module in ("jaxlib", "jax") and hasattr(kind, "addressable_shards"):
        write = _write_jax
    elif module == "cupy" and hasattr(kind, "__cuda_array_interface__"):
        write = _write_cupy
    elif module == "corral" and kind is getattr(sys.modules.get("corral.tensordict"), "TensorDict", None):
        write = _write_tensordict
    elif module == "corral" and kind.__name__ in ("NonTensorData", "NonTensorStack", "LazyStackedTensorDict"):
        write = _write_entry
    else:
        return write  # not remembered: classes come and go
    _writers[kind] = write
    return write


class Reader:
    """Turns headers back into objects, and gives each buffer to one of them only. For one thread at a time."""

    __slots__ = ("allow_pickle", "buffers", "depth", "read")

    def __init__(self) -> None:
        self.buffers: list[Any] = []
        self.allow_pickle = False
        self.depth = 0
        self.read: Callable[[Any], Any] = msgspec.msgpack.Decoder(ext_hook=self.extension).decode

    def begin(self, buffers: list[Any], allow_pickle: bool) -> None:
        self.buffers = buffers
        self.allow_pickle = allow_pickle
        self.depth = 0

    def extension(self, code: int, data: memoryview) -> Any:
        build = _builders.get(code)
        if build is None:
            raise CodecError(f"malformed object: unknown extension {code}")
        if self.depth > MAX_DEPTH:
            raise CodecError("malformed object: too deep")
        self.depth += 1
        result = build(self, self.read(data))
        self.depth -= 1
        return result

    def memory(self, ref: Any) -> Any:
        if type(ref) is bytes:
            return ref
        if type(ref) is not int or not 0 <= ref < len(self.buffers):
            raise CodecError("malformed object: no such buffer")
        buffer = self.buffers[ref]
        if buffer is None:  # or few bytes could become any number of arrays
            raise CodecError("malformed object: a buffer belongs to two arrays")
        self.buffers[ref] = None
        return buffer


def _build_complex(r: Reader, content: Any) -> complex:
    if type(content) is not bytes or len(content) != _COMPLEX.size:
        raise CodecError("malformed complex number")
    return complex(*_COMPLEX.unpack(content))


def _items(content: Any) -> list[Any]:
    if type(content) is not list:
        raise CodecError("malformed container")
    return content


def _build_dict(r: Reader, content: Any) -> dict[Any, Any]:
    keys, values = content
    return dict(zip(_items(keys), _items(values), strict=True))


def _build_scalar(r: Reader, content: Any) -> Any:
    form, ref = content
    return arrays.build_numpy(form, [], 0, r.memory(ref))[()]


def _build_array(r: Reader, content: Any) -> Any:
    form, shape, flags, ref = content
    return arrays.build_numpy(form, shape, flags, r.memory(ref))


def _build_jax(r: Reader, content: Any) -> Any:
    array = _build_array(r, content)
    jax = sys.modules.get("jax")
    return array if jax is None else jax.numpy.asarray(array)


def _build_tensor(r: Reader, content: Any) -> Any:
    name, shape, flags, device, ref = content
    tensor = arrays.build_torch(name, shape, flags, r.memory(ref))
    torch = sys.modules.get("torch")
    if type(device) is str and device.startswith("cuda") and torch is not None and torch.cuda.is_available():
        index = int(device.partition(":")[2] or 0)
        return tensor.to("cuda", index if index < torch.cuda.device_count() else 0)
    return tensor


def _build_strings(r: Reader, content: Any) -> Any:
    shape, strings = content
    arrays.checked_shape(shape)
    if any(type(s) is not str for s in _items(strings)):
        raise CodecError("malformed array of strings")
    return np.array(strings, np.dtypes.StringDType()).reshape(shape)


def _build_tensordict(r: Reader, content: Any) -> Any:
    from corral.tensordict import TensorDict

    source, batch_size, device, locked, *rest = content
    if type(source) is not dict or not (device is None or type(device) is str) or len(rest) > 1:
        raise CodecError("malformed TensorDict")
    names = rest[0] if rest else None
    if names is not None and (
        type(names) is not list or any(not (name is None or type(name) is str) for name in names)
    ):
        raise CodecError("malformed TensorDict: names must be strings")
    try:
        result = TensorDict(source, batch_size=arrays.checked_shape(batch_size), device=device, names=names)
        return result.lock_() if locked else result
    except Exception as error:  # whatever a library says of a device, a shape or a key that it does not have
        raise CodecError(f"malformed TensorDict: {error}") from None


def _build_entry(r: Reader, content: Any) -> Any:
    kind, inner, rest, *more = content
    if len(more) > 1 or kind not in ("L", "N", "S") or any(type(each) not in (str, int) for each in more):
        raise CodecError("malformed entry of a TensorDict")
    if kind == "L":
        (stack_dim,) = _items(rest)
        return entries.make_lazy(stack_dim, _items(inner), *more)
    return entries.make_entry(kind, inner, arrays.checked_shape(rest), *map(str, more))


def _build_pickle(r: Reader, content: Any) -> Any:
    name, ref, refs = content
    if type(name) is not str:
        raise CodecError("malformed pickle")
    pickles.check(name, r.allow_pickle, "be received")
    pieces = [_own(r.memory(piece)) for piece in _items(refs)]
    return pickles.thaw(name, r.memory(ref), pieces, r.allow_pickle)


def _own(memory: Any) -> Any:
    """Return memory that an unpickled array may write."""
    view = memoryview(memory)
    return bytearray(view) if view.readonly else view


_builders: dict[int, Callable[[Reader, Any], Any]] = {
    _INT: lambda r, content: int.from_bytes(r.memory(content), "little", signed=True),
    _COMPLEX_NUMBER: _build_complex,
    _STR: lambda r, content: str(r.memory(content), "utf-8", "surrogatepass"),
    _BYTES: lambda r, content: bytes(r.memory(content)),
    _BYTEARRAY: lambda r, content: bytearray(r.memory(content)),
    _TUPLE: lambda r, content: tuple(_items(content)),
    _SET: lambda r, content: set(_items(content)),
    _FROZENSET: lambda r, content: frozenset(_items(content)),
    _DICT: _build_dict,
    _DATETIME: lambda r, content: moments.unpack_datetime(content),
    _DATE: lambda r, content: datetime.date.fromordinal(content),
    _TIME: lambda r, content: moments.unpack_time(content),
    _TIMEDELTA: lambda r, content: moments.unpack_delta(content),
    _ARRAY: _build_array,
    _SCALAR: _build_scalar,
    _TENSOR: _build_tensor,
    _JAX: _build_jax,
    _STRINGS: _build_strings,
    _TENSORDICT: _build_tensordict,
    _PICKLE: _build_pickle,
    _ENTRY: _build_entry,
}
