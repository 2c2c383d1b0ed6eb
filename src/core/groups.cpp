// The life of a collective in its group: its number, its entry in the log, and how it fails on every rank alike.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "engine.h"

namespace corral {
namespace {

bool is_part_of(const Message& m, uint64_t context, uint64_t match) {
    return m.context == context && is_collective(m.match) && sequence_of(m.match) == sequence_of(match);
}

// Calls that do not fit together: every rank of the group is to be told, also one that is through with its own.
bool is_misfit(Reason reason) {
    return reason == Reason::mismatch || reason == Reason::wrong_size || reason == Reason::wrong_type ||
           reason == Reason::refused;
}

// Those, and a rank that is gone, are the same for everyone. Anything else is told as what it is to another rank: a
// peer that gave up.
bool is_same_for_all(Reason reason) {
    return is_misfit(reason) || reason == Reason::peer_lost || reason == Reason::aborted;
}

}  // namespace

Group* Engine::add_group(uint64_t context, std::vector<uint32_t> members) {
    Lock lock(mutex_);
    auto& place = groups_[context];
    if (place) return nullptr;
    place = std::make_unique<Group>();
    place->context = context;
    place->members = std::move(members);
    place->rank =
        static_cast<uint32_t>(std::find(place->members.begin(), place->members.end(), rank_) - place->members.begin());
    // What peers that made the group earlier have given up on already. Taken out first: acting on it drops parts of
    // calls from the same queues.
    std::vector<std::pair<uint32_t, Arrival>> given_up;
    for (uint32_t member : place->members) {
        auto& queue = peers_[member].unexpected;
        auto is_of_it = [&](const Arrival& a) { return a.message.kind == Kind::abort && a.message.context == context; };
        auto rest = std::stable_partition(queue.begin(), queue.end(), std::not_fn(is_of_it));
        for (auto at = rest; at != queue.end(); ++at) given_up.emplace_back(member, std::move(*at));
        queue.erase(rest, queue.end());
    }
    for (auto& [member, a] : given_up)
        abort_arrived(member, a.message, a.bytes.data(), static_cast<uint32_t>(a.bytes.size()));
    return place.get();
}

// Give a call its number, and write it into the log.
void Engine::begin_call(const std::shared_ptr<Collective>& c, uint32_t state) {
    c->sequence = c->group.sequence++;
    c->match = collective_match(c->sequence, 0);
    log_call(*c, state);
}

void Engine::start(const std::shared_ptr<Collective>& c) {
    check_owner();
    Lock lock(mutex_);
    Group& g = c->group;
    // What peers have said of this call, or of an earlier one, comes first.
    for (uint32_t member : g.members)
        if (member != rank_) drain(lock, member);
    begin_call(c, call_running);
    if (g.late) {
        Failure why = *g.late;
        g.late.reset();
        log_call(*c, call_failed);
        tell_abort(*c, why);
        drop_parts(g, c->context, c->match);
        return finish(*c, why);
    }
    auto gave_up = g.aborted.find(c->sequence);
    if (gave_up != g.aborted.end()) {
        Failure why = gave_up->second;
        g.aborted.erase(g.aborted.begin(), std::next(gave_up));
        log_call(*c, call_failed);
        return finish(*c, why);
    }
    if (!g.aborted.empty()) g.aborted.erase(g.aborted.begin(), g.aborted.lower_bound(c->sequence));
    g.active[c->sequence] = c;
    collectives_.push_back(c);
    for (uint32_t member : g.members)
        if (member != rank_ && peers_[member].lost && never_called(member, *c))
            return fail_collective(c, {Reason::peer_lost, static_cast<int32_t>(member)}, true);
    // Messages that came before the call: one of another call with this number is a mismatch.
    for (uint32_t member : g.members)
        for (auto& a : peers_[member].unexpected) {
            if (is_later(a.message, c->context, c->match)) break;
            if (is_part_of(a.message, c->context, c->match) && a.message.signature != c->signature)
                return fail_collective(c, {Reason::mismatch, static_cast<int32_t>(member)}, true);
        }
    c->begin(*this);
    step_collectives();
}

void Engine::refuse_call(const std::shared_ptr<Collective>& c) {
    check_owner();
    Lock lock(mutex_);
    begin_call(c, call_refused);
    Failure why{Reason::refused, static_cast<int32_t>(rank_)};
    c->group.aborted.erase(c->sequence);
    tell_abort(*c, why);
    drop_parts(c->group, c->context, c->match);
    finish(*c, why);
}

std::optional<Failure> Engine::take_late(Group& group) {
    Lock lock(mutex_);
    return std::exchange(group.late, std::nullopt);
}

// A call that has completed here did not fit to those of other ranks. The group's next call tells.
void Engine::note_late(Group& g, uint64_t sequence, Failure failure) {
    Call own;
    if (g.late || !call_of(rank_, g.context, sequence, own) || own.state != call_done) return;
    failure.detail = failure.reason;
    failure.reason = Reason::late;
    failure.call = sequence;
    // Not by the call under way, which may be over on other ranks: by the next one, which then fails on all.
    g.late = failure;
}

bool Engine::work_on_collectives(Lock& lock) {
    bool any = false;
    has_work_ = false;
    // By index: working releases the lock, and the list may change.
    for (size_t i = 0; i < collectives_.size(); ++i) {
        auto c = collectives_[i];
        if (!c->has_work()) continue;
        has_work_ = true;
        // relaxed: written under the lock, which is held.
        if (c->working.load(std::memory_order_relaxed)) continue;
        any = true;
        c->working.store(true, std::memory_order_relaxed);
        lock.unlock();
        c->work();
        lock.lock();
        c->working.store(false, std::memory_order_release);  // release: see Collective::quiet
    }
    return any;
}

bool Engine::step_collectives() {
    bool any = false;
    stirred_ = false;
    for (size_t i = 0; i < collectives_.size();) {
        auto c = collectives_[i];
        if (!c->done.load(std::memory_order_relaxed)) {
            if (Failure failure = c->problem()) {
                fail_collective(c, failure, true);
                any = true;
                continue;
            }
            c->step(*this);
        }
        if (c->done.load(std::memory_order_relaxed)) {
            any = true;
            log_call(*c, c->failure ? call_failed : call_done);
            c->group.active.erase(c->sequence);
            std::erase(collectives_, c);
            continue;
        }
        has_work_ |= c->has_work();
        ++i;
    }
    return any;
}

void Engine::fail_collective(std::shared_ptr<Collective> c, Failure failure, bool tell) {
    if (c->done.load(std::memory_order_relaxed)) return;
    log_call(*c, call_failed);
    c->group.active.erase(c->sequence);
    std::erase(collectives_, c);
    finish(*c, failure);
    if (tell) tell_abort(*c, failure);
    for (auto& s : c->sends) cancel(s, failure);
    for (auto& r : c->receives) {
        if (r->hold && r->arrived && !r->done.load(std::memory_order_relaxed)) refuse(r);
        cancel(r, failure);
    }
    drop_parts(c->group, c->context, c->match);
}

// Parts of a call that has failed, and that have come in already, are of no use to anyone.
void Engine::drop_parts(const Group& g, uint64_t context, uint64_t match) {
    for (uint32_t member : g.members) {
        auto& queue = peers_[member].unexpected;
        for (auto at = queue.begin(); at != queue.end();) {
            if (is_part_of(at->message, context, match) && at->message.kind != Kind::abort) {
                if (at->message.kind == Kind::offer) answer_finish(member, at->message.request, ECANCELED);
                at = queue.erase(at);
            } else {
                ++at;
            }
        }
    }
}

void Engine::tell_abort(const Collective& c, const Failure& failure) {
    Message m{Kind::abort, c.context, c.match, sizeof failure, 0, 0, 0};
    std::vector<std::byte> body(sizeof failure);
    std::memcpy(body.data(), &failure, sizeof failure);
    for (uint32_t member : c.group.members)
        if (member != rank_) post(member, {m, body, nullptr, 0, 0});
}

void Engine::abort_arrived(uint32_t peer, const Message& m, const std::byte* payload, uint32_t bytes) {
    Failure failure;
    if (bytes != sizeof failure) {
        peers_[peer].corrupt = true;
        return lose(peer);
    }
    std::memcpy(&failure, payload, sizeof failure);
    auto at = groups_.find(m.context);
    if (at == groups_.end()) {
        // A group that this rank has not made yet: kept until it has, as an arrival is.
        peers_[peer].unexpected.push_back({m, {}, std::vector<std::byte>(payload, payload + bytes)});
        return;
    }
    Group& g = *at->second;
    if (!is_same_for_all(failure.reason))
        failure = {Reason::aborted,
                   static_cast<int32_t>(peer),
                   failure.actual,
                   failure.expected,
                   failure.reason,
                   failure.call,
                   -1};
    else if (failure.reason == Reason::mismatch && failure.rank == static_cast<int32_t>(rank_))
        failure.rank = static_cast<int32_t>(peer);
    uint64_t sequence = sequence_of(m.match);
    if (auto active = g.active.find(sequence); active != g.active.end())
        return fail_collective(active->second, failure, false);
    if (sequence < g.sequence) {
        if (is_misfit(failure.reason)) note_late(g, sequence, failure);
    } else if (sequence < g.sequence + 1024) {
        g.aborted.emplace(sequence, failure);
        drop_parts(g, g.context, collective_match(sequence, 0));
    }
}

void Engine::abort_group(Group& g) {
    Lock lock(mutex_);
    Failure why{Reason::aborted, static_cast<int32_t>(rank_)};
    while (!g.active.empty()) fail_collective(g.active.begin()->second, why, true);
    // What is between two ranks ends here alone: the other one may have it under way in full.
    std::vector<std::shared_ptr<Operation>> between;
    auto add = [&](const std::shared_ptr<Operation>& op) {
        if (op && op->context == g.context && !is_collective(op->match)) between.push_back(op);
    };
    for (auto& r : any_posted_) add(r);
    for (auto& p : peers_) {
        for (auto& r : p.posted) add(r);
        for (auto& [request, r] : p.incoming) add(r);
        for (auto& o : p.queue) add(o.send);
    }
    for (auto& [request, s] : offered_) add(s);
    for (auto& op : between) cancel(op, why);
}

void Engine::log_call(Collective& c, uint32_t state) {
    // relaxed throughout: this rank is the only writer of its log.
    if (state != call_running && state != call_refused) {
        CallRecord& r = header_->calls[c.log_index % call_records];
        if (r.context.load(std::memory_order_relaxed) == c.context &&
            r.sequence.load(std::memory_order_relaxed) == c.sequence)
            r.state.store(state, std::memory_order_release);
        return;
    }
    c.log_index = call_index_++;
    CallRecord& r = header_->calls[c.log_index % call_records];
    // A sequence lock, as for Activity: odd while the fields change.
    r.version.fetch_add(1, std::memory_order_acquire);
    r.context.store(c.context, std::memory_order_relaxed);
    r.sequence.store(c.sequence, std::memory_order_relaxed);
    r.signature.store(c.signature, std::memory_order_relaxed);
    r.bytes.store(c.bytes, std::memory_order_relaxed);
    r.type.store(c.type, std::memory_order_relaxed);
    r.operation.store(static_cast<uint32_t>(c.code), std::memory_order_relaxed);
    r.root.store(c.root, std::memory_order_relaxed);
    r.detail.store(c.detail, std::memory_order_relaxed);
    r.state.store(state, std::memory_order_relaxed);
    r.version.fetch_add(1, std::memory_order_release);
}

namespace {

bool read_call(const CallRecord& r, uint64_t& context, uint64_t& sequence, Call& out) {
    for (int tries = 0; tries < 100; ++tries) {
        uint64_t before = r.version.load(std::memory_order_acquire);
        context = r.context.load(std::memory_order_relaxed);
        sequence = r.sequence.load(std::memory_order_relaxed);
        out.signature = r.signature.load(std::memory_order_relaxed);
        out.bytes = r.bytes.load(std::memory_order_relaxed);
        out.type = r.type.load(std::memory_order_relaxed);
        out.code = static_cast<Code>(r.operation.load(std::memory_order_relaxed));
        out.root = r.root.load(std::memory_order_relaxed);
        out.detail = r.detail.load(std::memory_order_relaxed);
        out.state = r.state.load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);  // the fields are read before the version below
        if (before % 2 == 0 && r.version.load(std::memory_order_relaxed) == before) return out.state != 0;
    }
    return false;
}

}  // namespace

bool Engine::call_of(uint32_t rank, uint64_t context, uint64_t sequence, Call& out) const {
    for (auto& r : peers_[rank].header->calls) {
        uint64_t c, s;
        if (read_call(r, c, s, out) && c == context && s == sequence) return true;
    }
    return false;
}

bool Engine::last_call_of(uint32_t rank, uint64_t context, uint64_t& sequence, Call& out) const {
    bool found = false;
    for (auto& r : peers_[rank].header->calls) {
        uint64_t c, s;
        Call call;
        if (read_call(r, c, s, call) && c == context && (!found || s >= sequence)) {
            sequence = s;
            out = call;
            found = true;
        }
    }
    return found;
}

// Whether a rank that is gone went before this call. One that went after it may have done its part.
bool Engine::never_called(uint32_t rank, const Collective& c) const {
    Call call;
    uint64_t sequence = 0;
    return !last_call_of(rank, c.context, sequence, call) || sequence < c.sequence;
}

// Ranks that wait for each other without sending anything show no mismatch by their messages; their logs do.
void Engine::check_calls(Collective& c) {
    for (uint32_t member : c.group.members) {
        Call call;
        if (member == rank_ || !call_of(member, c.context, c.sequence, call)) continue;
        if (call.state == call_refused)
            return fail_collective(c.shared_from_this(), {Reason::refused, static_cast<int32_t>(member)}, true);
        if (call.signature != c.signature)
            return fail_collective(c.shared_from_this(), {Reason::mismatch, static_cast<int32_t>(member)}, true);
    }
}

}  // namespace corral
