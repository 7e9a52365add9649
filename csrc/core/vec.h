// Float vectors for *.simd.cpp files: one type `vf` of kWidth floats, chosen by the level being compiled.
// Baseline is an array of four floats in plain loops, so that any compiler and CPU can build it.
// Comparisons give an integer bit mask (bit i = lane i).
//
// What each level defines, in its own file (a, b, c of type vf):
//   load(p), store(p, a), splat(x)     p need not be aligned
//   stream(p, a), fence()              past the cache where the level can; p aligned to the vector, fence() after
//   + - * /, fma(a, b, c) = a*b + c, sqrt(a), round(a) to the nearest integer
//   ldexp(a, n) = a * 2^n              n an integer, the result a normal number
//   max(a, b), min(a, b)               the second operand where one is NaN
//   gt(a, b), ge(a, b)                 the bit mask of lanes
//   where_gt(a, b, x)                  lane i: a > b ? x : 0
//   select(mask, a, b)                 lane i: bit i of mask ? a : b
//   sum(a), largest_lane(a), smallest_lane(a)
//   transpose(a)                       the kWidth x kWidth matrix in the registers a[0..kWidth), in place
//   sums(a)                            lane i: sum(a[i])
#pragma once

#include <math.h>
#include <string.h>

#include <cstdint>

#ifndef XMC_SIMD_NS
#error "core/vec.h is for *.simd.cpp files only"
#endif
#if defined(XMC_SIMD_IS_avx512)
#include "core/vec_avx512.h"
#elif defined(XMC_SIMD_IS_avx2)
#include "core/vec_avx2.h"
#elif defined(XMC_SIMD_IS_neon)
#include "core/vec_neon.h"
#else
#include "core/vec_baseline.h"
#endif

namespace xmc::XMC_SIMD_NS {

// Ask for the cache line at p; never faults.
XMC_INLINE void prefetch(const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p);
#elif defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
#else
  static_cast<void>(p);
#endif
}
// The same, into L2 only: for lines that are needed later than the next few hundred cycles.
XMC_INLINE void prefetch_far(const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 2);
#elif defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
#else
  static_cast<void>(p);
#endif
}

// The place of the lowest bit of a mask that has one. Not <bit>: see core/simd.h on standard code in these files.
template <class Mask>  // uint32_t or uint64_t
XMC_INLINE int lowest_bit(Mask mask) {
#if defined(__GNUC__)
  return sizeof mask == 8 ? __builtin_ctzll(mask) : __builtin_ctz(static_cast<uint32_t>(mask));
#else
  int bit = 0;
  while (!(mask >> bit & 1)) ++bit;
  return bit;
#endif
}
XMC_INLINE int count_bits(uint64_t mask) {
#if defined(__GNUC__)
  return __builtin_popcountll(mask);
#else
  int n = 0;
  for (; mask; mask &= mask - 1) ++n;
  return n;
#endif
}

// e^x to about 1e-7 relative; x is clamped to [-87, 88]. NaN stays NaN (max and min give their second
// operand).
XMC_INLINE vf exp(vf x) {
  x = min(splat(88.f), max(splat(-87.f), x));
  const vf n = round(x * splat(1.44269504f));
  vf r = fma(n, splat(-0.693359375f), x);  // x - n ln 2, in two parts
  r = fma(n, splat(2.12194440e-4f), r);
  vf p = splat(1.f / 720);  // Taylor on |r| <= ln(2)/2
  p = fma(p, r, splat(1.f / 120));
  p = fma(p, r, splat(1.f / 24));
  p = fma(p, r, splat(1.f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.f));
  p = fma(p, r, splat(1.f));
  return ldexp(p, n);
}

}  // namespace xmc::XMC_SIMD_NS
