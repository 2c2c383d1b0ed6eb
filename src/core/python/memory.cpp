// What engines that are written in Python need of the core: memory as pieces, the arithmetic of reductions, and how
// another process ended.
#include "memory.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "../process.h"
#include "../reduce.h"
#include "group.h"
#include "received.h"
#include "tree.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace corral {
namespace {

// Memory of Python objects, or a range of it. The last one to go releases the objects.
struct Memory {
    std::shared_ptr<Payload> held;
    Spans spans;
    bool writes;
};

// One run of it, as an exporter of the buffer protocol.
struct Piece {
    std::shared_ptr<Payload> held;
    std::byte* data;
    uint64_t bytes;
    bool writes;
};

int piece_getbuffer(PyObject* self, Py_buffer* view, int flags) {
    auto* piece = nb::inst_ptr<Piece>(self);
    return PyBuffer_FillInfo(view, self, piece->data, static_cast<Py_ssize_t>(piece->bytes), !piece->writes, flags);
}

PyType_Slot piece_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(piece_getbuffer)}, {0, nullptr}};

// A contiguous buffer, held.
class Bytes {
  public:
    Bytes(nb::handle object, bool writes) {
        need(PyObject_GetBuffer(object.ptr(), &buffer_, writes ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0);
    }
    Bytes(Bytes&& other) noexcept : buffer_(other.buffer_) { other.buffer_.obj = nullptr; }
    ~Bytes() {
        if (buffer_.obj) PyBuffer_Release(&buffer_);
    }
    std::byte* data() const { return static_cast<std::byte*>(buffer_.buf); }
    uint64_t size() const { return static_cast<uint64_t>(buffer_.len); }

  private:
    Py_buffer buffer_{};
};

Memory of_buffers(nb::handle buffers, int access) {
    if (access < 0 || access > 2) throw nb::value_error("access is 0 to read, 1 to write, 2 for both");
    auto held = std::make_shared<Payload>();
    need(held->add_all(buffers.ptr(), static_cast<Payload::Access>(access)));
    return {held, held->spans, access != 0};
}

Memory part(const Memory& m, uint64_t offset, uint64_t bytes) {
    if (offset > m.spans.total() || bytes > m.spans.total() - offset) throw nb::value_error("no such range");
    return {m.held, m.spans.part(offset, bytes), m.writes};
}

nb::list pieces(const Memory& m) {
    nb::list out;
    for (auto& run : m.spans.runs()) {
        nb::object piece = nb::cast(Piece{m.held, run.data, run.bytes, m.writes});
        nb::object view = nb::steal(PyMemoryView_FromObject(piece.ptr()));
        need(view.is_valid());
        out.append(view);
    }
    return out;
}

nb::bytes read(const Memory& m) {
    nb::object out = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(m.spans.total())));
    need(out.is_valid());
    char* to = PyBytes_AsString(out.ptr());
    if (m.spans.total() < viewed_from) {
        m.spans.read(0, to, m.spans.total());
    } else {
        nb::gil_scoped_release release;
        m.spans.read(0, to, m.spans.total());
    }
    return nb::borrow<nb::bytes>(out);
}

void write(const Memory& m, nb::handle data) {
    Bytes from(data, false);
    if (!m.writes) throw nb::value_error("this memory is not to be written");
    if (from.size() != m.spans.total()) throw nb::value_error("the bytes do not fill the memory");
    nb::gil_scoped_release release;
    m.spans.write(0, from.data(), from.size());
}

nb::bytes print_bytes(const Fingerprint& print) {
    return nb::bytes(reinterpret_cast<const char*>(&print), sizeof print);
}

nb::object flatten_tree(nb::handle tree) {
    auto held = std::make_shared<Payload>();
    Fingerprint print;
    if (!flatten(tree.ptr(), *held, print)) {
        PyErr_Clear();
        return nb::none();
    }
    return nb::make_tuple(Memory{held, held->spans, false}, print_bytes(print));
}

nb::object flatten_tree_rows(nb::handle tree, int64_t count) {
    auto held = std::make_shared<Payload>();
    Rows rows;
    if (tree.is_none() || count < 0 || !flatten_rows(tree.ptr(), count, *held, rows)) {
        PyErr_Clear();
        return nb::none();
    }
    nb::list out;
    for (auto& spans : rows.rows) out.append(nb::cast(Memory{held, std::move(spans), true}));
    return nb::make_tuple(out, print_bytes(rows.print.structure), print_bytes(rows.print.whole()));
}

// Combined at a time: the accumulator and a rank's part of it stay in a core's cache.
constexpr uint64_t block_bytes = 128 * 1024;

void combine(uint64_t type, uint32_t op, const std::vector<double>& factors, nb::sequence contributions,
             nb::handle into, nb::handle before, bool last, uint32_t ranks) {
    Reduction reduction{type, static_cast<ReduceOp>(op), ranks != 0 ? ranks : static_cast<uint32_t>(factors.size()),
                        1.0};
    if (op > static_cast<uint32_t>(ReduceOp::premul_sum) || factors.empty() || !reducible(reduction))
        throw nb::type_error("the reduction has no meaning for this dtype");
    Bytes out(into, true);
    std::optional<Bytes> start;
    if (!before.is_none()) start.emplace(before, false);
    std::vector<Bytes> in;
    for (nb::handle each : contributions) in.emplace_back(each, false);
    uint64_t item = element_bytes(type), wide = accumulator_bytes(type), out_item = last ? item : wide;
    uint64_t all = out.size() / out_item;
    if (in.size() != factors.size() || out.size() % out_item != 0)
        throw nb::value_error("there must be one contribution for each factor, of whole elements");
    for (auto& each : in)
        if (each.size() != all * item) throw nb::value_error("contributions and result must have one size");
    if (start && start->size() != all * wide) throw nb::value_error("what came before must be of the result's size");
    nb::gil_scoped_release release;
    uint64_t most = std::min(block_bytes / item, all);
    std::vector<std::byte> accumulator(most * wide);
    for (uint64_t first = 0; first < all; first += most) {
        size_t n = std::min(most, all - first);
        if (start) std::memcpy(accumulator.data(), start->data() + first * wide, n * wide);
        for (size_t r = 0; r < in.size(); ++r) {
            reduction.factor = factors[r];
            (r == 0 && !start ? reduce_begin : reduce_next)(reduction, in[r].data() + first * item, accumulator.data(),
                                                            n);
        }
        // Only now: the result may lie where one of the contributions does.
        std::byte* result = out.data() + first * out_item;
        if (last)
            reduce_end(reduction, accumulator.data(), result, n);
        else
            std::memcpy(result, accumulator.data(), n * wide);
    }
}

std::optional<int> status_within(const Process& process, int milliseconds) {
    nb::gil_scoped_release release;
    if (!process.ends_within(milliseconds)) return std::nullopt;
    return process.exit_status();
}

}  // namespace

void register_memory(nb::module_& m) {
    nb::class_<Piece>(m, "Piece", "A contiguous part of memory.", nb::type_slots(piece_slots));
    nb::class_<Memory>(m, "Memory", "Memory of several objects, one behind the other, read or written in place.")
        .def(nb::new_(&of_buffers), "buffers"_a, "access"_a)
        .def_prop_ro("type", [](const Memory& m) { return m.held->type(); })
        .def_prop_ro("nbytes", [](const Memory& m) { return m.spans.total(); })
        .def_prop_ro("runs",
                     [](const Memory& m) {
                         std::vector<std::pair<uint64_t, uint64_t>> runs;
                         for (auto& run : m.held->runs) runs.emplace_back(run.type, run.bytes);
                         return runs;
                     })
        .def("part", &part, "offset"_a, "nbytes"_a, "A range of the memory.")
        .def("pieces", &pieces, nb::sig("def pieces(self) -> list[memoryview]"), "The memory as contiguous parts.")
        .def("read", &read)
        .def("write", &write, nb::sig("def write(self, data: object) -> None"), "data"_a)
        .def(
            "settle", [](const Memory& m) { m.held->settle(); },
            "Move what was received to where it belongs, if it could not be received there.");
    m.def("flatten", &flatten_tree, nb::sig("def flatten(tree: object) -> tuple[Memory, bytes] | None"),
          "tree"_a.none(), "A tree's leaves, and a fingerprint of its structure; None if it cannot be read as it is.");
    m.def("flatten_rows", &flatten_tree_rows,
          nb::sig("def flatten_rows(tree: object, count: int) -> tuple[list[Memory], bytes, bytes] | None"),
          "tree"_a.none(), "count"_a,
          "The rows of a tree's leaves, for writing, and fingerprints of one row without and with its batch sizes.");
    m.def(
        "reducible",
        [](uint64_t type, uint32_t op) {
            return op <= static_cast<uint32_t>(ReduceOp::premul_sum) &&
                   reducible({type, static_cast<ReduceOp>(op), 1, 1.0});
        },
        "type"_a, "op"_a);
    m.def("element_bytes", &element_bytes, "type"_a);
    m.def("accumulator_bytes", &accumulator_bytes, "type"_a, "Bytes of an element of a result that is not whole yet.");
    m.def(
        "combine", &combine,
        nb::sig(
            "def combine(type: int, op: int, factors: Sequence[float], contributions: Sequence[object], into: object, "
            "before: object | None = None, last: bool = True, ranks: int = 0) -> None"),
        "type"_a, "op"_a, "factors"_a, "contributions"_a, "into"_a, "before"_a.none() = nb::none(), "last"_a = true,
        "ranks"_a = 0,
        "Combine contributions in their order; each has its factor, which matters to a sum of products alone. Of more "
        "than these, `before` is what those before them came to, by a call that was not the `last`.");
    nb::class_<Process>(m, "Process", "Another process of this host.")
        .def(nb::init<pid_t, uint64_t>(), "pid"_a, "started"_a)
        .def("alive", &Process::alive)
        .def("status", &status_within, "milliseconds"_a,
             "The status that wait() would give, if it ends within some time and that can be known.");
    m.def("start_time", &start_time, "pid"_a, "When a process started, by which a pid names one for ever.");
}

}  // namespace corral
