// One direction of messages between two ranks: single producer, single consumer, in shared memory.
//
// Not thread-safe: each end is used under its engine's lock. The consumer does not trust the producer.
#pragma once

#include <cstdint>

#include "shared.h"
#include "spans.h"

namespace corral {

enum class Kind : uint16_t {
    eager = 1,   // all of the message's bytes are here
    offer = 2,   // describes memory that the receiver (and the sender) will copy
    accept = 3,  // receiver to sender: where the bytes belong, or "send pieces"
    piece = 4,   // a part of the bytes
    finish = 5,  // receiver to sender: done with your memory
    abort = 6,   // a collective failed
};

struct Message {
    Kind kind{};
    uint64_t context = 0, match = 0, total = 0, signature = 0, request = 0;
    uint32_t count = 0;
};

class RingWriter {
  public:
    RingWriter() = default;
    RingWriter(std::byte* pair, const Geometry& geometry);

    // Whether a message with `payload` bytes fits now.
    bool room(uint32_t payload);
    // Write one: `prefix` then `body`, whose bytes together are `payload`. There must be room.
    void push(const Message& m, const void* prefix, uint32_t prefix_bytes, const Spans* body, uint64_t body_offset,
              uint32_t body_bytes);
    RingControl& control() { return *control_; }

  private:
    RingControl* control_ = nullptr;
    Slot* slots_ = nullptr;
    std::byte* payload_ = nullptr;
    uint32_t mask_ = 0;
    uint64_t ring_ = 0, index_ = 0, position_ = 0;
    uint64_t taken_index_ = 0, taken_position_ = 0;  // last seen
    uint64_t place(uint32_t bytes) const;
};

class RingReader {
  public:
    RingReader() = default;
    RingReader(std::byte* pair, const Geometry& geometry);

    // Look at the next message. Returns 0: none, 1: one (in `m`, its bytes at `payload`), -1: corrupt.
    int peek(Message& m, const std::byte*& payload, uint32_t& bytes);
    // Done with the message last seen. Returns true if the sender asked to be told.
    bool pop();

  private:
    RingControl* control_ = nullptr;
    Slot* slots_ = nullptr;
    const std::byte* payload_ = nullptr;
    uint32_t mask_ = 0;
    uint64_t ring_ = 0, index_ = 0, position_ = 0, next_position_ = 0;
};

}  // namespace corral
