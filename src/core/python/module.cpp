// corral._core: the engine's Python face. Policy and texts live in corral.backends.shm.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <system_error>

#include "../arrays.h"
#include "group.h"
#include "keys.h"
#include "memory.h"
#include "mpi_port.h"
#include "received.h"
#include "tree.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace corral;

namespace {

// Shared memory for arrays, as an exporter of the buffer protocol.
struct SharedMemory {
    std::shared_ptr<Segment> segment;
    size_t bytes;
    SharedPlace place;
};

int shared_getbuffer(PyObject* self, Py_buffer* view, int flags) {
    auto* memory = nb::inst_ptr<SharedMemory>(self);
    return PyBuffer_FillInfo(view, self, memory->segment->data(), static_cast<Py_ssize_t>(memory->bytes), 0, flags);
}

PyType_Slot shared_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(shared_getbuffer)}, {0, nullptr}};

int received_getbuffer(PyObject* self, Py_buffer* view, int flags) {
    auto* received = nb::inst_ptr<Received>(self);
    return PyBuffer_FillInfo(view, self, received->memory.get(), static_cast<Py_ssize_t>(received->bytes), 0, flags);
}

PyType_Slot received_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(received_getbuffer)}, {0, nullptr}};

std::shared_ptr<Job> make_job(uint32_t rank, uint32_t size, bool direct) {
    return std::make_shared<Job>(std::make_unique<Engine>(rank, size, direct));
}

nb::object call_tuple(const Call& c) {
    return nb::make_tuple(static_cast<uint32_t>(c.code), c.root, c.signature, c.bytes, c.type, c.detail, c.state);
}

void check_rank(Job& job, uint32_t rank) {
    if (rank >= job.engine->size()) throw nb::value_error("no such rank in the job");
}

}  // namespace

NB_MODULE(_core, m) {
    nb::set_leak_warnings(false);  // requests may outlive the module at exit
    m.doc() = "The shared-memory engine of corral.";
    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            std::rethrow_exception(p);
        } catch (const ForkedError& e) {
            auto errors = nb::module_::import_("corral.distributed.errors");
            std::string text =
                std::string(e.what()) +
                ". Only that process is the rank: start workers with the \"spawn\" method, or fork before "
                "init_process_group.";
            PyErr_SetString(errors.attr("DistBackendError").ptr(), text.c_str());
        } catch (const std::system_error& e) {
            PyErr_SetObject(PyExc_OSError, nb::make_tuple(e.code().value(), std::string(e.what())).ptr());
        }
    });

    nb::class_<FailureInfo>(m, "Failure", "Why an operation did not complete.")
        .def_prop_ro("reason", [](const FailureInfo& f) { return static_cast<uint32_t>(f.failure.reason); })
        .def_prop_ro("detail", [](const FailureInfo& f) { return static_cast<uint32_t>(f.failure.detail); })
        .def_prop_ro("rank", [](const FailureInfo& f) { return f.failure.rank; })
        .def_prop_ro("call", [](const FailureInfo& f) { return f.failure.call; })
        .def_prop_ro("finder", [](const FailureInfo& f) { return f.failure.finder; })
        .def_prop_ro("actual", [](const FailureInfo& f) { return f.failure.actual; })
        .def_prop_ro("expected", [](const FailureInfo& f) { return f.failure.expected; })
        .def_prop_ro("code", [](const FailureInfo& f) { return static_cast<uint32_t>(f.code); })
        .def_prop_ro("sequence", [](const FailureInfo& f) -> std::optional<uint64_t> {
            if (!is_collective(f.match)) return std::nullopt;
            return sequence_of(f.match);
        });

    nb::class_<Verdict>(m, "Verdict", "What a gather's root refused, the same on every rank.")
        .def_ro("status", &Verdict::status)
        .def_ro("rank", &Verdict::rank)
        .def_ro("actual", &Verdict::actual)
        .def_ro("expected", &Verdict::expected);

    nb::class_<NamedBuffer>(m, "Buffer", "Memory of an element type that the buffer protocol cannot tell.")
        .def(
            "__init__",
            [](NamedBuffer* self, nb::object exporter, uint64_t type) {
                new (self) NamedBuffer{std::move(exporter), type};
            },
            "exporter"_a, "type"_a)
        .def_prop_ro("exporter", [](const NamedBuffer& b) { return b.exporter; });

    nb::class_<Request>(m, "Request", "An operation under way.")
        .def("wait", &Request::wait, nb::sig("def wait(self, timeout: float) -> Failure | None"), "timeout"_a)
        .def("done", &Request::done)
        .def("failure", &Request::failure, nb::sig("def failure(self) -> Failure | None"))
        .def("linger", &Request::linger, "seconds"_a)
        .def("background", &Request::in_background)
        .def("source", &Request::source)
        .def(
            "verdict",
            [](Request& r) -> nb::object {
                auto* gather = dynamic_cast<Gather*>(&r.operation());
                if (!gather || gather->verdict.status == 0) return nb::none();
                return nb::cast(gather->verdict);
            },
            nb::sig("def verdict(self) -> Verdict | None"));

    nb::class_<Job>(m, "Engine", "One rank's end of a job whose ranks share a host.")
        .def(nb::new_(&make_job), "rank"_a, "size"_a, "direct"_a)
        .def_prop_ro("rank", [](Job& j) { return j.engine->rank(); })
        .def_prop_ro("size", [](Job& j) { return j.engine->size(); })
        .def("address",
             [](Job& j) {
                 auto a = j.engine->address();
                 return nb::bytes(a.data(), a.size());
             })
        .def(
            "connect",
            [](Job& j, nb::list addresses) {
                std::vector<std::string> all;
                for (auto a : addresses) {
                    auto b = nb::cast<nb::bytes>(a);
                    all.emplace_back(b.c_str(), b.size());
                }
                j.engine->connect(all);
            },
            nb::sig("def connect(self, addresses: list[bytes]) -> None"), "addresses"_a)
        .def(
            "direct",
            [](Job& j, uint32_t rank) {
                check_rank(j, rank);
                return j.engine->direct(rank);
            },
            "rank"_a)
        .def(
            "flush",
            [](Job& j, double timeout) {
                bool ok;
                {
                    nb::gil_scoped_release release;
                    ok = j.engine->flush(static_cast<int64_t>(timeout * 1e9), signals_pending);
                }
                if (PyErr_Occurred()) throw nb::python_error();
                return ok;
            },
            "timeout"_a)
        .def("leave", [](Job& j) { j.engine->leave(); })
        .def("abandon", [](Job& j) { j.engine->abandon(); })
        .def("resident_bytes", [](Job& j) { return j.engine->resident_bytes(); })
        .def(
            "pid",
            [](Job& j, uint32_t rank) {
                check_rank(j, rank);
                return j.engine->pid_of(rank);
            },
            "rank"_a)
        .def(
            "gone",
            [](Job& j, uint32_t rank) {
                check_rank(j, rank);
                bool left = false;
                std::optional<int> status;
                bool gone = j.engine->gone(rank, left, status);
                return nb::make_tuple(gone, left, status ? nb::object(nb::int_(*status)) : nb::none());
            },
            nb::sig("def gone(self, rank: int) -> tuple[bool, bool, int | None]"), "rank"_a,
            "Whether a rank is gone, whether it left by itself, and its wait status if that is known.")
        .def(
            "waiting",
            [](Job& j, uint32_t rank) -> nb::object {
                check_rank(j, rank);
                Waiting w;
                if (!j.engine->waiting_of(rank, w)) return nb::none();
                return nb::make_tuple(static_cast<uint32_t>(w.code), w.peer, w.context, w.match, w.since_ns);
            },
            nb::sig("def waiting(self, rank: int) -> tuple[int, int, int, int, int] | None"), "rank"_a)
        .def(
            "call",
            [](Job& j, uint32_t rank, uint64_t context, uint64_t sequence) -> nb::object {
                check_rank(j, rank);
                Call c;
                if (!j.engine->call_of(rank, context, sequence, c)) return nb::none();
                return call_tuple(c);
            },
            nb::sig("def call(self, rank: int, context: int, sequence: int) -> tuple[int, int, int, int, int, int, "
                    "int] | None"),
            "rank"_a, "context"_a, "sequence"_a)
        .def(
            "last_call",
            [](Job& j, uint32_t rank, uint64_t context) -> nb::object {
                check_rank(j, rank);
                Call c;
                uint64_t sequence = 0;
                if (!j.engine->last_call_of(rank, context, sequence, c)) return nb::none();
                return nb::make_tuple(sequence, call_tuple(c));
            },
            nb::sig("def last_call(self, rank: int, context: int) -> tuple[int, tuple[int, int, int, int, int, int, "
                    "int]] | "
                    "None"),
            "rank"_a, "context"_a);

    nb::class_<GroupHandle>(m, "Group", "A group of ranks.")
        .def(nb::init<std::shared_ptr<Job>, uint64_t, std::vector<uint32_t>>(), "engine"_a, "context"_a, "members"_a)
        .def("send", &GroupHandle::send,
             nb::sig("def send(self, buffers: Sequence[object], to: int, tag: int, timeout: float) -> Failure | None"),
             "buffers"_a, "to"_a, "tag"_a, "timeout"_a)
        .def("recv", &GroupHandle::recv,
             nb::sig(
                 "def recv(self, buffers: Sequence[object], source: int, tag: int, timeout: float) -> int | Failure"),
             "buffers"_a, "source"_a, "tag"_a, "timeout"_a)
        .def("start", &GroupHandle::start,
             nb::sig("def start(self, sends: bool, buffers: Sequence[object], peer: int, tag: int) -> Request"),
             "sends"_a, "buffers"_a, "peer"_a, "tag"_a)
        .def("barrier", &GroupHandle::barrier,
             nb::sig("def barrier(self, timeout: float | None) -> Request | Failure | None"), "timeout"_a.none())
        .def("gather", &GroupHandle::gather,
             nb::sig("def gather(self, buffers: Sequence[object], into: Sequence[Sequence[object]] | None, root: int, "
                     "label: int, timeout: float | None) -> Request | Verdict | Failure | None"),
             "buffers"_a, "into"_a.none(), "root"_a, "label"_a, "timeout"_a.none())
        .def("broadcast", &GroupHandle::broadcast,
             nb::sig("def broadcast(self, buffers: Sequence[object], root: int, label: int, timeout: float | None) -> "
                     "Request | Failure | None"),
             "buffers"_a, "root"_a, "label"_a, "timeout"_a.none())
        .def("scatter", &GroupHandle::scatter,
             nb::sig("def scatter(self, parts: Sequence[Sequence[object]] | None, into: Sequence[object], root: int, "
                     "label: int, timeout: float | None) -> Request | Failure | None"),
             "parts"_a.none(), "into"_a, "root"_a, "label"_a, "timeout"_a.none())
        .def("all_gather", &GroupHandle::all_gather,
             nb::sig("def all_gather(self, buffers: Sequence[object], into: object, label: int, "
                     "timeout: float | None) -> Request | Failure | None"),
             "buffers"_a, "into"_a, "label"_a, "timeout"_a.none())
        .def("all_to_all", &GroupHandle::all_to_all,
             nb::sig("def all_to_all(self, parts: Sequence[Sequence[object]], into: Sequence[Sequence[object]], label: "
                     "int, timeout: float | None) -> Request | Failure | None"),
             "parts"_a, "into"_a, "label"_a, "timeout"_a.none())
        .def("all_reduce", &GroupHandle::all_reduce,
             nb::sig("def all_reduce(self, buffers: Sequence[object], op: int, factor: float, label: int, timeout: "
                     "float | None) -> Request | Failure | None"),
             "buffers"_a, "op"_a, "factor"_a, "label"_a, "timeout"_a.none())
        .def("reduce", &GroupHandle::reduce,
             nb::sig("def reduce(self, buffers: Sequence[object], op: int, factor: float, root: int, label: int, "
                     "timeout: float | None) -> Request | Failure | None"),
             "buffers"_a, "op"_a, "factor"_a, "root"_a, "label"_a, "timeout"_a.none())
        .def("reduce_scatter", &GroupHandle::reduce_scatter,
             nb::sig("def reduce_scatter(self, parts: Sequence[Sequence[object]], into: Sequence[object], op: int, "
                     "factor: float, label: int, timeout: float | None) -> Request | Failure | None"),
             "parts"_a, "into"_a, "op"_a, "factor"_a, "label"_a, "timeout"_a.none())
        .def("gather_bytes", &GroupHandle::gather_bytes,
             nb::sig("def gather_bytes(self, payload: object, root: int, label: int, timeout: float) -> list[bytes | "
                     "memoryview] | "
                     "Failure | None"),
             "payload"_a, "root"_a, "label"_a, "timeout"_a)
        .def("broadcast_bytes", &GroupHandle::broadcast_bytes,
             nb::sig("def broadcast_bytes(self, payload: object | None, root: int, label: int, timeout: float) -> "
                     "object"),
             "payload"_a.none(), "root"_a, "label"_a, "timeout"_a)
        .def("all_gather_bytes", &GroupHandle::all_gather_bytes,
             nb::sig("def all_gather_bytes(self, payload: object, label: int, timeout: float) -> list[bytes | "
                     "memoryview] | Failure"),
             "payload"_a, "label"_a, "timeout"_a)
        .def("scatter_bytes", &GroupHandle::scatter_bytes,
             nb::sig("def scatter_bytes(self, payloads: list[object] | None, root: int, label: int, timeout: float) -> "
                     "bytes | memoryview | Failure"),
             "payloads"_a.none(), "root"_a, "label"_a, "timeout"_a)
        .def("all_to_all_bytes", &GroupHandle::all_to_all_bytes,
             nb::sig("def all_to_all_bytes(self, payloads: list[object], label: int, timeout: float) -> list[bytes | "
                     "memoryview] | "
                     "Failure"),
             "payloads"_a, "label"_a, "timeout"_a)
        .def("recv_bytes", &GroupHandle::recv_bytes,
             nb::sig("def recv_bytes(self, source: int, tag: int, timeout: float) -> tuple[int, bytes | memoryview] | "
                     "Failure"),
             "source"_a, "tag"_a, "timeout"_a)
        .def("gather_rows", &GroupHandle::gather_rows,
             nb::sig("def gather_rows(self, tree: object | None, root: int, label: int, timeout: float) -> bool | "
                     "Failure"),
             "tree"_a.none(), "root"_a, "label"_a, "timeout"_a)
        .def("refuse", &GroupHandle::refuse, "label"_a)
        .def("late", &GroupHandle::late, nb::sig("def late(self) -> Failure | None"))
        .def("abort", &GroupHandle::abort)
        .def_prop_ro("next_sequence", &GroupHandle::next_sequence);

    nb::class_<Received>(m, "Received", nb::type_slots(received_slots), "Memory that a message came in.");

    // Its slot alone makes it a buffer. From Python 3.12 on a method __buffer__ would take the slot's place.
    nb::class_<SharedMemory>(m, "SharedMemory", nb::type_slots(shared_slots), "Memory that other ranks can map.")
        .def(
            "__init__",
            [](SharedMemory* self, size_t bytes) {
                auto segment = create_array(bytes);
                auto place = find_array(segment->data(), bytes == 0 ? 1 : bytes);
                new (self) SharedMemory{std::move(segment), bytes, *place};
            },
            "bytes"_a)
        .def_static(
            "attach",
            [](int owner, int fd, uint64_t inode) {
                auto segment = attach_array(owner, fd, inode);
                size_t bytes = segment->size();
                return SharedMemory{std::move(segment), bytes, SharedPlace{owner, fd, inode, 0}};
            },
            "owner"_a, "fd"_a, "inode"_a)
        .def_prop_ro(
            "place", [](const SharedMemory& s) { return nb::make_tuple(s.place.owner, s.place.fd, s.place.inode); },
            nb::for_getter(nb::sig("def place(self) -> tuple[int, int, int]")))
        .def("__len__", [](const SharedMemory& s) { return s.bytes; });

    m.def(
        "find_shared",
        [](nb::handle buffer) -> nb::object {
            Payload p;
            View v;
            if (!p.view(buffer.ptr(), Payload::Access::read, v)) throw nb::python_error();
            auto place = find_array(v.data, v.bytes());
            if (!place) return nb::none();
            return nb::make_tuple(place->owner, place->fd, place->inode, place->offset);
        },
        nb::sig("def find_shared(buffer: object) -> tuple[int, int, int, int] | None"), "buffer"_a,
        "Where a contiguous array lies in shared memory: (owner, fd, inode, offset), or None.");
    m.def("register_torch", &register_exchange, "tensor"_a, "parameter"_a, "capsule"_a, "written"_a, "dtypes"_a,
          "Teach the core to read tensors of exactly these types; `written` is called with those that it wrote, "
          "`dtypes` has those whose elements are what DLPack says.");
    m.def(
        "register_container", &register_container,
        nb::sig("def register_container(type: type, entries: str, batch_size: str, others: tuple[str, ...] = ()) -> "
                "None"),
        "type"_a, "entries"_a, "batch_size"_a, "others"_a = nb::make_tuple(),
        "Teach the core to walk containers of exactly this type, by the names of two attributes; plain trees may have "
        "them where `others` are None or strings.");
    m.def(
        "survey",
        [](nb::handle tree, nb::type_object array, bool write) {
            return survey(tree.ptr(), reinterpret_cast<PyTypeObject*>(array.ptr()), write);
        },
        nb::sig("def survey(tree: object, array: type, write: bool) -> tuple[bytes, list[object]] | None"),
        "tree"_a.none(), "array"_a, "write"_a, "What a tree looks like, and its leaves, where all are plain arrays.");
    m.def(
        "lie_apart", [](nb::list arrays) { return lie_apart(arrays.ptr()); },
        nb::sig("def lie_apart(arrays: list[object]) -> bool"), "arrays"_a,
        "Whether surely no two of these arrays share memory.");
    m.def("register_keys", &register_keys,
          nb::sig("def register_keys(entries: str, kinds: dict[type, bool], elsewhere: object) -> None"), "entries"_a,
          "kinds"_a, "elsewhere"_a,
          "Teach the core to read keys of containers: the attribute that has their entries, whether entries of a class "
          "are containers, and who appends the keys of containers without a dict.");
    m.def("collect_keys", &collect_keys,
          nb::sig("def collect_keys(container: object, nested: bool, leaves_only: bool) -> list[object]"),
          "container"_a, "nested"_a, "leaves_only"_a, "A container's keys, in order.");
    m.def("count_keys", &count_keys, "container"_a, "nested"_a, "leaves_only"_a, "How many keys that would be.");
    register_memory(m);
    register_mpi_port(m);
}
