"""The file of a `FileStore`: a log of changes that a process killed at any moment leaves whole.

A header of fixed size says how many bytes of records count; a record is written behind them first, and the
header after that, by one write that is done or not. What a writer that was killed has left behind the end does not
count, and the next writer overwrites it. Each record has a length and a checksum.

Two bytes of the file are locked: one by whoever reads or writes it, one by all who have it open. The locks
belong to the open file, so that the kernel gives them up with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import NoReturn

from corral.distributed.errors import DistStoreError
from corral.distributed.stores.shelf import Change

__all__ = ["Busy", "Log"]

_MAGIC = b"corralfs"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQI")  # magic, version, times it was opened, bytes that count; checksum of these
_COMMITTED = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_COMMITTED_AT = _HEADER.size - _CHECKSUM.size - _COMMITTED.size
_RECORD = struct.Struct("<III")  # bytes of the body, its checksum, checksum of these two
_LENGTHS = struct.Struct("<II")
_BODY = struct.Struct("<BI")  # kind of change, bytes of the key; key and value follow
_MOST = 0x7FFFFFFF  # bytes of one body
_CHUNK = 1 << 20

_BUSY_BYTE, _USED_BYTE = 0, 1
_FIRST_PAUSE, _LAST_PAUSE = 0.0002, 0.01  # seconds between two attempts to get a lock


class Busy(Exception):
    """Another process has held the file for too long."""


class Log:
    """An open log.

    Parameters
    ----------
    path
        The file, which is made, for this user alone, if it is not there.
    redo
        Called with each change that others have written, in order.
    limit
        Seconds to wait for the file.

    Attributes
    ----------
    position : int
        Up to where the changes are known.
    """

    def __init__(self, path: str, redo: Callable[[Change, bytes, bytes], None], limit: float) -> None:
        self.path = path
        self._redo = redo
        self._lock = threading.Lock()  # the kernel's lock is not one between threads of the same open file
        self.position = _HEADER.size
        deadline = time.monotonic() + limit
        while True:
            self._file = self._open()
            try:
                with self._held(deadline):
                    if os.fstat(self._file).st_nlink:  # else its last user has removed it meanwhile
                        _lock(self._file, fcntl.F_RDLCK, _USED_BYTE)
                        self._start()
                        return
            except BaseException:
                os.close(self._file)
                raise
            os.close(self._file)

    def _open(self) -> int:
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DistStoreError(f"FileStore cannot open {self.path!r}: {error.strerror}") from error
        owner = os.fstat(file).st_uid
        if owner not in (os.geteuid(), 0):
            os.close(file)
            raise DistStoreError(
                f"FileStore cannot use {self.path!r}: it belongs to another user (uid {owner}), who could change what "
                "the ranks read; give a path in a folder of this user"
            )
        return file

    def _start(self) -> None:
        """Count this user in, and write the header if the file is new."""
        head = self._read(0, _HEADER.size)
        opened, committed = self._header(head) if head else (0, _HEADER.size)
        self._write_header(opened + 1, committed)

    def _write_header(self, opened: int, committed: int) -> None:
        self._opened = opened
        head = _HEADER.pack(_MAGIC, _VERSION, opened, committed, 0)[: -_CHECKSUM.size]
        self._write(0, head + _CHECKSUM.pack(zlib.crc32(head)))

    def _header(self, head: bytes) -> tuple[int, int]:
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            raise DistStoreError(f"{self.path!r} is no file of a corral FileStore; give another path, or remove it")
        _, version, opened, committed, checksum = _HEADER.unpack(head)
        if version != _VERSION:
            raise DistStoreError(
                f"{self.path!r} has version {version} of the format of FileStore, this is version {_VERSION}: do all "
                "ranks run the same version of corral?"
            )
        if checksum != zlib.crc32(head[: -_CHECKSUM.size]):
            self._damaged("its header has a wrong checksum")
        size = os.fstat(self._file).st_size
        if not _HEADER.size <= committed <= size:
            self._damaged(f"it has {size} bytes, of which {committed} should count")
        return int(opened), int(committed)

    @contextlib.contextmanager
    def held(self, limit: float) -> Iterator[None]:
        """Have the file for oneself, and know all that others have written.

        Raises
        ------
        Busy
            If others do not let go of it for `limit` seconds.
        """
        deadline = time.monotonic() + limit
        with self._held(deadline):
            self._opened, committed = self._header(self._read(0, _HEADER.size))
            if committed < self.position:
                self._damaged(f"{committed} bytes count where {self.position} did before")
            self._catch_up(committed)
            yield

    @contextlib.contextmanager
    def _held(self, deadline: float) -> Iterator[None]:
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()) + 0.001):
            raise Busy
        try:
            pause = _FIRST_PAUSE
            while not _lock(self._file, fcntl.F_WRLCK, _BUSY_BYTE):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Busy
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LAST_PAUSE)
            try:
                yield
            finally:
                _lock(self._file, fcntl.F_UNLCK, _BUSY_BYTE)
        finally:
            self._lock.release()

    def write(self, changes: list[tuple[Change, bytes, bytes]]) -> None:
        """Write changes down, all or none of them; only while the file is held."""
        if not changes:
            return
        parts = []
        for change, key, value in changes:
            length = _BODY.size + len(key) + len(value)
            if length > _MOST:
                raise ValueError(f"FileStore: key and value must have at most {_MOST} bytes together, got {length}")
            body = _BODY.pack(change, len(key)) + key + value
            lengths = _LENGTHS.pack(length, zlib.crc32(body))
            parts += [lengths, zlib.crc32(lengths).to_bytes(4, "little"), body]
        data = b"".join(parts)
        self._write(self.position, data)
        self._write_header(self._opened, self.position + len(data))
        self.position += len(data)

    def _catch_up(self, committed: int) -> None:
        while self.position < committed:
            head = self._read(self.position, _RECORD.size)
            if len(head) < _RECORD.size:
                self._damaged(f"it ends in the record at {self.position}")
            length, checksum, own = _RECORD.unpack(head)
            if own != zlib.crc32(head[: _LENGTHS.size]):
                self._damaged(f"the record at {self.position} has a wrong checksum")
            if not _BODY.size <= length <= committed - self.position - _RECORD.size:
                self._damaged(f"the record at {self.position} has {length} bytes")
            body = self._read(self.position + _RECORD.size, length)
            if len(body) < length or zlib.crc32(body) != checksum:
                self._damaged(f"the record at {self.position} has a wrong checksum")
            kind, key_length = _BODY.unpack_from(body)
            try:
                change = Change(kind)
            except ValueError:
                self._damaged(f"the record at {self.position} is of kind {kind}")
            if key_length > length - _BODY.size:
                self._damaged(f"the record at {self.position} has a key of {key_length} bytes")
            split = _BODY.size + key_length
            self.position += _RECORD.size + length
            self._redo(change, body[_BODY.size : split], body[split:])

    def _damaged(self, what: str) -> NoReturn:
        raise DistStoreError(f"{self.path!r}, the file of a FileStore, is damaged: {what}; remove it and start anew")

    def _read(self, start: int, size: int) -> bytes:
        """Read what is there, up to a size; memory is taken only for what is."""
        data = bytearray()
        while len(data) < size:
            part = os.pread(self._file, min(size - len(data), _CHUNK), start + len(data))
            if not part:
                break
            data += part
        return bytes(data)

    def _write(self, start: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._file, view, start)
                view, start = view[written:], start + written
        except OSError as error:
            raise DistStoreError(f"FileStore cannot write to {self.path!r}: {error.strerror}") from error

    def rewind(self) -> None:
        """Begin anew with the first change when the file is held next."""
        self.position = _HEADER.size

    def changed(self, position: int) -> bool:
        """Whether anyone has written beyond a position; without the lock, so that it may be asked often."""
        return self._read(_COMMITTED_AT, _COMMITTED.size) != _COMMITTED.pack(position)

    def close(self, users: int, limit: float) -> None:
        """Leave; remove the file if nobody else has it open, and at least `users` have had."""
        try:
            with self._held(time.monotonic() + limit):
                opened, _ = self._header(self._read(0, _HEADER.size))
                if 0 < users <= opened and _lock(self._file, fcntl.F_WRLCK, _USED_BYTE):
                    with contextlib.suppress(FileNotFoundError):
                        if os.path.samestat(os.stat(self.path), os.fstat(self._file)):
                            os.unlink(self.path)
        except (Busy, DistStoreError, OSError):
            pass  # whoever goes on using it will be told
        finally:
            os.close(self._file)

    def abandon(self) -> None:
        """Leave without a trace."""
        os.close(self._file)


def _lock(file: int, kind: int, byte: int) -> bool:
    """Take, change or give up the lock of a byte; false if that would mean to wait."""
    # struct flock, whose alignment is that of its 64-bit members
    request = struct.pack("hhqqi0q", kind, os.SEEK_SET, byte, 1, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, request)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True
