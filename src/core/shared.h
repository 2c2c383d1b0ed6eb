// What lies in a rank's segment, byte for byte. Every process of a job maps every rank's segment.
//
// Writers are named for each field: "owner" is the rank whose segment it is. Nothing here is trusted by a
// reader: sizes and counts are checked before use (ring.cpp, transfer.cpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace corral {

constexpr uint64_t segment_magic = 0x314c415252'4f43;  // "CORRAL1"
constexpr uint32_t segment_version = 1;
constexpr const char* segment_label = "corral";
constexpr const char* array_label = "corral-array";
constexpr size_t line = 64;
constexpr uint32_t max_ranks = 4096;

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "atomics in shared memory must not need a lock of one process");

// A message's header, or all of a message of up to 8 bytes: one cache line in the receiver's segment.
struct Slot {
    std::atomic<uint32_t> stamp;  // index of the message + 1, written last
    uint16_t kind;
    uint16_t inline_bytes;  // of `small`
    uint64_t context;       // the group
    uint64_t match;         // the tag; or, with the top bit, a collective's sequence number and step
    uint64_t total;         // bytes of the whole message
    uint64_t signature;     // element types, or the collective call
    uint32_t payload;       // bytes in the payload ring
    uint32_t count;         // spans described in the payload
    uint64_t request;       // the sender's name for a transfer
    unsigned char small[8];
};
static_assert(sizeof(Slot) == line);

// One direction between two ranks; lies in the receiver's segment.
struct alignas(line) RingControl {
    alignas(line) std::atomic<uint64_t> slots_taken;   // by the receiver (the owner)
    std::atomic<uint64_t> payload_taken;               // same writer, same line: they change together
    alignas(line) std::atomic<uint32_t> sender_waits;  // by the sender: ring its bell when there is room
};

// The collectives that a rank has called lately, for errors: an entry is found by (context, sequence).
struct alignas(line) CallRecord {
    std::atomic<uint64_t> version;  // odd while the owner writes
    std::atomic<uint64_t> context;
    std::atomic<uint64_t> sequence;
    std::atomic<uint64_t> signature;
    std::atomic<uint64_t> bytes;
    std::atomic<uint64_t> type;
    std::atomic<uint32_t> operation;
    std::atomic<int32_t> root;
    std::atomic<uint32_t> detail;  // the reduction + 1, if there is one
    std::atomic<uint32_t> state;   // one of those below
};
constexpr uint32_t call_running = 1, call_done = 2, call_failed = 3;
constexpr uint32_t call_refused = 4;  // its arguments made no sense on the rank that called it
constexpr uint32_t call_records = 128;

// What a rank has been waiting for since it fell asleep.
struct alignas(line) Activity {
    std::atomic<uint64_t> version;
    std::atomic<uint64_t> context;
    std::atomic<uint64_t> match;
    std::atomic<int64_t> since_ns;
    std::atomic<uint32_t> operation;  // 0: not waiting
    std::atomic<int32_t> peer;
};

// A large transfer that both ends carry out; lies in the sender's segment.
struct alignas(line) TransferSlot {
    std::atomic<uint64_t> next;       // the next chunk to copy: whoever increments it copies that chunk
    std::atomic<uint64_t> completed;  // chunks copied, by either end
    std::atomic<uint64_t> failed;     // errno of a copy that failed
};
constexpr uint32_t transfer_slots = 128;

enum class RankState : uint32_t { starting = 0, running = 1, left = 2 };

struct SegmentHeader {
    std::atomic<uint64_t> magic;
    uint32_t version;
    uint32_t rank;
    uint32_t size;
    uint32_t slots;
    uint64_t ring_bytes;
    alignas(line) std::atomic<uint32_t> state;  // RankState, by the owner
    alignas(line) std::atomic<uint32_t> bell;   // futex; anyone increments
    std::atomic<uint32_t> sleepers;             // threads of the owner asleep on `bell`
    Activity activity;
    CallRecord calls[call_records];
    TransferSlot transfers[transfer_slots];
};

// Up to so much is sent without asking the receiver, in several pieces if need be.
constexpr uint64_t eager_bytes = 96 * 1024;

// How a job of `size` ranks divides its segments: enough for all to talk to all in 64 MiB at 64 ranks.
struct Geometry {
    uint32_t size;
    uint32_t slots;
    uint64_t ring_bytes;

    static Geometry of(uint32_t size) {
        uint64_t bytes = 512 * 1024 / size;
        uint64_t ring = 8 * 1024;
        while (ring * 2 <= bytes && ring < 64 * 1024) ring *= 2;
        return {size, size <= 16 ? 64u : 32u, ring};
    }
    size_t pair_bytes() const { return sizeof(RingControl) + slots * sizeof(Slot) + ring_bytes; }
    size_t header_bytes() const { return (sizeof(SegmentHeader) + 4095) / 4096 * 4096; }
    size_t segment_bytes() const { return header_bytes() + size * pair_bytes(); }
    // The most payload that one message takes, so that a ring holds several.
    uint32_t piece_bytes() const { return static_cast<uint32_t>(ring_bytes / 4); }
};

}  // namespace corral
