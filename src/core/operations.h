// Operations under way. All fields are guarded by the engine's lock, but `done`, which may be read without it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "failure.h"
#include "ring.h"
#include "spans.h"
#include "transfer.h"

namespace corral {

class Engine;

// What the user called, for logs and errors. Numbers beyond these are names that the layer above gives.
enum class Code : uint32_t { none = 0, send, recv, barrier };

constexpr int32_t any_source = -1;
constexpr uint64_t collective_bit = 1ull << 63;
constexpr uint64_t collective_match(uint64_t sequence, uint32_t step) {
    return collective_bit | (sequence << 8) | step;
}
constexpr bool is_collective(uint64_t match) { return (match & collective_bit) != 0; }
constexpr uint64_t sequence_of(uint64_t match) { return (match & ~collective_bit) >> 8; }

// Whether a message is of a later collective than `match`. A peer's come in the order of their numbers: a search for
// one need not go on.
constexpr bool is_later(const Message& m, uint64_t context, uint64_t match) {
    return m.context == context && is_collective(m.match) && is_collective(match) &&
           sequence_of(m.match) > sequence_of(match);
}

// 16 bytes that travel before a collective's data: a layout's fingerprint, or {element types, 0}.
struct Fingerprint {
    uint64_t low = 0, high = 0;
    bool operator==(const Fingerprint&) const = default;
};

struct Operation {
    virtual ~Operation() = default;
    // Whether nobody touches its memory any more. A failed collective may have a peer in the middle of a copy.
    virtual bool quiet() const { return done.load(std::memory_order_acquire); }
    // Whether it is done and has brought what it should.
    virtual bool succeeded() const { return !failure; }
    // release when set, acquire when read: who sees it sees the data received and `failure`.
    std::atomic<bool> done{false};
    Failure failure;
    Code code = Code::none;
    uint64_t context = 0, match = 0;
    int32_t peer = any_source;  // rank of the job; after a receive, where the message came from
};

struct Transfer;

struct Send : Operation {
    Message message;
    Fingerprint prefix;
    bool prefixed = false;
    Spans spans;
    uint64_t streamed = 0;        // bytes handed over piece by piece
    int32_t slot = -1;            // of a direct transfer
    std::vector<RemoteRun> runs;  // read by the receiver where they lie, if they are too many for a message
};

// A message that came before anyone asked for it, or that is held until its receiver has decided.
struct Arrival {
    Message message;
    Fingerprint prefix;
    std::vector<std::byte> bytes;  // an eager message's data, or an offer's description
};

struct Receive : Operation {
    Spans spans;
    uint64_t signature = 0;
    bool check_type = false;
    Fingerprint expected;  // of a collective's message
    bool check_prefix = false;
    bool make = false;  // memory of the message's size, on arrival
    std::unique_ptr<std::byte[]> made;
    bool hold = false;     // stop when the message is there; go on with Engine::take, borrow or refuse
    bool arrived = false;  // with `hold`
    Arrival arrival;
    uint64_t order = 0;  // when it was posted
    bool posted = false;
    uint64_t request = 0;  // the sender's name for the message that is coming in
    uint64_t received = 0;
    std::shared_ptr<Transfer> transfer;
};

// One end's part in a direct copy.
struct Transfer {
    std::shared_ptr<Operation> operation;  // keeps the spans alive
    const Spans* local = nullptr;
    RemoteSpans remote;
    TransferSlot* slot = nullptr;
    uint32_t peer = 0;
    uint64_t total = 0, chunk = 0, chunks = 0;
    bool reads = false;      // the receiver reads, the sender writes
    bool exhausted = false;  // nothing left to claim
    uint32_t in_flight = 0;  // threads of this process that are copying
};

}  // namespace corral
