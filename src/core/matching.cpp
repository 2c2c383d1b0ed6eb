// Messages to operations: who gets what, in which order.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "engine.h"

namespace corral {

void Engine::post(uint32_t peer, Outgoing&& out) {
    Peer& p = peers_[peer];
    if (p.lost) return;
    p.queue.push_back(std::move(out));
    push_queue(peer);
}

bool Engine::push_queue(uint32_t peer) {
    Peer& p = peers_[peer];
    bool any = false;
    while (!p.queue.empty()) {
        Outgoing& o = p.queue.front();
        auto head = static_cast<uint32_t>(o.head.size());
        if (!p.out.room(head + o.bytes)) {
            // relaxed: a hint; whoever misses it is looked after by the slices of this rank's sleep.
            p.out.control().sender_waits.store(1, std::memory_order_relaxed);
            break;
        }
        p.out.push(o.message, o.head.data(), head, o.send ? &o.send->spans : nullptr, o.offset, o.bytes);
        // An eager message is out of the sender's hands once all of it is in the ring.
        if (o.send && o.message.kind == Kind::eager) {
            if (o.bytes == o.message.total) {
                finish(*o.send);
            } else {
                o.send->streamed = o.bytes;
                p.streaming.push_back(o.send);
            }
        }
        p.queue.pop_front();
        any = true;
    }
    if (!p.streaming.empty()) any |= push_pieces(peer);
    if (any) {
        if (p.queue.empty() && p.streaming.empty()) p.out.control().sender_waits.store(0, std::memory_order_relaxed);
        ring_bell(*p.header);
    }
    return any;
}

bool Engine::push_eager(uint32_t peer, uint64_t context, uint64_t match, uint64_t signature, const Spans& spans,
                        const Fingerprint* prefix) {
    uint64_t total = spans.total();
    uint32_t head = prefix ? sizeof *prefix : 0;
    if (total + head > geometry_.piece_bytes() || peer == rank_) return false;
    auto bytes = static_cast<uint32_t>(total);
    Peer& p = peers_[peer];
    if (p.lost || !p.queue.empty() || !p.out.room(head + bytes)) return false;
    Message m{Kind::eager, context, match, total, signature, 0, head};
    p.out.push(m, prefix, head, &spans, 0, bytes);
    ring_bell(*p.header);
    return true;
}

bool Engine::try_send(uint32_t peer, uint64_t context, uint64_t tag, uint64_t signature, const Spans& spans) {
    check_owner();
    Lock lock(mutex_);
    return push_eager(peer, context, tag, signature, spans, nullptr);
}

void Engine::start(const std::shared_ptr<Send>& send) {
    check_owner();
    Lock lock(mutex_, std::defer_lock);
    if (!is_collective(send->match)) lock.lock();  // a collective starts its messages with the lock held
    Peer& p = peers_[send->peer];
    if (p.lost) return finish(*send, loss_of(static_cast<uint32_t>(send->peer)));
    Message& m = send->message;
    m.context = send->context;
    m.match = send->match;
    m.total = send->spans.total();
    if (send->peer == static_cast<int32_t>(rank_)) return send_to_self(send);
    uint32_t head = send->prefixed ? sizeof(Fingerprint) : 0;
    if (m.total > eager_bytes) return offer(send);
    m.kind = Kind::eager;
    m.count = head;
    if (push_eager(static_cast<uint32_t>(send->peer), m.context, m.match, m.signature, send->spans,
                   send->prefixed ? &send->prefix : nullptr))
        return finish(*send);
    auto first = static_cast<uint32_t>(std::min<uint64_t>(m.total, geometry_.piece_bytes() - head));
    if (first < m.total) {
        m.request = next_request_++;
        offered_[m.request] = send;  // until all of it is in the ring
    }
    Outgoing out{m, {}, send, 0, first};
    out.head.resize(head);
    if (head) std::memcpy(out.head.data(), &send->prefix, head);
    post(send->peer, std::move(out));
}

// A message to oneself goes straight to the matching, as one that has just come in.
void Engine::send_to_self(const std::shared_ptr<Send>& send) {
    Message& m = send->message;
    m.kind = Kind::eager;
    std::vector<std::byte> copy(m.total);
    send->spans.read(0, copy.data(), copy.size());
    arrive(rank_, m, copy.data(), copy.size());
    finish(*send);
}

bool Engine::claim_unexpected(uint32_t peer, Receive& receive, Arrival& out) {
    auto& queue = peers_[peer].unexpected;
    for (auto at = queue.begin(); at != queue.end() && !is_later(at->message, receive.context, receive.match); ++at)
        if (at->message.context == receive.context && at->message.match == receive.match) {
            out = std::move(*at);
            queue.erase(at);
            return true;
        }
    return false;
}

Failure Engine::check(const Receive& receive, const Message& m, const Fingerprint& prefix) const {
    if (receive.check_type && m.signature != receive.signature)
        return {Reason::wrong_type, -1, m.signature, receive.signature};
    if (receive.check_prefix && prefix != receive.expected)
        return {Reason::wrong_type, -1, prefix.low, receive.expected.low};
    if (m.total != receive.spans.total()) return {Reason::wrong_size, -1, m.total, receive.spans.total()};
    return {};
}

Failure Engine::make_room(Receive& receive, const Message& m) const {
    if (m.total == 0) return {};
    // Not touched before its bytes come: what a message claims costs address space alone.
    receive.made.reset(new (std::nothrow) std::byte[m.total]);
    if (!receive.made) return {Reason::system, -1, ENOMEM};
    receive.spans.add(receive.made.get(), m.total);
    return {};
}

void Engine::start(const std::shared_ptr<Receive>& receive) {
    check_owner();
    Lock lock(mutex_, std::defer_lock);
    if (!is_collective(receive->match)) lock.lock();
    receive->order = next_order_++;
    Arrival arrival;
    uint32_t first = receive->peer < 0 ? 0 : receive->peer;
    uint32_t last = receive->peer < 0 ? size() - 1 : receive->peer;
    for (uint32_t r = first; r <= last; ++r) {
        if (!claim_unexpected(r, *receive, arrival)) continue;
        deliver(r, receive, arrival.message, arrival.prefix, arrival.bytes.data(), arrival.bytes.size());
        return;
    }
    if (receive->peer >= 0 && peers_[receive->peer].lost)
        return finish(*receive, loss_of(static_cast<uint32_t>(receive->peer)));
    if (deserted(*receive)) return finish(*receive, {Reason::peer_lost});
    receive->posted = true;
    (receive->peer < 0 ? any_posted_ : peers_[receive->peer].posted).push_back(receive);
}

// Whether nobody else is left in the group of a receive from anyone. What they sent before has been looked at.
bool Engine::deserted(const Receive& receive) const {
    if (receive.peer >= 0) return false;
    auto at = groups_.find(receive.context);
    if (at == groups_.end() || at->second->members.size() < 2) return false;
    auto& members = at->second->members;
    return std::all_of(members.begin(), members.end(), [&](uint32_t r) { return r == rank_ || peers_[r].lost; });
}

void Engine::unpost(Receive& receive) {
    if (!receive.posted) return;
    receive.posted = false;
    auto& list = receive.peer < 0 ? any_posted_ : peers_[receive.peer].posted;
    std::erase_if(list, [&](auto& r) { return r.get() == &receive; });
}

// Whether a collective's message is for a call that this rank is through with.
bool Engine::stale(uint32_t peer, const Message& m) {
    auto at = groups_.find(m.context);
    if (at == groups_.end()) return false;
    Group& g = *at->second;
    uint64_t sequence = sequence_of(m.match);
    auto active = g.active.find(sequence);
    if (active == g.active.end()) {
        if (sequence >= g.sequence) return g.aborted.contains(sequence);  // its sender had not heard of it yet
        Call own;
        if (call_of(rank_, m.context, sequence, own) && own.signature != m.signature)
            note_late(g, sequence, {Reason::mismatch, static_cast<int32_t>(peer)});
        return true;
    }
    if (active->second->signature == m.signature) return false;
    fail_collective(active->second, {Reason::mismatch, static_cast<int32_t>(peer)}, true);
    return true;
}

void Engine::dispatch(uint32_t peer, const Message& m, const std::byte* payload, uint32_t bytes) {
    switch (m.kind) {
        case Kind::eager:
        case Kind::offer:
            return arrive(peer, m, payload, bytes);
        case Kind::accept:
            return accepted(peer, m, payload, bytes);
        case Kind::piece:
            return piece(peer, m, payload, bytes);
        case Kind::finish:
            return finished(peer, m);
        case Kind::abort:
            return abort_arrived(peer, m, payload, bytes);
    }
    peers_[peer].corrupt = true;
    lose(peer);
}

void Engine::arrive(uint32_t peer, const Message& m, const std::byte* payload, size_t bytes) {
    Peer& p = peers_[peer];
    Fingerprint prefix;
    if (m.kind == Kind::eager) {
        if (m.count != 0 && m.count != sizeof prefix) p.corrupt = true;
        if (!p.corrupt && m.count) {
            if (bytes < sizeof prefix) {
                p.corrupt = true;
            } else {
                std::memcpy(&prefix, payload, sizeof prefix);
                payload += sizeof prefix;
                bytes -= sizeof prefix;
            }
        }
        if (m.total != bytes && (m.request == 0 || bytes > m.total || m.total > eager_bytes)) p.corrupt = true;
        if (p.corrupt) return lose(peer);
    }
    // An offer's description starts with it.
    if (m.kind == Kind::offer && bytes >= sizeof prefix) std::memcpy(&prefix, payload, sizeof prefix);
    if (is_collective(m.match) && stale(peer, m)) {
        if (m.kind == Kind::offer) answer_finish(peer, m.request, ECANCELED);
        return;
    }
    // The receive that was posted first, of those for this source and those for any.
    auto fits = [&](const std::shared_ptr<Receive>& r) { return r->context == m.context && r->match == m.match; };
    auto mine = std::find_if(p.posted.begin(), p.posted.end(), fits);
    auto any = std::find_if(any_posted_.begin(), any_posted_.end(), fits);
    std::shared_ptr<Receive> receive;
    if (mine != p.posted.end() && (any == any_posted_.end() || (*mine)->order < (*any)->order)) {
        receive = *mine;
        p.posted.erase(mine);
    } else if (any != any_posted_.end()) {
        receive = *any;
        any_posted_.erase(any);
    } else {
        p.unexpected.push_back({m, prefix, std::vector<std::byte>(payload, payload + bytes)});
        if (m.kind == Kind::eager) p.unexpected.back().bytes.reserve(m.total);
        return;
    }
    receive->posted = false;
    deliver(peer, receive, m, prefix, payload, bytes);
}

void Engine::deliver(uint32_t peer, const std::shared_ptr<Receive>& receive, const Message& m,
                     const Fingerprint& prefix, const std::byte* payload, size_t bytes) {
    receive->peer = static_cast<int32_t>(peer);
    if (receive->hold) {
        receive->arrival = {m, prefix, std::vector<std::byte>(payload, payload + bytes)};
        receive->arrived = m.kind != Kind::eager || bytes == m.total;
        stirred_ = true;
        if (!receive->arrived) await_pieces(peer, receive, m, bytes);
        return;
    }
    Failure failure = receive->make ? make_room(*receive, m) : check(*receive, m, prefix);
    if (failure) {
        failure.rank = static_cast<int32_t>(peer);
        failure.finder = static_cast<int32_t>(rank_);
        if (m.kind == Kind::offer) answer_finish(peer, m.request, 0);
        return finish(*receive, failure);
    }
    if (m.kind == Kind::offer) return begin_pull(peer, receive, m, payload, bytes);
    if (bytes) receive->spans.write(0, payload, bytes);
    if (bytes == m.total) return finish(*receive);
    await_pieces(peer, receive, m, bytes);
}

// A message of several pieces of which the first are here. Of a rank that is lost, no more come.
void Engine::await_pieces(uint32_t peer, const std::shared_ptr<Receive>& receive, const Message& m, uint64_t bytes) {
    if (peers_[peer].lost) return finish(*receive, loss_of(peer));
    receive->request = m.request;
    receive->received = bytes;
    peers_[peer].incoming[m.request] = receive;
}

void Engine::take(const std::shared_ptr<Receive>& receive) {
    receive->hold = false;
    Arrival arrival = std::move(receive->arrival);
    deliver(receive->peer, receive, arrival.message, arrival.prefix, arrival.bytes.data(), arrival.bytes.size());
}

void Engine::refuse(const std::shared_ptr<Receive>& receive) {
    if (receive->arrival.message.kind == Kind::offer) answer_finish(receive->peer, receive->arrival.message.request, 0);
    finish(*receive);
}

}  // namespace corral
