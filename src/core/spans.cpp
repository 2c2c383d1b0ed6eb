#include "spans.h"

#include <algorithm>
#include <cstring>

namespace corral {

size_t Spans::find(uint64_t offset, uint64_t& within) const {
    const Run* runs = data();
    size_t i = 0;
    if (offset != 0)
        i = static_cast<size_t>(
            std::upper_bound(runs, runs + count_, offset, [](uint64_t at, const Run& run) { return at < run.end; }) -
            runs);
    within = offset - (i == 0 ? 0 : runs[i - 1].end);
    return i;
}

void Spans::read(uint64_t offset, void* to, size_t bytes) const {
    uint64_t within;
    const Run* runs = data();
    auto* out = static_cast<std::byte*>(to);
    for (size_t i = find(offset, within); bytes != 0; ++i, within = 0) {
        size_t n = std::min<uint64_t>(bytes, runs[i].bytes - within);
        std::memcpy(out, runs[i].data + within, n);
        out += n;
        bytes -= n;
    }
}

void Spans::write(uint64_t offset, const void* from, size_t bytes) const {
    uint64_t within;
    const Run* runs = data();
    auto* in = static_cast<const std::byte*>(from);
    for (size_t i = find(offset, within); bytes != 0; ++i, within = 0) {
        size_t n = std::min<uint64_t>(bytes, runs[i].bytes - within);
        if (in != runs[i].data + within) std::memcpy(runs[i].data + within, in, n);  // an array may be sent to itself
        in += n;
        bytes -= n;
    }
}

std::vector<iovec> Spans::slice(uint64_t offset, uint64_t bytes) const {
    std::vector<iovec> out;
    uint64_t within;
    const Run* runs = data();
    for (size_t i = find(offset, within); bytes != 0; ++i, within = 0) {
        size_t n = std::min<uint64_t>(bytes, runs[i].bytes - within);
        out.push_back({runs[i].data + within, n});
        bytes -= n;
    }
    return out;
}

Spans Spans::part(uint64_t offset, uint64_t bytes) const {
    Spans out;
    if (bytes != 0)
        for (auto& run : slice(offset, bytes)) out.add(run.iov_base, run.iov_len);
    return out;
}

std::byte* Spans::contiguous(uint64_t offset, uint64_t bytes) const {
    uint64_t within;
    const Run* runs = data();
    size_t i = find(offset, within);
    return bytes <= runs[i].bytes - within ? runs[i].data + within : nullptr;
}

}  // namespace corral
