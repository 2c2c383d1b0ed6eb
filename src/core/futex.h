// Sleeping on a 32-bit word that several processes share.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace corral {

// Sleep while `word` holds `seen`, for `nanoseconds` at most. Returns false if a signal cut it short.
inline bool futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int64_t nanoseconds) {
    timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
    long rc = syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
    return !(rc == -1 && errno == EINTR);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

inline void cpu_relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace corral
