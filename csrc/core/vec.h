// Float vectors for *.simd.cpp files: one type `vf` of kWidth floats, chosen by the level being compiled.
// Baseline is an array of four floats in plain loops, so that any compiler and CPU can build it.
// Comparisons give an integer bit mask (bit i = lane i).
#pragma once

#include <math.h>
#include <string.h>

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
XMC_INLINE vf operator/(vf a, vf b) {
  return {_mm512_div_ps(a.v, b.v)};
}
XMC_INLINE vf sqrt(vf a) {
  return {_mm512_sqrt_ps(a.v)};
}
XMC_INLINE vf round(vf a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}  // to the nearest integer
XMC_INLINE vf ldexp(vf a, vf n) {
  return {_mm512_scalef_ps(a.v, n.v)};
}  // a * 2^n, n an integer, the result a normal number

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
XMC_INLINE vf operator/(vf a, vf b) {
  return {_mm256_div_ps(a.v, b.v)};
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
XMC_INLINE vf operator/(vf a, vf b) {
  for (int i = 0; i < 4; ++i) a.v[i] /= b.v[i];
  return a;
}
XMC_INLINE vf sqrt(vf a) {
  for (int i = 0; i < 4; ++i) a.v[i] = ::sqrtf(a.v[i]);
  return a;
}
XMC_INLINE vf round(vf a) {
  for (int i = 0; i < 4; ++i) a.v[i] = ::rintf(a.v[i]);
  return a;
}
XMC_INLINE vf ldexp(vf a, vf n) {
  for (int i = 0; i < 4; ++i) {
    int32_t bits;
    ::memcpy(&bits, &a.v[i], 4);
    bits += static_cast<int32_t>(n.v[i]) * (1 << 23);
    ::memcpy(&a.v[i], &bits, 4);
  }
  return a;
}

#endif

// e^x to about 1e-7 relative; x is clamped to [-87, 88].
XMC_INLINE vf exp(vf x) {
  x = min(max(x, splat(-87.f)), splat(88.f));
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
