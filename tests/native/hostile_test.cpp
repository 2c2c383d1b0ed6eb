// A peer that writes nonsense into the segment: errors, never a crash. Run it under the address sanitizer.
#include <random>

#include "harness.h"

using namespace corral;
using namespace corral::test;

namespace {

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
        s.total = random() % 2 ? memory.size() : random() >> (random() % 64);
        s.signature = random() % 2 ? 1 : random();
        s.payload = random() % 2 ? static_cast<uint32_t>(random() % g.ring_bytes) : static_cast<uint32_t>(random());
        s.count = random() % 2 ? 0 : static_cast<uint32_t>(random());
        s.request = random() % 4;
        s.stamp.store(i + 1, std::memory_order_release);
        victim.poll(receive);
        if (random() % 4 == 0) {
            auto barrier = std::make_shared<Barrier>(*ranks.world[0]);
            victim.start(std::static_pointer_cast<Collective>(barrier));
            victim.wait(barrier, second / 1000, {});
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
