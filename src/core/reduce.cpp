#include "reduce.h"

#include <cmath>
#include <cstring>

#include "reduce_elements.h"

namespace corral {
namespace {

using namespace reduce;

// Loops are compiled twice where the instructions that every processor has are narrower than most processors'.
#if defined(__x86_64__) && !defined(__AVX2__)
#define CORRAL_WIDE __attribute__((target("avx2")))
const bool wide = __builtin_cpu_supports("avx2");
#else
#define CORRAL_WIDE
constexpr bool wide = false;
#endif

template <class From, class To, class F>
CORRAL_INLINE void map_loop(const void* from, void* to, size_t n, F f) {
    auto* __restrict in = static_cast<const Loose<From>*>(from);
    auto* __restrict out = static_cast<Loose<To>*>(to);
    for (size_t i = 0; i < n; ++i) out[i].value = f(in[i].value);
}

template <class T, class F>
CORRAL_INLINE void update_loop(void* data, size_t n, F f) {
    auto* at = static_cast<Loose<T>*>(data);
    for (size_t i = 0; i < n; ++i) at[i].value = f(at[i].value);
}

template <class Element, class F>
CORRAL_INLINE void fold_loop(const void* from, void* accumulator, size_t n, F f) {
    auto* __restrict in = static_cast<const Loose<typename Element::Stored>*>(from);
    auto* __restrict sum = static_cast<Loose<typename Element::Computed>*>(accumulator);
    for (size_t i = 0; i < n; ++i) sum[i].value = f(sum[i].value, Element::widen(in[i].value));
}

template <class From, class To, class F>
CORRAL_WIDE void map_wide(const void* from, void* to, size_t n, F f) {
    map_loop<From, To>(from, to, n, f);
}

template <class T, class F>
CORRAL_WIDE void update_wide(void* data, size_t n, F f) {
    update_loop<T>(data, n, f);
}

template <class Element, class F>
CORRAL_WIDE void fold_wide(const void* from, void* accumulator, size_t n, F f) {
    fold_loop<Element>(from, accumulator, n, f);
}

template <class From, class To, class F>
void map(const void* from, void* to, size_t n, F f) {
    if constexpr (std::is_same_v<From, To>)
        if (from == to) return wide ? update_wide<To>(to, n, f) : update_loop<To>(to, n, f);
    wide ? map_wide<From, To>(from, to, n, f) : map_loop<From, To>(from, to, n, f);
}

template <class Element, class F>
void fold(const void* from, void* accumulator, size_t n, F f) {
    wide ? fold_wide<Element>(from, accumulator, n, f) : fold_loop<Element>(from, accumulator, n, f);
}

// Widening, or narrowing, around what is to be done with a single value.
template <class Element, class F>
struct Begin {
    F f;
    CORRAL_INLINE auto operator()(typename Element::Stored x) const { return f(Element::widen(x)); }
};

template <class Element, class F>
struct End {
    F f;
    CORRAL_INLINE auto operator()(typename Element::Computed x) const { return Element::narrow(f(x)); }
};

constexpr uint64_t number(uint32_t code, uint32_t bits) { return (code << 16) | bits; }

// Call `f` with the kind of element that `type` is. Returns false for types that nothing can reduce.
template <class F>
bool with_element(uint64_t type, F&& f) {
    switch (type) {
        case number(0, 8):
            f(Plain<int8_t>());
            return true;
        case number(0, 16):
            f(Plain<int16_t>());
            return true;
        case number(0, 32):
            f(Plain<int32_t>());
            return true;
        case number(0, 64):
            f(Plain<int64_t>());
            return true;
        case number(1, 8):
            f(Plain<uint8_t>());
            return true;
        case number(1, 16):
            f(Plain<uint16_t>());
            return true;
        case number(1, 32):
            f(Plain<uint32_t>());
            return true;
        case number(1, 64):
            f(Plain<uint64_t>());
            return true;
        case number(2, 16):
            f(Float16());
            return true;
        case number(2, 32):
            f(Plain<float>());
            return true;
        case number(2, 64):
            f(Plain<double>());
            return true;
        case number(4, 16):
            f(BFloat16());
            return true;
        case number(5, 64):
            f(Plain<Complex<float>>());
            return true;
        case number(5, 128):
            f(Plain<Complex<double>>());
            return true;
        case number(6, 8):
            f(Truth());
            return true;
        default:
            return false;
    }
}

template <class Element>
constexpr bool is_truth = std::is_same_v<Element, Truth>;
template <class Element>
constexpr bool is_complex = std::is_class_v<typename Element::Computed>;
template <class Element>
constexpr bool is_bits = std::is_integral_v<typename Element::Computed>;

// Wraps around as conversions between integers do, where the language leaves it open; what is not finite counts as 0.
uint64_t truncated(double x) {
    if (!std::isfinite(x)) return 0;
    double rest = std::fmod(std::trunc(std::fabs(x)), 0x1p64);
    auto bits = static_cast<uint64_t>(rest);
    return x < 0 ? -bits : bits;
}

template <class T>
T converted(double factor) {
    if constexpr (std::is_integral_v<T>)
        return static_cast<T>(truncated(factor));
    else
        return static_cast<T>(factor);
}

template <class Element>
void begin(const Reduction& r, const void* in, void* accumulator, size_t n) {
    using Stored = typename Element::Stored;
    using Computed = typename Element::Computed;
    if constexpr (is_complex<Element>) {
        begin<Plain<typename Computed::Part>>(r, in, accumulator, 2 * n);
    } else if constexpr (is_truth<Element>) {
        if (r.op == ReduceOp::premul_sum && r.factor == 0)
            std::memset(accumulator, 0, n);
        else
            map<Stored, Computed>(in, accumulator, n, Begin<Element, Same<Computed>>());
    } else if (r.op == ReduceOp::premul_sum) {
        map<Stored, Computed>(in, accumulator, n, Begin<Element, Scaled<Computed>>{{converted<Computed>(r.factor)}});
    } else if constexpr (std::is_same_v<Stored, Computed>) {
        std::memcpy(accumulator, in, n * sizeof(Stored));
    } else {
        map<Stored, Computed>(in, accumulator, n, Begin<Element, Same<Computed>>());
    }
}

void next_truth(const Reduction& r, const void* in, void* accumulator, size_t n) {
    switch (r.op) {
        case ReduceOp::premul_sum:
            if (r.factor == 0) return;
            [[fallthrough]];
        case ReduceOp::sum:
        case ReduceOp::max:
        case ReduceOp::bor:
            return fold<Truth>(in, accumulator, n, Or());
        case ReduceOp::avg:
        case ReduceOp::product:
        case ReduceOp::min:
        case ReduceOp::band:
            return fold<Truth>(in, accumulator, n, And());
        case ReduceOp::bxor:
            return fold<Truth>(in, accumulator, n, Xor());
    }
}

template <class Element>
void next(const Reduction& r, const void* in, void* accumulator, size_t n) {
    using Computed = typename Element::Computed;
    if constexpr (is_truth<Element>) {
        next_truth(r, in, accumulator, n);
    } else if constexpr (is_complex<Element>) {
        if (r.op == ReduceOp::product)
            fold<Element>(in, accumulator, n, Product());
        else
            next<Plain<typename Computed::Part>>(r, in, accumulator, 2 * n);
    } else {
        switch (r.op) {
            case ReduceOp::sum:
            case ReduceOp::avg:
                return fold<Element>(in, accumulator, n, Sum());
            case ReduceOp::product:
                return fold<Element>(in, accumulator, n, Product());
            case ReduceOp::min:
                return fold<Element>(in, accumulator, n, Min());
            case ReduceOp::max:
                return fold<Element>(in, accumulator, n, Max());
            case ReduceOp::premul_sum:
                return fold<Element>(in, accumulator, n, ScaledSum<Computed>{converted<Computed>(r.factor)});
            default:
                break;
        }
        if constexpr (is_bits<Element>) {
            if (r.op == ReduceOp::band) fold<Element>(in, accumulator, n, And());
            if (r.op == ReduceOp::bor) fold<Element>(in, accumulator, n, Or());
            if (r.op == ReduceOp::bxor) fold<Element>(in, accumulator, n, Xor());
        }
    }
}

template <class Element>
void end(const Reduction& r, const void* accumulator, void* out, size_t n) {
    using Stored = typename Element::Stored;
    using Computed = typename Element::Computed;
    if constexpr (is_complex<Element>) {
        end<Plain<typename Computed::Part>>(r, accumulator, out, 2 * n);
    } else if (r.op == ReduceOp::avg && !is_truth<Element>) {
        map<Computed, Stored>(accumulator, out, n, End<Element, Divided<Computed>>{{r.ranks}});
    } else if constexpr (std::is_same_v<Stored, Computed>) {
        if (out != accumulator) std::memcpy(out, accumulator, n * sizeof(Stored));
    } else {
        map<Computed, Stored>(accumulator, out, n, End<Element, Same<Computed>>());
    }
}

}  // namespace

bool reducible(const Reduction& r) {
    bool result = false;
    with_element(r.type, [&]<class Element>(Element) {
        switch (r.op) {
            case ReduceOp::sum:
            case ReduceOp::product:
            case ReduceOp::premul_sum:
                result = true;
                break;
            case ReduceOp::avg:
                result = r.ranks != 0;
                break;
            case ReduceOp::min:
            case ReduceOp::max:
                result = !is_complex<Element>;
                break;
            case ReduceOp::band:
            case ReduceOp::bor:
            case ReduceOp::bxor:
                result = is_bits<Element>;
                break;
        }
    });
    return result;
}

size_t element_bytes(uint64_t type) {
    size_t bytes = 0;
    with_element(type, [&]<class Element>(Element) { bytes = sizeof(typename Element::Stored); });
    return bytes;
}

size_t accumulator_bytes(uint64_t type) {
    size_t bytes = 0;
    with_element(type, [&]<class Element>(Element) { bytes = sizeof(typename Element::Computed); });
    return bytes;
}

void reduce_begin(const Reduction& r, const void* in, void* accumulator, size_t n) {
    if (n != 0) with_element(r.type, [&]<class Element>(Element) { begin<Element>(r, in, accumulator, n); });
}

void reduce_next(const Reduction& r, const void* in, void* accumulator, size_t n) {
    if (n != 0) with_element(r.type, [&]<class Element>(Element) { next<Element>(r, in, accumulator, n); });
}

void reduce_end(const Reduction& r, const void* accumulator, void* out, size_t n) {
    if (n != 0) with_element(r.type, [&]<class Element>(Element) { end<Element>(r, accumulator, out, n); });
}

}  // namespace corral
