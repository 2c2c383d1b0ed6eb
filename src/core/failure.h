// Why an operation did not complete. Plain data: the text that a user reads is composed above the core.
#pragma once

#include <cstdint>
#include <string>

namespace corral {

enum class Reason : uint32_t {
    none = 0,
    timeout,      // the deadline passed
    peer_lost,    // `rank` is dead, or left the job
    mismatch,     // ranks called different collectives: `rank` differs from this one
    wrong_size,   // the message of `rank` has `actual` bytes, `expected` were asked for
    wrong_type,   // the message of `rank` has element type `actual`, `expected` was asked for
    aborted,      // `rank` gave up on the operation, because of `detail`
    interrupted,  // a signal handler raised
    closed,       // the engine was closed here
    corrupt,      // shared memory written by `rank` makes no sense
    system,       // a system call failed; errno is `actual`
    refused,      // `rank` called the operation with arguments that it refused itself
    late,         // call number `call` of the group, which had completed here, turned out not to fit
};

struct Failure {
    Reason reason = Reason::none;
    int32_t rank = -1;  // a rank of the job, not of a group
    uint64_t actual = 0;
    uint64_t expected = 0;
    Reason detail = Reason::none;  // with `aborted`: what made `rank` give up
    uint64_t call = 0;             // with `late`, or given up because of it: that call
    int32_t finder = -1;           // of a collective's message of the wrong size or type: the rank that it came to

    explicit operator bool() const { return reason != Reason::none; }
};

}  // namespace corral
