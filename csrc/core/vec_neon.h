// The NEON vectors (arm64, where every CPU has them) of core/vec.h, where the contract of each function stands.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "core/vec_inline.h"

namespace xmc::XMC_SIMD_NS {

inline constexpr int kWidth = 4;
struct vf {
  float32x4_t v;
};
XMC_INLINE vf load(const float* p) {
  return {vld1q_f32(p)};
}
XMC_INLINE void store(float* p, vf a) {
  vst1q_f32(p, a.v);
}
XMC_INLINE void stream(float* p, vf a) {
  store(p, a);
}
XMC_INLINE void fence() {}
XMC_INLINE vf splat(float x) {
  return {vdupq_n_f32(x)};
}
XMC_INLINE vf operator+(vf a, vf b) {
  return {vaddq_f32(a.v, b.v)};
}
XMC_INLINE vf operator-(vf a, vf b) {
  return {vsubq_f32(a.v, b.v)};
}
XMC_INLINE vf operator*(vf a, vf b) {
  return {vmulq_f32(a.v, b.v)};
}
XMC_INLINE vf operator/(vf a, vf b) {
  return {vdivq_f32(a.v, b.v)};
}
XMC_INLINE vf fma(vf a, vf b, vf c) {
  return {vfmaq_f32(c.v, a.v, b.v)};
}
// Not vmaxq and vminq, which give NaN where either operand is NaN.
XMC_INLINE vf max(vf a, vf b) {
  return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)};
}
XMC_INLINE vf min(vf a, vf b) {
  return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)};
}
// To be loaded: Visual Studio's vectors take no list of lanes.
inline constexpr uint32_t kLaneBits[kWidth] = {1, 2, 4, 8};
XMC_INLINE uint32_t bits(uint32x4_t lanes) {
  return vaddvq_u32(vandq_u32(lanes, vld1q_u32(kLaneBits)));
}
XMC_INLINE uint32_t gt(vf a, vf b) {
  return bits(vcgtq_f32(a.v, b.v));
}
XMC_INLINE uint32_t ge(vf a, vf b) {
  return bits(vcgeq_f32(a.v, b.v));
}
XMC_INLINE vf where_gt(vf a, vf b, vf x) {
  return {vreinterpretq_f32_u32(vandq_u32(vcgtq_f32(a.v, b.v), vreinterpretq_u32_f32(x.v)))};
}
XMC_INLINE vf select(uint32_t mask, vf a, vf b) {
  return {vbslq_f32(vtstq_u32(vdupq_n_u32(mask), vld1q_u32(kLaneBits)), a.v, b.v)};
}
XMC_INLINE float sum(vf a) {
  const float32x2_t h = vadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
  return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
XMC_INLINE float largest_lane(vf a) {
  return vmaxvq_f32(a.v);
}
XMC_INLINE float smallest_lane(vf a) {
  return vminvq_f32(a.v);
}
XMC_INLINE vf sqrt(vf a) {
  return {vsqrtq_f32(a.v)};
}
XMC_INLINE vf round(vf a) {
  return {vrndnq_f32(a.v)};
}
XMC_INLINE vf ldexp(vf a, vf n) {
  const int32x4_t shift = vshlq_n_s32(vcvtq_s32_f32(n.v), 23);
  return {vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a.v), shift))};
}
XMC_INLINE void transpose(vf* a) {
  const float32x4_t p = vtrn1q_f32(a[0].v, a[1].v), q = vtrn2q_f32(a[0].v, a[1].v);
  const float32x4_t r = vtrn1q_f32(a[2].v, a[3].v), s = vtrn2q_f32(a[2].v, a[3].v);
  a[0].v = vcombine_f32(vget_low_f32(p), vget_low_f32(r));
  a[1].v = vcombine_f32(vget_low_f32(q), vget_low_f32(s));
  a[2].v = vcombine_f32(vget_high_f32(p), vget_high_f32(r));
  a[3].v = vcombine_f32(vget_high_f32(q), vget_high_f32(s));
}
XMC_INLINE vf sums(const vf* a) {
  const float32x4_t p = vpaddq_f32(a[0].v, a[1].v), q = vpaddq_f32(a[2].v, a[3].v);
  return {vpaddq_f32(p, q)};
}

}  // namespace xmc::XMC_SIMD_NS
