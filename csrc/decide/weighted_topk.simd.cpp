#include "core/vec.h"
#include "decide/weighted_topk_kernels.h"

namespace xmc::decide::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

static_assert(kWidth <= kDenseTopkLanes);

// Lanes that are not below the threshold (NaN included: it may still be needed to fill k places).
XMC_INLINE uint32_t not_below(vf gains, vf threshold) {
  return ~gt(threshold, gains) & ((1u << kWidth) - 1u);
}

XMC_INLINE vf gains_at(const float* eta, const float* a, const float* b, int64_t j) {
  const vf offset = b ? load(b + j) : splat(0.f);
  return a ? fma(load(a + j), load(eta + j), offset) : load(eta + j) + offset;
}

int64_t above(const float* eta, const float* a, const float* b, int64_t first, int64_t last, float threshold,
              int64_t room, int32_t* labels, float* gains, int64_t* next) {
  const vf limit = splat(threshold);
  int64_t count = 0, j = first;
  float lanes[kWidth];
  for (; j + kWidth <= last && count + kWidth <= room; j += kWidth) {
    const vf g = gains_at(eta, a, b, j);
    const uint32_t mask = not_below(g, limit);
    if (mask == 0) continue;
    store(lanes, g);
    for (int l = 0; l < kWidth; ++l) {
      if (mask >> l & 1u) {
        labels[count] = static_cast<int32_t>(j + l);
        gains[count++] = lanes[l];
      }
    }
  }
  // The rest of a row shorter than a vector, padded.
  if (j < last && last - j < kWidth && count + kWidth <= room) {
    float eta_rest[kWidth] = {}, a_rest[kWidth] = {}, b_rest[kWidth] = {};
    for (int64_t l = 0; l < last - j; ++l) {
      eta_rest[l] = eta[j + l];
      if (a) a_rest[l] = a[j + l];
      if (b) b_rest[l] = b[j + l];
    }
    const vf g = gains_at(eta_rest, a ? a_rest : nullptr, b ? b_rest : nullptr, 0);
    const uint32_t mask = not_below(g, limit);
    store(lanes, g);
    for (int64_t l = 0; l < last - j; ++l) {
      if (mask >> l & 1u) {
        labels[count] = static_cast<int32_t>(j + l);
        gains[count++] = lanes[l];
      }
    }
    j = last;
  }
  *next = j;
  return count;
}

}  // namespace

extern const DenseTopkKernels dense_topk_kernels_table = {&above};

}  // namespace xmc::decide::XMC_SIMD_NS
