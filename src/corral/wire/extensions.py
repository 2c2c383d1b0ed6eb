"""The values that MessagePack has no type for: one extension each, with its number on the wire."""

from __future__ import annotations

import datetime
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from corral.wire import array_values
from corral.wire.errors import CodecError, PickleError

__all__ = ["MAX_DEPTH", "pack", "unpack"]

MAX_DEPTH = 100
"""Levels of nesting that an object may have: a message must not exhaust its reader's stack."""

_Ext = msgspec.msgpack.Ext
_encode = msgspec.msgpack.Encoder().encode

TUPLE, SET, FROZENSET, DICT, INT, COMPLEX, BYTEARRAY = 1, 2, 3, 4, 5, 6, 7
DATETIME, DATE, TIME, TIMEDELTA, ARRAY, SCALAR, TENSORDICT, PICKLE = 8, 9, 10, 11, 12, 13, 14, 15


class _Packer:
    def __init__(self, buffers: list[memoryview], may_pickle: bool) -> None:
        self.buffers = buffers
        self.may_pickle = may_pickle

    def pack(self, obj: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise CodecError(f"the object is nested more than {MAX_DEPTH} levels deep, or contains itself")
        kind = type(obj)
        if kind is str or kind is float or kind is bool or obj is None or kind is bytes:
            return obj
        packer = _PACKERS.get(kind)
        if packer is not None:
            return packer(self, obj, depth + 1)
        if array_values.is_value(obj):
            return self.array(obj)
        if _is_tensordict(obj):
            return self.nest(TENSORDICT, [list(obj.batch_size), dict(obj.items())], depth + 1)
        return self.pickled(obj)

    def nest(self, code: int, items: Any, depth: int) -> Any:
        return _Ext(code, _encode([self.pack(item, depth) for item in items]))

    def list(self, obj: Any, depth: int) -> Any:
        return [self.pack(item, depth) for item in obj]

    def dict(self, obj: Any, depth: int) -> Any:
        if all(type(key) is str for key in obj):
            return {key: self.pack(value, depth) for key, value in obj.items()}
        return self.nest(DICT, [part for pair in obj.items() for part in pair], depth)

    def int(self, obj: Any, depth: int) -> Any:
        if -(1 << 63) <= obj < 1 << 63:
            return obj
        return _Ext(INT, obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True))

    def array(self, obj: Any) -> Any:
        description, buffer = array_values.describe(obj)
        self.buffers.append(buffer)
        code = SCALAR if isinstance(obj, np.generic) else ARRAY
        return _Ext(code, _encode([*description, len(self.buffers) - 1]))

    def pickled(self, obj: Any) -> Any:
        kind = type(obj)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if not self.may_pickle:
            raise PickleError(
                f"an object of type {name} can only be sent as a pickle, and pickles are denied "
                "(allow_pickle=False or CORRAL_PICKLE=deny). Send plain data, arrays or a TensorDict instead"
            )
        parts: list[pickle.PickleBuffer] = []
        data = pickle.dumps(obj, protocol=5, buffer_callback=parts.append)
        first = len(self.buffers)
        self.buffers.extend(part.raw() for part in parts)
        return _Ext(PICKLE, _encode([name, data, first, len(parts)]))


def _is_tensordict(obj: Any) -> bool:
    import sys

    module = sys.modules.get("corral.tensordict")
    return module is not None and type(obj) is module.TensorDict


def _time_text(obj: Any) -> Any:
    if type(obj.tzinfo) not in (type(None), datetime.timezone):
        return None
    return [obj.isoformat(), obj.fold]


def _pack_time(code: int) -> Callable[[_Packer, Any, int], Any]:
    def pack_one(packer: _Packer, obj: Any, depth: int) -> Any:
        text = _time_text(obj)
        return packer.pickled(obj) if text is None else _Ext(code, _encode(text))

    return pack_one


_PACKERS: dict[type, Callable[[_Packer, Any, int], Any]] = {
    int: _Packer.int,
    list: _Packer.list,
    dict: _Packer.dict,
    tuple: lambda packer, obj, depth: packer.nest(TUPLE, obj, depth),
    set: lambda packer, obj, depth: packer.nest(SET, obj, depth),
    frozenset: lambda packer, obj, depth: packer.nest(FROZENSET, obj, depth),
    complex: lambda packer, obj, depth: _Ext(COMPLEX, struct.pack("<dd", obj.real, obj.imag)),
    bytearray: lambda packer, obj, depth: _Ext(BYTEARRAY, bytes(obj)),
    datetime.datetime: _pack_time(DATETIME),
    datetime.time: _pack_time(TIME),
    datetime.date: lambda packer, obj, depth: _Ext(DATE, obj.isoformat().encode()),
    datetime.timedelta: lambda packer, obj, depth: _Ext(
        TIMEDELTA, struct.pack("<qqq", obj.days, obj.seconds, obj.microseconds)
    ),
}


def pack(obj: Any, buffers: list[memoryview], may_pickle: bool) -> bytes:
    """Encode an object as MessagePack with extensions; its arrays' memory is appended to `buffers`."""
    return _encode(_Packer(buffers, may_pickle).pack(obj, 0))


class _Unpacker:
    def __init__(self, buffers: Sequence[memoryview], may_pickle: bool) -> None:
        self.buffers = buffers
        self.may_pickle = may_pickle
        self.depth = 0
        self.decode = msgspec.msgpack.Decoder(ext_hook=self.extension).decode

    def extension(self, code: int, data: memoryview) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CodecError("the message is nested too deeply")
        try:
            reader = _READERS.get(code)
            if reader is None:
                raise CodecError(f"the message holds an extension of unknown number {code}")
            return reader(self, data)
        except (CodecError, PickleError, msgspec.DecodeError):
            raise
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            raise CodecError(f"the message holds a value that makes no sense: {error}") from None
        finally:
            self.depth -= 1

    def items(self, data: memoryview) -> list[Any]:
        items = self.decode(data)
        if type(items) is not list:
            raise CodecError("the message has something else where a list belongs")
        return items

    def dict(self, data: memoryview) -> Any:
        items = self.items(data)
        return dict(zip(items[::2], items[1::2], strict=True))

    def buffer(self, index: Any) -> memoryview:
        if type(index) is not int or not 0 <= index < len(self.buffers):
            raise CodecError("the message names an array that it does not have")
        return self.buffers[index]

    def array(self, data: memoryview) -> Any:
        *description, index = self.items(data)
        return array_values.rebuild(description, self.buffer(index))

    def tensordict(self, data: memoryview) -> Any:
        from corral.tensordict import TensorDict

        batch_size, source = self.items(data)
        return TensorDict(source, batch_size=batch_size)

    def pickled(self, data: memoryview) -> Any:
        name, body, first, count = self.items(data)
        if not self.may_pickle:
            raise PickleError(
                f"the message holds a pickle of type {name!r:.200}, and pickles are denied here "
                "(allow_pickle=False or CORRAL_PICKLE=deny)"
            )
        parts = [bytearray(self.buffer(first + i)) for i in range(min(count, len(self.buffers)))]
        return pickle.loads(body, buffers=parts)


def _read_time(kind: Any) -> Callable[[_Unpacker, memoryview], Any]:
    def read_one(unpacker: _Unpacker, data: memoryview) -> Any:
        text, fold = unpacker.items(data)
        return kind.fromisoformat(text).replace(fold=fold)

    return read_one


_READERS: dict[int, Callable[[_Unpacker, memoryview], Any]] = {
    TUPLE: lambda unpacker, data: tuple(unpacker.items(data)),
    SET: lambda unpacker, data: set(unpacker.items(data)),
    FROZENSET: lambda unpacker, data: frozenset(unpacker.items(data)),
    DICT: _Unpacker.dict,
    INT: lambda unpacker, data: int.from_bytes(data, "little", signed=True),
    COMPLEX: lambda unpacker, data: complex(*struct.unpack("<dd", data)),
    BYTEARRAY: lambda unpacker, data: bytearray(data),
    DATETIME: _read_time(datetime.datetime),
    TIME: _read_time(datetime.time),
    DATE: lambda unpacker, data: datetime.date.fromisoformat(bytes(data).decode()),
    TIMEDELTA: lambda unpacker, data: datetime.timedelta(*struct.unpack("<qqq", data)),
    ARRAY: _Unpacker.array,
    SCALAR: lambda unpacker, data: unpacker.array(data)[()],
    TENSORDICT: _Unpacker.tensordict,
    PICKLE: _Unpacker.pickled,
}


def unpack(data: memoryview, buffers: Sequence[memoryview], may_pickle: bool) -> Any:
    """Decode what `pack` made."""
    return _Unpacker(buffers, may_pickle).decode(data)
