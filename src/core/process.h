// Whether another process still lives, and how it ended.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace corral {

// Ticks since boot at which `pid` started: with the pid, names one process for ever. 0 if there is none.
uint64_t start_time(pid_t pid);

class Process {
  public:
    Process() = default;
    // Throws std::system_error. A process that is gone already (or whose pid belongs to another one by now)
    // is simply not alive.
    Process(pid_t pid, uint64_t started);
    Process(Process&& other) noexcept;
    Process& operator=(Process&& other) noexcept;
    ~Process();

    pid_t pid() const { return pid_; }
    int fd() const { return fd_; }
    bool alive() const;
    // Wait for its end, so long at most; whether it has ended.
    bool ends_within(int milliseconds) const;
    // The status that wait() would give, where the kernel tells it to processes that are not the parent.
    std::optional<int> exit_status() const;

  private:
    pid_t pid_ = -1;
    int fd_ = -1;
};

}  // namespace corral
