// Label vectors (spec: label clusters; Parabel, PECOS): v_l = u_l / |u_l|, u_l = sum of the rows of X that
// have label l. Rows of X are taken as they are (tf-idf rows are usually l2-normalised already). A label
// without rows has the zero vector and norm 0.
//
// X: n x D. positives: L x n, binary (data is ignored), the transpose of the label matrix.
// Scratch: 8 D bytes per thread; the product Y^T X is stored only where it is the result.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace xmc {

struct Centroids {  // CSR L x D, columns ascending, rows of norm 1 (or empty)
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
  std::vector<float> values;
};

Centroids label_centroids(const CsrView<>& X, const CsrView<>& positives, int threads);

// |u_l| for each label, without storing u.
std::vector<float> centroid_norms(const CsrView<>& X, const CsrView<>& positives, int threads);

}  // namespace xmc
