#include "mpi_port.h"

#include <nanobind/stl/vector.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "../reduce.h"
#include "group.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace corral {
namespace {

constexpr uint16_t kind_data = 1, kind_slot = 4;
// How long a caller waits with the GIL held, and where others need its processor before they can answer.
constexpr auto patience = std::chrono::microseconds(100), patience_crowded = std::chrono::microseconds(1000);

// A message in its head: see frames.py.
struct Head {
    uint8_t kind, flags;
    uint16_t label;
    uint32_t extra;
    uint64_t context, tag, type, bytes, unused;
};
static_assert(sizeof(Head) == 48);
constexpr uint8_t eager = 1;
constexpr uint64_t head_cost = 128;  // see post.py
constexpr uint64_t most_owed = 1 << 16;

enum : uint32_t { call_passed, call_barrier, call_broadcast, call_all_reduce, call_all_gather };

void check(int code, const char* what) {
    if (code != 0) throw std::runtime_error(std::string(what) + " failed with MPI's error " + std::to_string(code));
}

}  // namespace

MpiPort::MpiPort(Calls calls, MpiHandle comm, MpiHandle byte, int anyone, int tag, uint32_t rank, uint32_t size,
                 uint32_t head_limit)
    : calls_(calls),
      comm_(comm),
      byte_(byte),
      anyone_(anyone),
      tag_(tag),
      rank_(rank),
      size_(size),
      head_limit_(head_limit),
      crowded_(static_cast<long>(size) > sysconf(_SC_NPROCESSORS_ONLN)),
      credit_(size),
      owed_(size) {
    for (auto& message : posted_) {
        message.memory.resize(sizeof(Prefix) + head_limit);
        post(message);
    }
}

// Heads -------------------------------------------------------------------------------------------------------------

void MpiPort::post(Message& message) {
    check(calls_.irecv(message.memory.data(), static_cast<int>(message.memory.size()), byte_, anyone_, tag_, comm_,
                       &message.request),
          "MPI_Irecv");
}

void MpiPort::start(uint32_t to, const Prefix& prefix, const void* head, const void* rest, size_t rest_bytes) {
    size_t first = prefix.bytes - rest_bytes;
    std::unique_ptr<Message> message;
    if (spare_.empty()) {
        message = std::make_unique<Message>();
    } else {
        message = std::move(spare_.back());
        spare_.pop_back();
    }
    message->memory.resize(sizeof prefix + prefix.bytes);
    std::byte* at = message->memory.data();
    std::memcpy(at, &prefix, sizeof prefix);
    std::memcpy(at + sizeof prefix, head, first);
    if (rest_bytes) std::memcpy(at + sizeof prefix + first, rest, rest_bytes);
    check(calls_.isend(at, static_cast<int>(message->memory.size()), byte_, static_cast<int>(to), tag_, comm_,
                       &message->request),
          "MPI_Isend");
    int complete = 0;
    check(calls_.test(&message->request, &complete, status_.data()), "MPI_Test");
    (complete ? spare_ : leaving_).push_back(std::move(message));
}

void MpiPort::send(uint32_t to, uint16_t kind, uint16_t tag, uint64_t body, nb::bytes head) {
    if (to >= size_ || head.size() > head_limit_) throw nb::value_error("no such rank, or too long a head");
    start(to, {kind, tag, rank_, static_cast<uint32_t>(head.size()), 0, body}, head.c_str(), nullptr, 0);
}

// Take in one head, if one has come.
bool MpiPort::step() {
    if (spent_) {  // only now: whoever the last one was for does not wait for that
        spent_ = false;
        post(posted_[(at_ + posted_count - 1) % posted_count]);
    }
    Message& message = posted_[at_];
    int complete = 0, bytes = 0;
    check(calls_.test(&message.request, &complete, status_.data()), "MPI_Test");
    if (!complete) return false;
    check(calls_.count(status_.data(), byte_, &bytes), "MPI_Get_count");
    at_ = (at_ + 1) % posted_count;
    spent_ = true;
    accept(message.memory.data(), static_cast<size_t>(std::max(bytes, 0)));
    return true;
}

bool MpiPort::poll() {
    bool any = false;
    while (!(wanted_ && wanted_->done) && step()) any = true;
    for (size_t i = 0; i < leaving_.size();) {
        int complete = 0;
        check(calls_.test(&leaving_[i]->request, &complete, status_.data()), "MPI_Test");
        if (!complete) {
            ++i;
            continue;
        }
        any = true;
        spare_.push_back(std::move(leaving_[i]));
        leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return any;
}

void MpiPort::accept(const std::byte* data, size_t bytes) {
    Prefix prefix;
    if (bytes < sizeof prefix) return;
    std::memcpy(&prefix, data, sizeof prefix);
    if (prefix.source >= size_) return;
    const std::byte* head = data + sizeof prefix;
    if (prefix.bytes != bytes - sizeof prefix) {
        prefix.kind = 0;  // the interpreter says that this makes no sense
        prefix.bytes = 0;
    }
    if (prefix.kind == kind_slot && prefix.bytes >= sizeof(Heading))
        return take_slot(prefix.source, head, prefix.bytes);
    if (wanted_ && !wanted_->done && inbox_.empty() && take_message(prefix, head)) return;
    inbox_.push_back({prefix, {head, head + prefix.bytes}});
}

nb::list MpiPort::take() {
    nb::list out;
    for (auto& each : inbox_)
        out.append(nb::make_tuple(each.prefix.source, each.prefix.kind, each.prefix.tag, each.prefix.body,
                                  nb::bytes(each.head.data(), each.head.size())));
    inbox_.clear();
    return out;
}

void MpiPort::close() {
    enabled_ = false;
    for (auto& message : leaving_) message.release();  // for ever: MPI may yet read it
    leaving_.clear();
    if (std::exchange(spent_, false)) post(posted_[(at_ + posted_count - 1) % posted_count]);
    for (auto& message : posted_) {
        int complete = 0;
        if (calls_.cancel(&message.request) != 0) continue;
        for (int tries = 0; tries < 1000 && !complete; ++tries)
            if (calls_.test(&message.request, &complete, status_.data()) != 0) break;
        if (!complete) new std::vector<std::byte>(std::move(message.memory));  // MPI may yet write there
    }
}

template <typename Ready>
bool MpiPort::spin(Ready&& ready) {
    auto until = std::chrono::steady_clock::time_point{};
    for (uint32_t n = 0;; ++n) {
        poll();
        if (ready()) return true;
        if (!inbox_.empty()) return false;
        if (crowded_) sched_yield();
        if ((n & 15) != 15) continue;
        auto now = std::chrono::steady_clock::now();
        if (n == 15)
            until = now + (crowded_ ? patience_crowded : patience);
        else if (now > until)
            return false;
    }
}

// Messages ----------------------------------------------------------------------------------------------------------

MpiPort::Sent MpiPort::send_message(uint64_t context, uint32_t to, uint64_t tag, nb::handle buffers) {
    if (!enabled_ || to >= size_ || to == rank_) return Sent::no;
    Payload payload;
    need(payload.add_all(buffers.ptr(), Payload::Access::read));
    uint64_t bytes = payload.spans.total();
    if (bytes > most) return Sent::no;
    if (credit_[to] < bytes + head_cost) return Sent::poor;
    credit_[to] -= bytes + head_cost;
    std::array<std::byte, most> content;
    payload.spans.read(0, content.data(), bytes);
    Head head{eager, 0, 0, 0, context, tag, payload.type(), bytes, 0};
    start(to, {kind_data, 0, rank_, static_cast<uint32_t>(sizeof head + bytes), 0, 0}, &head, content.data(), bytes);
    return Sent::yes;
}

uint64_t MpiPort::recv_message(uint64_t context, uint32_t from, uint64_t tag, nb::handle buffers) {
    if (!enabled_ || !inbox_.empty()) return 0;
    Payload payload;
    need(payload.add_all(buffers.ptr(), Payload::Access::write));
    if (payload.spans.total() > most) return 0;
    Wanted wanted{context, tag, from, payload};
    wanted_ = &wanted;
    try {
        spin([&] { return wanted.done; });
    } catch (...) {
        wanted_ = nullptr;
        throw;
    }
    wanted_ = nullptr;
    if (!wanted.done) return 0;
    payload.settle();
    uint64_t& owed = owed_.at(from);
    owed += payload.spans.total() + head_cost;
    return owed < most_owed ? 1 : std::exchange(owed, 0);
}

bool MpiPort::take_message(const Prefix& prefix, const std::byte* data) {
    Head head;
    if (prefix.kind != kind_data || prefix.source != wanted_->from || prefix.bytes < sizeof head) return false;
    std::memcpy(&head, data, sizeof head);
    uint64_t bytes = prefix.bytes - sizeof head;
    if (head.kind != eager || head.context != wanted_->context || head.tag != wanted_->tag || head.bytes != bytes ||
        head.type != wanted_->payload.type() || bytes != wanted_->payload.spans.total())
        return false;
    wanted_->payload.spans.write(0, data + sizeof head, bytes);
    wanted_->done = true;
    return true;
}

// Collectives -------------------------------------------------------------------------------------------------------

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

void MpiPort::tell(const Heading& heading, const void* content, uint32_t bytes) {
    Prefix prefix{kind_slot, 0, rank_, static_cast<uint32_t>(sizeof heading + bytes), 0, 0};
    for (uint32_t k = 1; k < size_; ++k) start((rank_ + k) % size_, prefix, &heading, content, bytes);
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

MpiPort::Gathering* MpiPort::call(Heading& heading, const void* content, uint32_t bytes) {
    heading.number = next_++;
    auto& all = gathering(heading.number);
    Slot& slot = all.slots[rank_];
    slot.heading = heading;
    slot.bytes = bytes;
    slot.here = all.own = true;
    if (bytes) std::memcpy(slot.content.data(), content, bytes);
    ++all.count;
    tell(heading, content, bytes);
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

int64_t MpiPort::all_gather(uint32_t label, nb::handle buffers, nb::handle into) {
    if (!enabled_) return unfit;
    Payload given, taken;
    need(given.add_all(buffers.ptr(), Payload::Access::read));
    need(taken.add(into.ptr(), Payload::Access::write));
    uint64_t bytes = given.spans.total();
    if (given.runs.size() != 1 || bytes > most || given.type() != taken.type() || taken.spans.total() != bytes * size_)
        return unfit;
    std::array<std::byte, most> content;
    given.spans.read(0, content.data(), bytes);
    Heading heading{.number = 0,
                    .type = given.type(),
                    .bytes = bytes,
                    .label = label,
                    .detail = 0,
                    .root = -1,
                    .kind = call_all_gather};
    auto* all = call(heading, content.data(), static_cast<uint32_t>(bytes));
    if (!all) return static_cast<int64_t>(heading.number);
    for (uint32_t r = 0; r < size_; ++r) taken.spans.write(r * bytes, all->slots[r].content.data(), bytes);
    taken.settle();
    end(*all);
    return done;
}

nb::object MpiPort::last() const {
    if (!has_last_) return nb::none();
    return nb::make_tuple(last_.number, last_.label, last_.root, last_.detail, last_.type, last_.bytes);
}

// -------------------------------------------------------------------------------------------------------------------

void register_mpi_port(nb::module_& m) {
    nb::class_<MpiPort>(m, "MpiPort", "The heads of a job's frames as messages of MPI, and small calls in one go.")
        .def(
            "__init__",
            [](MpiPort* self, const std::vector<uintptr_t>& functions, uintptr_t comm, uintptr_t byte, int anyone,
               int tag, uint32_t rank, uint32_t size, uint32_t head_limit) {
                if (functions.size() != 5) throw nb::value_error("the addresses of five functions are needed");
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
        .def("disable", &MpiPort::disable)
        .def("close", &MpiPort::close)
        .def("lend", &MpiPort::lend, "to"_a, "nbytes"_a)
        .def(
            "send_message",
            [](MpiPort& p, uint64_t context, uint32_t to, uint64_t tag, nb::handle buffers) {
                return static_cast<int>(p.send_message(context, to, tag, buffers));
            },
            nb::sig("def send_message(self, context: int, to: int, tag: int, buffers: object) -> int"), "context"_a,
            "to"_a, "tag"_a, "buffers"_a)
        .def("recv_message", &MpiPort::recv_message,
             nb::sig("def recv_message(self, context: int, source: int, tag: int, buffers: object) -> int"),
             "context"_a, "source"_a, "tag"_a, "buffers"_a)
        .def("barrier", &MpiPort::barrier, "label"_a)
        .def("broadcast", &MpiPort::broadcast,
             nb::sig("def broadcast(self, label: int, root: int, buffers: object) -> int"), "label"_a, "root"_a,
             "buffers"_a)
        .def("all_reduce", &MpiPort::all_reduce,
             nb::sig("def all_reduce(self, label: int, op: int, buffers: object) -> int"), "label"_a, "op"_a,
             "buffers"_a)
        .def("all_gather", &MpiPort::all_gather,
             nb::sig("def all_gather(self, label: int, buffers: object, into: object) -> int"), "label"_a, "buffers"_a,
             "into"_a)
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
