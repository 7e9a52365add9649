// Floats in two halves for *.simd.cpp files, beside core/vec.h: the bits of a float are (high << 16) + low,
// low being signed, so that high alone is the float rounded to bfloat16.
#pragma once

#include "core/vec.h"

namespace xmc::XMC_SIMD_NS {

XMC_INLINE float join_halves(uint16_t high, uint16_t low) {
  const uint32_t bits =
      (static_cast<uint32_t>(high) << 16) + static_cast<uint32_t>(static_cast<int16_t>(low));
  float x;
  ::memcpy(&x, &bits, 4);
  return x;
}
// a * b + c, rounded as the vectors' fma.
XMC_INLINE float fma(float a, float b, float c) {
#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
#else
  return c + a * b;
#endif
}

// load_halves gives 2 * kWidth floats, those at even places and those at odd ones, from their high halves or
// from both.

#if defined(XMC_SIMD_IS_avx512)

XMC_INLINE void load_halves(const uint16_t* p, vf& even, vf& odd) {
  const __m512i both = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
XMC_INLINE void load_halves(const uint16_t* high, const uint16_t* low, vf& even, vf& odd) {
  load_halves(high, even, odd);
  const __m512i both = _mm512_loadu_si512(low);
  const __m512i first = _mm512_srai_epi32(_mm512_slli_epi32(both, 16), 16);
  even.v = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(even.v), first));
  odd.v = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(odd.v), _mm512_srai_epi32(both, 16)));
}

#elif defined(XMC_SIMD_IS_avx2)

XMC_INLINE void load_halves(const uint16_t* p, vf& even, vf& odd) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even.v = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  odd.v = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
XMC_INLINE void load_halves(const uint16_t* high, const uint16_t* low, vf& even, vf& odd) {
  load_halves(high, even, odd);
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
  const __m256i first = _mm256_srai_epi32(_mm256_slli_epi32(both, 16), 16);
  even.v = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(even.v), first));
  odd.v = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(odd.v), _mm256_srai_epi32(both, 16)));
}

#else

XMC_INLINE void load_halves(const uint16_t* high, const uint16_t* low, vf& even, vf& odd) {
  for (int i = 0; i < 4; ++i) {
    even.v[i] = join_halves(high[2 * i], low[2 * i]);
    odd.v[i] = join_halves(high[2 * i + 1], low[2 * i + 1]);
  }
}
XMC_INLINE void load_halves(const uint16_t* p, vf& even, vf& odd) {
  for (int i = 0; i < 4; ++i) {
    even.v[i] = join_halves(p[2 * i], 0);
    odd.v[i] = join_halves(p[2 * i + 1], 0);
  }
}

#endif

}  // namespace xmc::XMC_SIMD_NS
