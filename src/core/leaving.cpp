// How ranks go, this one and others, and what becomes of the operations that needed them or that are given up.
#include <poll.h>

#include <algorithm>
#include <utility>

#include "engine.h"
#include "futex.h"

namespace corral {

void Engine::check_health(Lock& lock) {
    std::vector<pollfd> fds;
    std::vector<uint32_t> gone;
    for (uint32_t r = 0; r < peers_.size(); ++r)
        fds.push_back({r == rank_ || peers_[r].lost ? -1 : peers_[r].process.fd(), POLLIN, 0});
    ::poll(fds.data(), fds.size(), 0);
    for (uint32_t r = 0; r < peers_.size(); ++r) {
        Peer& p = peers_[r];
        if (r == rank_ || p.lost) continue;
        bool dead = p.process.fd() < 0 || fds[r].revents != 0;
        // acquire: what a rank sent before it left is in the ring, and is seen by the drain below.
        bool left = p.header->state.load(std::memory_order_acquire) == static_cast<uint32_t>(RankState::left);
        if (dead || left) gone.push_back(r);
    }
    // Those that were killed first: that the others left may be a consequence.
    std::stable_partition(gone.begin(), gone.end(), [&](uint32_t r) {
        // relaxed: read with acquire above.
        return peers_[r].header->state.load(std::memory_order_relaxed) != static_cast<uint32_t>(RankState::left);
    });
    for (uint32_t r : gone) lose_drained(lock, r);
    for (auto& c : std::vector(collectives_)) check_calls(*c);
    step_collectives();
    if (completed_) {
        completed_ = false;
        ring_bell(*header_);
    }
}

Failure Engine::loss_of(uint32_t peer) const {
    return {peers_[peer].corrupt ? Reason::corrupt : Reason::peer_lost, static_cast<int32_t>(peer)};
}

// What a rank sent before it went still counts.
void Engine::lose_drained(Lock& lock, uint32_t peer) {
    ++impatient_;
    while (drain(lock, peer)) {
    }
    --impatient_;
    lose(peer);
}

void Engine::lose(uint32_t peer) {
    Peer& p = peers_[peer];
    if (p.lost && !p.corrupt) return;
    p.lost = true;
    Failure why = loss_of(peer);
    p.queue.clear();
    for (auto& [request, send] : std::map(offered_.begin(), offered_.end()))
        if (send->peer == static_cast<int32_t>(peer)) {
            offered_.erase(request);
            if (send->slot >= 0) free_slots_.push_back(send->slot);
            finish(*send, why);
        }
    p.streaming.clear();
    for (auto& r : std::exchange(p.posted, {})) {
        r->posted = false;
        finish(*r, why);
    }
    for (auto& [request, r] : std::exchange(p.incoming, {})) finish(*r, why);
    for (auto& t : transfers_)
        if (t->peer == peer && t->reads) {
            t->exhausted = true;
            finish(*t->operation, why);
        }
    for (auto& r : std::vector(any_posted_))
        if (deserted(*r)) {
            unpost(*r);
            finish(*r, {Reason::peer_lost});  // by no one of them alone
        }
    for (auto& c : std::vector(collectives_)) {
        auto& members = c->group.members;
        if (std::find(members.begin(), members.end(), peer) == members.end()) continue;
        // The messages that failed above tell who needs the lost rank itself; who does not need it any more, because it
        // did its part before it went, goes on.
        if (never_called(peer, *c)) fail_collective(c, why, true);
    }
}

bool Engine::cancel(const std::shared_ptr<Operation>& op, Failure why) {
    if (op->done.load(std::memory_order_relaxed)) return true;
    if (auto c = std::dynamic_pointer_cast<Collective>(op)) {
        fail_collective(c, why, true);
        return true;
    }
    if (auto r = std::dynamic_pointer_cast<Receive>(op)) {
        unpost(*r);
        for (auto& p : peers_)
            for (auto at = p.incoming.begin(); at != p.incoming.end();)
                at = at->second == r ? p.incoming.erase(at) : std::next(at);
        if (r->transfer && !revoke(r->transfer)) return false;
        if (r->transfer) answer_finish(r->transfer->peer, r->request, ECANCELED);
    } else if (auto s = std::dynamic_pointer_cast<Send>(op)) {
        Peer& p = peers_[s->peer];
        std::erase_if(p.queue, [&](Outgoing& o) { return o.send == s; });
        std::erase(p.streaming, s);
        withdraw(*s);
        // The receiver may read our memory for one more chunk; that does no harm. It writes nowhere.
        if (s->slot >= 0) header_->transfers[s->slot].next.store(~0ull >> 1, std::memory_order_relaxed);
        std::erase_if(transfers_, [&](auto& t) { return t->operation == op && t->in_flight == 0; });
    }
    finish(*op, why);
    return true;
}

bool Engine::settled() const {
    if (!offered_.empty() || !collectives_.empty()) return false;
    for (auto& p : peers_)
        if (!p.queue.empty() || !p.streaming.empty()) return false;
    return true;
}

bool Engine::flush(int64_t timeout_ns, const std::function<bool()>& interrupted) {
    if (forked()) return true;  // it is the parent's to deliver
    Lock lock(mutex_);
    ++impatient_;
    bool done = flush_locked(lock, timeout_ns, interrupted);
    --impatient_;
    return done;
}

bool Engine::flush_locked(Lock& lock, int64_t timeout_ns, const std::function<bool()>& interrupted) {
    int64_t start = now_ns(), slice = 100'000;
    while (!settled()) {
        if (progress(lock)) continue;
        if (now_ns() - start > timeout_ns) return false;
        if (!doze(lock, slice)) slice = std::min(slice * 2, last_slice_ns);
        check_health(lock);
        lock.unlock();
        bool stop = interrupted && interrupted();
        lock.lock();
        if (stop) return false;
    }
    return true;
}

void Engine::leave() {
    if (forked()) return;
    Lock lock(mutex_);
    if (std::exchange(left_, true)) return;
    // release: whoever sees this sees all messages sent before it.
    header_->state.store(static_cast<uint32_t>(RankState::left), std::memory_order_release);
    for (auto& p : peers_)
        if (p.header && p.header != header_) ring_bell(*p.header);
}

void Engine::abandon() {
    if (forked()) return;
    Lock lock(mutex_);
    left_ = true;
}

bool Engine::gone(uint32_t r, bool& left, std::optional<int>& status) const {
    const Peer& p = peers_[r];
    left = p.header && p.header->state.load(std::memory_order_acquire) == static_cast<uint32_t>(RankState::left);
    if (p.process.alive()) return left;
    status = p.process.exit_status();
    return true;
}

}  // namespace corral
