// One line of a lane matrix: a number of each of sixteen labels, in vectors. For *.simd.cpp only.
#pragma once

#include "core/vec.h"

namespace xmc::XMC_SIMD_NS {
namespace {

constexpr int kVecs = 16 / kWidth;

struct Line {
  vf v[kVecs];
};
XMC_INLINE Line load_line(const float* p) {
  Line a;
  for (int k = 0; k < kVecs; ++k) a.v[k] = load(p + k * kWidth);
  return a;
}
XMC_INLINE void store_line(float* p, const Line& a) {
  for (int k = 0; k < kVecs; ++k) store(p + k * kWidth, a.v[k]);
}
XMC_INLINE Line splat_line(float x) {
  Line a;
  for (int k = 0; k < kVecs; ++k) a.v[k] = splat(x);
  return a;
}
XMC_INLINE Line zero_line() {
  return splat_line(0.f);
}

}  // namespace
}  // namespace xmc::XMC_SIMD_NS
