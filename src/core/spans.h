// A message's bytes as they lie in memory: a list of runs, read or written as one stream.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace corral {

class Spans {
  public:
    struct Run {
        std::byte* data;
        uint64_t bytes;
        uint64_t end;  // of the stream up to here
    };

    void add(void* address, size_t bytes) {
        if (bytes == 0) return;
        Run run{static_cast<std::byte*>(address), bytes, total_ + bytes};
        total_ = run.end;
        if (count_++ == 0) {
            first_ = run;  // one array needs no allocation
            return;
        }
        if (count_ == 2) {
            many_.reserve(8);  // a small dictionary's leaves need one
            many_.push_back(first_);
        }
        many_.push_back(run);
    }
    uint64_t total() const { return total_; }
    size_t count() const { return count_; }
    std::span<const Run> runs() const { return {data(), count_}; }

    // Copy `bytes` bytes of the stream from `offset` on, out of it or into it. The range must lie within it.
    void read(uint64_t offset, void* to, size_t bytes) const;
    void write(uint64_t offset, const void* from, size_t bytes) const;
    // The runs of [offset, offset + bytes) of the stream.
    std::vector<iovec> slice(uint64_t offset, uint64_t bytes) const;
    // A range of the stream as a stream of its own.
    Spans part(uint64_t offset, uint64_t bytes) const;
    // Where a range lies, if it lies in one run; null if not.
    std::byte* contiguous(uint64_t offset, uint64_t bytes) const;
    // Index of the run that holds byte `offset` of the stream, and where in it.
    size_t find(uint64_t offset, uint64_t& within) const;

  private:
    const Run* data() const { return count_ < 2 ? &first_ : many_.data(); }
    uint64_t total_ = 0;
    size_t count_ = 0;
    Run first_{};
    std::vector<Run> many_;  // all of them, if there are several
};

}  // namespace corral
