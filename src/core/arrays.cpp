#include "arrays.h"

#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>

#include "shared.h"

namespace corral {
namespace {

struct Entry {
    std::weak_ptr<Segment> segment;
    size_t bytes;
    pid_t owner;
    int fd;
    uint64_t inode;
};

struct Registry {
    std::mutex mutex;
    std::map<uintptr_t, Entry> by_address;
    // relaxed: only a hint that lets processes without shared arrays skip the lock; a thread that has an
    // array's address has synchronised with its creation anyway.
    std::atomic<size_t> count{0};
};

Registry& registry() {
    static auto* r = new Registry;  // never destroyed: arrays may outlive static destructors
    return *r;
}

std::shared_ptr<Segment> enter(std::unique_ptr<Segment> segment, pid_t owner, int fd) {
    auto& r = registry();
    auto* raw = segment.release();
    std::shared_ptr<Segment> shared(raw, [](Segment* s) {
        auto& r = registry();
        {
            std::lock_guard lock(r.mutex);
            auto at = r.by_address.find(reinterpret_cast<uintptr_t>(s->data()));
            if (at != r.by_address.end()) {
                r.by_address.erase(at);
                r.count.store(r.by_address.size(), std::memory_order_relaxed);
            }
        }
        delete s;
    });
    std::lock_guard lock(r.mutex);
    r.by_address[reinterpret_cast<uintptr_t>(raw->data())] = {shared, raw->size(), owner, fd, raw->inode()};
    r.count.store(r.by_address.size(), std::memory_order_relaxed);
    return shared;
}

}  // namespace

std::shared_ptr<Segment> create_array(size_t bytes) {
    auto segment = Segment::create(array_label, bytes == 0 ? 1 : bytes);
    int fd = segment->fd();
    return enter(std::move(segment), getpid(), fd);
}

std::shared_ptr<Segment> attach_array(pid_t owner, int fd, uint64_t inode) {
    {
        auto& r = registry();
        std::lock_guard lock(r.mutex);
        for (auto& [address, e] : r.by_address)
            if (e.owner == owner && e.fd == fd && e.inode == inode)
                if (auto held = e.segment.lock()) return held;
    }
    return enter(Segment::open(owner, fd, array_label, 1, inode, true), owner, fd);
}

std::optional<SharedPlace> find_array(const void* address, size_t bytes) {
    auto& r = registry();
    if (r.count.load(std::memory_order_relaxed) == 0) return std::nullopt;
    std::lock_guard lock(r.mutex);
    auto a = reinterpret_cast<uintptr_t>(address);
    auto at = r.by_address.upper_bound(a);
    if (at == r.by_address.begin()) return std::nullopt;
    --at;
    if (a + bytes > at->first + at->second.bytes) return std::nullopt;
    return SharedPlace{at->second.owner, at->second.fd, at->second.inode, a - at->first};
}

}  // namespace corral
