// Exact top-k of a sparse linear model: scores = x W^T for each row, the k best by (score, lower label).
//
// Rows are taken in batches, labels in blocks (layout.h). For each block
//   1. partial scores: the postings of sparse columns and the outliers are added up;
//   2. bounds: each tile of kTile labels is finished in registers for all rows of the batch, so that its
//      weights come from the cache, with weights and values rounded to integers;
//   3. exact scores of the few labels that can still be among the k best (tibkat-gnd: 8 of 41,218), the one
//      with the largest upper bound first.
// Blocks with few dense weights, which stay in a cache anyway, take some rows at a time, so that the partial
// scores stay there too. Where k is no small part of the labels, step 2 computes exact scores of all.
//
// Bounds: dense weights are bytes (layout.h), w ~ step q. The row's dense values x' are rounded too,
// |x'| ~ unit * a with integers a <= levels (PredictKernels), positive and negative ones apart, so that sums
// of products are exact integers. With d = rounding residual of x', n = number of all values x of the row,
// u = 2^-24,
//   |score - exact| <= |x'|_1 error + |d|_2 spread + 5 (n + 8) u (|x| norm + |score|);
// the last term is the rounding of both sums. A label is out when its upper bound is below the k-th best
// lower bound of the labels before it.
#pragma once

#include <cstdint>

#include "core/row_options.h"
#include "core/simd.h"
#include "core/types.h"
#include "predict/layout.h"

namespace xmc::predict {

// Monotone per-label change of a score before ranking (calibration): scale[l] * score + shift[l]. Null: none.
// Both arrays are padded to tiles() * kTile.
struct Calibration {
  const float* scale = nullptr;
  const float* shift = nullptr;
};

// ids, scores: x.rows * min(k, labels), best first. x has columns (- 1 with a bias), sorted in each row.
void predict_topk(const LayoutView& layout, const CsrView<>& x, const RowOptions& options,
                  const Calibration& calibration, int64_t k, int threads, int32_t* ids, float* scores);

// Rows of a batch whose scores for a block of so many places are kept, in one of the threads.
int64_t rows_at_once(int64_t places, int threads);

// One tile of the layout.
struct PredictTile {
  const Cell* cell;     // n_dense
  const float* weight;  // all
  const float* heavy;   // n_heavy * kTile
  const int8_t* byte;   // n_dense * kTile
  const float* step;    // kTile, as the next three
  const float *error, *spread, *norm;
  const float *scale, *shift;  // kTile, or null
  TileBounds most;
};

// Dense features that are not heavy, for the first pass: four columns with their integers, 0 to fill up.
struct Four {
  uint16_t slot[4];
  uint8_t a[4];
};
// A row: its fours are [from, negative) for positive values and [negative, to) for negative ones.
struct PredictRow {
  int32_t from, negative, to;
  float unit, sum, off, length, rounding;  // unit, |x'|_1, |d|_2, |x|, 5 (n + 8) u
};

// Some rows, their dense features in the order of their columns. kAhead more fours than there are can be
// read, for prefetching.
inline constexpr int64_t kAhead = 16;
struct PredictRows {
  const int64_t* start;  // rows + 1
  const int32_t* dense;
  const float* value;
  const PredictRow* row;
  const Four* four;
  int64_t n_heavy;
  const float* heavy;  // rows * n_heavy: values of heavy columns, 0 where there is none
};

// Features of one kind: ids and values from the first free place on, with room for kPast behind the last.
inline constexpr int64_t kPast = 16;
struct FeatureList {
  int32_t* id;
  float* value;
};

struct PredictKernels {
  // Moves n features of a row to those of dense and those of sparse columns, in the same order, with their
  // entries (layout.h).
  void (*split)(const int32_t* entry, const int32_t* column, const float* value, int64_t n,
                FeatureList& dense, FeatureList& sparse);
  int most_tiles;  // that `bounds` takes at once, 1 or 2
  // The largest integer of a four that `bounds` can multiply.
  int (*levels)();
  // Scores of one or most_tiles tiles, side by side, for rows [from, to), which have
  // partial[i * stride ..+ n_tiles * kTile) already: hits[(i - from) * n_tiles + t] has bit j set unless the
  // score's upper bound is below thresholds[i], scores[((i - from) * n_tiles + t) * kTile + j] its score by
  // the first pass, before calibration.
  void (*bounds)(const PredictTile* tiles, int n_tiles, const PredictRows& rows, int64_t from, int64_t to,
                 const float* partial, int64_t stride, const float* thresholds, uint64_t* hits,
                 float* scores);
  // The same for one tile, with exact scores after calibration.
  void (*exact)(const PredictTile& tile, const PredictRows& rows, int64_t from, int64_t to,
                const float* partial, int64_t stride, const float* thresholds, uint64_t* hits, float* scores);
  // The score of row i for one label of a tile; the same bits as `exact` gives.
  float (*score)(const PredictTile& tile, const PredictRows& rows, int64_t i, int64_t lane, float partial);
};
XMC_SIMD_TABLE(PredictKernels, predict_kernels)

}  // namespace xmc::predict
