#include "reduction.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

namespace corral {
namespace {

// Up to so many bytes received, each rank combines everything itself: one message's time in place of two.
constexpr uint64_t whole_bytes = 16 * 1024;
// Combined at a time: the accumulator and a peer's part of it stay in a core's cache.
constexpr uint64_t block_bytes = 128 * 1024;
constexpr uint64_t work_bytes = 1 << 20;  // without the engine's lock, before it is looked at again
constexpr uint64_t cut_bytes = 64;        // a multiple of every element's size

}  // namespace

Reduce::Reduce(Group& g, Code c, int32_t r, Result where) : Collective(g, c, r), where_(where) {}

bool Reduce::whole() const { return own[0].total() * (size() - 1) <= whole_bytes; }

// Where a rank's part of an evenly divided result begins: between two elements, and the same on every rank.
uint64_t Reduce::cut(uint32_t part) const {
    if (part == size()) return own[0].total();
    uint64_t target = own[0].total() / size() * part, start = 0;
    for (auto& run : runs) {
        if (target < start + run.bytes) return start + (target - start) / cut_bytes * cut_bytes;
        start += run.bytes;
    }
    return start;
}

void Reduce::begin(Engine& engine) {
    uint32_t n = size(), me = group.rank;
    bool divided = where_ == Result::everywhere && !whole();
    uint64_t first = divided ? cut(me) : 0, last = divided ? cut(me + 1) : into.total();
    if (where_ != Result::root || is_root()) {
        mine_ = divided ? own[0].part(first, last - first) : own[where_ == Result::scattered ? me : 0];
        result_ = divided ? into.part(first, last - first) : into;
        uint64_t start = 0;
        for (auto& run : runs) {
            uint64_t from = std::max(start, first), to = std::min(start + run.bytes, last);
            if (from < to) todo_.push_back({run.reduction, to - from});
            start += run.bytes;
        }
        sources_.resize(n);
        for (uint32_t r = 0; r < n; ++r)
            if (r != me) sources_[r].receive = receive_held(engine, r, 0);
    }
    if (divided)
        for (uint32_t r = 0; r < n; ++r)
            if (r != me) receive(engine, r, 1, into.part(cut(r), cut(r + 1) - cut(r)));
    // Each rank's factor is its own.
    Fingerprint factor{std::bit_cast<uint64_t>(own_factor), 1};
    for (uint32_t r = 0; r < n; ++r) {
        if (r == me || (where_ == Result::root && static_cast<uint32_t>(root) != r)) continue;
        bool parts = where_ == Result::scattered || !divided;
        send(engine, r, 0, parts ? own[where_ == Result::scattered ? r : 0] : own[0].part(cut(r), cut(r + 1) - cut(r)),
             own_factor == 1.0 ? nullptr : &factor);
    }
    step(engine);
}

bool Reduce::all_sent() const {
    return std::all_of(sends.begin(), sends.end(), [](auto& s) { return s->done.load(std::memory_order_relaxed); });
}

// Where the others' contributions can be read. False while some are on their way.
bool Reduce::open_sources(Engine& engine) {
    for (auto& s : sources_)
        if (s.receive && !s.receive->arrived) return false;
    if (!opened_) {
        opened_ = true;
        for (auto& s : sources_) {
            if (!s.receive) continue;
            const Message& m = s.receive->arrival.message;
            const Fingerprint& factor = s.receive->arrival.prefix;
            if (factor.high == 1) s.factor = std::bit_cast<double>(factor.low);
            if (m.total != result_.total()) {
                Failure why{Reason::wrong_size, s.receive->peer, m.total, result_.total()};
                refuse(engine, s.receive);
                s.receive->failure = why;  // and so the collective's
                continue;
            }
            if (m.kind == Kind::eager) {
                s.bytes = s.receive->arrival.bytes.data() + s.receive->arrival.bytes.size() - m.total;
            } else if (borrow(engine, s.receive, s.remote)) {
                s.borrowed = true;
            } else {
                s.streamed.reset(new (std::nothrow) std::byte[m.total]);
                if (!s.streamed) {
                    refuse(engine, s.receive);
                    s.receive->failure = {Reason::system, s.receive->peer, ENOMEM};
                    continue;
                }
                s.receive->spans.add(s.streamed.get(), m.total);
                s.bytes = s.streamed.get();
                take(engine, s.receive);
            }
        }
        if (result_.total() != 0) {
            uint64_t room = std::min(block_bytes, result_.total());
            memory_.reset(new std::byte[room * 3]);  // an accumulator, of 32 bits for 16-bit floats; and a block
            accumulator_ = memory_.get();
            scratch_ = accumulator_ + room * 2;
        }
    }
    for (auto& s : sources_)
        if (s.streamed && !s.receive->done.load(std::memory_order_relaxed)) return false;
    return true;
}

const std::byte* Reduce::contribution(uint32_t rank, uint64_t bytes) {
    if (rank == group.rank) {
        if (const std::byte* here = mine_.contiguous(offset_, bytes)) return here;
        mine_.read(offset_, scratch_, bytes);
        return scratch_;
    }
    Source& s = sources_[rank];
    if (s.bytes) return s.bytes + offset_;
    if (const std::byte* here = s.remote.mapped(offset_, bytes)) return here;
    Spans to;
    to.add(scratch_, bytes);
    error_ = s.remote.copy(to, 0, offset_, bytes, true);
    failed_ = rank;
    return scratch_;
}

void Reduce::combine(const Reduction& reduction, uint64_t bytes) {
    size_t n = bytes / element_bytes(reduction.type);
    for (uint32_t r = 0; r < size(); ++r) {
        const std::byte* in = contribution(r, bytes);
        if (error_ != 0) return;
        Reduction mine = reduction;
        mine.factor = r == group.rank ? own_factor : sources_[r].factor;
        (r == 0 ? reduce_begin : reduce_next)(mine, in, accumulator_, n);
    }
    if (std::byte* out = result_.contiguous(offset_, bytes)) {
        reduce_end(reduction, accumulator_, out, n);
    } else {
        reduce_end(reduction, accumulator_, scratch_, n);
        result_.write(offset_, scratch_, bytes);
    }
    offset_ += bytes;
}

void Reduce::work() {
    uint64_t end = offset_ + work_bytes;
    while (has_work() && offset_ < end) {
        const Run& run = todo_[run_];
        uint64_t bytes = std::min(block_bytes, run.bytes - run_offset_);
        combine(run.reduction, bytes);
        run_offset_ += bytes;
        if (run_offset_ == run.bytes) {
            ++run_;
            run_offset_ = 0;
        }
    }
}

// This rank's part is done: its contributors may go, and everyone gets it.
void Reduce::deal_out(Engine& engine) {
    combined_ = true;
    for (auto& s : sources_) {
        if (!s.receive || s.receive->done.load(std::memory_order_relaxed)) continue;
        if (s.borrowed)
            give_back(engine, s.receive, 0);
        else
            refuse(engine, s.receive);  // its bytes have been used
    }
    if (where_ != Result::everywhere || whole()) return;
    for (uint32_t r = 0; r < size(); ++r)
        if (r != group.rank) send(engine, r, 1, result_);
}

void Reduce::step(Engine& engine) {
    if (done.load(std::memory_order_relaxed) || working.load(std::memory_order_relaxed)) return;
    if (error_ != 0) return give_back(engine, sources_[failed_].receive, error_);
    if (!ready_ && !sources_.empty()) {
        if (!open_sources(engine) || problem()) return;
        // The result may lie where the contribution does, which all others are to read first.
        if (where_ == Result::everywhere && whole() && !all_sent()) return;
        ready_ = true;
        // Sooner done than handed over.
        while (has_work() && result_.total() <= whole_bytes) work();
        if (error_ != 0) return give_back(engine, sources_[failed_].receive, error_);
    }
    if (has_work()) return;
    if (!sources_.empty() && !combined_) deal_out(engine);
    // What failed is for the engine, which tells the others.
    if (all_done() && !problem()) finish(engine);
}

}  // namespace corral
