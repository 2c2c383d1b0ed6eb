// Reductions against slow code of another make: every type and operation, any bits, any cut, any alignment.
#include "reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "harness.h"

using namespace corral;
using namespace corral::test;

namespace {

constexpr uint64_t number(uint32_t code, uint32_t bits) { return (code << 16) | bits; }
constexpr uint32_t signed_code = 0, unsigned_code = 1, float_code = 2, bfloat_code = 4, complex_code = 5, bool_code = 6;
constexpr int operations = static_cast<int>(ReduceOp::premul_sum) + 1;

const std::vector<uint64_t> types = {
    number(signed_code, 8),   number(signed_code, 16),   number(signed_code, 32),   number(signed_code, 64),
    number(unsigned_code, 8), number(unsigned_code, 16), number(unsigned_code, 32), number(unsigned_code, 64),
    number(float_code, 16),   number(float_code, 32),    number(float_code, 64),    number(bfloat_code, 16),
    number(complex_code, 64), number(complex_code, 128), number(bool_code, 8),
};

uint32_t code_of(uint64_t type) { return static_cast<uint32_t>(type >> 16); }
uint32_t bits_of(uint64_t type) { return type & 0xffff; }

using Bytes = std::vector<unsigned char>;
std::mt19937_64 source(20260101);

// ---- The reference: one element at a time, in wide types.

struct Format {
    int digits, exponent_bits;  // of the fraction as stored
    int least() const { return 2 - (1 << (exponent_bits - 1)); }
};
constexpr Format half{10, 5}, brain{7, 8};

double decode(Format f, uint16_t bits) {
    int exponent = (bits >> f.digits) & ((1 << f.exponent_bits) - 1), fraction = bits & ((1 << f.digits) - 1);
    double value;
    if (exponent == (1 << f.exponent_bits) - 1)
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = std::ldexp(fraction, f.least() - f.digits);
    else
        value = std::ldexp(fraction + (1 << f.digits), exponent - 1 + f.least() - f.digits);
    return bits >> 15 ? -value : value;
}

// Not for NaN.
uint16_t encode(Format f, double x) {
    uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.digits;
    x = std::fabs(x);
    uint32_t bits = 0;
    if (std::isinf(x)) {
        bits = infinity;
    } else if (x != 0) {
        int exponent = std::max(std::ilogb(x), f.least());
        auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(x, f.digits - exponent)));
        bits = (static_cast<uint32_t>(exponent - f.least()) << f.digits) + steps;
    }
    return static_cast<uint16_t>(sign | std::min(bits, infinity));
}

template <class T>
T load(const unsigned char* at) {
    T x;
    std::memcpy(&x, at, sizeof x);
    return x;
}

template <class T>
T combine(ReduceOp op, T a, T b, double factor) {
    switch (op) {
        case ReduceOp::product:
            return a * b;
        case ReduceOp::min:
            return std::isnan(a) ? a : std::isnan(b) ? b : b <= a ? b : a;
        case ReduceOp::max:
            return std::isnan(a) ? a : std::isnan(b) ? b : b >= a ? b : a;
        case ReduceOp::premul_sum: {
            T scaled = b * static_cast<T>(factor);
            return a + scaled;
        }
        default:
            return a + b;
    }
}

using Contributions = std::vector<const unsigned char*>;  // the same element of every rank

template <class T, class Load>
T reference_float(const Reduction& r, const Contributions& in, Load get) {
    T a = get(in[0]);
    if (r.op == ReduceOp::premul_sum) a = a * static_cast<T>(r.factor);
    for (size_t k = 1; k < in.size(); ++k) a = combine<T>(r.op, a, get(in[k]), r.factor);
    return r.op == ReduceOp::avg ? a / static_cast<T>(r.ranks) : a;
}

template <class T>
void reference_complex_product(const Contributions& in, T* out) {
    T re = load<T>(in[0]), im = load<T>(in[0] + sizeof(T));
    for (size_t k = 1; k < in.size(); ++k) {
        T x = load<T>(in[k]), y = load<T>(in[k] + sizeof(T));
        T first = re * x, second = im * y, third = re * y, fourth = im * x;
        re = first - second;
        im = third + fourth;
    }
    out[0] = re;
    out[1] = im;
}

// As the type itself would: wide enough for any step, whose result is then cut to the type.
__extension__ typedef __int128 Wide;

Wide cut(uint64_t type, Wide x) {
    uint32_t bits = bits_of(type);
    Wide modulus = Wide{1} << bits, rest = x % modulus;
    if (rest < 0) rest += modulus;
    if (code_of(type) == signed_code && rest >= modulus / 2) rest -= modulus;
    return rest;
}

Wide load_integer(uint64_t type, const unsigned char* at) {
    uint64_t bits = 0;
    std::memcpy(&bits, at, bits_of(type) / 8);
    return cut(type, bits);
}

Wide reference_integer(const Reduction& r, const Contributions& in) {
    Wide factor = static_cast<Wide>(r.factor), a = load_integer(r.type, in[0]);
    if (r.op == ReduceOp::premul_sum) a = cut(r.type, a * factor);
    for (size_t k = 1; k < in.size(); ++k) {
        Wide b = load_integer(r.type, in[k]);
        switch (r.op) {
            case ReduceOp::product:
                a = cut(r.type, cut(r.type, a) * cut(number(signed_code, 64), b));
                break;
            case ReduceOp::min:
                a = std::min(a, b);
                break;
            case ReduceOp::max:
                a = std::max(a, b);
                break;
            case ReduceOp::band:
                a &= b;
                break;
            case ReduceOp::bor:
                a |= b;
                break;
            case ReduceOp::bxor:
                a ^= b;
                break;
            case ReduceOp::premul_sum:
                a = cut(r.type, a + cut(r.type, b * factor));
                break;
            default:
                a = cut(r.type, a + b);
        }
    }
    return r.op == ReduceOp::avg ? a / static_cast<Wide>(r.ranks) : a;
}

unsigned char reference_bool(const Reduction& r, const Contributions& in) {
    size_t yes = std::count_if(in.begin(), in.end(), [](auto* at) { return *at != 0; });
    switch (r.op) {
        case ReduceOp::avg:
        case ReduceOp::product:
        case ReduceOp::min:
        case ReduceOp::band:
            return yes == in.size();
        case ReduceOp::bxor:
            return yes % 2;
        case ReduceOp::premul_sum:
            return yes != 0 && r.factor != 0;
        default:
            return yes != 0;
    }
}

template <class T>
bool same(const unsigned char* result, T expected) {
    T x = load<T>(result);
    return std::isnan(expected) ? std::isnan(x) : std::memcmp(&x, &expected, sizeof x) == 0;
}

bool same16(Format f, const unsigned char* result, float expected) {
    auto bits = load<uint16_t>(result);
    return std::isnan(expected) ? std::isnan(decode(f, bits)) : bits == encode(f, expected);
}

template <class T>
bool right_complex(const Reduction& r, Contributions in, const unsigned char* result) {
    if (r.op == ReduceOp::product) {
        T parts[2];
        reference_complex_product<T>(in, parts);
        return same(result, parts[0]) && same(result + sizeof(T), parts[1]);
    }
    T real = reference_float<T>(r, in, load<T>);
    for (auto& at : in) at += sizeof(T);
    return same(result, real) && same(result + sizeof(T), reference_float<T>(r, in, load<T>));
}

bool right(const Reduction& r, const Contributions& in, const unsigned char* result) {
    auto from = [](Format f) {
        return [f](const unsigned char* at) { return static_cast<float>(decode(f, load<uint16_t>(at))); };
    };
    switch (r.type) {
        case number(float_code, 16):
            return same16(half, result, reference_float<float>(r, in, from(half)));
        case number(bfloat_code, 16):
            return same16(brain, result, reference_float<float>(r, in, from(brain)));
        case number(float_code, 32):
            return same(result, reference_float<float>(r, in, load<float>));
        case number(float_code, 64):
            return same(result, reference_float<double>(r, in, load<double>));
        case number(complex_code, 64):
            return right_complex<float>(r, in, result);
        case number(complex_code, 128):
            return right_complex<double>(r, in, result);
        case number(bool_code, 8):
            return *result == reference_bool(r, in);
        default:
            return load_integer(r.type, result) == reference_integer(r, in);
    }
}

// ---- Inputs

// Any bits, of which many would be huge or NaN, and values that meet: small whole numbers, zeros, edges.
Bytes contribution(uint64_t type, size_t n) {
    size_t part = element_bytes(type) / (code_of(type) == complex_code ? 2 : 1);
    Bytes out(n * element_bytes(type));
    for (auto& b : out) b = static_cast<unsigned char>(source());
    bool floats = code_of(type) == float_code || code_of(type) == bfloat_code || code_of(type) == complex_code;
    Format f = code_of(type) == bfloat_code ? brain : half;
    for (size_t at = 0; at < out.size(); at += part) {
        uint64_t roll = source() % 8;
        if (roll < 3) continue;
        if (!floats) {
            if (roll < 5) std::memset(&out[at], roll == 3 ? 0 : source() % 2 ? 0xff : 0x01, part);
            continue;
        }
        constexpr double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 6e-8, 1e-40, 4e-320, 65504, 3e38, 1e308};
        double x = roll == 3 ? special[source() % std::size(special)]
                             : std::ldexp(static_cast<double>(static_cast<int64_t>(source() % 4001) - 2000),
                                          static_cast<int>(source() % 21) - 14);
        float single = static_cast<float>(x);
        uint16_t small = std::isnan(x) ? 0x7fff : encode(f, x);
        const void* bits = part == 2   ? static_cast<const void*>(&small)
                           : part == 4 ? static_cast<const void*>(&single)
                                       : &x;
        std::memcpy(&out[at], bits, part);
    }
    return out;
}

// Memory that starts `shift` bytes past an aligned address.
struct Shifted {
    Bytes memory;
    size_t shift;
    Shifted(size_t bytes, size_t shift) : memory(bytes + shift), shift(shift) {}
    unsigned char* data() { return memory.data() + shift; }
};

// ---- Checks

Bytes reduce(const Reduction& r, const std::vector<Bytes>& in, size_t n, bool pieces, bool in_place) {
    size_t e = element_bytes(r.type), a = accumulator_bytes(r.type);
    CHECK(!in_place || e == a);
    Bytes out(n * e);
    for (size_t from = 0; from < n;) {
        size_t count = pieces ? std::min<size_t>(n - from, 1 + source() % 50) : n;
        auto shift = [&] { return pieces ? source() % 16 : 0; };
        Shifted accumulator(count * a, shift()), result(count * e, shift());
        for (size_t k = 0; k < in.size(); ++k) {
            Shifted input(count * e, shift());
            std::memcpy(input.data(), in[k].data() + from * e, count * e);
            (k == 0 ? reduce_begin : reduce_next)(r, input.data(), accumulator.data(), count);
        }
        reduce_end(r, accumulator.data(), in_place ? accumulator.data() : result.data(), count);
        std::memcpy(out.data() + from * e, in_place ? accumulator.data() : result.data(), count * e);
        from += count;
    }
    return out;
}

void check(const Reduction& r, size_t n) {
    std::vector<Bytes> in;
    for (uint32_t k = 0; k < r.ranks; ++k) in.push_back(contribution(r.type, n));
    Bytes whole = reduce(r, in, n, false, false);
    size_t e = element_bytes(r.type);
    for (size_t i = 0; i < n; ++i) {
        Contributions element;
        for (auto& bytes : in) element.push_back(bytes.data() + i * e);
        if (right(r, element, whole.data() + i * e)) continue;
        std::fprintf(stderr, "type %u:%u, op %u, %u ranks, element %zu of %zu\n", code_of(r.type), bits_of(r.type),
                     static_cast<unsigned>(r.op), r.ranks, i, n);
        CHECK(!"the result is the reference's");
    }
    for (int again = 0; again < 3; ++again) CHECK(reduce(r, in, n, true, false) == whole);
    if (e == accumulator_bytes(r.type))
        for (bool pieces : {false, true}) CHECK(reduce(r, in, n, pieces, true) == whole);
}

void everything() {
    for (uint64_t type : types)
        for (int op = 0; op < operations; ++op)
            for (uint32_t ranks : {1u, 2u, 3u, 7u})
                for (size_t n : {0, 1, 3, 31, 1001}) {
                    constexpr double factors[] = {0.0, 1.0, -3.75, 0.3, 1000.5, -70000.25, 3e9};
                    Reduction r{type, static_cast<ReduceOp>(op), ranks, factors[source() % std::size(factors)]};
                    if (reducible(r)) check(r, n);
                }
    // A divisor that is not a positive number of the type.
    for (uint32_t bits : {8, 16}) check({number(signed_code, bits), ReduceOp::avg, 200}, 101);
}

void meanings() {
    for (uint64_t type : types)
        for (int op = 0; op < operations; ++op) {
            uint32_t code = code_of(type);
            bool bitwise = op >= static_cast<int>(ReduceOp::band) && op <= static_cast<int>(ReduceOp::bxor);
            bool ordering = op == static_cast<int>(ReduceOp::min) || op == static_cast<int>(ReduceOp::max);
            bool floats = code == float_code || code == bfloat_code || code == complex_code;
            bool expected = !(bitwise && floats) && !(ordering && code == complex_code);
            CHECK(reducible({type, static_cast<ReduceOp>(op)}) == expected);
            CHECK(element_bytes(type) == bits_of(type) / 8);
            bool wider = floats && bits_of(type) == 16;
            CHECK(accumulator_bytes(type) == (wider ? 4 : element_bytes(type)));
        }
    std::vector<uint64_t> others = {uint64_t{1} << 63 | number(signed_code, 32), number(float_code, 128),
                                    number(complex_code, 32), number(signed_code, 4), number(3, 64)};
    for (uint32_t code = 7; code < 18; ++code) others.push_back(number(code, 8));  // float8 and smaller
    for (uint64_t type : others) {
        for (int op = 0; op < operations + 3; ++op) CHECK(!reducible({type, static_cast<ReduceOp>(op)}));
        CHECK(element_bytes(type) == 0 && accumulator_bytes(type) == 0);
    }
    for (uint64_t type : types) {
        CHECK(!reducible({type, static_cast<ReduceOp>(operations)}));
        CHECK(!reducible({type, ReduceOp::avg, 0}));
    }
}

// All 16-bit floats come through unchanged but for signaling NaNs; all near a border between two are rounded right.
void conversions() {
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    for (auto [code, f] : {std::pair{float_code, half}, std::pair{bfloat_code, brain}}) {
        Reduction r{number(code, 16)};
        std::vector<float> wide(all.size());
        std::vector<uint16_t> back(all.size());
        reduce_begin(r, all.data(), wide.data(), all.size());
        reduce_end(r, wide.data(), back.data(), all.size());
        std::vector<float> borders;
        for (size_t i = 0; i < all.size(); ++i) {
            double value = decode(f, all[i]);
            if (std::isnan(value)) {
                CHECK(std::isnan(wide[i]) && (back[i] | 1 << (f.digits - 1)) == (all[i] | 1 << (f.digits - 1)));
                continue;
            }
            CHECK(static_cast<double>(wide[i]) == value && std::signbit(wide[i]) == std::signbit(value));
            CHECK(back[i] == all[i]);
            if (std::isinf(value)) continue;
            int exponent = std::max(value == 0 ? f.least() : std::ilogb(value), f.least());
            auto middle = static_cast<float>(value + std::copysign(std::ldexp(1, exponent - f.digits - 1), value));
            for (float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 2 * middle)})
                borders.push_back(x);
        }
        for (int i = 0; i < 200'000; ++i) {
            auto bits = static_cast<uint32_t>(source());
            float x;
            std::memcpy(&x, &bits, sizeof x);
            borders.push_back(x);
        }
        std::vector<uint16_t> rounded(borders.size());
        reduce_end(r, borders.data(), rounded.data(), borders.size());
        for (size_t i = 0; i < borders.size(); ++i)
            CHECK(same16(f, reinterpret_cast<unsigned char*>(&rounded[i]), borders[i]));
    }
}

// What a factor becomes that the type cannot hold: cut to its bits, as every conversion between integers is.
void factors() {
    auto scaled = [](uint64_t type, double factor, uint64_t x) {
        uint64_t out = 0;
        Reduction r{type, ReduceOp::premul_sum, 1, factor};
        reduce_begin(r, &x, &out, 1);
        return out;
    };
    CHECK(scaled(number(unsigned_code, 8), 257.9, 3) == 3);
    CHECK(scaled(number(signed_code, 8), -129.0, 1) == 0x7f);
    CHECK(scaled(number(unsigned_code, 64), 0x1.8p63, 1) == 0xc000000000000000);
    CHECK(scaled(number(signed_code, 64), -0x1p63, 1) == 0x8000000000000000);
    CHECK(scaled(number(signed_code, 64), 0x1p64 + 0x1p13, 1) == 0x2000);
    CHECK(scaled(number(signed_code, 32), INFINITY, 5) == 0 && scaled(number(signed_code, 32), NAN, 5) == 0);
    CHECK(scaled(number(bool_code, 8), 0.5, 9) == 1 && scaled(number(bool_code, 8), 0.0, 9) == 0);
}

// Every NaN that a sum makes has the same bits, whichever operand it came from.
void nans() {
    uint32_t first[37], second[37];
    std::fill_n(first, 37, 0x7fc00123u);
    std::fill_n(second, 37, 0xffc00456u);
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::product}) {
        uint32_t sum[37];
        std::memcpy(sum, first, sizeof sum);
        reduce_next({number(float_code, 32), op}, second, sum, 37);
        for (uint32_t bits : sum) CHECK(bits == 0x7fc00000);
    }
}

}  // namespace

int main() {
    meanings();
    conversions();
    factors();
    nans();
    everything();
    std::puts("reduce: passed");
}
