// Collectives that combine the ranks' elements: all_reduce, reduce and reduce_scatter.
//
// Whoever owns a part of the result combines it in rank order, from the others' memory where that can be read. Ranks
// own everything (few bytes: each computes all of it), an equal part each (and hand it round), or what they are to
// have.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives.h"
#include "reduce.h"

namespace corral {

class Reduce final : public Collective {
  public:
    enum class Result { everywhere, root, scattered };
    struct Run {
        Reduction reduction;
        uint64_t bytes;
    };
    Reduce(Group& group, Code code, int32_t root, Result where);
    void begin(Engine& engine) override;
    void step(Engine& engine) override;
    bool has_work() const override { return ready_ && offset_ < result_.total() && error_ == 0; }
    void work() override;

    std::vector<Spans> own;   // this rank's contribution: one, or one for each rank where the result is scattered
    double own_factor = 1.0;  // what this rank's contribution is multiplied by, in a sum of products
    Spans into;               // what this rank receives, if anything
    std::vector<Run> runs;    // the elements of what this rank receives or, on other ranks than the root, of `own`

  private:
    struct Source {
        const std::byte* bytes = nullptr;  // all of it is here
        RemoteSpans remote;                // or there
        bool borrowed = false;
        double factor = 1.0;
        std::shared_ptr<Receive> receive;
        std::unique_ptr<std::byte[]> streamed;
    };
    uint64_t cut(uint32_t part) const;
    bool whole() const;
    bool all_sent() const;
    bool open_sources(Engine& engine);
    void combine(const Reduction& reduction, uint64_t bytes);
    const std::byte* contribution(uint32_t rank, uint64_t bytes);
    void deal_out(Engine& engine);

    Result where_;
    bool opened_ = false, ready_ = false, combined_ = false;
    Spans mine_, result_;  // of what this rank combines
    std::vector<Run> todo_;
    std::vector<Source> sources_;  // by rank of the group
    std::unique_ptr<std::byte[]> memory_;
    std::byte *accumulator_ = nullptr, *scratch_ = nullptr;
    size_t run_ = 0;           // of `todo_`
    uint64_t run_offset_ = 0;  // in it
    uint64_t offset_ = 0;      // of what this rank combines
    int error_ = 0;            // of a copy
    uint32_t failed_ = 0;      // from which rank
};

}  // namespace corral
