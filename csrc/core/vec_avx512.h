// The AVX-512 vectors of core/vec.h, where the contract of each function stands.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "core/vec_inline.h"

namespace xmc::XMC_SIMD_NS {

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
}
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
}
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
}
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
}
XMC_INLINE vf ldexp(vf a, vf n) {
  return {_mm512_scalef_ps(a.v, n.v)};
}
XMC_INLINE void fence() {
  _mm_sfence();
}
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

}  // namespace xmc::XMC_SIMD_NS
