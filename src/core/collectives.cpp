#include "collectives.h"

#include <algorithm>

#include "engine.h"

namespace corral {
namespace {

constexpr uint32_t most_direct = 16;  // ranks of a barrier in one round

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

void Collective::identify(uint64_t value) { signature = mix(signature, value); }

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

std::shared_ptr<Receive> Collective::prepare(uint32_t from, uint32_t step) {
    auto r = std::make_shared<Receive>();
    r->code = code;
    r->context = context;
    r->match = collective_match(sequence, step);
    r->peer = static_cast<int32_t>(group.members[from]);
    return r;
}

void Collective::start(Engine& engine, const std::shared_ptr<Receive>& r) {
    receives.push_back(r);
    engine.start(r);
}

std::shared_ptr<Receive> Collective::receive(Engine& engine, uint32_t from, uint32_t step, const Spans& spans) {
    auto r = prepare(from, step);
    r->spans = spans;
    start(engine, r);
    return r;
}

std::shared_ptr<Receive> Collective::receive_held(Engine& engine, uint32_t from, uint32_t step) {
    auto r = prepare(from, step);
    r->hold = true;
    start(engine, r);
    return r;
}

void Collective::finish(Engine& engine, Failure failure) { engine.finish(*this, failure); }
void Collective::take(Engine& engine, const std::shared_ptr<Receive>& r) { engine.take(r); }
void Collective::refuse(Engine& engine, const std::shared_ptr<Receive>& r) { engine.refuse(r); }

bool Collective::borrow(Engine& engine, const std::shared_ptr<Receive>& r, RemoteSpans& out) {
    return engine.borrow(r, out);
}

void Collective::give_back(Engine& engine, const std::shared_ptr<Receive>& r, int error) { engine.give_back(r, error); }

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
    // acquire: pairs with the release of the thread that ends its work on the memory.
    if (!done.load(std::memory_order_acquire) || working.load(std::memory_order_acquire)) return false;
    for (auto& r : receives)
        if (r->transfer && !r->done.load(std::memory_order_acquire)) return false;
    return true;
}

Barrier::Barrier(Group& g) : Collective(g, Code::barrier, -1) {}

void Barrier::begin(Engine& engine) { exchange(engine); }

// Few ranks all tell each other: with fewer processors than ranks each then needs its turn but once. More ranks
// disseminate: in round k each hears from the one 2^k below, so after log2(n) rounds from all.
void Barrier::exchange(Engine& engine) {
    uint32_t n = size();
    if (n <= most_direct) {
        if (round_ != 0 || n == 1) return finish(engine);
        Spans nothing;
        for (uint32_t d = 1; d < n; ++d) receive(engine, (group.rank + n - d) % n, 0, nothing);
        for (uint32_t d = 1; d < n; ++d) send(engine, (group.rank + d) % n, 0, nothing);
        return;
    }
    uint32_t distance = 1u << round_;
    if (distance >= n) return finish(engine);
    sends.clear();
    receives.clear();
    Spans nothing;
    send(engine, (group.rank + distance) % n, round_, nothing);
    receive(engine, (group.rank + n - distance % n) % n, round_, nothing);
}

void Barrier::step(Engine& engine) {
    while (!done.load(std::memory_order_relaxed) && all_done()) {
        ++round_;
        exchange(engine);
    }
}

}  // namespace corral
