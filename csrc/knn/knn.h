// Exact inner-product neighbours: for each query the q database rows with the largest dot product.
//
//   scores = Q Z^T,  Q m x c,  Z n x c (float32), of which only the best q per query are ever kept.
//
// A first pass on bytes drops the rows that cannot enter a query's list (filter.h), nearly all of most data;
// the others are scored in float32. Order: higher score first, then lower row; NaN scores rank last. Results
// depend on neither the filter, the number of threads nor the batch a query comes in.
//
// A score is summed in kKnnLanes interleaved sums (feature j goes to sum j % kKnnLanes), which are then added
// in halves: i and i + 8, i and i + 4, ...
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/simd.h"
#include "core/types.h"
#include "knn/filter.h"

namespace xmc::knn {

inline constexpr int64_t kKnnBlock = 96;  // queries that pass over the database together
inline constexpr int64_t kKnnLanes = 16;

struct KnnKernels {
  // scores[k] = <query, row at[k]>, k < n. `rows` is row-major with c columns. Both may be read kKnnLanes
  // floats beyond their end; the query is zero there.
  void (*score)(const float* rows, int64_t c, const float* query, const int32_t* at, int n, float* scores);
};
XMC_SIMD_TABLE(KnnKernels, knn_kernels)

class KnnIndex {
 public:
  explicit KnnIndex(DenseView<float> rows);

  int64_t rows() const { return rows_; }
  int64_t features() const { return features_; }
  const float* values() const { return values_.data(); }  // rows x features
  int64_t bytes() const { return bytes_.bytes() + values_.size() * static_cast<int64_t>(sizeof(float)); }

  // ids and scores are m x q, q <= rows(), best first.
  void search(DenseView<float> queries, int64_t q, int threads, int32_t* ids, float* scores) const;

 private:
  int64_t rows_;
  int64_t features_;
  Buffer<float> values_;  // rows x features, and kKnnLanes more
  KnnBytes bytes_;
};

}  // namespace xmc::knn
