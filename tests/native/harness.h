// Ranks as threads of one process, so that the thread sanitizer sees both ends of every exchange.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine.h"

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                  \
        }                                                                                  \
    } while (0)

namespace corral::test {

constexpr int64_t second = 1'000'000'000;
constexpr int64_t patience = 120 * second;  // sanitizers are slow

struct Ranks {
    std::vector<std::unique_ptr<Engine>> engines;
    std::vector<Group*> world;

    Ranks(uint32_t n, bool direct) {
        std::vector<std::string> addresses;
        std::vector<uint32_t> members;
        for (uint32_t r = 0; r < n; ++r) {
            engines.push_back(std::make_unique<Engine>(r, n, direct));
            addresses.push_back(engines.back()->address());
            members.push_back(r);
        }
        for (auto& e : engines) {
            e->connect(addresses);
            world.push_back(e->add_group(7, members));
        }
    }
    void run(const std::function<void(uint32_t, Engine&, Group&)>& body) {
        std::vector<std::thread> threads;
        for (uint32_t r = 0; r < engines.size(); ++r) threads.emplace_back([&, r] { body(r, *engines[r], *world[r]); });
        for (auto& t : threads) t.join();
    }
};

inline std::shared_ptr<Send> make_send(int32_t to, uint64_t tag, void* data, size_t bytes, uint64_t type = 1) {
    auto op = std::make_shared<Send>();
    op->code = Code::send;
    op->context = 7;
    op->match = tag;
    op->peer = to;
    op->message.signature = type;
    op->spans.add(data, bytes);
    return op;
}

inline std::shared_ptr<Receive> make_receive(int32_t from, uint64_t tag, void* data, size_t bytes, uint64_t type = 1) {
    auto op = std::make_shared<Receive>();
    op->code = Code::recv;
    op->context = 7;
    op->match = tag;
    op->peer = from;
    op->signature = type;
    op->check_type = true;
    op->spans.add(data, bytes);
    return op;
}

// Every byte of a message differs from its neighbors and from those of other messages.
inline std::vector<unsigned char> pattern(size_t bytes, uint32_t seed) {
    std::vector<unsigned char> out(bytes);
    uint32_t x = seed * 2654435761u + 12345;
    for (auto& b : out) {
        x = x * 1664525u + 1013904223u;
        b = static_cast<unsigned char>(x >> 24);
    }
    return out;
}

}  // namespace corral::test
