#include "mpi_port.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "group.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace corral {
namespace {

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
      owed_(size),
      gone_(size),
      heard_(size) {
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
    if (gone_[to]) return;
    size_t first = prefix.bytes - rest_bytes;
    std::unique_ptr<Message> message;
    if (spare_.empty()) {
        message = std::make_unique<Message>();
    } else {
        message = std::move(spare_.back());
        spare_.pop_back();
    }
    message->to = to;
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
    int complete = 0, bytes = 0;
    if (probes_) {
        uint64_t arrived = 0;
        check(calls_.improbe(anyone_, tag_, comm_, &complete, &arrived, status_.data()), "MPI_Improbe");
        if (!complete) return false;
        check(calls_.count(status_.data(), byte_, &bytes), "MPI_Get_count");
        std::vector<std::byte> memory(static_cast<size_t>(std::max(bytes, 0)));
        check(calls_.mrecv(memory.data(), bytes, byte_, &arrived, status_.data()), "MPI_Mrecv");
        accept(memory.data(), memory.size());
        return true;
    }
    if (spent_) {  // only now: whoever the last one was for does not wait for that
        spent_ = false;
        post(posted_[(at_ + posted_count - 1) % posted_count]);
    }
    Message& message = posted_[at_];
    if (int code = calls_.test(&message.request, &complete, status_.data()); code != 0) {
        probes_ = true;
        withdraw();
        check(code, "MPI_Test");
    }
    if (!complete) return false;
    check(calls_.count(status_.data(), byte_, &bytes), "MPI_Get_count");
    at_ = (at_ + 1) % posted_count;
    spent_ = true;
    accept(message.memory.data(), static_cast<size_t>(std::max(bytes, 0)));
    return true;
}

// Have no receives any more, but keep what has come into them.
void MpiPort::withdraw() {
    for (int k = 0; k < posted_count - (spent_ ? 1 : 0); ++k) {
        Message& message = posted_[(at_ + k) % posted_count];
        calls_.cancel(&message.request);  // may fail, if it has ended
        int complete = 0, cancelled = 0, bytes = 0, code = 0;
        for (int tries = 0; tries < 1000 && !complete && code == 0; ++tries)
            code = calls_.test(&message.request, &complete, status_.data());
        if (!complete) {
            new std::vector<std::byte>(std::move(message.memory));  // for ever: MPI may yet write there
        } else if (code == 0 && calls_.cancelled(status_.data(), &cancelled) == 0 && !cancelled &&
                   calls_.count(status_.data(), byte_, &bytes) == 0 && bytes > 0) {
            accept(message.memory.data(), static_cast<size_t>(bytes));
        }
    }
}

bool MpiPort::poll() {
    bool any = false;
    while (!(wanted_ && wanted_->done) && step()) any = true;
    for (size_t i = 0; i < leaving_.size();) {
        int complete = 0;
        // One that fails has ended, too: that its receiver is gone shows elsewhere.
        if (calls_.test(&leaving_[i]->request, &complete, status_.data()) == 0 && !complete) {
            ++i;
            continue;
        }
        any = true;
        spare_.push_back(std::move(leaving_[i]));
        leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return any;
}

bool MpiPort::abandon(uint32_t rank) {
    gone_.at(rank) = true;
    auto theirs = std::ranges::partition(leaving_, [&](auto& message) { return message->to != rank; });
    bool any = !theirs.empty();
    for (auto& message : theirs) message.release();  // for ever
    leaving_.erase(theirs.begin(), theirs.end());
    return any;
}

void MpiPort::accept(const std::byte* data, size_t bytes) {
    Prefix prefix;
    if (bytes < sizeof prefix) return;
    std::memcpy(&prefix, data, sizeof prefix);
    if (prefix.source >= size_) return;
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);  // a tenth of what the exact time costs
    heard_[prefix.source] = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
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
    if (!std::exchange(probes_, true)) withdraw();
}

// Messages ----------------------------------------------------------------------------------------------------------

MpiPort::Sent MpiPort::send_message(uint64_t context, uint32_t to, uint64_t tag, nb::handle buffers) {
    if (!enabled_ || to >= size_ || to == rank_ || gone_[to]) return Sent::no;
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

}  // namespace corral
