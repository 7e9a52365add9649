// The vectors of plain loops, four floats, of core/vec.h, where the contract of each function stands.
#pragma once

#include <math.h>
#include <string.h>

#include <cstdint>

#include "core/vec_inline.h"

namespace xmc::XMC_SIMD_NS {

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

}  // namespace xmc::XMC_SIMD_NS
