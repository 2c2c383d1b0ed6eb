// What a message brought, as a Python object.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace corral {

// Memory that belongs to one Python object, as an exporter of the buffer protocol.
struct Received {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes;
};

// Memory to fill. Much of it comes in huge pages where the system has them: fresh small ones take longer to come than
// to be filled.
inline std::unique_ptr<std::byte[]> fresh(size_t bytes) {
    constexpr uintptr_t huge = 2 << 20;
    std::unique_ptr<std::byte[]> memory(new std::byte[bytes]);
    auto begin = reinterpret_cast<uintptr_t>(memory.get());
    auto first = (begin + huge - 1) / huge * huge, last = (begin + bytes) / huge * huge;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
    return memory;
}

// From here on a memory view of the memory itself costs less than a copy as bytes.
constexpr size_t viewed_from = 64 * 1024;

inline nanobind::object received(std::unique_ptr<std::byte[]> memory, size_t bytes) {
    if (bytes < viewed_from) return nanobind::bytes(reinterpret_cast<const char*>(memory.get()), bytes);
    auto owner = nanobind::cast(Received{std::move(memory), bytes});
    return nanobind::steal(PyMemoryView_FromObject(owner.ptr()));
}

}  // namespace corral
