// One number of each of the sixteen labels of a lane group, in vectors. For *.simd.cpp only.
#pragma once

#include "core/vec.h"
#include "linear/rows_view.h"

namespace xmc::linear::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

constexpr int kVecs = kLanes / kWidth;

struct LaneVector {
  vf v[kVecs];
};
XMC_INLINE LaneVector load_lanes(const float* p) {
  LaneVector a;
  for (int k = 0; k < kVecs; ++k) a.v[k] = load(p + k * kWidth);
  return a;
}
XMC_INLINE void store_lanes(float* p, const LaneVector& a) {
  for (int k = 0; k < kVecs; ++k) store(p + k * kWidth, a.v[k]);
}
XMC_INLINE LaneVector splat_lanes(float x) {
  LaneVector a;
  for (int k = 0; k < kVecs; ++k) a.v[k] = splat(x);
  return a;
}
XMC_INLINE LaneVector zero_lanes() {
  return splat_lanes(0.f);
}

constexpr int64_t kFlush = 128;  // float sums are added to double ones after so many terms
XMC_INLINE void flush(double* total, LaneVector& part) {
  float x[kLanes];
  store_lanes(x, part);
  for (int l = 0; l < kLanes; ++l) total[l] += static_cast<double>(x[l]);
  part = zero_lanes();
}

}  // namespace
}  // namespace xmc::linear::XMC_SIMD_NS
