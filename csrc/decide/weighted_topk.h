// Weighted top-k: the k labels with the largest gains a_j eta_ij + b_j of every instance, over its candidates
// (sparse) or over all labels (dense). Higher gain first, then lower label.
#pragma once

#include <cstdint>
#include <vector>

#include "decide/best.h"
#include "decide/candidates.h"

namespace xmc {

// A gain as a function of eta; both numbers of a label in one cache line.
struct Line {
  double offset, slope;
  double operator()(double eta) const { return offset + slope * eta; }
};

inline std::vector<Line> lines(const double* a, const double* b, int64_t labels) {
  std::vector<Line> out(static_cast<size_t>(labels));
  for (int64_t j = 0; j < labels; ++j) out[static_cast<size_t>(j)] = {b[j], a[j]};
  return out;
}

// One row: fills gains (scratch, as long as the row), positions and best gains (k each).
inline void weighted_topk_row(const Probabilities& proba, int64_t i, const Line* line, int64_t k,
                              double* gains, int32_t* at, double* best) {
  const int32_t* row = proba.indices + proba.begin(i);
  const float* eta = proba.data + proba.begin(i);
  for (int64_t c = 0; c < proba.size(i); ++c) gains[c] = line[row[c]](static_cast<double>(eta[c]));
  pick_largest(gains, proba.size(i), k, at, best);
}

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
