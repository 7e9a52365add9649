// Float vectors for *.simd.cpp files: one type `vf` of kWidth floats, chosen by the level being compiled.
// Baseline is an array of four floats in plain loops, so that any compiler and CPU can build it.
// Comparisons give an integer bit mask (bit i = lane i).
#pragma once

#include <cstdint>

#ifndef XMC_SIMD_NS
#error "core/vec.h is for *.simd.cpp files only"
#endif
#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
#include <immintrin.h>
#endif

#if defined(_MSC_VER)
#define XMC_INLINE __forceinline
#else
#define XMC_INLINE inline __attribute__((always_inline))
#endif

namespace xmc::XMC_SIMD_NS {

#if defined(XMC_SIMD_IS_avx512)

inline constexpr int kWidth = 16;
struct vf {
  __m512 v;
};
XMC_INLINE vf load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
XMC_INLINE void store(float* p, vf a) {
  _mm512_storeu_ps(p, a.v);
}
XMC_INLINE void stream(float* p, vf a) {
  _mm512_stream_ps(p, a.v);
}  // p aligned to the vector
XMC_INLINE vf splat(float x) {
  return {_mm512_set1_ps(x)};
}
XMC_INLINE vf operator+(vf a, vf b) {
  return {_mm512_add_ps(a.v, b.v)};
}
XMC_INLINE vf operator-(vf a, vf b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
XMC_INLINE vf operator*(vf a, vf b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
XMC_INLINE vf fma(vf a, vf b, vf c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}  // a*b + c
XMC_INLINE vf max(vf a, vf b) {
  return {_mm512_max_ps(a.v, b.v)};
}
XMC_INLINE vf min(vf a, vf b) {
  return {_mm512_min_ps(a.v, b.v)};
}
XMC_INLINE uint32_t gt(vf a, vf b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}
XMC_INLINE uint32_t ge(vf a, vf b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
}
XMC_INLINE vf where_gt(vf a, vf b, vf x) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), x.v)};
}
XMC_INLINE float sum(vf a) {
  return _mm512_reduce_add_ps(a.v);
}

#elif defined(XMC_SIMD_IS_avx2)

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
XMC_INLINE float sum(vf a) {
  const __m128 h = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 q = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

#else

inline constexpr int kWidth = 4;
struct vf {
  float v[4];
};
XMC_INLINE vf load(const float* p) {
  return {{p[0], p[1], p[2], p[3]}};
}
XMC_INLINE void store(float* p, vf a) {
  for (int i = 0; i < 4; ++i) p[i] = a.v[i];
}
XMC_INLINE void stream(float* p, vf a) {
  store(p, a);
}
XMC_INLINE vf splat(float x) {
  return {{x, x, x, x}};
}
XMC_INLINE vf operator+(vf a, vf b) {
  for (int i = 0; i < 4; ++i) a.v[i] += b.v[i];
  return a;
}
XMC_INLINE vf operator-(vf a, vf b) {
  for (int i = 0; i < 4; ++i) a.v[i] -= b.v[i];
  return a;
}
XMC_INLINE vf operator*(vf a, vf b) {
  for (int i = 0; i < 4; ++i) a.v[i] *= b.v[i];
  return a;
}
XMC_INLINE vf fma(vf a, vf b, vf c) {
  for (int i = 0; i < 4; ++i) c.v[i] += a.v[i] * b.v[i];
  return c;
}
XMC_INLINE vf max(vf a, vf b) {
  for (int i = 0; i < 4; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
XMC_INLINE vf min(vf a, vf b) {
  for (int i = 0; i < 4; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
XMC_INLINE uint32_t gt(vf a, vf b) {
  uint32_t m = 0;
  for (int i = 0; i < 4; ++i) m |= static_cast<uint32_t>(a.v[i] > b.v[i]) << i;
  return m;
}
XMC_INLINE uint32_t ge(vf a, vf b) {
  uint32_t m = 0;
  for (int i = 0; i < 4; ++i) m |= static_cast<uint32_t>(a.v[i] >= b.v[i]) << i;
  return m;
}
XMC_INLINE vf where_gt(vf a, vf b, vf x) {
  for (int i = 0; i < 4; ++i) x.v[i] = a.v[i] > b.v[i] ? x.v[i] : 0.f;
  return x;
}
XMC_INLINE float sum(vf a) {
  return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
}

#endif

}  // namespace xmc::XMC_SIMD_NS
