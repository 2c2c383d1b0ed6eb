// Elements of reductions: how a type is stored, and in what it is computed. Everything compiles to vector code.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#define CORRAL_INLINE [[gnu::always_inline]] inline

namespace corral::reduce {

// Memory that need not be aligned for its type, nor have been written as that type.
template <class T>
struct [[gnu::packed, gnu::may_alias]] Loose {
    T value;
};

// The compiler would make a branch of `?:` around arithmetic on floats, and then no vector code.
template <class Bits>
CORRAL_INLINE Bits choose(bool condition, Bits yes, Bits no) {
    Bits mask = -Bits{condition};
    return (yes & mask) | (no & ~mask);
}

template <class T>
struct Plain {
    using Stored = T;
    using Computed = T;
    CORRAL_INLINE static T widen(T x) { return x; }
    CORRAL_INLINE static T narrow(T x) { return x; }
};

// Any byte but 0 is true; results are 0 or 1.
struct Truth {
    using Stored = uint8_t;
    using Computed = uint8_t;
    CORRAL_INLINE static uint8_t widen(uint8_t x) { return x != 0; }
    CORRAL_INLINE static uint8_t narrow(uint8_t x) { return x; }
};

struct BFloat16 {
    using Stored = uint16_t;
    using Computed = float;
    CORRAL_INLINE static float widen(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }
    CORRAL_INLINE static uint16_t narrow(float x) {
        uint32_t bits = std::bit_cast<uint32_t>(x);
        uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);  // half to even; a carry moves on to the exponent
        uint32_t nan = bits | 0x400000;                         // stays one though its low bits go
        return static_cast<uint16_t>(((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded) >> 16);
    }
};

// Arithmetic on bits, except where every processor converts vectors and compilers know the type. On x86 it beats the
// calls that compilers make without F16C, and with it the conversions that GCC does one by one.
struct Float16 {
    using Stored = uint16_t;
    using Computed = float;
#if defined(__aarch64__) && (defined(__clang__) || __GNUC__ >= 13)
    CORRAL_INLINE static float widen(uint16_t x) { return std::bit_cast<_Float16>(x); }
    CORRAL_INLINE static uint16_t narrow(float x) { return std::bit_cast<uint16_t>(static_cast<_Float16>(x)); }
#else
    CORRAL_INLINE static float widen(uint16_t x) {
        uint32_t magnitude = uint32_t{x & 0x7fffu} << 13, exponent = magnitude & 0x0f800000;
        uint32_t normal = magnitude + (112u << 23);   // from a bias of 15 to one of 127
        uint32_t special = magnitude | 0x7f800000;    // infinity and NaN
        special |= uint32_t{(x & 0x3ff) != 0} << 22;  // which is quiet from here on
        // A subnormal's bits behind the leading one of 2^-14, which goes again. No float here is subnormal itself.
        float small = std::bit_cast<float>(magnitude + (113u << 23)) - std::bit_cast<float>(113u << 23);
        uint32_t bits = choose(exponent == 0, std::bit_cast<uint32_t>(small), normal);
        bits = choose(exponent == 0x0f800000, special, bits);
        return std::bit_cast<float>(bits | uint32_t{x & 0x8000u} << 16);
    }
    CORRAL_INLINE static uint16_t narrow(float x) {
        uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffff;
        uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;  // may carry to infinity
        // Next to 0.5 a float's last bit is worth the smallest half: the addition rounds.
        uint32_t small =
            std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
        uint32_t special = magnitude > 0x7f800000 ? 0x7e00 | ((magnitude >> 13) & 0x3ff) : 0x7c00;
        uint32_t half = choose(magnitude < (113u << 23), small, normal);
        half = choose(magnitude >= (143u << 23), special, half);
        return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000));
    }
#endif
};

template <class T>
struct Complex {
    using Part = T;
    T real, imaginary;
};

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

// Which of two NaNs an addition returns is up to the compiler's order of operands, and their sign to the processor.
template <class T>
CORRAL_INLINE T settled(T x) {
    if constexpr (std::is_floating_point_v<T>)
        return std::bit_cast<T>(
            choose(x == x, std::bit_cast<BitsOf<T>>(x), std::bit_cast<BitsOf<T>>(std::numeric_limits<T>::quiet_NaN())));
    else
        return x;
}

// Unsigned, and wide enough that C++ does not compute in a signed int.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) < sizeof(unsigned), unsigned, std::make_unsigned_t<T>>;

struct Sum {
    template <class T>
    CORRAL_INLINE T operator()(T a, T b) const {
        if constexpr (std::is_floating_point_v<T>)
            return settled(a + b);
        else
            return static_cast<T>(Wrapping<T>(a) + Wrapping<T>(b));
    }
};

struct Product {
    template <class T>
    CORRAL_INLINE T operator()(T a, T b) const {
        if constexpr (std::is_floating_point_v<T>)
            return settled(a * b);
        else
            return static_cast<T>(Wrapping<T>(a) * Wrapping<T>(b));
    }
    template <class T>
    CORRAL_INLINE Complex<T> operator()(Complex<T> a, Complex<T> b) const {
        // GCC fuses what it multiplies and then alternately adds and subtracts, even where told not to: not these.
        T first = (*this)(a.real, b.real), second = (*this)(a.imaginary, b.imaginary);
        T third = (*this)(a.real, b.imaginary), fourth = (*this)(a.imaginary, b.real);
        return {settled(first - second), settled(third + fourth)};
    }
};

// A NaN compares unequal to itself. Of two zeros the later one, as torch.minimum does.
struct Min {
    template <class T>
    CORRAL_INLINE T operator()(T a, T b) const {
        return ((a < b) | (a != a)) ? a : b;
    }
};

struct Max {
    template <class T>
    CORRAL_INLINE T operator()(T a, T b) const {
        return ((a > b) | (a != a)) ? a : b;
    }
};

struct And {
    template <class T>
    CORRAL_INLINE T operator()(T a, T b) const {
        return a & b;
    }
};

struct Or {
    template <class T>
    CORRAL_INLINE T operator()(T a, T b) const {
        return a | b;
    }
};

struct Xor {
    template <class T>
    CORRAL_INLINE T operator()(T a, T b) const {
        return a ^ b;
    }
};

template <class T>
struct Scaled {
    T factor;
    CORRAL_INLINE T operator()(T x) const { return Product()(x, factor); }
};

template <class T>
struct ScaledSum {
    T factor;
    CORRAL_INLINE T operator()(T a, T b) const { return Sum()(a, Product()(b, factor)); }
};

template <class T>
struct Same {
    CORRAL_INLINE T operator()(T x) const { return x; }
};

template <class T>
struct Divided {
    using Whole = std::conditional_t<std::is_same_v<T, uint32_t>, int64_t, int32_t>;
    uint32_t by;
    CORRAL_INLINE T operator()(T x) const {
        if constexpr (std::is_floating_point_v<T>)
            return settled(x / static_cast<T>(by));
        else if constexpr (sizeof(T) == 8)
            return x / int64_t{by};
        else  // exact: what a double cannot tell from a whole number is one; and there is vector code for it
            return static_cast<T>(static_cast<Whole>(static_cast<double>(x) / by));
    }
};

}  // namespace corral::reduce
