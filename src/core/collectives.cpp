#include "collectives.h"

#include <algorithm>
#include <cstring>

#include "engine.h"

namespace corral {
namespace {

uint64_t mix(uint64_t h, uint64_t v) {
    h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdull;
    return h ^ (h >> 32);
}

}  // namespace

Collective::Collective(Group& g, Code c, int32_t r) : group(g), root(r) {
    code = c;
    context = g.context;
    signature = mix(mix(0, static_cast<uint64_t>(c)), static_cast<uint64_t>(r + 1));
}

void Collective::send(Engine& engine, uint32_t to, uint32_t step, const Spans& spans, const Fingerprint* prefix) {
    uint32_t peer = group.members[to];
    if (engine.push_eager(peer, context, collective_match(sequence, step), signature, spans, prefix)) return;
    auto s = std::make_shared<Send>();
    s->code = code;
    s->context = context;
    s->match = collective_match(sequence, step);
    s->peer = static_cast<int32_t>(peer);
    s->message.signature = signature;
    s->spans = spans;
    if (prefix) {
        s->prefix = *prefix;
        s->prefixed = true;
    }
    sends.push_back(s);
    engine.start(s);
}

std::shared_ptr<Receive> Collective::receive(Engine& engine, uint32_t from, uint32_t step, const Spans& spans,
                                             bool hold) {
    auto r = std::make_shared<Receive>();
    r->code = code;
    r->context = context;
    r->match = collective_match(sequence, step);
    r->peer = static_cast<int32_t>(group.members[from]);
    r->spans = spans;
    r->hold = hold;
    receives.push_back(r);
    engine.start(r);
    return r;
}

Failure Collective::problem() const {
    // relaxed: written under the lock, which is held.
    for (auto& s : sends)
        if (s->done.load(std::memory_order_relaxed) && s->failure) return s->failure;
    for (auto& r : receives)
        if (r->done.load(std::memory_order_relaxed) && r->failure) return r->failure;
    return {};
}

bool Collective::all_done() const {
    auto done = [](auto& op) { return op->done.load(std::memory_order_relaxed); };
    return std::all_of(sends.begin(), sends.end(), done) && std::all_of(receives.begin(), receives.end(), done);
}

bool Collective::quiet() const {
    if (!done.load(std::memory_order_acquire)) return false;
    for (auto& r : receives)
        if (r->transfer && !r->done.load(std::memory_order_acquire)) return false;
    return true;
}

Barrier::Barrier(Group& g) : Collective(g, Code::barrier, -1) {}

void Barrier::begin(Engine& engine) { exchange(engine); }

// Dissemination: in round k each rank hears from the one 2^k below, so after log2(n) rounds from all.
void Barrier::exchange(Engine& engine) {
    auto n = static_cast<uint32_t>(group.members.size());
    uint32_t distance = 1u << round_;
    if (distance >= n) return engine.finish(*this);
    sends.clear();
    receives.clear();
    Spans nothing;
    send(engine, (group.rank + distance) % n, round_, nothing);
    receive(engine, (group.rank + n - distance % n) % n, round_, nothing, false);
}

void Barrier::step(Engine& engine) {
    while (!done.load(std::memory_order_relaxed) && all_done()) {
        ++round_;
        exchange(engine);
    }
}

Gather::Gather(Group& g, Code c, int32_t r) : Collective(g, c, r) {}

void Gather::begin(Engine& engine) {
    auto n = static_cast<uint32_t>(group.members.size());
    if (static_cast<uint32_t>(root) != group.rank) {
        Spans answer;
        answer.add(&verdict, sizeof verdict);
        receive(engine, root, 1, answer, false);
        send(engine, root, 0, own, &fingerprint);
        return;
    }
    Spans nothing;
    for (uint32_t r = 0; r < n; ++r)
        if (r != group.rank) receive(engine, r, 0, nothing, true);
    step(engine);
}

void Gather::decide(Engine& engine) {
    decided_ = true;
    auto n = static_cast<uint32_t>(group.members.size());
    bool rows = code == Code::gather_rows;
    size_t i = 0;
    for (uint32_t r = 0; r < n; ++r) {
        if (r == group.rank && rows) continue;
        bool mine = r == group.rank;
        const Receive* in = mine ? nullptr : receives[i++].get();
        uint64_t total = mine ? own.total() : in->arrival.message.total;
        const Fingerprint& print = mine ? fingerprint : in->arrival.prefix;
        if (code == Code::gather_bytes || verdict.status != 0) continue;
        size_t place = rows ? i - 1 : r;
        uint32_t status = 0;
        if (rows)
            status = print == expected[place] && total == into[place].total() ? 0 : 3;
        else if (!(print == expected[place]))
            status = 2;
        else if (total != into[place].total())
            status = 1;
        if (status == 1) verdict = {status, static_cast<int32_t>(r), total, into[place].total()};
        if (status == 2) verdict = {status, static_cast<int32_t>(r), print.low, expected[place].low};
        if (status == 3) verdict = {status, static_cast<int32_t>(r), 0, 0};
    }
    Spans answer;
    answer.add(&verdict, sizeof verdict);
    // Told first: the others need not wait until the bytes are in place.
    for (uint32_t r = 0; r < n; ++r)
        if (r != group.rank) send(engine, r, 1, answer);
    if (verdict.status != 0) {
        for (auto& in : receives) engine.refuse(in);
        return;
    }
    if (code == Code::gather_bytes) made.resize(n);
    i = 0;
    for (uint32_t r = 0; r < n; ++r) {
        if (r == group.rank) {
            if (rows) continue;
            if (code == Code::gather_bytes) {
                made[r].resize(own.total());
                own.read(0, made[r].data(), made[r].size());
            } else {
                copy_spans(own, into[r]);
            }
            continue;
        }
        auto& in = receives[i++];
        if (code == Code::gather_bytes) {
            try {
                made[r].resize(in->arrival.message.total);
            } catch (const std::exception&) {
                engine.refuse(in);
                in->failure = {Reason::system, in->peer, ENOMEM};
                continue;
            }
            in->spans.add(made[r].data(), made[r].size());
        } else {
            in->spans = std::move(into[rows ? i - 1 : r]);
        }
        engine.take(in);
    }
}

void Gather::step(Engine& engine) {
    if (done.load(std::memory_order_relaxed)) return;
    if (static_cast<uint32_t>(root) == group.rank && !decided_) {
        for (auto& in : receives)
            if (!in->arrived) return;
        decide(engine);
    }
    if (all_done()) engine.finish(*this, problem());
}

Broadcast::Broadcast(Group& g, int32_t r) : Collective(g, Code::broadcast_bytes, r) {}

void Broadcast::begin(Engine& engine) {
    Spans nothing;
    if (static_cast<uint32_t>(root) == group.rank) {
        for (uint32_t r = 0; r < group.members.size(); ++r)
            if (r != group.rank) send(engine, r, 0, own);
    } else {
        receive(engine, root, 0, nothing, true);
    }
    step(engine);
}

void Broadcast::step(Engine& engine) {
    if (done.load(std::memory_order_relaxed)) return;
    if (!receives.empty() && receives[0]->arrived && !taken_) {
        taken_ = true;
        auto& in = receives[0];
        try {
            made.resize(in->arrival.message.total);
        } catch (const std::exception&) {
            engine.refuse(in);
            return engine.finish(*this, {Reason::system, in->peer, ENOMEM});
        }
        in->spans.add(made.data(), made.size());
        engine.take(in);
    }
    if (all_done()) engine.finish(*this, problem());
}

}  // namespace corral
