// A peer that writes nonsense into the segment: errors, never a crash. Run it under the address sanitizer.
#include <random>

#include "exchange.h"
#include "harness.h"
#include "reduction.h"

using namespace corral;
using namespace corral::test;

namespace {

std::shared_ptr<Collective> some_call(Group& group, uint32_t which, std::vector<unsigned char>& memory) {
    if (which == 0) return std::make_shared<Barrier>(group);
    Spans spans;
    spans.add(memory.data(), 64);
    if (which == 3) {
        auto reduce = std::make_shared<Reduce>(group, Code{50}, -1, Reduce::Result::everywhere);
        reduce->own = {spans};
        reduce->into = spans;
        reduce->runs = {{{(1u << 16) | 64, ReduceOp::sum, 2, 1.0}, 64}};
        return reduce;
    }
    // Of known and of unknown size.
    auto exchange = std::make_shared<Exchange>(group, Code{51}, -1, which == 1);
    exchange->outgoing.push_back({1, spans, 1});
    exchange->incoming.push_back({1, which == 1 ? spans : Spans{}, 1});
    return exchange;
}

// Rank 1 is not an engine: it writes random messages into rank 0's ring itself.
void nonsense(uint32_t seed) {
    Ranks ranks(2, true);
    Engine& victim = *ranks.engines[0];
    auto segment = Segment::open(getpid(), std::atoi(getenv("CORRAL_TEST_FD")), segment_label, 0, 0, true);
    Geometry g = Geometry::of(2);
    std::byte* pair = segment->data() + g.header_bytes() + g.pair_bytes();
    auto* slots = reinterpret_cast<Slot*>(pair + sizeof(RingControl));
    std::mt19937_64 random(seed);
    auto* payload = reinterpret_cast<uint64_t*>(pair + sizeof(RingControl) + g.slots * sizeof(Slot));
    for (size_t i = 0; i < g.ring_bytes / 8; ++i) payload[i] = random() >> (random() % 64);
    std::vector<unsigned char> memory(200'000);
    auto receive = make_receive(1, 3, memory.data(), memory.size());
    victim.start(receive);
    auto send = make_send(1, 3, memory.data(), memory.size());
    victim.start(send);
    for (uint32_t i = 0; i < 40; ++i) {
        Slot& s = slots[i % g.slots];
        s.kind = static_cast<uint16_t>(random() % 9);
        s.inline_bytes = static_cast<uint16_t>(random() % 3 ? 0 : random() % 40);
        s.context = random() % 4 ? 7 : random();
        s.match = random() % 2 ? 3 : (random() % 2 ? collective_match(random() % 4, random() % 3) : random());
        uint64_t totals[] = {memory.size(), random() >> (random() % 64), random() % (2 * eager_bytes), 64};
        s.total = totals[random() % 4];
        s.signature = random() % 2 ? 1 : random();
        s.payload = random() % 2 ? static_cast<uint32_t>(random() % g.ring_bytes) : static_cast<uint32_t>(random());
        s.count = random() % 2 ? 0 : static_cast<uint32_t>(random());
        s.request = random() % 4;
        s.stamp.store(i + 1, std::memory_order_release);
        victim.poll(receive);
        if (random() % 4 == 0) {
            auto call = some_call(*ranks.world[0], static_cast<uint32_t>(random() % 4), memory);
            victim.start(call);
            victim.wait(call, second / 1000, {});
        }
    }
    victim.wait(receive, second / 1000, {});
    victim.wait(send, second / 1000, {});
}

}  // namespace

int main() {
    for (uint32_t seed = 0; seed < 200; ++seed) {
        // The first engine of a run takes the lowest free descriptor.
        int probe = dup(0);
        close(probe);
        setenv("CORRAL_TEST_FD", std::to_string(probe).c_str(), 1);
        nonsense(seed);
    }
    std::puts("hostile: passed");
}
