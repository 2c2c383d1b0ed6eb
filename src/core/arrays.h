// Arrays in shared memory that peers read and write in place.
//
// The registry is the one thing of the core that belongs to the process and not to an engine: addresses do.
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "segment.h"

namespace corral {

// Names a place in a shared array for any process of this user.
struct SharedPlace {
    pid_t owner = 0;
    int32_t fd = -1;
    uint64_t inode = 0;
    uint64_t offset = 0;
};

// Make a segment, mapped here; it is unmapped when the last pointer goes.
std::shared_ptr<Segment> create_array(size_t bytes);
// Map a segment that another process (or this one) made. Throws as Segment::open does.
std::shared_ptr<Segment> attach_array(pid_t owner, int fd, uint64_t inode);
// Where [address, address + bytes) lies, if all of it lies in one shared array that is mapped here.
std::optional<SharedPlace> find_array(const void* address, size_t bytes);

}  // namespace corral
