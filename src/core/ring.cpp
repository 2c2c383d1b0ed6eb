#include "ring.h"

#include <cstring>

namespace corral {
namespace {

// Payloads start on a cache line and never wrap: both ends compute the same place.
uint64_t place_of(uint64_t position, uint32_t bytes, uint64_t ring) {
    uint64_t offset = position % ring;
    return offset + bytes > ring ? position + (ring - offset) : position;
}

uint64_t advance(uint64_t position, uint32_t bytes) { return (position + bytes + line - 1) / line * line; }

}  // namespace

RingWriter::RingWriter(std::byte* pair, const Geometry& g)
    : control_(reinterpret_cast<RingControl*>(pair)),
      slots_(reinterpret_cast<Slot*>(pair + sizeof(RingControl))),
      payload_(pair + sizeof(RingControl) + g.slots * sizeof(Slot)),
      mask_(g.slots - 1),
      ring_(g.ring_bytes) {}

uint64_t RingWriter::place(uint32_t bytes) const { return place_of(position_, bytes, ring_); }

bool RingWriter::room(uint32_t bytes) {
    auto fits = [&] {
        return index_ - taken_index_ <= mask_ && advance(place(bytes), bytes) - taken_position_ <= ring_;
    };
    if (fits()) return true;
    // acquire: pairs with the release in RingReader::pop, so that what the receiver read there is not
    // overwritten before it was read.
    taken_index_ = control_->slots_taken.load(std::memory_order_acquire);
    taken_position_ = control_->payload_taken.load(std::memory_order_acquire);
    // A receiver that claims to have taken more than was sent must not make the ring look endless.
    if (taken_index_ > index_) taken_index_ = index_;
    if (taken_position_ > position_) taken_position_ = position_;
    return fits();
}

void RingWriter::push(const Message& m, const void* prefix, uint32_t prefix_bytes, const Spans* body,
                      uint64_t body_offset, uint32_t body_bytes) {
    Slot& s = slots_[index_ & mask_];
    uint32_t bytes = prefix_bytes + body_bytes;
    s.kind = static_cast<uint16_t>(m.kind);
    s.context = m.context;
    s.match = m.match;
    s.total = m.total;
    s.signature = m.signature;
    s.request = m.request;
    s.count = m.count;
    if (bytes <= sizeof s.small) {
        s.inline_bytes = static_cast<uint16_t>(bytes);
        s.payload = 0;
        if (prefix_bytes) std::memcpy(s.small, prefix, prefix_bytes);
        if (body_bytes) body->read(body_offset, s.small + prefix_bytes, body_bytes);
    } else {
        s.inline_bytes = 0;
        s.payload = bytes;
        uint64_t at = place(bytes);
        std::byte* to = payload_ + at % ring_;
        if (prefix_bytes) std::memcpy(to, prefix, prefix_bytes);
        if (body_bytes) body->read(body_offset, to + prefix_bytes, body_bytes);
        position_ = advance(at, bytes);
    }
    ++index_;
    // release: the receiver that sees this stamp sees the header and the payload written above.
    s.stamp.store(static_cast<uint32_t>(index_), std::memory_order_release);
}

RingReader::RingReader(std::byte* pair, const Geometry& g)
    : control_(reinterpret_cast<RingControl*>(pair)),
      slots_(reinterpret_cast<Slot*>(pair + sizeof(RingControl))),
      payload_(pair + sizeof(RingControl) + g.slots * sizeof(Slot)),
      mask_(g.slots - 1),
      ring_(g.ring_bytes) {}

int RingReader::peek(Message& m, const std::byte*& payload, uint32_t& bytes) {
    const Slot& s = slots_[index_ & mask_];
    // acquire: pairs with the release in RingWriter::push.
    if (s.stamp.load(std::memory_order_acquire) != static_cast<uint32_t>(index_ + 1)) return 0;
    m.kind = static_cast<Kind>(s.kind);
    m.context = s.context;
    m.match = s.match;
    m.total = s.total;
    m.signature = s.signature;
    m.request = s.request;
    m.count = s.count;
    // Copied once and only the copies are used: the sender could change the originals after a check.
    uint32_t in_ring = s.payload;
    uint16_t in_slot = s.inline_bytes;
    next_position_ = position_;
    if (in_ring == 0) {
        if (in_slot > sizeof s.small) return -1;
        payload = reinterpret_cast<const std::byte*>(s.small);
        bytes = in_slot;
    } else {
        if (in_ring > ring_) return -1;
        uint64_t at = place_of(position_, in_ring, ring_);
        payload = payload_ + at % ring_;
        bytes = in_ring;
        next_position_ = advance(at, in_ring);
    }
    return 1;
}

bool RingReader::pop() {
    ++index_;
    position_ = next_position_;
    // release: the sender that sees this may overwrite what was read before it.
    control_->payload_taken.store(position_, std::memory_order_release);
    control_->slots_taken.store(index_, std::memory_order_release);
    // relaxed is enough for a hint: the sender looks again itself, at every slice of its sleep.
    return control_->sender_waits.load(std::memory_order_relaxed) != 0;
}

}  // namespace corral
