// Label vectors (spec: label clusters; Parabel, PECOS): v_l = u_l / |u_l|, u_l = sum of the rows of X that
// have label l, each times its row_scale (n, null: 1). A label without rows has the zero vector and norm 0.
//
// X: n x D. positives: L x n, binary (data is ignored), the transpose of the label matrix.
// Scratch: 4 D bytes per thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace xmc::cluster {

struct Centroids {  // CSR L x D, columns ascending, rows of norm 1 (or empty)
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
  std::vector<float> values;

  CsrView<> view(int64_t cols) const {
    return {static_cast<int64_t>(indptr.size()) - 1, cols, indptr.data(), indices.data(), values.data()};
  }
};

// max_features > 0 keeps only that many of the largest |u_lj| of a label (ties: lower column), the rest
// counts as 0; 0 keeps all. `original` (D), if given, says what the columns were before they were renumbered:
// ties are then decided by that, and the columns of a row are not sorted.
Centroids label_centroids(const CsrView<>& X, const CsrView<>& positives, int64_t max_features, int threads,
                          const int32_t* original = nullptr, const float* row_scale = nullptr);

}  // namespace xmc::cluster
