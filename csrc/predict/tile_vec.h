// What the kernels of a tile share, for *.simd.cpp files only (core/vec.h).
#pragma once

#include <utility>

#include "core/vec.h"

namespace xmc::predict::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;

// a * b + c, rounded as the vectors' fma.
XMC_INLINE float fma(float a, float b, float c) {
#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
#else
  return c + a * b;
#endif
}

// f(0), f(1), .. f(n - 1) with constants: arrays that are only used so stay in registers.
template <int n, class F>
XMC_INLINE void repeat(F f) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    (f(std::integral_constant<int, i>{}), ...);
  }(std::make_integer_sequence<int, n>{});
}

}  // namespace xmc::predict::XMC_SIMD_NS
