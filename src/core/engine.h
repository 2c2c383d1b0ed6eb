// One rank's end of a job whose ranks share a host: messages matched by (group, source, tag), and waiting.
//
// An engine is thread-safe: one lock guards everything, and is released while bytes are copied in bulk and while a
// thread sleeps. It holds no global state: several engines may live in one process. Operations are owned by
// shared pointers; the memory that their spans name must live until they are done (`Engine::wait` or
// `Engine::poll` say so).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "collectives.h"
#include "operations.h"
#include "process.h"
#include "ring.h"
#include "segment.h"
#include "shared.h"

namespace corral {

using Lock = std::unique_lock<std::mutex>;

constexpr int64_t last_slice_ns = 20'000'000;  // the longest that a waiting thread sleeps before it looks around

// A collective that a rank called, as its own log tells it.
struct Call {
    Code code;
    int32_t root;
    uint64_t signature, bytes, type;
    uint32_t detail, state;
};

// The engine was used in a process that was forked from its own.
struct ForkedError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What a rank is blocked in.
struct Waiting {
    Code code;
    int32_t peer;
    uint64_t context, match;
    int64_t since_ns;
};

class Engine {
  public:
    // `direct`: may use process_vm_readv and its kin. Throws std::system_error.
    Engine(uint32_t rank, uint32_t size, bool direct);
    ~Engine();

    // What the other ranks need to find this one.
    std::string address() const;
    // Open every rank's segment. `addresses` is in rank order. Throws std::system_error or std::runtime_error.
    void connect(const std::vector<std::string>& addresses);

    uint32_t rank() const { return rank_; }
    uint32_t size() const { return geometry_.size; }
    bool direct(uint32_t peer) const { return peers_[peer].direct; }

    // Groups. `members` are ranks of the job, in the group's order. The pointer stays valid as long as the engine.
    Group* add_group(uint64_t context, std::vector<uint32_t> members);

    // Start an operation. The peer and the matching fields must be set.
    void start(const std::shared_ptr<Send>& send);
    void start(const std::shared_ptr<Receive>& receive);
    void start(const std::shared_ptr<Collective>& collective);
    // A send of few bytes that needs no operation: false if it must be started the long way.
    bool try_send(uint32_t peer, uint64_t context, uint64_t tag, uint64_t signature, const Spans& spans);
    // Leave it to the engine's own thread to go on while nobody waits.
    void background(const std::shared_ptr<Operation>& operation);

    // Block until the operation is done. `interrupted` is called now and then; true gives up. The result of an
    // operation that timed out or was interrupted is that failure; it has been cancelled.
    Failure wait(const std::shared_ptr<Operation>& operation, int64_t timeout_ns,
                 const std::function<bool()>& interrupted) {
        return wait(operation, timeout_ns, interrupted, true);
    }
    // The same asleep, and for a while only: the operation goes on afterwards.
    void linger(const std::shared_ptr<Operation>& operation, int64_t nanoseconds) {
        wait(operation, nanoseconds, nullptr, false);
    }
    // Make progress without blocking; returns whether the operation is done.
    bool poll(const std::shared_ptr<Operation>& operation);
    // Fail whatever runs in a group, here and (by message) elsewhere.
    void abort_group(Group& group);
    // Fail a collective that was not started, because its arguments make no sense here; the others learn of it.
    void refuse_call(const std::shared_ptr<Collective>& collective);
    // The failure of a call that had completed, if the group has one that nobody was told yet.
    std::optional<Failure> take_late(Group& group);

    // Wait until all that was sent has been delivered, or its receiver is gone. False after the timeout.
    bool flush(int64_t timeout_ns, const std::function<bool()>& interrupted);
    // Tell the peers that this rank takes part in nothing more. Idempotent.
    void leave();
    // Do not: they are to learn from the end of the process how this rank went.
    void abandon();

    // For errors and tools.
    bool call_of(uint32_t rank, uint64_t context, uint64_t sequence, Call& out) const;
    bool last_call_of(uint32_t rank, uint64_t context, uint64_t& sequence, Call& out) const;
    bool waiting_of(uint32_t rank, Waiting& out) const;
    bool gone(uint32_t rank, bool& left, std::optional<int>& status) const;
    int pid_of(uint32_t rank) const { return peers_[rank].process.pid(); }
    size_t resident_bytes() const { return segment_->resident(); }

  private:
    friend class Collective;

    struct Outgoing {
        Message message;
        std::vector<std::byte> head;  // the message's own description
        std::shared_ptr<Send> send;   // its body, if it has one
        uint64_t offset = 0;
        uint32_t bytes = 0;
    };
    struct Peer {
        std::shared_ptr<Segment> segment;
        SegmentHeader* header = nullptr;
        RingWriter out;
        RingReader in;
        Process process;
        bool direct = false, lost = false, corrupt = false;
        std::deque<Outgoing> queue;
        std::deque<std::shared_ptr<Send>> streaming;
        std::vector<std::shared_ptr<Receive>> posted;
        std::deque<Arrival> unexpected;
        std::unordered_map<uint64_t, std::shared_ptr<Receive>> incoming;  // by the sender's request
    };

    // engine.cpp: waking and progress
    bool progress(Lock& lock);
    bool drain(Lock& lock, uint32_t peer);
    void ring_bell(SegmentHeader& header);
    void finish(Operation& operation, Failure failure = {});
    void check_health(Lock& lock);
    void lose(uint32_t peer);
    void lose_drained(Lock& lock, uint32_t peer);
    Failure loss_of(uint32_t peer) const;
    void run_background();
    bool settled() const;
    bool flush_locked(Lock& lock, int64_t timeout_ns, const std::function<bool()>& interrupted);
    // Give up. True: its memory is not touched any more. False: a peer is in the middle of a copy; ask again.
    bool cancel(const std::shared_ptr<Operation>& operation, Failure why);
    Failure wait(const std::shared_ptr<Operation>& operation, int64_t timeout_ns,
                 const std::function<bool()>& interrupted, bool cancels);
    bool doze(Lock& lock, int64_t slice);
    bool forked() const;
    void check_owner() const;
    void sleep_and_check(Lock& lock, const Operation& operation, int64_t slice);

    // matching.cpp: messages to operations
    void dispatch(uint32_t peer, const Message& m, const std::byte* payload, uint32_t bytes);
    bool push_eager(uint32_t peer, uint64_t context, uint64_t match, uint64_t signature, const Spans& spans,
                    const Fingerprint* prefix);
    void arrive(uint32_t peer, const Message& m, const std::byte* payload, size_t bytes);
    void send_to_self(const std::shared_ptr<Send>& send);
    void deliver(uint32_t peer, const std::shared_ptr<Receive>& receive, const Message& m, const Fingerprint& prefix,
                 const std::byte* payload, size_t bytes);
    Failure check(const Receive& receive, const Message& m, const Fingerprint& prefix) const;
    Failure make_room(Receive& receive, const Message& m) const;
    bool claim_unexpected(uint32_t peer, Receive& receive, Arrival& out);
    void take(const std::shared_ptr<Receive>& receive);
    void refuse(const std::shared_ptr<Receive>& receive);
    void unpost(Receive& receive);
    bool deserted(const Receive& receive) const;
    bool stale(uint32_t peer, const Message& m);
    void post(uint32_t peer, Outgoing&& out);
    bool push_queue(uint32_t peer);

    // bulk.cpp: large messages
    void offer(const std::shared_ptr<Send>& send);
    void begin_pull(uint32_t peer, const std::shared_ptr<Receive>& receive, const Message& m, const std::byte* payload,
                    size_t bytes);
    void accepted(uint32_t peer, const Message& m, const std::byte* payload, uint32_t bytes);
    void await_pieces(uint32_t peer, const std::shared_ptr<Receive>& receive, const Message& m, uint64_t bytes);
    void piece(uint32_t peer, const Message& m, const std::byte* payload, uint32_t bytes);
    void finished(uint32_t peer, const Message& m);
    void answer_finish(uint32_t peer, uint64_t request, int error);
    bool push_pieces(uint32_t peer);
    void withdraw(Send& send);
    bool copy_chunks(Lock& lock);
    bool settle_transfers(Lock& lock);
    bool revoke(const std::shared_ptr<Transfer>& transfer);
    int32_t allocate_slot();
    // A message that is held, read where it lies. False if its bytes must be taken.
    bool borrow(const std::shared_ptr<Receive>& receive, RemoteSpans& out);
    void give_back(const std::shared_ptr<Receive>& receive, int error);

    // groups.cpp: collectives
    void log_call(Collective& collective, uint32_t state);
    // By value: the caller's pointer may be one of those that this resets.
    void fail_collective(std::shared_ptr<Collective> collective, Failure failure, bool tell);
    bool never_called(uint32_t rank, const Collective& collective) const;
    void abort_arrived(uint32_t peer, const Message& m, const std::byte* payload, uint32_t bytes);
    void check_calls(Collective& collective);
    bool step_collectives();
    bool work_on_collectives(Lock& lock);
    void begin_call(const std::shared_ptr<Collective>& collective, uint32_t state);
    void note_late(Group& group, uint64_t sequence, Failure failure);
    void drop_parts(const Group& group, uint64_t context, uint64_t match);
    void tell_abort(const Collective& collective, const Failure& failure);

    uint32_t rank_;
    Geometry geometry_;
    bool oversubscribed_;
    std::shared_ptr<Segment> segment_;
    SegmentHeader* header_;
    uint64_t probe_;  // read by peers to learn whether they may
    pid_t owner_;
    uint64_t forks_;  // of the process's ancestors when the engine was made: differs in a forked child

    mutable std::mutex mutex_;
    std::vector<Peer> peers_;
    std::unordered_map<uint64_t, std::unique_ptr<Group>> groups_;
    std::vector<std::shared_ptr<Receive>> any_posted_;
    std::vector<std::shared_ptr<Collective>> collectives_;
    std::unordered_map<uint64_t, std::shared_ptr<Send>> offered_;
    std::vector<std::shared_ptr<Transfer>> transfers_;
    std::vector<int32_t> free_slots_;
    uint64_t next_request_ = 1, next_order_ = 1;
    uint64_t call_index_ = 0;
    bool completed_ = false;  // something since the last look
    bool has_work_ = false;   // some collective may have some
    bool stirred_ = false;    // something that a collective may have waited for has happened since they were looked at
    bool left_ = false;

    std::thread thread_;
    std::condition_variable wake_thread_;
    bool stop_thread_ = false;
    std::vector<std::shared_ptr<Operation>> watched_;
    int waiters_ = 0;
    int impatient_ = 0;  // threads that have waited for long
};

}  // namespace corral
