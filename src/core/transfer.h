// Large messages: bytes copied once, straight between two processes' memory, by both ends at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "shared.h"
#include "spans.h"

namespace corral {

// One run of a peer's memory, as it describes it.
struct RemoteRun {
    uint64_t place;  // an address in the peer; an offset into the array, if `fd` is not -1
    uint64_t bytes;
    uint64_t inode;
    int32_t owner;
    int32_t fd;
};

// Describe runs of this process for a peer.
std::vector<RemoteRun> describe_runs(const Spans& spans);

// A peer's message, as it lies in the peer's memory. Not thread-safe to build; copies may run in parallel.
class RemoteSpans {
  public:
    // False if the runs do not add up to `total`.
    bool set(pid_t pid, std::vector<RemoteRun> runs, uint64_t total);

    // Copy bytes [offset, offset + bytes) of the stream between `local` and the peer. Returns 0 or an errno.
    int copy(const Spans& local, uint64_t offset, uint64_t bytes, bool from_peer) const {
        return copy(local, offset, offset, bytes, from_peer);
    }
    // The same where the range begins elsewhere in `local`.
    int copy(const Spans& local, uint64_t local_offset, uint64_t offset, uint64_t bytes, bool from_peer) const;

    // Where a range is mapped in this process, if it is, in one run; null if not.
    const std::byte* mapped(uint64_t offset, uint64_t bytes) const;

  private:
    struct Run {
        uint64_t place, bytes;
        std::byte* mapped;  // not null: mapped here
    };
    pid_t pid_ = -1;
    std::vector<Run> runs_;
    std::vector<uint64_t> ends_;
    std::vector<std::shared_ptr<Segment>> held_;
};

// Read or write `bytes` bytes at `address` of process `pid` in one go. Returns 0 or an errno.
int read_process(pid_t pid, uint64_t address, void* to, size_t bytes);

// Copy a whole message, or a range of one, within this process.
void copy_spans(const Spans& from, const Spans& to);
void copy_spans(const Spans& from, const Spans& to, uint64_t offset, uint64_t bytes);

}  // namespace corral
