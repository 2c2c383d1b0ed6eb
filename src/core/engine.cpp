#include "engine.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "futex.h"

namespace corral {
namespace {

constexpr int64_t spin_ns = 300'000;           // before a waiting thread sleeps
constexpr int64_t patience_ns = 100'000;       // before it takes in whatever its peers have sent
constexpr size_t most_unexpected = 256;        // messages of a peer that are taken in before
constexpr int64_t first_slice_ns = 1'000'000;  // of sleep, before it looks around

// How often this process is the child of a fork. The handler runs in the child, before anything else does there.
std::atomic<uint64_t> forks{0};

uint64_t count_forks() {
    static const int registered =
        pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
    (void)registered;
    return forks.load(std::memory_order_relaxed);  // relaxed: a forked child has one thread
}

// What one rank tells the others at the start.
struct Address {
    uint64_t magic;
    uint32_t version;
    uint32_t rank;
    uint32_t size;
    int32_t pid;
    int32_t fd;
    uint32_t reserved;
    uint64_t started;
    uint64_t inode;
    uint64_t probe_address;
    uint64_t probe;
};

uint32_t processors() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return static_cast<uint32_t>(CPU_COUNT(&set));
}

}  // namespace

Engine::Engine(uint32_t rank, uint32_t size, bool direct)
    : rank_(rank),
      geometry_(Geometry::of(size)),
      oversubscribed_(size > processors()),
      owner_(getpid()),
      forks_(count_forks()) {
    if (size == 0 || size > max_ranks || rank >= size) throw std::runtime_error("rank or world size out of range");
    segment_ = Segment::create(segment_label, geometry_.segment_bytes());
    header_ = new (segment_->data()) SegmentHeader;
    header_->version = segment_version;
    header_->rank = rank;
    header_->size = size;
    header_->slots = geometry_.slots;
    header_->ring_bytes = geometry_.ring_bytes;
    // release: a peer that sees the magic sees a complete header.
    header_->magic.store(segment_magic, std::memory_order_release);
    probe_ = segment_magic ^ (static_cast<uint64_t>(owner_) << 20) ^ (rank + 1) ^ reinterpret_cast<uint64_t>(this);
    peers_.resize(size);
    for (auto& p : peers_) p.direct = direct;
    for (int32_t i = transfer_slots - 1; i >= 0; --i) free_slots_.push_back(i);
}

Engine::~Engine() {
    leave();
    if (forked()) {
        // The thread does not exist in the child, and the lock may be held by one that does not.
        if (thread_.joinable()) thread_.detach();
        return;
    }
    {
        Lock lock(mutex_);
        stop_thread_ = true;
    }
    wake_thread_.notify_all();
    if (thread_.joinable()) thread_.join();
}

bool Engine::forked() const { return forks.load(std::memory_order_relaxed) != forks_; }

// A forked child shares its parent's memory map of the job, but is not the rank that the others know.
void Engine::check_owner() const {
    if (forked())
        throw ForkedError("this process was forked from rank " + std::to_string(rank_) + " (process " +
                          std::to_string(owner_) + ") after its job began");
}

std::string Engine::address() const {
    Address a{segment_magic,
              segment_version,
              rank_,
              geometry_.size,
              static_cast<int32_t>(owner_),
              segment_->fd(),
              0,
              start_time(owner_),
              segment_->inode(),
              reinterpret_cast<uint64_t>(&probe_),
              probe_};
    return std::string(reinterpret_cast<const char*>(&a), sizeof a);
}

void Engine::connect(const std::vector<std::string>& addresses) {
    if (addresses.size() != peers_.size()) throw std::runtime_error("one address for each rank is needed");
    for (uint32_t r = 0; r < peers_.size(); ++r) {
        Peer& p = peers_[r];
        Address a;
        if (addresses[r].size() != sizeof a) throw std::runtime_error("rank " + std::to_string(r) + ": bad address");
        std::memcpy(&a, addresses[r].data(), sizeof a);
        if (a.magic != segment_magic || a.version != segment_version)
            throw std::runtime_error("rank " + std::to_string(r) + " runs another version of corral");
        if (a.rank != r || a.size != geometry_.size)
            throw std::runtime_error("rank " + std::to_string(r) + " belongs to another job");
        try {
            p.process = Process(a.pid, a.started);
            p.segment = r == rank_ ? segment_
                                   : std::shared_ptr<Segment>(Segment::open(a.pid, a.fd, segment_label,
                                                                            geometry_.segment_bytes(), a.inode, true));
        } catch (const std::exception& e) {
            throw std::runtime_error("rank " + std::to_string(r) + (p.process.alive() ? ": " : " is gone: ") +
                                     e.what());
        }
        if (r != rank_) {
            uint64_t seen = 0;
            p.direct = p.direct && read_process(a.pid, a.probe_address, &seen, sizeof seen) == 0 && seen == a.probe;
        }
        p.header = reinterpret_cast<SegmentHeader*>(p.segment->data());
        // acquire: pairs with the release in the peer's constructor.
        if (p.header->magic.load(std::memory_order_acquire) != segment_magic || p.header->rank != r ||
            p.header->size != geometry_.size || p.header->ring_bytes != geometry_.ring_bytes)
            throw std::runtime_error("rank " + std::to_string(r) + ": its segment is not of this job");
        p.out = RingWriter(p.segment->data() + geometry_.header_bytes() + rank_ * geometry_.pair_bytes(), geometry_);
        p.in = RingReader(segment_->data() + geometry_.header_bytes() + r * geometry_.pair_bytes(), geometry_);
    }
    // relaxed: peers read it as a hint only.
    header_->state.store(static_cast<uint32_t>(RankState::running), std::memory_order_relaxed);
}

void Engine::ring_bell(SegmentHeader& h) {
    // seq_cst fence: pairs with the one in doze. Either the sleeper's count is seen here, or the
    // sleeper, looking once more after it announced itself, sees what was written before this call.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (h.sleepers.load(std::memory_order_relaxed) == 0) return;
    h.bell.fetch_add(1, std::memory_order_release);  // release: the woken thread sees what it was woken for
    futex_wake_all(h.bell);
}

void Engine::finish(Operation& op, Failure failure) {
    if (op.done.load(std::memory_order_relaxed)) return;  // relaxed: only written under the lock, which is held
    op.failure = failure;
    op.done.store(true, std::memory_order_release);  // release: see Operation::done
    completed_ = stirred_ = true;
}

bool Engine::drain(Lock&, uint32_t peer) {
    Peer& p = peers_[peer];
    bool any = false;
    // A peer that runs ahead is held back by its full ring, unless what is waited for may lie behind.
    if (p.unexpected.size() >= most_unexpected && impatient_ == 0) return false;
    // Bounded, so that one peer that floods does not keep the others waiting.
    for (int n = 0; n < 64 && !p.corrupt; ++n) {
        Message m;
        const std::byte* payload;
        uint32_t bytes;
        int rc = p.in.peek(m, payload, bytes);
        if (rc == 0) break;
        if (rc < 0) {
            p.corrupt = true;
            lose(peer);
            return true;
        }
        any = true;
        dispatch(peer, m, payload, bytes);
        if (p.in.pop()) ring_bell(*p.header);
    }
    return any;
}

bool Engine::progress(Lock& lock) {
    bool any = false;
    for (uint32_t r = 0; r < peers_.size(); ++r) {
        if (r == rank_) continue;
        any |= drain(lock, r);
        Peer& p = peers_[r];
        if (!p.queue.empty()) any |= push_queue(r);
        if (!p.streaming.empty()) any |= push_pieces(r);
    }
    if (stirred_) any |= step_collectives();
    if (!transfers_.empty()) {
        any |= copy_chunks(lock);
        any |= settle_transfers(lock);
        if (stirred_) any |= step_collectives();
    }
    if (has_work_ && work_on_collectives(lock)) {
        any = true;
        step_collectives();
    }
    if (completed_) {
        completed_ = false;
        // Other threads of this process may sleep until an operation of theirs is done.
        if (header_->sleepers.load(std::memory_order_relaxed) != 0) ring_bell(*header_);
    }
    return any;
}

bool Engine::poll(const std::shared_ptr<Operation>& op) {
    check_owner();
    if (op->done.load(std::memory_order_acquire)) return true;
    Lock lock(mutex_);
    ++impatient_;
    progress(lock);
    --impatient_;
    if (!op->done.load(std::memory_order_relaxed)) check_health(lock);
    return op->done.load(std::memory_order_relaxed);
}

Failure Engine::wait(const std::shared_ptr<Operation>& op, int64_t timeout_ns, const std::function<bool()>& interrupted,
                     bool cancels) {
    check_owner();
    Lock lock(mutex_);
    ++waiters_;
    struct Leave {
        Engine& e;
        bool impatient = false;
        ~Leave() {
            if (impatient) --e.impatient_;
            // relaxed: tools read it as a hint.
            e.header_->activity.operation.store(0, std::memory_order_relaxed);
            if (--e.waiters_ == 0 && !e.watched_.empty()) e.wake_thread_.notify_one();
        }
    } leave_guard{*this};

    int64_t start = 0, slice = first_slice_ns;
    auto give_up = [&](Reason reason) {
        Failure why{reason};
        if (!cancels) return why;
        // A peer may be in the middle of a copy into our memory; it ends by itself, or the peer does.
        for (int64_t until = now_ns() + 1'000'000'000; !cancel(op, why) && now_ns() < until;) {
            lock.unlock();
            sched_yield();
            lock.lock();
        }
        return op->failure;
    };
    for (uint32_t n = 0;; ++n) {
        bool any = progress(lock);
        // relaxed: written under the lock, which is held.
        if (op->done.load(std::memory_order_relaxed)) return op->failure;
        if (start == 0) start = now_ns();
        if (any) {
            n = 0;
            if (timeout_ns >= 0 && now_ns() - start > timeout_ns) return give_up(Reason::timeout);
            continue;
        }
        if ((n & 15) == 15) {
            int64_t waited = now_ns() - start;
            if (waited > patience_ns && !leave_guard.impatient) {
                leave_guard.impatient = true;
                ++impatient_;
            }
            if (waited > timeout_ns && timeout_ns >= 0) return give_up(Reason::timeout);
            if (waited > spin_ns || !cancels) {
                int64_t left = timeout_ns < 0 ? last_slice_ns : std::max<int64_t>(timeout_ns - waited, 1000);
                sleep_and_check(lock, *op, std::min(slice, left));
                slice = std::min(slice * 2, last_slice_ns);
                if (op->done.load(std::memory_order_relaxed)) return op->failure;
                lock.unlock();
                bool stop = interrupted && interrupted();
                lock.lock();
                if (op->done.load(std::memory_order_relaxed)) return op->failure;
                if (stop) return give_up(Reason::interrupted);
                continue;
            }
        }
        // With more ranks than processors the one waited for may need this one.
        bool yields = oversubscribed_ || (n & 63) == 63;
        if (!yields && (n & 3) != 3) {  // other threads of this process can wait for so long
            cpu_relax();
            continue;
        }
        lock.unlock();
        if (yields)
            sched_yield();
        else
            cpu_relax();
        lock.lock();
    }
}

// Sleep until a peer rings, for `slice` nanoseconds at most, unless there is something to do already; returns whether
// there was.
bool Engine::doze(Lock& lock, int64_t slice) {
    header_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    // seq_cst fence: see ring_bell. acquire: a bell rung from here on ends the sleep at once.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    uint32_t seen = header_->bell.load(std::memory_order_acquire);
    bool any = progress(lock);
    if (!any) {
        lock.unlock();
        futex_wait(header_->bell, seen, slice);
        lock.lock();
    }
    header_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
    return any;
}

void Engine::sleep_and_check(Lock& lock, const Operation& op, int64_t slice) {
    Activity& a = header_->activity;
    if (a.operation.load(std::memory_order_relaxed) == 0) {
        // A sequence lock: odd while it changes. The fences order the fields between the two increments.
        a.version.fetch_add(1, std::memory_order_acquire);
        a.context.store(op.context, std::memory_order_relaxed);
        a.match.store(op.match, std::memory_order_relaxed);
        a.peer.store(op.peer, std::memory_order_relaxed);
        a.since_ns.store(now_ns(), std::memory_order_relaxed);
        a.operation.store(static_cast<uint32_t>(op.code), std::memory_order_relaxed);
        a.version.fetch_add(1, std::memory_order_release);
    }
    // While the other end copies the last chunks it is worth looking often; it rings when they are there.
    doze(lock, transfers_.empty() ? slice : std::min(slice, first_slice_ns));
    progress(lock);
    if (!op.done.load(std::memory_order_relaxed)) check_health(lock);
}

void Engine::background(const std::shared_ptr<Operation>& op) {
    Lock lock(mutex_);
    if (op->done.load(std::memory_order_relaxed)) return;
    watched_.push_back(op);
    if (!thread_.joinable())
        thread_ = std::thread([this] { run_background(); });
    else if (watched_.size() == 1)
        wake_thread_.notify_one();
}

void Engine::run_background() {
    Lock lock(mutex_);
    int64_t slice = 200'000;
    while (!stop_thread_) {
        std::erase_if(watched_, [](auto& op) { return op->done.load(std::memory_order_relaxed); });
        if (watched_.empty()) {
            wake_thread_.wait(lock);
            slice = 200'000;
            continue;
        }
        // Who waits makes progress for all. Asking first at a distance keeps this thread out of the way of a
        // program that starts an operation and waits for it at once.
        if (waiters_ > 0) {
            wake_thread_.wait_for(lock, std::chrono::nanoseconds(last_slice_ns));
            continue;
        }
        ++impatient_;  // whoever asks for what comes in here asks now and then only
        bool any = doze(lock, slice);
        --impatient_;
        if (any) {
            slice = 200'000;
        } else {
            slice = std::min(slice * 2, last_slice_ns);
            if (slice >= 1'000'000) check_health(lock);
        }
    }
}

bool Engine::waiting_of(uint32_t r, Waiting& out) const {
    const Activity& a = peers_[r].header->activity;
    for (int tries = 0; tries < 100; ++tries) {
        uint64_t before = a.version.load(std::memory_order_acquire);
        out.code = static_cast<Code>(a.operation.load(std::memory_order_relaxed));
        out.peer = a.peer.load(std::memory_order_relaxed);
        out.context = a.context.load(std::memory_order_relaxed);
        out.match = a.match.load(std::memory_order_relaxed);
        out.since_ns = a.since_ns.load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);  // the fields are read before the version below
        if (before % 2 == 0 && a.version.load(std::memory_order_relaxed) == before) return out.code != Code::none;
    }
    return false;
}

}  // namespace corral
