// Weighted top-k: the k labels with the largest gains a_j eta_ij + b_j of every instance, over its candidates
// (sparse) or over all labels (dense). Higher gain first, then lower label.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "decide/best.h"
#include "decide/candidates.h"

namespace xmc::decide {

// A line per label, to rank by and to filter by.
class LineTable {
 public:
  LineTable(const double* a, const double* b, int64_t labels) : LineTable(labels) {
    for (int64_t j = 0; j < labels; ++j) set(j, {b[j], a[j]});
  }
  explicit LineTable(int64_t labels) : exact_(labels), quick_(exact_.size()) {}
  void set(int64_t j, Line line) {
    exact_[j] = line;
    quick_[j] = {static_cast<float>(line.offset), static_cast<float>(line.slope)};
    filter_.largest_offset = std::max(filter_.largest_offset, std::abs(line.offset));
  }
  const Line& operator[](int64_t j) const { return exact_[j]; }
  const FloatLine* quick() const { return quick_.data(); }
  const RowFilter& filter() const { return filter_; }

 private:
  std::vector<Line> exact_;
  std::vector<FloatLine> quick_;
  RowFilter filter_;
};

// One row: positions and best gains, k each.
inline void weighted_topk_row(const Probabilities& proba, int64_t i, const LineTable& line, int64_t k,
                              RowScratch& scratch, int32_t* at, double* best) {
  const int64_t m = proba.size(i);
  const int32_t* labels = proba.indices + proba.begin(i);
  const float* eta = proba.data + proba.begin(i);
  row_kernels().line_gains(line.quick(), labels, eta, m, scratch.gains.data());
  pick_largest(scratch, line.filter(), m, k, at, best,
               [&](int32_t c) { return line[labels[c]](static_cast<double>(eta[c])); });
}

struct RowChoice {
  std::vector<int32_t> at;   // n x k positions within the row (0 = its first candidate)
  std::vector<double> gain;  // n x k
};

// Rows have at least k candidates, sorted by label (candidates.h).
RowChoice weighted_topk(const Probabilities& proba, const double* a, const double* b, int64_t k, int threads);

// Positions of the k most probable labels of every row, in any order; ties go to the lower label. n x k.
std::vector<int32_t> topk_positions(const Probabilities& proba, int64_t k, int threads);

// The gains a_j eta + b_j of the chosen positions (n x k), summed.
double sum_of_gains(const Probabilities& proba, const std::vector<int32_t>& at, const double* a,
                    const double* b, int64_t k);

// Labels of the chosen positions, n x k.
std::vector<int32_t> labels_at(const Probabilities& proba, const std::vector<int32_t>& at, int64_t k);

// Dense: eta is rows x labels, row-major with the given stride; a and b (labels each) may be null: 1 and 0.
// Gains are float32, rounded once (fused multiply-add) where the machine has it. NaN ranks last.
void dense_weighted_topk(const float* eta, int64_t rows, int64_t labels, int64_t stride, const float* a,
                         const float* b, int64_t k, int threads, int32_t* out_labels, float* out_gains);

}  // namespace xmc::decide
