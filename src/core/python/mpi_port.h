// The heads of a job's frames as messages of MPI, and calls that are over before the interpreter could do anything.
//
// The library is the one that mpi4py has loaded, known by the addresses of its functions: nothing here is compiled or
// linked against any. Handles are pointers in one MPI and numbers in another; either is passed on as it is.
#pragma once

#include <nanobind/nanobind.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "payload.h"

namespace corral {

using MpiHandle = uintptr_t;

// All of it is used with the GIL held, by one thread at a time, and lets go of it nowhere.
class MpiPort {
  public:
    struct Calls {
        int (*isend)(const void*, int, MpiHandle, int, int, MpiHandle, void*);
        int (*irecv)(void*, int, MpiHandle, int, int, MpiHandle, void*);
        int (*test)(void*, int*, void*);
        int (*count)(const void*, MpiHandle, int*);
        int (*cancel)(void*);
        int (*cancelled)(const void*, int*);
        int (*improbe)(int, int, MpiHandle, int*, void*, void*);
        int (*mrecv)(void*, int, MpiHandle, void*, void*);
    };

    MpiPort(Calls calls, MpiHandle comm, MpiHandle byte, int anyone, int tag, uint32_t rank, uint32_t size,
            uint32_t head_limit);
    MpiPort(const MpiPort&) = delete;
    MpiPort& operator=(const MpiPort&) = delete;

    // Start sending a head. It is copied.
    void send(uint32_t to, uint16_t kind, uint16_t tag, uint64_t body, nanobind::bytes head);
    // Take in what has come, and see what has left; returns whether anything has.
    bool poll();
    // What has come that is for the interpreter: (source, kind, tag, size of the body, head).
    nanobind::list take();
    bool sending() const { return !leaving_.empty(); }
    // A rank is gone: what has not left to it never will, and nothing more is sent to it. Returns whether there is
    // something that MPI may yet read.
    bool abandon(uint32_t rank);
    // When something last came from a rank, within some milliseconds, by the clock of time.monotonic().
    double heard(uint32_t rank) const { return heard_.at(rank); }
    // From now on only the interpreter decides: this process is another one, or the job is over.
    void disable() { enabled_ = false; }
    // Receive nothing more.
    void close();

    // Send a small message, and return whether that is done; `poor` where there is not enough credit.
    enum class Sent : int { no, yes, poor };
    Sent send_message(uint64_t context, uint32_t to, uint64_t tag, nanobind::handle buffers);
    // Let messages to a rank take so much more of its credit.
    void lend(uint32_t to, uint64_t bytes) { credit_.at(to) += bytes; }
    // Receive a small message, and return whether that is done; if not, nothing has happened but that heads may have
    // come. A number above 1 is the credit that was taken since the last such number.
    uint64_t recv_message(uint64_t context, uint32_t from, uint64_t tag, nanobind::handle buffers);

    // Collectives of all ranks. Each has a number, and under it a rank tells all others what it calls and what it
    // gives, or that it has more to say than fits. If all say the same, that is all. These return `done`, `unfit` where
    // the call is nothing for here and has no number, or its number: then it is the interpreter's to go on with.
    static constexpr int64_t done = -1, unfit = -2;
    int64_t barrier(uint32_t label);
    int64_t broadcast(uint32_t label, uint32_t root, nanobind::handle buffers);
    int64_t all_reduce(uint32_t label, uint32_t op, nanobind::handle buffers);
    // `into` is a list with the buffers of each rank's part, or one buffer for all.
    int64_t all_gather(uint32_t label, nanobind::handle buffers, nanobind::handle into);
    // `into` is such a list on the root.
    int64_t gather(uint32_t label, uint32_t root, nanobind::handle buffers, nanobind::handle into);

    // A call that is the interpreter's from the beginning: its number, of which the others are told so.
    uint64_t pass();
    uint64_t next() const { return next_; }
    // What is known of a call with a number: not all, that all say the same, or that they do not.
    enum class State { open, alike, different };
    State state(uint64_t number) const;
    bool has(uint64_t number, uint32_t rank) const;
    // What all ranks give in a call, by rank.
    nanobind::list contents(uint64_t number) const;
    void forget(uint64_t number);
    // The last call that was done here: (number, label, root, operation + 1, type, size), or None.
    nanobind::object last() const;

  private:
    static constexpr uint16_t kind_data = 1, kind_slot = 4;  // of messages; others are the interpreter's
    static constexpr uint32_t most = 512;                    // bytes that a rank gives in a call, or that a message has
    static constexpr int posted_count = 8;
    // How long a caller waits with the GIL held, and where others need its processor before they can answer.
    static constexpr auto patience = std::chrono::microseconds(100), patience_crowded = std::chrono::microseconds(1000);

    struct Prefix {  // of each message of MPI
        uint16_t kind, tag;
        uint32_t source, bytes;
        uint32_t unused;
        uint64_t body;
    };
    struct Heading {  // what must be the same on all ranks
        uint64_t number, type, bytes;
        uint32_t label, detail;
        int32_t root;
        uint32_t kind;
        bool operator==(const Heading&) const = default;
    };
    struct Slot {
        Heading heading;
        uint32_t bytes;
        bool here;
        std::array<std::byte, most> content;
    };
    struct Gathering {
        uint64_t number;
        uint32_t count;
        bool own;
        std::unique_ptr<Slot[]> slots;
    };
    struct Message {
        uint64_t request;
        uint32_t to;
        std::vector<std::byte> memory;
    };
    struct Arrived {
        Prefix prefix;
        std::vector<std::byte> head;
    };
    struct Wanted {
        uint64_t context, tag;
        uint32_t from;
        Payload& payload;
        bool done = false;
    };

    void post(Message& message);
    void withdraw();
    bool step();
    void start(uint32_t to, const Prefix& prefix, const void* head, const void* rest, size_t rest_bytes);
    void accept(const std::byte* data, size_t bytes);
    void take_slot(uint32_t source, const std::byte* data, size_t bytes);
    bool take_message(const Prefix& prefix, const std::byte* head);
    Gathering& gathering(uint64_t number);
    const Gathering* find(uint64_t number) const;
    // Tell all others, with the content, or with the content for one rank alone.
    void tell(const Heading& heading, const void* content, uint32_t bytes, int64_t only = -1);
    // Begin a call, and wait for a moment; null unless all is here, and alike.
    Gathering* call(Heading& heading, const void* content, uint32_t bytes, int64_t only = -1);
    // Whether memory for all ranks' parts was added: `bytes` for each, of one type.
    bool add_parts(Payload& payload, nanobind::handle into, uint64_t type, uint64_t bytes) const;
    // A gather to a rank, or to all.
    int64_t bring(uint32_t kind, uint32_t label, int32_t root, nanobind::handle buffers, nanobind::handle into);
    void write_parts(const Gathering& all, Payload& payload, uint64_t bytes) const;
    void end(Gathering& gathering);
    // Take in what comes until something is true; false if that takes long, or something is for the interpreter.
    template <typename Ready>
    bool spin(Ready&& ready) {
        auto until = std::chrono::steady_clock::time_point{};
        for (uint32_t n = 0;; ++n) {
            poll();
            if (ready()) return true;
            if (!inbox_.empty()) return false;
            if (crowded_) sched_yield();
            if ((n & 15) != 15) continue;
            auto now = std::chrono::steady_clock::now();
            if (n == 15)
                until = now + (crowded_ ? patience_crowded : patience);
            else if (now > until)
                return false;
        }
    }

    Calls calls_;
    MpiHandle comm_, byte_;
    int anyone_, tag_;
    uint32_t rank_, size_, head_limit_;
    bool enabled_ = true, crowded_;
    std::array<Message, posted_count> posted_;
    std::vector<uint64_t> credit_, owed_;  // see post.py
    std::vector<bool> gone_;
    std::vector<double> heard_;
    int at_ = 0;
    // Whether it is asked what has come: receives that are posted may not survive the failure of a rank.
    bool probes_ = false;
    bool spent_ = false;  // the receive before the next one is yet to be posted anew
    std::vector<std::unique_ptr<Message>> leaving_, spare_;
    std::deque<Arrived> inbox_;
    std::vector<Gathering> gatherings_;
    std::vector<std::unique_ptr<Slot[]>> spare_slots_;
    Wanted* wanted_ = nullptr;
    uint64_t next_ = 0;
    Heading last_{};
    bool has_last_ = false;
    alignas(16) std::array<std::byte, 512> status_;
};

void register_mpi_port(nanobind::module_& m);

}  // namespace corral
