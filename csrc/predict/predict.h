// Exact top-k of a sparse linear model: scores = x W^T for each row, the k best by (score, lower label).
//
// Rows are taken in chunks, labels in blocks (see layout.h): a block's postings are added into the chunk's
// partial scores, then each tile of kTile labels is finished in registers for all rows of the chunk, so that
// its dense weights come from the cache.
//
// That pass reads the high halves of the weights only, half the bytes, and gives bounds of each score: with
// x the row's dense part, e and w the label's dense weights' error and themselves, n terms and u = 2^-24,
//   |score - exact| <= |x| |e| + 5 (n + 8) u (|x| |w| + |score|),
// the last term being the rounding of both sums (the partial score is at most |score| + |x| |w|). A label
// whose upper bound is not above the k-th best lower bound of the labels before it is out, equal scores
// going to the lower label; the few others are scored exactly at the end (EURLex-4K: 39 pass the first test,
// 5.6 are scored). Where k is no small part of the labels all are scored exactly at once.
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

// One tile of the layout.
struct PredictTile {
  const uint16_t* high;  // n_dense * kTile
  const uint16_t* low;
  const float* error;  // kTile
  const float* norm;
  const float* scale;  // kTile, or null
  const float* shift;
};

// The dense features of some rows, in the order of their slots.
inline constexpr int kAhead = 8;
struct DenseRows {
  const int64_t* start;    // rows + 1
  const int32_t* feature;  // slots; kAhead more than there are, for prefetching
  const float* value;
  const float* length;    // norm of a row's values, rounded up
  const float* rounding;  // 5 (n + 8) u
};

struct PredictKernels {
  // Bounds of the scores of one tile for rows [from, to), which have partial[i * stride ..+ kTile) already:
  // lower and upper (to - from) * kTile, hits[i - from] has bit j set unless upper is at most thresholds[i].
  // From the high halves alone, or exact (lower = upper = score).
  void (*bounds)(const PredictTile& tile, const DenseRows& rows, int64_t from, int64_t to,
                 const float* partial, int64_t stride, const float* thresholds, uint64_t* hits, float* lower,
                 float* upper);
  void (*exact)(const PredictTile& tile, const DenseRows& rows, int64_t from, int64_t to,
                const float* partial, int64_t stride, const float* thresholds, uint64_t* hits, float* lower,
                float* upper);
  // The score of row i for one label of a tile; the same bits as `exact` gives.
  float (*score)(const PredictTile& tile, const DenseRows& rows, int64_t i, int64_t lane, float partial);
};
XMC_SIMD_TABLE(PredictKernels, predict_kernels)

}  // namespace xmc
