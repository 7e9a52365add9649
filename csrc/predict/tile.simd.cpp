#include "core/vec.h"
#include "predict/predict.h"

namespace xmc::XMC_SIMD_NS {
namespace {

// Vectors of a tile finished together: the accumulators must fit the registers and cover the latency of FMA.
constexpr int kAcc = kWidth == 4 ? 8 : kTile / kWidth;
constexpr int kPart = kAcc * kWidth;

XMC_INLINE uint64_t finish_part(const float* tile, const int32_t* feature, const float* value, int64_t n,
                                float* scores, const float* scale, const float* shift, vf threshold) {
  vf acc[kAcc];
  for (int j = 0; j < kAcc; ++j) acc[j] = load(scores + j * kWidth);
  for (int64_t p = 0; p < n; ++p) {
    const float* w = tile + static_cast<int64_t>(feature[p]) * kTile;
    const vf x = splat(value[p]);
    for (int j = 0; j < kAcc; ++j) acc[j] = fma(x, load(w + j * kWidth), acc[j]);
  }
  if (scale) {
    for (int j = 0; j < kAcc; ++j) acc[j] = fma(load(scale + j * kWidth), acc[j], load(shift + j * kWidth));
  }
  uint64_t below = 0;
  for (int j = 0; j < kAcc; ++j) {
    store(scores + j * kWidth, acc[j]);
    below |= static_cast<uint64_t>(gt(threshold, acc[j])) << (j * kWidth);
  }
  return below;
}

void tile(const float* tile, const int64_t* start, const int32_t* feature, const float* value, int64_t n,
          float* scores, int64_t stride, const float* scale, const float* shift, const float* thresholds,
          uint64_t* hits) {
  for (int64_t i = 0; i < n; ++i) {
    const vf threshold = splat(thresholds[i]);
    uint64_t below = 0;
    for (int part = 0; part < kTile; part += kPart) {
      below |= finish_part(tile + part, feature + start[i], value + start[i], start[i + 1] - start[i],
                           scores + i * stride + part, scale ? scale + part : nullptr,
                           scale ? shift + part : nullptr, threshold)
               << part;
    }
    hits[i] = ~below;
  }
}

}  // namespace

const PredictKernels predict_kernels_table = {&tile};

}  // namespace xmc::XMC_SIMD_NS
