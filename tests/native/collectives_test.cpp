// Collectives: values, uneven sizes, verdicts, mismatches and lost ranks, and that a group goes on after each.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "exchange.h"
#include "gather.h"
#include "harness.h"
#include "reduction.h"

using namespace corral;
using namespace corral::test;

namespace {

// Names that a layer above would give.
constexpr Code gather_code{50}, other_code{51};

Failure run(Engine& engine, const std::shared_ptr<Collective>& op) {
    engine.start(op);
    return engine.wait(op, patience, {});
}

std::shared_ptr<Gather> gather_of(Group& group, int32_t root, std::vector<unsigned char>& own,
                                  std::vector<std::vector<unsigned char>>& into, uint64_t type = 1) {
    auto op = std::make_shared<Gather>(group, gather_code, root, false);
    op->own.add(own.data(), own.size());
    op->fingerprint = {type, 0};
    if (static_cast<uint32_t>(root) == group.rank)
        for (auto& memory : into) {
            Spans spans;
            spans.add(memory.data(), memory.size());
            op->into.push_back(spans);
            op->expected.push_back({1, 0});
        }
    return op;
}

bool same(const Exchange::Made& got, const std::vector<unsigned char>& expected) {
    return got.bytes == expected.size() && (got.bytes == 0 || std::memcmp(got.data, expected.data(), got.bytes) == 0);
}

// Every rank's bytes to every rank, this one included, into prepared memory.
template <typename Size>
void exchange_all(Engine& engine, Group& group, Size&& size, uint32_t round) {
    auto n = static_cast<uint32_t>(group.members.size());
    std::vector<std::vector<unsigned char>> from, into;
    auto op = std::make_shared<Exchange>(group, other_code, -1, true);
    for (uint32_t r = 0; r < n; ++r) {
        from.push_back(pattern(size(r), group.rank * 1000 + r * 100 + round));
        into.emplace_back(size(group.rank));
    }
    for (uint32_t r = 0; r < n; ++r) {
        Spans out, in;
        out.add(from[r].data(), from[r].size());
        in.add(into[r].data(), into[r].size());
        op->outgoing.push_back({r, out, 5});
        op->incoming.push_back({r, in, 5});
    }
    CHECK(!run(engine, op));
    for (uint32_t r = 0; r < n; ++r) CHECK(into[r] == pattern(size(group.rank), r * 1000 + group.rank * 100 + round));
}

uint64_t value(uint32_t rank, uint64_t i) { return i * 2654435761u + rank * 40503u; }

// Sums of 64-bit integers, in two runs so that cuts fall into both.
void reduce_all(Engine& engine, Group& group, Reduce::Result where, size_t count) {
    auto n = static_cast<uint32_t>(group.members.size());
    uint32_t root = count % n, me = group.rank;
    bool scattered = where == Reduce::Result::scattered;
    Reduction sum{(1u << 16) | 64, ReduceOp::sum, n, 1.0};
    auto op = std::make_shared<Reduce>(group, other_code,
                                       where == Reduce::Result::root ? static_cast<int32_t>(root) : -1, where);
    std::vector<std::vector<uint64_t>> from(scattered ? n : 1, std::vector<uint64_t>(count));
    for (size_t part = 0; part < from.size(); ++part)
        for (size_t i = 0; i < count; ++i) from[part][i] = value(me, i + part * 7);
    for (auto& part : from) {
        Spans spans;
        spans.add(part.data(), count / 3 * 8);
        spans.add(part.data() + count / 3, (count - count / 3) * 8);
        op->own.push_back(spans);
    }
    std::vector<uint64_t> result(count);
    op->into.add(result.data(), count * 8);
    op->runs = {{sum, count / 2 * 8}, {sum, (count - count / 2) * 8}};
    CHECK(!run(engine, op));
    if (where == Reduce::Result::root && me != root) return;
    for (size_t i = 0; i < count; ++i) {
        uint64_t expected = 0;
        for (uint32_t r = 0; r < n; ++r) expected += value(r, i + (scattered ? me * 7 : 0));
        CHECK(result[i] == expected);
    }
}

void values(uint32_t n, bool direct) {
    Ranks ranks(n, direct);
    ranks.run([n](uint32_t me, Engine& engine, Group& group) {
        for (uint32_t round = 0; round < 12; ++round) {
            auto root = static_cast<int32_t>(round % n);
            CHECK(!run(engine, std::make_shared<Barrier>(group)));
            // Sizes differ from rank to rank and cross the thresholds.
            auto size = [&](uint32_t rank) -> size_t { return (rank * 7919 + round * 104729) % 250'000; };
            auto own = pattern(size(me), me * 100 + round);
            std::vector<std::vector<unsigned char>> into;
            for (uint32_t r = 0; r < n; ++r) into.emplace_back(size(r));
            auto op = gather_of(group, root, own, into);
            CHECK(!run(engine, op));
            CHECK(op->verdict.status == 0);
            if (static_cast<uint32_t>(root) == me)
                for (uint32_t r = 0; r < n; ++r) CHECK(into[r] == pattern(size(r), r * 100 + round));
            auto unknown = std::make_shared<Exchange>(group, other_code, -1, false);
            Spans mine;
            mine.add(own.data(), own.size());
            for (uint32_t r = 0; r < n; ++r)
                if (r != me) {
                    unknown->outgoing.push_back({r, mine, 0});
                    unknown->incoming.push_back({r, {}, 0});
                }
            CHECK(!run(engine, unknown));
            for (uint32_t r = 0; r < n; ++r)
                if (r != me) CHECK(same(unknown->made(r), pattern(size(r), r * 100 + round)));
            exchange_all(engine, group, size, round);
            for (auto where : {Reduce::Result::everywhere, Reduce::Result::root, Reduce::Result::scattered})
                reduce_all(engine, group, where, size(round % n) / 8 + 1);
        }
    });
}

// Nobody leaves a barrier before all have come, in one round of all or in several.
void barriers(uint32_t n) {
    Ranks ranks(n, false);
    std::atomic<uint32_t> came{0};
    ranks.run([&](uint32_t, Engine& engine, Group& group) {
        for (uint32_t round = 1; round <= 20; ++round) {
            came.fetch_add(1);
            CHECK(!run(engine, std::make_shared<Barrier>(group)));
            CHECK(came.load() >= round * n);
        }
    });
}

void verdicts(bool direct) {
    Ranks ranks(3, direct);
    ranks.run([](uint32_t me, Engine& engine, Group& group) {
        for (size_t bytes : {size_t{100}, size_t{300'000}}) {
            std::vector<unsigned char> own(me == 2 ? bytes + 1 : bytes, 3);
            std::vector<std::vector<unsigned char>> into(3, std::vector<unsigned char>(bytes, 9));
            auto wrong = gather_of(group, 0, own, into);
            CHECK(!run(engine, wrong));
            CHECK(wrong->verdict.status == 1 && wrong->verdict.rank == 2);
            CHECK(wrong->verdict.actual == bytes + 1 && wrong->verdict.expected == bytes);
            own.resize(bytes);
            auto types = gather_of(group, 0, own, into, me == 1 ? 5 : 1);
            CHECK(!run(engine, types));
            CHECK(types->verdict.status == 2 && types->verdict.rank == 1);
            for (auto& memory : into)
                for (auto b : memory) CHECK(b == 9);
            auto right = gather_of(group, 0, own, into);
            CHECK(!run(engine, right) && right->verdict.status == 0);
        }
    });
}

void mismatches(bool direct) {
    Ranks ranks(3, direct);
    ranks.run([](uint32_t me, Engine& engine, Group& group) {
        std::vector<unsigned char> own(300'000, 3);
        std::vector<std::vector<unsigned char>> into(3, std::vector<unsigned char>(300'000));
        for (int round = 0; round < 5; ++round) {
            // One rank calls something else; nobody hangs, whoever it is.
            bool odd = static_cast<int>(me) == round % 3;
            Failure f = odd ? run(engine, std::make_shared<Barrier>(group))
                            : run(engine, gather_of(group, (round + 1) % 3, own, into));
            CHECK(f.reason == Reason::mismatch);
            // All wait to be told something: only their logs differ.
            f = run(engine, gather_of(group, static_cast<int32_t>(me), own, into));
            CHECK(f.reason == Reason::mismatch);
            CHECK(!run(engine, std::make_shared<Barrier>(group)));
        }
    });
}

void losses(bool direct) {
    Ranks ranks(3, direct);
    ranks.run([](uint32_t me, Engine& engine, Group& group) {
        CHECK(!run(engine, std::make_shared<Barrier>(group)));
        if (me == 1) return engine.leave();
        std::vector<unsigned char> own(10, 3);
        std::vector<std::vector<unsigned char>> into(3, std::vector<unsigned char>(10));
        for (int round = 0; round < 3; ++round) {
            Failure f =
                round % 2 ? run(engine, std::make_shared<Barrier>(group)) : run(engine, gather_of(group, 0, own, into));
            CHECK(f.reason == Reason::peer_lost && f.rank == 1);
        }
    });
}

void subgroups() {
    Ranks ranks(4, true);
    ranks.run([](uint32_t me, Engine& engine, Group&) {
        std::vector<uint32_t> members = me % 2 ? std::vector<uint32_t>{3, 1} : std::vector<uint32_t>{2, 0};
        Group* group = engine.add_group(100 + me % 2, members);
        CHECK(group && !engine.add_group(100 + me % 2, members));
        for (int i = 0; i < 50; ++i) {
            std::vector<unsigned char> own(1, static_cast<unsigned char>(me));
            std::vector<std::vector<unsigned char>> into(2, std::vector<unsigned char>(1));
            CHECK(!run(engine, gather_of(*group, i % 2, own, into)));
            if (static_cast<uint32_t>(i % 2) == group->rank)
                for (size_t r = 0; r < 2; ++r) CHECK(into[r][0] == members[r]);
        }
    });
}

// Calls that a rank gave up in a group that another makes only later, with other messages between them.
void given_up_before() {
    Ranks ranks(2, true);
    ranks.run([](uint32_t me, Engine& engine, Group& world) {
        std::vector<unsigned char> own(1000, 3), message(100, static_cast<unsigned char>(7));
        std::vector<std::vector<unsigned char>> into(2, std::vector<unsigned char>(1000, 9));
        constexpr int calls = 5;
        Group* group = nullptr;
        if (me == 0) {
            group = engine.add_group(100, {0, 1});
            for (uint64_t i = 0; i < calls; ++i) {
                auto op = gather_of(*group, 1, own, into);
                engine.start(op);
                auto send = make_send(1, i, message.data(), message.size());
                engine.start(send);
                engine.abort_group(*group);
                CHECK(engine.wait(op, patience, {}).reason == Reason::aborted);
                CHECK(!engine.wait(send, patience, {}));
            }
        }
        CHECK(!run(engine, std::make_shared<Barrier>(world)));
        if (me == 1) {
            group = engine.add_group(100, {0, 1});
            for (int i = 0; i < calls; ++i) {
                Failure f = run(engine, gather_of(*group, 1, own, into));
                CHECK(f.reason == Reason::aborted && f.rank == 0);
            }
            for (auto& memory : into)
                for (auto b : memory) CHECK(b == 9);
            for (uint64_t i = 0; i < calls; ++i) {
                std::vector<unsigned char> got(message.size());
                auto receive = make_receive(0, i, got.data(), got.size());
                engine.start(receive);
                CHECK(!engine.wait(receive, patience, {}));
                CHECK(got == message);
            }
        }
        auto op = gather_of(*group, 1, own, into);
        CHECK(!run(engine, op) && op->verdict.status == 0);
        if (me == 1) CHECK(into[0] == own);
    });
}

// Giving up a group ends what is between two ranks as well, of this group alone.
void given_up_between_two() {
    Ranks ranks(2, true);
    ranks.run([](uint32_t me, Engine& engine, Group& world) {
        Group* group = engine.add_group(100, {0, 1});
        std::vector<unsigned char> got(10), other(10), large(1 << 20);
        if (me == 0) {
            auto receive = make_receive(1, 3, got.data(), got.size()),
                 any = make_receive(-1, 4, got.data(), got.size());
            auto send = make_send(1, 5, large.data(), large.size());
            auto of_world = make_receive(1, 3, other.data(), other.size());
            receive->context = any->context = send->context = send->message.context = 100;
            for (auto& op : {receive, any, of_world}) engine.start(op);
            engine.start(send);
            engine.abort_group(*group);
            CHECK(engine.wait(receive, patience, {}).reason == Reason::aborted);
            CHECK(engine.wait(any, patience, {}).reason == Reason::aborted);
            CHECK(engine.wait(send, patience, {}).reason == Reason::aborted);
            CHECK(!engine.wait(of_world, patience, {}));
            CHECK(other == std::vector<unsigned char>(10, 7));
        } else {
            std::vector<unsigned char> message(10, 7);
            auto send = make_send(0, 3, message.data(), message.size());
            engine.start(send);
            CHECK(!engine.wait(send, patience, {}));
        }
        CHECK(!run(engine, std::make_shared<Barrier>(world)));
    });
}

}  // namespace

int main() {
    for (uint32_t n : {1u, 2u, 7u, 17u, 21u}) barriers(n);
    for (bool direct : {true, false}) {
        for (uint32_t n : {1u, 2u, 3u, 5u}) values(n, direct);
        verdicts(direct);
        mismatches(direct);
        losses(direct);
    }
    subgroups();
    given_up_before();
    given_up_between_two();
    std::puts("collectives: passed");
}
