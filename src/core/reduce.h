// Arithmetic of reductions: pure functions over plain memory, which know nothing of ranks or messages.
//
// An element's result depends on the contributions and their order alone: not on how a range is cut into pieces, on
// where it lies in memory, or on which processor computes. Hence every NaN that arithmetic makes has the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace corral {

enum class ReduceOp : uint32_t { sum = 0, avg, product, min, max, band, bor, bxor, premul_sum };

// How elements of one type are combined by one operation. Types are the core's numbers, see `dlpack_type`.
struct Reduction {
    uint64_t type = 0;
    ReduceOp op = ReduceOp::sum;
    uint32_t ranks = 1;   // that contribute: the divisor of avg
    double factor = 1.0;  // of premul_sum
};

// Whether the operation has a meaning for the type. The functions below need one that has.
//
// Integers wrap around; their avg truncates the wrapped sum toward zero, and premul_sum truncates the factor first.
// bool is logical: sum, max, bor are "any"; avg, product, min, band are "all". min and max of floats propagate NaN.
// 16-bit floats are added up in float32 and rounded once. Complex numbers have sum, avg, product and premul_sum.
bool reducible(const Reduction& r);

// Bytes of one element, and of one element of the accumulator: a float for 16-bit floats, otherwise the type itself.
// Zero for types that nothing can reduce.
size_t element_bytes(uint64_t type);
size_t accumulator_bytes(uint64_t type);

// No pointer needs to be aligned, and no two ranges may overlap but as said.

// accumulator[i] = in[i], the first contribution.
void reduce_begin(const Reduction& r, const void* in, void* accumulator, size_t n);
// accumulator[i] = accumulator[i] op in[i].
void reduce_next(const Reduction& r, const void* in, void* accumulator, size_t n);
// out[i] = the result. `out` may be the accumulator itself where both have elements of one size.
void reduce_end(const Reduction& r, const void* accumulator, void* out, size_t n);

}  // namespace corral
