#include "transfer.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>

namespace corral {
namespace {

constexpr size_t max_runs_per_call = 1024;  // the kernel's UIO_MAXIOV

// Move all of two equally long lists of runs; the kernel may stop short at any run's end.
int move_runs(pid_t pid, std::vector<iovec>& local, std::vector<iovec>& remote, bool from_peer) {
    size_t l = 0, r = 0;
    auto skip = [](std::vector<iovec>& runs, size_t& i, size_t n) {
        while (n != 0) {
            size_t step = std::min(n, runs[i].iov_len);
            runs[i].iov_base = static_cast<std::byte*>(runs[i].iov_base) + step;
            runs[i].iov_len -= step;
            n -= step;
            if (runs[i].iov_len == 0) ++i;
        }
    };
    while (r < remote.size()) {
        size_t ln = std::min(local.size() - l, max_runs_per_call), rn = std::min(remote.size() - r, max_runs_per_call);
        ssize_t n = from_peer ? process_vm_readv(pid, &local[l], ln, &remote[r], rn, 0)
                              : process_vm_writev(pid, &local[l], ln, &remote[r], rn, 0);
        if (n <= 0) {
            if (n < 0 && errno == EINTR) continue;
            return n < 0 ? errno : EFAULT;
        }
        skip(local, l, static_cast<size_t>(n));
        skip(remote, r, static_cast<size_t>(n));
    }
    return 0;
}

}  // namespace

std::vector<RemoteRun> describe_runs(const Spans& spans) {
    std::vector<RemoteRun> out;
    out.reserve(spans.count());
    for (auto& run : spans.runs()) {
        if (auto at = find_array(run.data, run.bytes))
            out.push_back({at->offset, run.bytes, at->inode, at->owner, at->fd});
        else
            out.push_back({reinterpret_cast<uint64_t>(run.data), run.bytes, 0, 0, -1});
    }
    return out;
}

bool RemoteSpans::set(pid_t pid, std::vector<RemoteRun> runs, uint64_t total) {
    pid_ = pid;
    uint64_t sum = 0;
    for (auto& run : runs) {
        if (run.bytes == 0 || run.bytes > total - sum) return false;
        sum += run.bytes;
        std::byte* mapped = nullptr;
        uint64_t place = run.place;
        if (run.fd >= 0) {
            std::shared_ptr<Segment> segment;
            try {
                segment = attach_array(run.owner, run.fd, run.inode);
            } catch (const std::exception&) {
                return false;
            }
            if (run.place > segment->size() || run.bytes > segment->size() - run.place) return false;
            mapped = segment->data() + run.place;
            if (held_.empty() || held_.back() != segment) held_.push_back(std::move(segment));
        }
        runs_.push_back({place, run.bytes, mapped});
        ends_.push_back(sum);
    }
    return sum == total;
}

int RemoteSpans::copy(const Spans& local, uint64_t local_offset, uint64_t offset, uint64_t bytes,
                      bool from_peer) const {
    size_t i = std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin();
    uint64_t within = offset - (i == 0 ? 0 : ends_[i - 1]);
    uint64_t end = offset + bytes;
    const uint64_t shift = local_offset - offset;  // wraps around where it is negative
    while (offset < end) {
        if (runs_[i].mapped) {
            uint64_t n = std::min(end - offset, runs_[i].bytes - within);
            std::byte* there = runs_[i].mapped + within;
            uint64_t done = 0;
            for (auto& run : local.slice(offset + shift, n)) {
                // The same memory mapped at both ends, as when a worker fills its row itself: nothing to move.
                if (run.iov_base != there + done) {
                    if (from_peer)
                        std::memmove(run.iov_base, there + done, run.iov_len);
                    else
                        std::memmove(there + done, run.iov_base, run.iov_len);
                }
                done += run.iov_len;
            }
            offset += n;
            within = 0;
            ++i;
            continue;
        }
        std::vector<iovec> remote;
        uint64_t start = offset;
        for (; offset < end && !runs_[i].mapped; within = 0) {
            uint64_t n = std::min(end - offset, runs_[i].bytes - within);
            remote.push_back({reinterpret_cast<void*>(runs_[i].place + within), n});
            offset += n;
            if (within + n == runs_[i].bytes) ++i;
            if (i == runs_.size()) break;
        }
        auto here = local.slice(start + shift, offset - start);
        if (int error = move_runs(pid_, here, remote, from_peer)) return error;
    }
    return 0;
}

const std::byte* RemoteSpans::mapped(uint64_t offset, uint64_t bytes) const {
    size_t i = std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin();
    uint64_t within = offset - (i == 0 ? 0 : ends_[i - 1]);
    if (!runs_[i].mapped || bytes > runs_[i].bytes - within) return nullptr;
    return runs_[i].mapped + within;
}

int read_process(pid_t pid, uint64_t address, void* to, size_t bytes) {
    std::vector<iovec> local{{to, bytes}}, remote{{reinterpret_cast<void*>(address), bytes}};
    return move_runs(pid, local, remote, true);
}

void copy_spans(const Spans& from, const Spans& to) { copy_spans(from, to, 0, from.total()); }

void copy_spans(const Spans& from, const Spans& to, uint64_t offset, uint64_t bytes) {
    if (bytes == 0) return;
    for (auto& run : from.slice(offset, bytes)) {
        to.write(offset, run.iov_base, run.iov_len);
        offset += run.iov_len;
    }
}

}  // namespace corral
