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
XMC_INLINE vf operator/(vf a, vf b) {
  return {_mm512_div_ps(a.v, b.v)};
}
XMC_INLINE vf select(uint32_t mask, vf a, vf b) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(mask), b.v, a.v)};
}  // lane i: bit i of mask ? a : b
XMC_INLINE float sum(vf a) {
  return _mm512_reduce_add_ps(a.v);
}
XMC_INLINE float largest_lane(vf a) {
  return _mm512_reduce_max_ps(a.v);
}
XMC_INLINE float smallest_lane(vf a) {
  return _mm512_reduce_min_ps(a.v);
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
XMC_INLINE void fence() {
  _mm_sfence();
}  // after stream()
// The kWidth x kWidth matrix in the registers a[0..kWidth), transposed in place.
XMC_INLINE void transpose(vf* a) {
  __m512 t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(a[2 * i].v, a[2 * i + 1].v);
    t[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i].v, a[2 * i + 1].v);
  }
  __m512 u[16];  // u[4 j + c]: rows 4 j .. 4 j + 3 of column c in each 128-bit part
  for (int j = 0; j < 4; ++j) {
    const __m512d p = _mm512_castps_pd(t[4 * j]), q = _mm512_castps_pd(t[4 * j + 2]);
    const __m512d r = _mm512_castps_pd(t[4 * j + 1]), s = _mm512_castps_pd(t[4 * j + 3]);
    u[4 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(p, q));
    u[4 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(p, q));
    u[4 * j + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(r, s));
    u[4 * j + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(r, s));
  }
  for (int c = 0; c < 4; ++c) {
    const __m512 p = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88),
                 q = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
    const __m512 r = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
    const __m512 s = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
    a[c].v = _mm512_shuffle_f32x4(p, r, 0x88);
    a[4 + c].v = _mm512_shuffle_f32x4(q, s, 0x88);
    a[8 + c].v = _mm512_shuffle_f32x4(p, r, 0xdd);
    a[12 + c].v = _mm512_shuffle_f32x4(q, s, 0xdd);
  }
}
// Lane i of the result is sum(a[i]).
XMC_INLINE vf sums(const vf* a) {
  __m512 t[4];
  for (int j = 0; j < 4; ++j) {
    const vf* b = a + 4 * j;
    const __m512 p = _mm512_add_ps(_mm512_unpacklo_ps(b[0].v, b[1].v), _mm512_unpackhi_ps(b[0].v, b[1].v));
    const __m512 q = _mm512_add_ps(_mm512_unpacklo_ps(b[2].v, b[3].v), _mm512_unpackhi_ps(b[2].v, b[3].v));
    const __m512d pd = _mm512_castps_pd(p), qd = _mm512_castps_pd(q);
    t[j] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(pd, qd)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(pd, qd)));
  }
  const __m512 m =
      _mm512_add_ps(_mm512_shuffle_f32x4(t[0], t[1], 0x44), _mm512_shuffle_f32x4(t[0], t[1], 0xee));
  const __m512 n =
      _mm512_add_ps(_mm512_shuffle_f32x4(t[2], t[3], 0x44), _mm512_shuffle_f32x4(t[2], t[3], 0xee));
  return {_mm512_add_ps(_mm512_shuffle_f32x4(m, n, 0x88), _mm512_shuffle_f32x4(m, n, 0xdd))};
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
XMC_INLINE vf operator/(vf a, vf b) {
  for (int i = 0; i < 4; ++i) a.v[i] /= b.v[i];
  return a;
}
XMC_INLINE vf select(uint32_t mask, vf a, vf b) {
  for (int i = 0; i < 4; ++i) a.v[i] = mask >> i & 1u ? a.v[i] : b.v[i];
  return a;
}
XMC_INLINE float largest_lane(vf a) {
  const float x = a.v[0] > a.v[1] ? a.v[0] : a.v[1], y = a.v[2] > a.v[3] ? a.v[2] : a.v[3];
  return x > y ? x : y;
}
XMC_INLINE float smallest_lane(vf a) {
  const float x = a.v[0] < a.v[1] ? a.v[0] : a.v[1], y = a.v[2] < a.v[3] ? a.v[2] : a.v[3];
  return x < y ? x : y;
}
XMC_INLINE float sum(vf a) {
  return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
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
    uint32_t bits;
    ::memcpy(&bits, &a.v[i], 4);
    bits += static_cast<uint32_t>(static_cast<int32_t>(n.v[i])) << 23;
    ::memcpy(&a.v[i], &bits, 4);
  }
  return a;
}
XMC_INLINE void fence() {}
XMC_INLINE void transpose(vf* a) {
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < i; ++j) {
      const float t = a[i].v[j];
      a[i].v[j] = a[j].v[i];
      a[j].v[i] = t;
    }
  }
}
XMC_INLINE vf sums(const vf* a) {
  return {{sum(a[0]), sum(a[1]), sum(a[2]), sum(a[3])}};
}

#endif

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
