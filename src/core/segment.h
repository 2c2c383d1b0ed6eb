// Anonymous shared memory: created by one process, opened by others of the same user through /proc.
//
// A segment never has a name in any file system, so nothing is left behind however its owner ends. Its size is
// sealed: a peer cannot shrink it under a reader (which would be SIGBUS).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace corral {

class Segment {
  public:
    // Throws std::system_error.
    static std::unique_ptr<Segment> create(const char* label, size_t bytes);

    // Open descriptor `fd` of process `pid`. Throws std::system_error, or std::runtime_error when what is found
    // is not a sealed segment with this label, of this user, of `bytes` bytes or more (0: any size). A
    // non-zero `inode` must be the segment's own: descriptor numbers are used again.
    static std::unique_ptr<Segment> open(pid_t pid, int fd, const char* label, size_t bytes, uint64_t inode,
                                         bool writable);

    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;
    ~Segment();

    std::byte* data() const { return data_; }
    size_t size() const { return size_; }
    int fd() const { return fd_; }
    uint64_t inode() const { return inode_; }
    // Bytes that hold memory now: pages never touched cost nothing.
    size_t resident() const;

  private:
    Segment(int fd, bool writable);
    int fd_ = -1;
    std::byte* data_ = nullptr;
    size_t size_ = 0;
    uint64_t inode_ = 0;
};

}  // namespace corral
