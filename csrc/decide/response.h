// The best response to a linear utility, row by row, and its counts: the step that Frank-Wolfe and the
// relaxed start of the ascent repeat with slowly changing weights.
//
// The k labels chosen last time, valued with the new weights, bound the k-th largest gain from below. One
// pass over a row (float32, row_kernels.h) then finds the few candidates that reach the bound; they are told
// apart in double, if there are more than k of them at all.
#pragma once

#include <cstdint>
#include <vector>

#include "decide/best.h"
#include "decide/candidates.h"

namespace xmc::decide {

// What a chosen label counts: trust_j y + (1 - trust_j) eta, y = 1 if it is a true label of the row. Without
// labels (no rows) eta.
struct Truth {
  CsrView<int32_t, float> labels;
  const float* trust = nullptr;  // one per label
};

class Response {
 public:
  // start: n x k positions within the rows. proba and truth outlive the object.
  Response(const Probabilities& proba, const Truth& truth, const std::vector<int32_t>& start, int64_t k,
           int threads);

  // Chooses the k largest a_j eta + b_j of every row, ties to the lower label.
  void choose(const double* a, const double* b);

  // Sums over the rows: t of what the chosen labels count, q of their number + smoothing.
  void count(double smoothing, double* t, double* q);

  // n x k positions within the rows, in no particular order.
  const std::vector<int32_t>& positions() const { return at_; }

 private:
  void choose_row(int64_t i, const double* a, const double* b, const RowFilter& filter, RowScratch& scratch);
  void note_row(int64_t i);

  const Probabilities& proba_;
  const Truth& truth_;
  int64_t k_;
  int threads_;
  std::vector<FloatLine> line_;  // per label
  std::vector<RowScratch> scratch_;
  std::vector<int32_t> at_, label_;  // n x k
  std::vector<float> eta_;           // n x k
  struct Count {
    double eta;
    int32_t chosen, hits;
  };
  std::vector<Count> counts_;  // per label
};

}  // namespace xmc::decide
