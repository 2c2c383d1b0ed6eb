#include "gather.h"

namespace corral {

Gather::Gather(Group& g, Code c, int32_t r, bool rows) : Collective(g, c, r), rows_(rows) {}

void Gather::begin(Engine& engine) {
    if (!is_root()) {
        Spans answer;
        answer.add(&verdict, sizeof verdict);
        receive(engine, root, 1, answer);
        send(engine, root, 0, own, &fingerprint);
        return;
    }
    for (uint32_t r = 0; r < size(); ++r)
        if (r != group.rank) receive_held(engine, r, 0);
    step(engine);
}

Verdict Gather::judge() const {
    size_t i = 0;
    for (uint32_t r = 0; r < size(); ++r) {
        bool mine = r == group.rank;
        if (mine && rows_) continue;
        const Receive* in = mine ? nullptr : receives[i++].get();
        uint64_t total = mine ? own.total() : in->arrival.message.total;
        const Fingerprint& print = mine ? fingerprint : in->arrival.prefix;
        size_t place = rows_ ? i - 1 : r;
        bool same = print == expected[place];
        if (same && total == into[place].total()) continue;
        auto who = static_cast<int32_t>(r);
        if (rows_) return {3, who, 0, 0};
        if (!same) return {2, who, print.low, expected[place].low};
        return {1, who, total, into[place].total()};
    }
    return {};
}

void Gather::decide(Engine& engine) {
    decided_ = true;
    verdict = judge();
    Spans answer;
    answer.add(&verdict, sizeof verdict);
    // Told first: the others need not wait until the bytes are in place.
    for (uint32_t r = 0; r < size(); ++r)
        if (r != group.rank) send(engine, r, 1, answer);
    if (verdict.status != 0) {
        for (auto& in : receives) refuse(engine, in);
        return;
    }
    size_t i = 0;
    for (uint32_t r = 0; r < size(); ++r) {
        if (r != group.rank) {
            auto& in = receives[i++];
            in->spans = std::move(into[rows_ ? i - 1 : r]);
            take(engine, in);
        } else if (!rows_) {
            copy_spans(own, into[r]);
        }
    }
}

void Gather::step(Engine& engine) {
    if (done.load(std::memory_order_relaxed)) return;
    if (is_root() && !decided_) {
        for (auto& in : receives)
            if (!in->arrived) return;
        decide(engine);
    }
    if (all_done()) finish(engine, problem());
}

}  // namespace corral
