// Collectives that only move bytes: each rank sends a part to some of the others and receives one from some of them.
// Broadcast, scatter, all_gather and all_to_all are that, and so are the exchanges of bytes of unknown length.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives.h"

namespace corral {

class Exchange final : public Collective {
  public:
    struct Part {
        uint32_t rank;  // in the group; this rank's own part of both lists is copied
        Spans spans;
        uint64_t type = 0;
    };
    // `sized`: receivers know how many bytes come, and of which type. If not, memory is made on arrival.
    Exchange(Group& group, Code code, int32_t root, bool sized) : Collective(group, code, root), sized_(sized) {}
    void begin(Engine& engine) override;
    void step(Engine& engine) override;
    bool has_work() const override { return copied_ < own_from_.total(); }
    void work() override;

    std::vector<Part> outgoing, incoming;

    struct Made {
        const std::byte* data;
        uint64_t bytes;
    };
    // What came from a rank of the group, where sizes were not known. Of a completed exchange.
    Made made(uint32_t rank) const;

  private:
    bool sized_;
    Spans own_from_, own_to_;
    uint64_t copied_ = 0;
};

}  // namespace corral
