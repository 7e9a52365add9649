// Exact inner-product neighbours: for each query the q database rows with the largest dot product.
//
//   scores = Q Z^T,  Q m x c,  Z n x c (float32), of which only the best q per query are ever kept.
//
// The database is packed once into panels of kKnnPanel rows, feature-major: panel[j][r] = Z[p*kKnnPanel +
// r][j], so that one load feeds a vector of rows. Order: higher score first, then lower row; NaN scores rank
// last. Results depend on neither the number of threads nor the batch a query comes in.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/simd.h"
#include "core/types.h"

namespace xmc {

inline constexpr int64_t kKnnPanel = 32;  // database rows per panel
inline constexpr int64_t kKnnBlock = 96;  // queries scored against a panel while it is in L1
inline constexpr int64_t kKnnTile = 12;   // queries per register tile; kKnnBlock is a multiple

struct KnnKernels {
  // scores[t][kKnnTile][kKnnPanel] for `tiles` packed query tiles (queries[t][c][kKnnTile]) against a panel.
  void (*score)(const float* panel, const float* queries, int64_t tiles, int64_t c, float* scores);
  // Bit r of the result is set when scores[r] > threshold (or threshold is below every score).
  uint32_t (*above)(const float* scores, float threshold);
};
XMC_SIMD_TABLE(KnnKernels, knn_kernels)

class KnnIndex {
 public:
  explicit KnnIndex(DenseView<float> rows);

  int64_t rows() const { return rows_; }
  int64_t features() const { return features_; }
  int64_t bytes() const { return panels_.size() * static_cast<int64_t>(sizeof(float)); }

  // ids and scores are m x q, q <= rows(), best first.
  void search(DenseView<float> queries, int64_t q, int threads, int32_t* ids, float* scores) const;

 private:
  int64_t rows_;
  int64_t features_;
  Buffer<float> panels_;  // [panel][features][kKnnPanel], the last one padded with zeros
};

}  // namespace xmc
