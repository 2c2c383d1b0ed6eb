"""The shared-memory engine of corral."""

from collections.abc import Sequence


class Failure:
    """Why an operation did not complete."""

    @property
    def reason(self) -> int: ...

    @property
    def detail(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def call(self) -> int: ...

    @property
    def finder(self) -> int: ...

    @property
    def actual(self) -> int: ...

    @property
    def expected(self) -> int: ...

    @property
    def code(self) -> int: ...

    @property
    def sequence(self) -> int | None: ...

class Verdict:
    """What a gather's root refused, the same on every rank."""

    @property
    def status(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def actual(self) -> int: ...

    @property
    def expected(self) -> int: ...

class Buffer:
    """Memory of an element type that the buffer protocol cannot tell."""

    def __init__(self, exporter: object, type: int) -> None: ...

    @property
    def exporter(self) -> object: ...

class Request:
    """An operation under way."""

    def wait(self, timeout: float) -> Failure | None: ...

    def done(self) -> bool: ...

    def failure(self) -> Failure | None: ...

    def linger(self, seconds: float) -> None: ...

    def background(self) -> None: ...

    def source(self) -> int: ...

    def verdict(self) -> Verdict | None: ...

class Engine:
    """One rank's end of a job whose ranks share a host."""

    def __init__(self, rank: int, size: int, direct: bool) -> None: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def address(self) -> bytes: ...

    def connect(self, addresses: list[bytes]) -> None: ...

    def direct(self, rank: int) -> bool: ...

    def flush(self, timeout: float) -> bool: ...

    def leave(self) -> None: ...

    def abandon(self) -> None: ...

    def resident_bytes(self) -> int: ...

    def pid(self, rank: int) -> int: ...

    def gone(self, rank: int) -> tuple[bool, bool, int | None]:
        """
        Whether a rank is gone, whether it left by itself, and its wait status if that is known.
        """

    def waiting(self, rank: int) -> tuple[int, int, int, int, int] | None: ...

    def call(self, rank: int, context: int, sequence: int) -> tuple[int, int, int, int, int, int, int] | None: ...

    def last_call(self, rank: int, context: int) -> tuple[int, tuple[int, int, int, int, int, int, int]] | None: ...

class Group:
    """A group of ranks."""

    def __init__(self, engine: Engine, context: int, members: Sequence[int]) -> None: ...

    def send(self, buffers: Sequence[object], to: int, tag: int, timeout: float) -> Failure | None: ...

    def recv(self, buffers: Sequence[object], source: int, tag: int, timeout: float) -> int | Failure: ...

    def start(self, sends: bool, buffers: Sequence[object], peer: int, tag: int) -> Request: ...

    def barrier(self, timeout: float | None) -> Request | Failure | None: ...

    def gather(self, buffers: Sequence[object], into: Sequence[Sequence[object]] | None, root: int, label: int, timeout: float | None) -> Request | Verdict | Failure | None: ...

    def broadcast(self, buffers: Sequence[object], root: int, label: int, timeout: float | None) -> Request | Failure | None: ...

    def scatter(self, parts: Sequence[Sequence[object]] | None, into: Sequence[object], root: int, label: int, timeout: float | None) -> Request | Failure | None: ...

    def all_gather(self, buffers: Sequence[object], into: object, label: int, timeout: float | None) -> Request | Failure | None: ...

    def all_to_all(self, parts: Sequence[Sequence[object]], into: Sequence[Sequence[object]], label: int, timeout: float | None) -> Request | Failure | None: ...

    def all_reduce(self, buffers: Sequence[object], op: int, factor: float, label: int, timeout: float | None) -> Request | Failure | None: ...

    def reduce(self, buffers: Sequence[object], op: int, factor: float, root: int, label: int, timeout: float | None) -> Request | Failure | None: ...

    def reduce_scatter(self, parts: Sequence[Sequence[object]], into: Sequence[object], op: int, factor: float, label: int, timeout: float | None) -> Request | Failure | None: ...

    def gather_bytes(self, payload: object, root: int, label: int, timeout: float) -> list[bytes | memoryview] | Failure | None: ...

    def broadcast_bytes(self, payload: object | None, root: int, label: int, timeout: float) -> object: ...

    def all_gather_bytes(self, payload: object, label: int, timeout: float) -> list[bytes | memoryview] | Failure: ...

    def scatter_bytes(self, payloads: list[object] | None, root: int, label: int, timeout: float) -> bytes | memoryview | Failure: ...

    def all_to_all_bytes(self, payloads: list[object], label: int, timeout: float) -> list[bytes | memoryview] | Failure: ...

    def recv_bytes(self, source: int, tag: int, timeout: float) -> tuple[int, bytes | memoryview] | Failure: ...

    def gather_rows(self, tree: object | None, root: int, label: int, timeout: float) -> bool | Failure: ...

    def refuse(self, label: int) -> None: ...

    def late(self) -> Failure | None: ...

    def abort(self) -> None: ...

    @property
    def next_sequence(self) -> int: ...

class Received:
    """Memory that a message came in."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class SharedMemory:
    """Memory that other ranks can map."""

    def __init__(self, bytes: int) -> None: ...

    @staticmethod
    def attach(owner: int, fd: int, inode: int) -> SharedMemory: ...

    @property
    def place(self) -> tuple[int, int, int]: ...

    def __len__(self) -> int: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

def find_shared(buffer: object) -> tuple[int, int, int, int] | None:
    """
    Where a contiguous array lies in shared memory: (owner, fd, inode, offset), or None.
    """

def register_torch(tensor: type, parameter: type, capsule: object, written: object, dtypes: object) -> None:
    """
    Teach the core to read tensors of exactly these types; `written` is called with those that it wrote, `dtypes` has those whose elements are what DLPack says.
    """

def register_container(type: type, entries: str, batch_size: str, others: tuple[str, ...] = ()) -> None:
    """
    Teach the core to walk containers of exactly this type, by the names of two attributes; plain trees may have them where `others` are None or strings.
    """

def survey(tree: object, array: type, write: bool) -> tuple[bytes, list[object]] | None:
    """What a tree looks like, and its leaves, where all are plain arrays."""

def lie_apart(arrays: list[object]) -> bool:
    """Whether surely no two of these arrays share memory."""

def register_keys(entries: str, kinds: dict[type, bool], elsewhere: object) -> None:
    """
    Teach the core to read keys of containers: the attribute that has their entries, whether entries of a class are containers, and who appends the keys of containers without a dict.
    """

def collect_keys(container: object, nested: bool, leaves_only: bool) -> list[object]:
    """A container's keys, in order."""

def count_keys(container: object, nested: bool, leaves_only: bool) -> int:
    """How many keys that would be."""

class Piece:
    """A contiguous part of memory."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Memory:
    """
    Memory of several objects, one behind the other, read or written in place.
    """

    def __init__(self, buffers: object, access: int) -> None: ...

    @property
    def type(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def runs(self) -> list[tuple[int, int]]: ...

    def part(self, offset: int, nbytes: int) -> Memory:
        """A range of the memory."""

    def pieces(self) -> list[memoryview]:
        """The memory as contiguous parts."""

    def read(self) -> bytes: ...

    def write(self, data: object) -> None: ...

    def settle(self) -> None:
        """
        Move what was received to where it belongs, if it could not be received there.
        """

def flatten(tree: object) -> tuple[Memory, bytes] | None:
    """
    A tree's leaves, and a fingerprint of its structure; None if it cannot be read as it is.
    """

def flatten_rows(tree: object, count: int) -> tuple[list[Memory], bytes, bytes] | None:
    """
    The rows of a tree's leaves, for writing, and fingerprints of one row without and with its batch sizes.
    """

def reducible(type: int, op: int) -> bool: ...

def element_bytes(type: int) -> int: ...

def accumulator_bytes(type: int) -> int:
    """Bytes of an element of a result that is not whole yet."""

def combine(type: int, op: int, factors: Sequence[float], contributions: Sequence[object], into: object, before: object | None = None, last: bool = True, ranks: int = 0) -> None:
    """
    Combine contributions in their order; each has its factor, which matters to a sum of products alone. Of more than these, `before` is what those before them came to, by a call that was not the `last`.
    """

class Process:
    """Another process of this host."""

    def __init__(self, pid: int, started: int) -> None: ...

    def alive(self) -> bool: ...

    def status(self, milliseconds: int) -> int | None:
        """
        The status that wait() would give, if it ends within some time and that can be known.
        """

def start_time(pid: int) -> int:
    """When a process started, by which a pid names one for ever."""

class MpiPort:
    """
    The heads of a job's frames as messages of MPI, and small calls in one go.
    """

    def __init__(self, functions: Sequence[int], comm: int, byte: int, anyone: int, tag: int, rank: int, size: int, head_limit: int) -> None: ...

    def send(self, to: int, kind: int, tag: int, body: int, head: bytes) -> None: ...

    def poll(self) -> bool: ...

    def take(self) -> list[tuple[int, int, int, int, bytes]]: ...

    def sending(self) -> bool: ...

    def heard(self, rank: int) -> float: ...

    def abandon(self, rank: int) -> bool: ...

    def disable(self) -> None: ...

    def close(self) -> None: ...

    def lend(self, to: int, nbytes: int) -> None: ...

    def send_message(self, context: int, to: int, tag: int, buffers: object) -> int: ...

    def recv_message(self, context: int, source: int, tag: int, buffers: object) -> int: ...

    def barrier(self, label: int) -> int: ...

    def broadcast(self, label: int, root: int, buffers: object) -> int: ...

    def all_reduce(self, label: int, op: int, buffers: object) -> int: ...

    def all_gather(self, label: int, buffers: object, into: object) -> int: ...

    def gather(self, label: int, root: int, buffers: object, into: object) -> int: ...

    def begin(self) -> int: ...

    @property
    def next(self) -> int: ...

    def state(self, number: int) -> int: ...

    def has(self, number: int, rank: int) -> bool: ...

    def contents(self, number: int) -> list[bytes]: ...

    def forget(self, number: int) -> None: ...

    def last(self) -> tuple[int, int, int, int, int, int] | None: ...
