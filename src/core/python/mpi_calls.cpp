// The collectives that a port carries out by itself, and what Python sees of it.
#include <nanobind/stl/vector.h>

#include <cstring>
#include <utility>

#include "../reduce.h"
#include "group.h"
#include "mpi_port.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace corral {
namespace {

enum : uint32_t { call_passed, call_barrier, call_broadcast, call_all_reduce, call_all_gather, call_gather };

// What a call returns, or `otherwise` where its arguments are no good: whoever calls it then does so in another way,
// which fails with a better error. So it raises nothing that could be taken for what a signal's handler has raised.
template <typename Call, typename Result>
Result attempt(Call&& call, Result otherwise) {
    try {
        return call();
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_Exception)) throw;
    } catch (const std::exception&) {
    }
    return otherwise;
}

}  // namespace

MpiPort::Gathering& MpiPort::gathering(uint64_t number) {
    for (auto& each : gatherings_)
        if (each.number == number) return each;
    std::unique_ptr<Slot[]> slots;
    if (spare_slots_.empty()) {
        slots.reset(new Slot[size_]);
    } else {
        slots = std::move(spare_slots_.back());
        spare_slots_.pop_back();
    }
    for (uint32_t r = 0; r < size_; ++r) slots[r].here = false;
    return gatherings_.emplace_back(Gathering{number, 0, false, std::move(slots)});
}

const MpiPort::Gathering* MpiPort::find(uint64_t number) const {
    for (auto& each : gatherings_)
        if (each.number == number) return &each;
    return nullptr;
}

void MpiPort::forget(uint64_t number) {
    for (auto& each : gatherings_)
        if (each.number == number) return end(each);
}

void MpiPort::end(Gathering& gathering) {
    spare_slots_.push_back(std::move(gathering.slots));
    if (&gathering != &gatherings_.back()) gathering = std::move(gatherings_.back());
    gatherings_.pop_back();
}

void MpiPort::take_slot(uint32_t source, const std::byte* data, size_t bytes) {
    Heading heading;
    std::memcpy(&heading, data, sizeof heading);
    bytes -= sizeof heading;
    if (bytes > most || (heading.number < next_ && !find(heading.number))) return;  // of a call that is over
    auto& all = gathering(heading.number);
    Slot& slot = all.slots[source];
    if (slot.here) return;
    slot.heading = heading;
    slot.bytes = static_cast<uint32_t>(bytes);
    slot.here = true;
    std::memcpy(slot.content.data(), data + sizeof heading, bytes);
    ++all.count;
}

void MpiPort::tell(const Heading& heading, const void* content, uint32_t bytes, int64_t only) {
    for (uint32_t k = 1; k < size_; ++k) {
        uint32_t to = (rank_ + k) % size_, given = only < 0 || only == to ? bytes : 0;
        Prefix prefix{kind_slot, 0, rank_, static_cast<uint32_t>(sizeof heading + given), 0, 0};
        start(to, prefix, &heading, content, given);
    }
}

MpiPort::State MpiPort::state(uint64_t number) const {
    auto* all = find(number);
    if (!all || !all->own) return State::different;
    const Heading& own = all->slots[rank_].heading;
    for (uint32_t r = 0; r < size_; ++r)
        if (all->slots[r].here && all->slots[r].heading != own) return State::different;
    return all->count == size_ ? State::alike : State::open;
}

bool MpiPort::has(uint64_t number, uint32_t rank) const {
    auto* all = find(number);
    return all && rank < size_ && all->slots[rank].here;
}

nb::list MpiPort::contents(uint64_t number) const {
    nb::list out;
    if (auto* all = find(number))
        for (uint32_t r = 0; r < size_; ++r)
            out.append(nb::bytes(all->slots[r].content.data(), all->slots[r].here ? all->slots[r].bytes : 0));
    return out;
}

uint64_t MpiPort::pass() {
    Heading heading{};
    heading.number = next_++;
    heading.kind = call_passed;
    forget(heading.number);
    tell(heading, nullptr, 0);
    return heading.number;
}

MpiPort::Gathering* MpiPort::call(Heading& heading, const void* content, uint32_t bytes, int64_t only) {
    heading.number = next_++;
    auto& all = gathering(heading.number);
    Slot& slot = all.slots[rank_];
    slot.heading = heading;
    slot.bytes = bytes;
    slot.here = all.own = true;
    if (bytes) std::memcpy(slot.content.data(), content, bytes);
    ++all.count;
    tell(heading, content, bytes, only);
    // What is for the interpreter may say that somebody has given up: it is heard first.
    bool alike = spin([&] { return inbox_.empty() && state(heading.number) != State::open; }) &&
                 state(heading.number) == State::alike;
    if (!alike) return nullptr;
    last_ = heading;
    has_last_ = true;
    return &gathering(heading.number);
}

int64_t MpiPort::barrier(uint32_t label) {
    if (!enabled_) return unfit;
    Heading heading{.number = 0, .type = 0, .bytes = 0, .label = label, .detail = 0, .root = -1, .kind = call_barrier};
    auto* all = call(heading, nullptr, 0);
    if (!all) return static_cast<int64_t>(heading.number);
    end(*all);
    return done;
}

int64_t MpiPort::broadcast(uint32_t label, uint32_t root, nb::handle buffers) {
    if (!enabled_ || root >= size_) return unfit;
    Payload payload;
    need(payload.add_all(buffers.ptr(), root == rank_ ? Payload::Access::read : Payload::Access::write));
    uint64_t bytes = payload.spans.total();
    if (payload.runs.size() != 1 || bytes > most) return unfit;
    std::array<std::byte, most> content;
    if (root == rank_) payload.spans.read(0, content.data(), bytes);
    Heading heading{.number = 0,
                    .type = payload.type(),
                    .bytes = bytes,
                    .label = label,
                    .detail = 0,
                    .root = static_cast<int32_t>(root),
                    .kind = call_broadcast};
    auto* all = call(heading, content.data(), root == rank_ ? static_cast<uint32_t>(bytes) : 0);
    if (!all) return static_cast<int64_t>(heading.number);
    if (root != rank_ && all->slots[root].bytes == bytes) {
        payload.spans.write(0, all->slots[root].content.data(), bytes);
        payload.settle();
    }
    end(*all);
    return done;
}

int64_t MpiPort::all_reduce(uint32_t label, uint32_t op, nb::handle buffers) {
    if (!enabled_ || op >= static_cast<uint32_t>(ReduceOp::premul_sum)) return unfit;
    Payload payload;
    need(payload.add_all(buffers.ptr(), Payload::Access::update));
    uint64_t bytes = payload.spans.total();
    Reduction reduction{payload.type(), static_cast<ReduceOp>(op), size_, 1.0};
    if (payload.runs.size() != 1 || bytes == 0 || bytes > most || !reducible(reduction)) return unfit;
    std::array<std::byte, most> content;
    payload.spans.read(0, content.data(), bytes);
    Heading heading{.number = 0,
                    .type = payload.type(),
                    .bytes = bytes,
                    .label = label,
                    .detail = op + 1,
                    .root = -1,
                    .kind = call_all_reduce};
    auto* all = call(heading, content.data(), static_cast<uint32_t>(bytes));
    if (!all) return static_cast<int64_t>(heading.number);
    size_t n = bytes / element_bytes(payload.type());
    std::array<std::byte, 2 * most> accumulator;  // of 16-bit floats, twice as much
    for (uint32_t r = 0; r < size_; ++r)
        (r == 0 ? reduce_begin : reduce_next)(reduction, all->slots[r].content.data(), accumulator.data(), n);
    reduce_end(reduction, accumulator.data(), content.data(), n);
    payload.spans.write(0, content.data(), bytes);
    payload.settle();
    end(*all);
    return done;
}

bool MpiPort::add_parts(Payload& payload, nb::handle into, uint64_t type, uint64_t bytes) const {
    if (!PyList_Check(into.ptr())) {
        need(payload.add(into.ptr(), Payload::Access::write));
    } else {
        if (PyList_Size(into.ptr()) != static_cast<Py_ssize_t>(size_)) return false;
        for (uint32_t r = 0; r < size_; ++r) {
            need(payload.add_all(PyList_GetItem(into.ptr(), r), Payload::Access::write));
            if (payload.spans.total() != (r + 1) * bytes) return false;
        }
    }
    for (auto& run : payload.runs)
        if (run.type != type) return false;
    return payload.spans.total() == bytes * size_;
}

void MpiPort::write_parts(const Gathering& all, Payload& payload, uint64_t bytes) const {
    for (uint32_t r = 0; r < size_; ++r)
        if (all.slots[r].bytes == bytes) payload.spans.write(r * bytes, all.slots[r].content.data(), bytes);
    payload.settle();
}

int64_t MpiPort::all_gather(uint32_t label, nb::handle buffers, nb::handle into) {
    return bring(call_all_gather, label, -1, buffers, into);
}

int64_t MpiPort::gather(uint32_t label, uint32_t root, nb::handle buffers, nb::handle into) {
    if (root >= size_ || (root == rank_ && !PyList_Check(into.ptr()))) return unfit;
    return bring(call_gather, label, static_cast<int32_t>(root), buffers, into);
}

int64_t MpiPort::bring(uint32_t kind, uint32_t label, int32_t root, nb::handle buffers, nb::handle into) {
    if (!enabled_) return unfit;
    bool takes = root < 0 || static_cast<uint32_t>(root) == rank_;
    Payload given, taken;
    need(given.add_all(buffers.ptr(), Payload::Access::read));
    uint64_t bytes = given.spans.total();
    if (given.runs.size() != 1 || bytes > most) return unfit;
    if (takes && !add_parts(taken, into, given.type(), bytes)) return unfit;
    std::array<std::byte, most> content;
    given.spans.read(0, content.data(), bytes);
    Heading heading{
        .number = 0, .type = given.type(), .bytes = bytes, .label = label, .detail = 0, .root = root, .kind = kind};
    auto* all = call(heading, content.data(), static_cast<uint32_t>(bytes), root);
    if (!all) return static_cast<int64_t>(heading.number);
    if (takes) write_parts(*all, taken, bytes);
    end(*all);
    return done;
}

nb::object MpiPort::last() const {
    if (!has_last_) return nb::none();
    return nb::make_tuple(last_.number, last_.label, last_.root, last_.detail, last_.type, last_.bytes);
}

void register_mpi_port(nb::module_& m) {
    nb::class_<MpiPort>(m, "MpiPort", "The heads of a job's frames as messages of MPI, and small calls in one go.")
        .def(
            "__init__",
            [](MpiPort* self, const std::vector<uintptr_t>& functions, uintptr_t comm, uintptr_t byte, int anyone,
               int tag, uint32_t rank, uint32_t size, uint32_t head_limit) {
                if (functions.size() != 8) throw nb::value_error("the addresses of eight functions are needed");
                MpiPort::Calls calls;
                std::memcpy(&calls, functions.data(), sizeof calls);
                new (self) MpiPort(calls, comm, byte, anyone, tag, rank, size, head_limit);
            },
            nb::sig("def __init__(self, functions: Sequence[int], comm: int, byte: int, anyone: int, tag: int, rank: "
                    "int, size: int, head_limit: int) -> None"),
            "functions"_a, "comm"_a, "byte"_a, "anyone"_a, "tag"_a, "rank"_a, "size"_a, "head_limit"_a)
        .def("send", &MpiPort::send, "to"_a, "kind"_a, "tag"_a, "body"_a, "head"_a)
        .def("poll", &MpiPort::poll)
        .def("take", &MpiPort::take, nb::sig("def take(self) -> list[tuple[int, int, int, int, bytes]]"))
        .def("sending", &MpiPort::sending)
        .def("heard", &MpiPort::heard, "rank"_a)
        .def("abandon", &MpiPort::abandon, "rank"_a)
        .def("disable", &MpiPort::disable)
        .def("close", &MpiPort::close)
        .def("lend", &MpiPort::lend, "to"_a, "nbytes"_a)
        .def(
            "send_message",
            [](MpiPort& p, uint64_t context, uint32_t to, uint64_t tag, nb::handle buffers) {
                return attempt([&] { return static_cast<int>(p.send_message(context, to, tag, buffers)); }, 0);
            },
            nb::sig("def send_message(self, context: int, to: int, tag: int, buffers: object) -> int"), "context"_a,
            "to"_a, "tag"_a, "buffers"_a)
        .def(
            "recv_message",
            [](MpiPort& p, uint64_t context, uint32_t from, uint64_t tag, nb::handle buffers) {
                return attempt([&] { return p.recv_message(context, from, tag, buffers); }, uint64_t{0});
            },
            nb::sig("def recv_message(self, context: int, source: int, tag: int, buffers: object) -> int"), "context"_a,
            "source"_a, "tag"_a, "buffers"_a)
        .def("barrier", &MpiPort::barrier, "label"_a)
        .def(
            "broadcast",
            [](MpiPort& p, uint32_t label, uint32_t root, nb::handle buffers) {
                return attempt([&] { return p.broadcast(label, root, buffers); }, MpiPort::unfit);
            },
            nb::sig("def broadcast(self, label: int, root: int, buffers: object) -> int"), "label"_a, "root"_a,
            "buffers"_a)
        .def(
            "all_reduce",
            [](MpiPort& p, uint32_t label, uint32_t op, nb::handle buffers) {
                return attempt([&] { return p.all_reduce(label, op, buffers); }, MpiPort::unfit);
            },
            nb::sig("def all_reduce(self, label: int, op: int, buffers: object) -> int"), "label"_a, "op"_a,
            "buffers"_a)
        .def(
            "all_gather",
            [](MpiPort& p, uint32_t label, nb::handle buffers, nb::handle into) {
                return attempt([&] { return p.all_gather(label, buffers, into); }, MpiPort::unfit);
            },
            nb::sig("def all_gather(self, label: int, buffers: object, into: object) -> int"), "label"_a, "buffers"_a,
            "into"_a)
        .def(
            "gather",
            [](MpiPort& p, uint32_t label, uint32_t root, nb::handle buffers, nb::handle into) {
                return attempt([&] { return p.gather(label, root, buffers, into); }, MpiPort::unfit);
            },
            nb::sig("def gather(self, label: int, root: int, buffers: object, into: object) -> int"), "label"_a,
            "root"_a, "buffers"_a, "into"_a.none())
        .def("begin", &MpiPort::pass)
        .def_prop_ro("next", &MpiPort::next)
        .def(
            "state", [](const MpiPort& p, uint64_t number) { return static_cast<int>(p.state(number)); }, "number"_a)
        .def("has", &MpiPort::has, "number"_a, "rank"_a)
        .def("contents", &MpiPort::contents, nb::sig("def contents(self, number: int) -> list[bytes]"), "number"_a)
        .def("forget", &MpiPort::forget, "number"_a)
        .def("last", &MpiPort::last, nb::sig("def last(self) -> tuple[int, int, int, int, int, int] | None"));
}

}  // namespace corral
