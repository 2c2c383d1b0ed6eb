#include "exchange.h"

#include <algorithm>

namespace corral {
namespace {

constexpr uint64_t copied_at_once = 1 << 20;   // without the engine's lock, before it is looked at again
constexpr uint64_t copied_locked = 32 * 1024;  // sooner done than handed over

}  // namespace

void Exchange::begin(Engine& engine) {
    for (auto& in : incoming) {
        if (in.rank == group.rank) continue;
        auto r = prepare(in.rank, 0);
        r->make = !sized_;
        if (sized_) {
            r->spans = in.spans;
            r->expected = {in.type, 0};
            r->check_prefix = true;
        }
        start(engine, r);
    }
    for (auto& out : outgoing) {
        if (out.rank != group.rank) {
            Fingerprint type{out.type, 0};
            send(engine, out.rank, 0, out.spans, sized_ ? &type : nullptr);
            continue;
        }
        for (auto& in : incoming)
            if (in.rank == group.rank) {
                own_from_ = out.spans;
                own_to_ = in.spans;
            }
    }
    if (own_from_.total() <= copied_locked) {
        copy_spans(own_from_, own_to_);
        copied_ = own_from_.total();
    }
    step(engine);
}

void Exchange::work() {
    uint64_t bytes = std::min(copied_at_once, own_from_.total() - copied_);
    copy_spans(own_from_, own_to_, copied_, bytes);
    copied_ += bytes;
}

void Exchange::step(Engine& engine) {
    if (done.load(std::memory_order_relaxed) || working.load(std::memory_order_relaxed) || has_work()) return;
    // What failed is for the engine, which tells the others.
    if (all_done() && !problem()) finish(engine);
}

Exchange::Made Exchange::made(uint32_t rank) const {
    for (auto& r : receives)
        if (r->peer == static_cast<int32_t>(group.members[rank])) return {r->made.get(), r->spans.total()};
    return {nullptr, 0};
}

}  // namespace corral
