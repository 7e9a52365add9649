// Exact top-k of a sparse linear model: scores = x W^T for each row, the k best by (score, lower label).
//
// Rows are taken in chunks, labels in blocks (see layout.h): a block's postings are added into the chunk's
// scores, then each tile of kTile labels is finished in registers for all rows of the chunk, so that its
// dense weights come from the cache, and compared with the rows' current k-th best on the way out.
#pragma once

#include <cstdint>

#include "core/simd.h"
#include "core/types.h"
#include "predict/layout.h"

namespace xmc {

struct RowOptions {
  bool normalize;  // l2-normalise the row first
  bool has_bias;   // then append the constant feature `bias` as the last column
  float bias;
};

// Monotone per-label change of a score before ranking (calibration): scale[l] * score + shift[l]. Null: none.
// Both arrays are padded to tiles() * kTile.
struct Calibration {
  const float* scale = nullptr;
  const float* shift = nullptr;
};

// ids, scores: x.rows * min(k, labels), best first. x has columns (- 1 with a bias), sorted in each row.
void predict_topk(const LayoutView& layout, const CsrView<>& x, const RowOptions& options,
                  const Calibration& calibration, int64_t k, int threads, int32_t* ids, float* scores);

struct PredictKernels {
  // One tile for n rows: scores[i * stride ..+ kTile) += sum over row i's dense features p in
  // [start[i], start[i + 1]) of value[p] * tile[feature[p] * kTile ..], then scale * score + shift (kTile
  // each) unless null; hits[i] has bit j set unless score j is below thresholds[i].
  void (*tile)(const float* tile, const int64_t* start, const int32_t* feature, const float* value, int64_t n,
               float* scores, int64_t stride, const float* scale, const float* shift, const float* thresholds,
               uint64_t* hits);
};
XMC_SIMD_TABLE(PredictKernels, predict_kernels)

}  // namespace xmc
