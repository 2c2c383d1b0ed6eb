// A message's bytes as they lie in memory: a list of runs, read or written as one stream.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace corral {

class Spans {
  public:
    void clear() {
        runs_.clear();
        ends_.clear();
    }
    void add(void* address, size_t bytes) {
        if (bytes == 0) return;
        runs_.push_back({address, bytes});
        ends_.push_back(total() + bytes);
    }
    uint64_t total() const { return ends_.empty() ? 0 : ends_.back(); }
    size_t count() const { return runs_.size(); }
    const iovec& operator[](size_t i) const { return runs_[i]; }
    const std::vector<iovec>& runs() const { return runs_; }

    // Copy `bytes` bytes of the stream from `offset` on, out of it or into it. The range must lie within it.
    void read(uint64_t offset, void* to, size_t bytes) const;
    void write(uint64_t offset, const void* from, size_t bytes) const;
    // The runs of [offset, offset + bytes) of the stream.
    std::vector<iovec> slice(uint64_t offset, uint64_t bytes) const;
    // Index of the run that holds byte `offset` of the stream, and where in it.
    size_t find(uint64_t offset, uint64_t& within) const;

  private:
    std::vector<iovec> runs_;
    std::vector<uint64_t> ends_;
};

}  // namespace corral
