// Weighted top-k: the k labels with the largest gains a_j eta_ij + b_j of every instance, over its candidates
// (sparse) or over all labels (dense). Higher gain first, then lower label.
#pragma once

#include <cstdint>
#include <vector>

#include "decide/candidates.h"

namespace xmc {

struct RowChoice {
  std::vector<int32_t> at;   // n x k positions within the row (0 = its first candidate)
  std::vector<double> gain;  // n x k
};

// Rows have at least k candidates, sorted by label (candidates.h).
RowChoice weighted_topk(const Probabilities& proba, const double* a, const double* b, int64_t k, int threads);

// Labels of the chosen positions, n x k.
std::vector<int32_t> labels_at(const Probabilities& proba, const std::vector<int32_t>& at, int64_t k);

// Dense: eta is rows x labels, row-major with the given stride; a and b (labels each) may be null: 1 and 0.
// Gains are float32, rounded once (fused multiply-add) where the machine has it. NaN ranks last.
void dense_weighted_topk(const float* eta, int64_t rows, int64_t labels, int64_t stride, const float* a,
                         const float* b, int64_t k, int threads, int32_t* out_labels, float* out_gains);

}  // namespace xmc
