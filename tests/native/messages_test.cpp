// Point to point: sizes on both sides of every threshold, any order, any source, refusals, cancelling.
#include <algorithm>
#include <random>

#include "harness.h"

using namespace corral;
using namespace corral::test;

namespace {

const std::vector<size_t> sizes = {0, 1, 8, 9, 64, 1000, 16384, 16385, 70'000, 98'305, 600'000, 3'000'001};

// All ranks send to all, in random order, before anyone receives.
void exchange(bool direct) {
    Ranks ranks(3, direct);
    ranks.run([](uint32_t me, Engine& engine, Group&) {
        std::mt19937 random(me);
        struct Pending {
            std::shared_ptr<Operation> op;
            std::vector<unsigned char> data, expected;
        };
        std::vector<std::unique_ptr<Pending>> all;
        std::vector<std::pair<int, uint32_t>> plan;
        for (uint32_t peer = 0; peer < 3; ++peer)
            for (uint32_t i = 0; i < sizes.size() && peer != me; ++i) {
                plan.push_back({0, peer * 100 + i});
                plan.push_back({1, peer * 100 + i});
            }
        std::shuffle(plan.begin(), plan.end(), random);
        for (auto [receives, what] : plan) {
            uint32_t peer = what / 100, i = what % 100;
            auto p = std::make_unique<Pending>();
            if (receives) {
                p->data.resize(sizes[i]);
                p->expected = pattern(sizes[i], peer * 1000 + me * 100 + i);
                auto op = make_receive(static_cast<int32_t>(peer), i, p->data.data(), sizes[i]);
                p->op = op;
                engine.start(op);
            } else {
                p->data = pattern(sizes[i], me * 1000 + peer * 100 + i);
                p->expected = p->data;
                auto op = make_send(static_cast<int32_t>(peer), i, p->data.data(), sizes[i]);
                p->op = op;
                engine.start(op);
            }
            all.push_back(std::move(p));
        }
        std::shuffle(all.begin(), all.end(), random);
        for (auto& p : all) {
            CHECK(!engine.wait(p->op, patience, {}));
            CHECK(p->data == p->expected);
        }
        CHECK(engine.flush(patience, {}));
    });
}

// Messages of one source and tag keep their order; any source takes each once.
void order(bool direct) {
    Ranks ranks(3, direct);
    ranks.run([](uint32_t me, Engine& engine, Group&) {
        constexpr int count = 500;
        if (me != 0) {
            for (int i = 0; i < count; ++i) {
                uint64_t value = me * 10'000 + i;
                auto op = make_send(0, 3, &value, sizeof value);
                engine.start(op);
                CHECK(!engine.wait(op, patience, {}));
            }
            return;
        }
        uint64_t next[3] = {0, 10'000, 20'000};
        for (int i = 0; i < 2 * count; ++i) {
            uint64_t value = 0;
            auto op = make_receive(any_source, 3, &value, sizeof value);
            engine.start(op);
            CHECK(!engine.wait(op, patience, {}));
            CHECK(value == next[op->peer]++);
        }
    });
}

// A message of another size or type fails on the receiver, is consumed, and its sender completes.
void refusals(bool direct) {
    Ranks ranks(2, direct);
    ranks.run([](uint32_t me, Engine& engine, Group&) {
        for (size_t bytes : {size_t{8}, size_t{200'000}}) {
            auto data = pattern(bytes, 5);
            std::vector<unsigned char> into(bytes + 8, 0);
            if (me == 0) {
                for (int i = 0; i < 3; ++i) {
                    auto op = make_send(1, 0, data.data(), bytes);
                    engine.start(op);
                    CHECK(!engine.wait(op, patience, {}));
                }
            } else {
                auto big = make_receive(0, 0, into.data(), bytes + 8);
                engine.start(big);
                Failure f = engine.wait(big, patience, {});
                CHECK(f.reason == Reason::wrong_size && f.actual == bytes && f.expected == bytes + 8 && f.rank == 0);
                auto other = make_receive(0, 0, into.data(), bytes, 2);
                engine.start(other);
                CHECK(engine.wait(other, patience, {}).reason == Reason::wrong_type);
                CHECK(std::all_of(into.begin(), into.end(), [](auto b) { return b == 0; }));
                auto right = make_receive(0, 0, into.data(), bytes);
                engine.start(right);
                CHECK(!engine.wait(right, patience, {}));
                CHECK(std::equal(data.begin(), data.end(), into.begin()));
            }
        }
    });
}

// A receive that times out leaves nothing behind: the message goes to the next one.
void timeouts(bool direct) {
    Ranks ranks(2, direct);
    uint64_t value = 0, sent = 42;
    auto early = make_receive(0, 9, &value, sizeof value);
    ranks.engines[1]->start(early);
    CHECK(ranks.engines[1]->wait(early, second / 100, {}).reason == Reason::timeout);
    int asked = 0;
    auto interrupted = make_receive(0, 9, &value, sizeof value);
    ranks.engines[1]->start(interrupted);
    CHECK(ranks.engines[1]->wait(interrupted, patience, [&] { return ++asked == 2; }).reason == Reason::interrupted);
    auto send = make_send(1, 9, &sent, sizeof sent);
    ranks.engines[0]->start(send);
    CHECK(!ranks.engines[0]->wait(send, patience, {}));
    auto late = make_receive(0, 9, &value, sizeof value);
    ranks.engines[1]->start(late);
    CHECK(!ranks.engines[1]->wait(late, patience, {}));
    CHECK(value == 42);
}

// The engine's own thread completes what nobody waits for.
void background(bool direct) {
    Ranks ranks(2, direct);
    auto data = pattern(1'000'000, 1);
    std::vector<unsigned char> into(data.size());
    auto receive = make_receive(0, 0, into.data(), into.size());
    ranks.engines[1]->start(receive);
    ranks.engines[1]->background(receive);
    auto send = make_send(1, 0, data.data(), data.size());
    ranks.engines[0]->start(send);
    ranks.engines[0]->background(send);
    while (!receive->done.load(std::memory_order_acquire) || !send->done.load(std::memory_order_acquire))
        std::this_thread::yield();
    CHECK(!receive->failure && !send->failure && data == into);
}

// A rank that leaves fails those that wait for it, but not the messages that it sent before.
void leaving(bool direct) {
    Ranks ranks(2, direct);
    uint64_t value = 0, sent = 17;
    auto send = make_send(1, 0, &sent, sizeof sent);
    ranks.engines[0]->start(send);
    ranks.engines[0]->leave();
    auto first = make_receive(0, 0, &value, sizeof value);
    ranks.engines[1]->start(first);
    CHECK(!ranks.engines[1]->wait(first, patience, {}) && value == 17);
    auto second_one = make_receive(0, 0, &value, sizeof value);
    ranks.engines[1]->start(second_one);
    Failure f = ranks.engines[1]->wait(second_one, patience, {});
    CHECK(f.reason == Reason::peer_lost && f.rank == 0);
}

// Several threads of one rank use one engine.
void threads(bool direct) {
    Ranks ranks(2, direct);
    ranks.run([](uint32_t me, Engine& engine, Group&) {
        std::vector<std::thread> all;
        for (uint64_t tag = 0; tag < 4; ++tag)
            all.emplace_back([&, tag] {
                for (uint32_t i = 0; i < 50; ++i) {
                    size_t bytes = tag % 2 ? 150'000 : 100;
                    auto data = pattern(bytes, static_cast<uint32_t>(tag) * 100 + i);
                    if (me == 0) {
                        auto op = make_send(1, tag, data.data(), bytes);
                        engine.start(op);
                        CHECK(!engine.wait(op, patience, {}));
                    } else {
                        std::vector<unsigned char> into(bytes);
                        auto op = make_receive(0, tag, into.data(), bytes);
                        engine.start(op);
                        CHECK(!engine.wait(op, patience, {}));
                        CHECK(into == data);
                    }
                }
            });
        for (auto& t : all) t.join();
    });
}

}  // namespace

int main() {
    for (bool direct : {true, false}) {
        exchange(direct);
        order(direct);
        refusals(direct);
        timeouts(direct);
        background(direct);
        leaving(direct);
        threads(direct);
    }
    std::puts("messages: passed");
}
