// Large messages. The sender offers, the receiver accepts, then either both copy straight between their memories
// (a shared counter hands out chunks), or the sender sends pieces through the ring.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine.h"

namespace corral {
namespace {

// Below this, pieces through the ring beat a system call that pins pages.
constexpr uint64_t direct_bytes = eager_bytes;
// From this on, both ends copy.
constexpr uint64_t shared_copy_bytes = 512 * 1024;
constexpr uint64_t max_runs = 1 << 20;
constexpr uint32_t withdrawn = 1;  // `count` of a piece: its message will not be completed
// A killed process loses its memory a moment before the kernel says that it has ended.
constexpr int dying_ms = 100;

struct Description {
    Fingerprint prefix;
    uint64_t chunk;
    uint64_t list;  // address of the runs in the describing process, if they are not in the message
    uint64_t runs;  // 0: the bytes will come, or go, piece by piece
    int32_t slot;
    uint32_t inlined;  // whether the runs follow
};

std::vector<std::byte> describe(const Description& d, const std::vector<RemoteRun>& runs) {
    std::vector<std::byte> out(sizeof d + (d.inlined ? runs.size() * sizeof(RemoteRun) : 0));
    std::memcpy(out.data(), &d, sizeof d);
    if (d.inlined) std::memcpy(out.data() + sizeof d, runs.data(), runs.size() * sizeof(RemoteRun));
    return out;
}

// The runs that a peer describes, or false if it makes no sense.
bool read_description(pid_t pid, bool direct, const std::byte* payload, size_t bytes, Description& d,
                      std::vector<RemoteRun>& runs) {
    if (bytes < sizeof d) return false;
    std::memcpy(&d, payload, sizeof d);
    if (d.runs == 0) return true;
    if (d.runs > max_runs || d.chunk == 0) return false;
    if (d.inlined) {
        if (bytes - sizeof d != d.runs * sizeof(RemoteRun)) return false;
        runs.resize(d.runs);
        std::memcpy(runs.data(), payload + sizeof d, d.runs * sizeof(RemoteRun));
        return true;
    }
    if (!direct) return false;
    runs.resize(d.runs);
    return read_process(pid, d.list, runs.data(), d.runs * sizeof(RemoteRun)) == 0;
}

std::shared_ptr<Transfer> make_transfer(std::shared_ptr<Operation> operation, const Spans& local, RemoteSpans remote,
                                        TransferSlot& slot, uint32_t peer, uint64_t chunk, bool reads) {
    auto t = std::make_shared<Transfer>();
    t->operation = std::move(operation);
    t->local = &local;
    t->remote = std::move(remote);
    t->slot = &slot;
    t->peer = peer;
    t->total = local.total();
    t->chunk = chunk;
    t->chunks = (t->total + chunk - 1) / chunk;
    t->reads = reads;
    return t;
}

bool all_shared(const std::vector<RemoteRun>& runs) {
    return std::all_of(runs.begin(), runs.end(), [](auto& r) { return r.fd >= 0; });
}

}  // namespace

int32_t Engine::allocate_slot() {
    if (free_slots_.empty()) return -1;
    int32_t slot = free_slots_.back();
    free_slots_.pop_back();
    auto& t = header_->transfers[slot];
    // relaxed: the offer's own release publishes them.
    t.next.store(0, std::memory_order_relaxed);
    t.completed.store(0, std::memory_order_relaxed);
    t.failed.store(0, std::memory_order_relaxed);
    return slot;
}

void Engine::offer(const std::shared_ptr<Send>& send) {
    Peer& p = peers_[send->peer];
    Message& m = send->message;
    m.kind = Kind::offer;
    m.request = next_request_++;
    Description d{send->prefix, 0, 0, 0, -1, 0};
    auto runs = describe_runs(send->spans);
    bool inlined = sizeof d + runs.size() * sizeof(RemoteRun) <= geometry_.piece_bytes();
    // A list of runs that does not fit into a message is read where it lies.
    if ((all_shared(runs) && (inlined || p.direct)) || (p.direct && m.total > direct_bytes))
        send->slot = allocate_slot();
    if (send->slot >= 0) {
        d.slot = send->slot;
        d.chunk = m.total < shared_copy_bytes ? m.total
                                              : std::clamp<uint64_t>(m.total / 16 / 4096 * 4096, 128 << 10, 1 << 20);
        d.runs = runs.size();
        d.inlined = inlined;
        if (!inlined) {
            send->runs = runs;
            d.list = reinterpret_cast<uint64_t>(send->runs.data());
        }
    }
    offered_[m.request] = send;
    post(send->peer, {m, describe(d, runs), nullptr, 0, 0});
}

void Engine::answer_finish(uint32_t peer, uint64_t request, int error) {
    Message m{Kind::finish, 0, 0, static_cast<uint64_t>(error), 0, request, 0};
    post(peer, {m, {}, nullptr, 0, 0});
}

void Engine::begin_pull(uint32_t peer, const std::shared_ptr<Receive>& receive, const Message& m,
                        const std::byte* payload, size_t bytes) {
    Peer& p = peers_[peer];
    Description d;
    std::vector<RemoteRun> runs;
    if (!read_description(p.process.pid(), p.direct, payload, bytes, d, runs)) {
        if (p.process.ends_within(dying_ms))  // its list of runs could not be read any more
            return finish(*receive, {Reason::peer_lost, static_cast<int32_t>(peer)});
        answer_finish(peer, m.request, EPROTO);
        return finish(*receive, {Reason::corrupt, static_cast<int32_t>(peer)});
    }
    receive->request = m.request;
    if (d.runs == 0) {
        if (p.lost) return finish(*receive, loss_of(peer));  // offered before it went
        p.incoming[m.request] = receive;
        post(peer, {{Kind::accept, m.context, m.match, m.total, 0, m.request, 0}, {}, nullptr, 0, 0});
        return;
    }
    RemoteSpans remote;
    if (d.slot < 0 || d.slot >= static_cast<int32_t>(transfer_slots) || d.chunk > m.total ||
        (!p.direct && !all_shared(runs)) || !remote.set(p.process.pid(), std::move(runs), m.total)) {
        answer_finish(peer, m.request, EPROTO);
        return finish(*receive, {Reason::corrupt, static_cast<int32_t>(peer)});
    }
    auto t =
        make_transfer(receive, receive->spans, std::move(remote), p.header->transfers[d.slot], peer, d.chunk, true);
    receive->transfer = t;
    transfers_.push_back(t);
    if (t->chunks > 1 && p.direct) {
        // Tell the sender where the bytes belong, so that it copies too.
        auto mine = describe_runs(receive->spans);
        Description answer{{}, d.chunk, 0, mine.size(), d.slot, 1};
        if (sizeof answer + mine.size() * sizeof(RemoteRun) <= geometry_.piece_bytes())
            post(peer,
                 {{Kind::accept, m.context, m.match, m.total, 0, m.request, 0}, describe(answer, mine), nullptr, 0, 0});
    }
}

bool Engine::borrow(const std::shared_ptr<Receive>& receive, RemoteSpans& out) {
    const Message& m = receive->arrival.message;
    Peer& p = peers_[receive->peer];
    Description d;
    std::vector<RemoteRun> runs;
    auto& bytes = receive->arrival.bytes;
    receive->request = m.request;
    return read_description(p.process.pid(), p.direct, bytes.data(), bytes.size(), d, runs) && d.runs != 0 &&
           (p.direct || all_shared(runs)) && out.set(p.process.pid(), std::move(runs), m.total);
}

void Engine::give_back(const std::shared_ptr<Receive>& receive, int error) {
    auto peer = static_cast<uint32_t>(receive->peer);
    Failure failure;
    // Memory that cannot be copied because its process is going is a lost rank, not a failed copy.
    if (error != 0)
        failure = peers_[peer].process.ends_within(dying_ms)
                      ? Failure{Reason::peer_lost, receive->peer}
                      : Failure{Reason::system, receive->peer, static_cast<uint64_t>(error)};
    answer_finish(peer, receive->request, error);
    finish(*receive, failure);
}

void Engine::accepted(uint32_t peer, const Message& m, const std::byte* payload, uint32_t bytes) {
    auto at = offered_.find(m.request);
    if (at == offered_.end() || at->second->peer != static_cast<int32_t>(peer)) return;  // given up meanwhile
    auto send = at->second;
    Peer& p = peers_[peer];
    if (bytes == 0) {
        if (send->slot >= 0 || send->message.kind != Kind::offer) return;  // not what was offered
        p.streaming.push_back(send);
        push_pieces(peer);
        return;
    }
    Description d;
    std::vector<RemoteRun> runs;
    uint64_t total = send->spans.total();
    RemoteSpans remote;
    if (send->done.load(std::memory_order_relaxed) || send->slot < 0 ||
        !read_description(p.process.pid(), p.direct, payload, bytes, d, runs) || d.chunk == 0 || d.chunk > total ||
        !remote.set(p.process.pid(), std::move(runs), total))
        return;  // the receiver copies all of it then
    transfers_.push_back(
        make_transfer(send, send->spans, std::move(remote), header_->transfers[send->slot], peer, d.chunk, false));
}

bool Engine::push_pieces(uint32_t peer) {
    Peer& p = peers_[peer];
    bool any = false;
    while (!p.streaming.empty() && p.queue.empty()) {
        auto send = p.streaming.front();
        uint64_t total = send->spans.total();
        auto bytes = static_cast<uint32_t>(std::min<uint64_t>(geometry_.piece_bytes(), total - send->streamed));
        if (!p.out.room(bytes)) {
            p.out.control().sender_waits.store(1, std::memory_order_relaxed);  // see push_queue
            break;
        }
        Message m{Kind::piece, send->context, send->match, total, 0, send->message.request, 0};
        p.out.push(m, nullptr, 0, &send->spans, send->streamed, bytes);
        send->streamed += bytes;
        any = true;
        ring_bell(*p.header);
        if (send->streamed == total) {
            p.streaming.pop_front();
            offered_.erase(send->message.request);
            finish(*send);
        }
    }
    if (any && p.streaming.empty()) p.out.control().sender_waits.store(0, std::memory_order_relaxed);
    return any;
}

void Engine::piece(uint32_t peer, const Message& m, const std::byte* payload, uint32_t bytes) {
    Peer& p = peers_[peer];
    auto at = p.incoming.find(m.request);
    if (at == p.incoming.end()) {
        // Of a message that nobody has asked for yet; or that was given up meanwhile.
        auto early = std::find_if(p.unexpected.begin(), p.unexpected.end(), [&](const Arrival& a) {
            return a.message.kind == Kind::eager && a.message.request == m.request;
        });
        if (early == p.unexpected.end()) return;
        if (m.count == withdrawn)
            p.unexpected.erase(early);
        else if (bytes <= early->message.total - early->bytes.size())
            early->bytes.insert(early->bytes.end(), payload, payload + bytes);
        return;
    }
    auto receive = at->second;
    uint64_t total = receive->hold ? receive->arrival.message.total : receive->spans.total();
    if (m.count == withdrawn || bytes > total - receive->received) {
        p.incoming.erase(at);
        auto reason = m.count == withdrawn ? Reason::aborted : Reason::corrupt;
        return finish(*receive, {reason, static_cast<int32_t>(peer)});
    }
    if (receive->hold)
        receive->arrival.bytes.insert(receive->arrival.bytes.end(), payload, payload + bytes);
    else
        receive->spans.write(receive->received, payload, bytes);
    receive->received += bytes;
    if (receive->received != total) return;
    p.incoming.erase(at);
    if (!receive->hold) return finish(*receive);
    receive->arrived = true;
    stirred_ = true;
}

void Engine::finished(uint32_t peer, const Message& m) {
    auto at = offered_.find(m.request);
    if (at == offered_.end() || at->second->peer != static_cast<int32_t>(peer)) return;
    auto send = at->second;
    offered_.erase(at);
    std::erase_if(transfers_, [&](auto& t) { return t->operation == send && t->in_flight == 0; });
    if (send->slot >= 0) free_slots_.push_back(send->slot);
    Failure failure;
    if (m.total == ECANCELED)
        failure = {Reason::aborted, static_cast<int32_t>(peer), m.total};
    else if (m.total != 0)
        failure = {Reason::system, static_cast<int32_t>(peer), m.total};
    finish(*send, failure);
}

bool Engine::copy_chunks(Lock& lock) {
    bool any = false;
    // A snapshot: copying releases the lock, and the list may change.
    for (auto& t : std::vector(transfers_)) {
        if (t->exhausted || t->operation->done.load(std::memory_order_relaxed)) continue;
        // acq_rel: chunks are claimed once; what the other end wrote to the slot before is seen.
        uint64_t chunk = t->slot->next.fetch_add(1, std::memory_order_acq_rel);
        if (chunk >= t->chunks) {
            t->exhausted = true;
            continue;
        }
        any = true;
        uint64_t offset = chunk * t->chunk, bytes = std::min(t->chunk, t->total - offset);
        ++t->in_flight;
        lock.unlock();
        int error = t->remote.copy(*t->local, offset, bytes, t->reads);
        lock.lock();
        --t->in_flight;
        // release: the bytes copied come before the count that says so.
        if (error) t->slot->failed.store(static_cast<uint64_t>(error), std::memory_order_release);
        uint64_t completed = t->slot->completed.fetch_add(1, std::memory_order_release) + 1;
        if (!t->reads && completed >= t->chunks) ring_bell(*peers_[t->peer].header);
    }
    return any;
}

bool Engine::settle_transfers(Lock& lock) {
    bool any = false;
    for (auto& t : std::vector(transfers_)) {
        if (!t->reads) {
            if (t->exhausted && t->in_flight == 0) std::erase(transfers_, t);
            continue;
        }
        bool done = t->operation->done.load(std::memory_order_relaxed);
        // acquire: pairs with the release of the end that copied the last chunk.
        if (!done && t->slot->completed.load(std::memory_order_acquire) < t->chunks) continue;
        if (t->in_flight != 0) continue;
        any = true;
        uint64_t error = t->slot->failed.load(std::memory_order_acquire);
        // Memory that cannot be copied because its process is going is a lost rank, not a failed copy.
        if (!done && error != 0 && peers_[t->peer].process.ends_within(dying_ms)) {
            lose_drained(lock, t->peer);
            // Also where the rank was known as lost before: a message that it had offered may be taken later.
            finish(*t->operation, {Reason::peer_lost, static_cast<int32_t>(t->peer)});
            done = true;
        }
        std::erase(transfers_, t);
        if (done) continue;
        auto receive = std::static_pointer_cast<Receive>(t->operation);
        receive->transfer.reset();
        answer_finish(t->peer, receive->request, static_cast<int>(error));
        finish(*receive, error ? Failure{Reason::system, static_cast<int32_t>(t->peer), error} : Failure{});
    }
    return any;
}

// The rest of a message will not come.
void Engine::withdraw(Send& send) {
    if (send.message.kind != Kind::eager || offered_.erase(send.message.request) == 0 || send.streamed == 0) return;
    Message m{Kind::piece, send.context, send.match, 0, 0, send.message.request, withdrawn};
    post(static_cast<uint32_t>(send.peer), {m, {}, nullptr, 0, 0});
}

bool Engine::revoke(const std::shared_ptr<Transfer>& t) {
    // Far beyond any chunk: nobody claims another one. What was claimed is counted when it is complete.
    uint64_t claimed = t->slot->next.exchange(~0ull >> 1, std::memory_order_acq_rel);
    if (claimed < (~0ull >> 2)) t->chunks = std::min(claimed, t->chunks);
    t->exhausted = true;
    bool quiet =
        t->in_flight == 0 && (peers_[t->peer].lost || t->slot->completed.load(std::memory_order_acquire) >= t->chunks);
    if (quiet) std::erase(transfers_, t);
    return quiet;
}

}  // namespace corral
