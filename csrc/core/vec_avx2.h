// The AVX2 vectors of core/vec.h, where the contract of each function stands.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "core/vec_inline.h"

namespace xmc::XMC_SIMD_NS {

inline constexpr int kWidth = 8;
struct vf {
  __m256 v;
};
XMC_INLINE vf load(const float* p) {
  return {_mm256_loadu_ps(p)};
}
XMC_INLINE void store(float* p, vf a) {
  _mm256_storeu_ps(p, a.v);
}
XMC_INLINE void stream(float* p, vf a) {
  _mm256_stream_ps(p, a.v);
}
XMC_INLINE vf splat(float x) {
  return {_mm256_set1_ps(x)};
}
XMC_INLINE vf operator+(vf a, vf b) {
  return {_mm256_add_ps(a.v, b.v)};
}
XMC_INLINE vf operator-(vf a, vf b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
XMC_INLINE vf operator*(vf a, vf b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
XMC_INLINE vf fma(vf a, vf b, vf c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
XMC_INLINE vf max(vf a, vf b) {
  return {_mm256_max_ps(a.v, b.v)};
}
XMC_INLINE vf min(vf a, vf b) {
  return {_mm256_min_ps(a.v, b.v)};
}
XMC_INLINE uint32_t gt(vf a, vf b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)));
}
XMC_INLINE uint32_t ge(vf a, vf b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)));
}
XMC_INLINE vf where_gt(vf a, vf b, vf x) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ), x.v)};
}
XMC_INLINE vf operator/(vf a, vf b) {
  return {_mm256_div_ps(a.v, b.v)};
}
XMC_INLINE vf select(uint32_t mask, vf a, vf b) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bit);
  return {_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit)))};
}
XMC_INLINE float sum(vf a) {
  const __m128 h = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 q = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
XMC_INLINE float largest_lane(vf a) {
  const __m128 h = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 q = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
XMC_INLINE float smallest_lane(vf a) {
  const __m128 h = _mm_min_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 q = _mm_min_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_min_ss(q, _mm_shuffle_ps(q, q, 1)));
}
XMC_INLINE vf sqrt(vf a) {
  return {_mm256_sqrt_ps(a.v)};
}
XMC_INLINE vf round(vf a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
XMC_INLINE vf ldexp(vf a, vf n) {
  const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v), shift))};
}
XMC_INLINE void fence() {
  _mm_sfence();
}
XMC_INLINE void transpose(vf* a) {
  __m256 t[8], u[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(a[2 * i].v, a[2 * i + 1].v);
    t[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i].v, a[2 * i + 1].v);
  }
  for (int j = 0; j < 2; ++j) {
    u[4 * j] = _mm256_shuffle_ps(t[4 * j], t[4 * j + 2], 0x44);
    u[4 * j + 1] = _mm256_shuffle_ps(t[4 * j], t[4 * j + 2], 0xee);
    u[4 * j + 2] = _mm256_shuffle_ps(t[4 * j + 1], t[4 * j + 3], 0x44);
    u[4 * j + 3] = _mm256_shuffle_ps(t[4 * j + 1], t[4 * j + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    a[c].v = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
    a[4 + c].v = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
  }
}
XMC_INLINE vf sums(const vf* a) {
  const __m256 p = _mm256_hadd_ps(_mm256_hadd_ps(a[0].v, a[1].v), _mm256_hadd_ps(a[2].v, a[3].v));
  const __m256 q = _mm256_hadd_ps(_mm256_hadd_ps(a[4].v, a[5].v), _mm256_hadd_ps(a[6].v, a[7].v));
  return {_mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31))};
}

}  // namespace xmc::XMC_SIMD_NS
