// What every one-vs-all solver takes and gives (spec: linear one-vs-all, DiSMEC / DiSMEC++).
//
//   f(w) = 1/2 |w|^2 + C sum_i c_i max(0, 1 - s_i w.x_i)^2          (LIBLINEAR's convention)
//
// s_i = +1 if row i has the label, else -1; c_i = cost_positive[label] or cost_negative[label].
// Stop when |g(w)| <= eps * max(min(#pos, #neg), 1) / n * |g(0)|, LIBLINEAR's rule, on the exact gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace xmc {

struct LinearProblem {
  CsrView<int32_t, float> X;          // n x D, the bias column included; data == null means dense:
  DenseView<float> X_dense;           // n x D, used when X.indptr is null
  CsrView<int32_t, float> positives;  // labels x n, binary: the rows that have the label, ascending
  double C = 1.0;
  double eps = 0.01;
  const float* cost_positive = nullptr;  // per label; null means 1
  const float* cost_negative = nullptr;  // per label; null means 1
  int max_iterations = 1000;
  uint64_t seed = 0;

  int64_t rows() const { return X.indptr ? X.rows : X_dense.rows; }
  int64_t features() const { return X.indptr ? X.cols : X_dense.cols; }
  bool dense() const { return X.indptr == nullptr; }
};

// What is kept of a solved label: |w_j| >= threshold, and of those the keep_top largest (0 = all).
struct PruneRule {
  float threshold = 0.01f;
  int64_t keep_top = 0;
};

enum class LabelStatus : int32_t { converged = 0, iteration_limit = 1, trivial = 2 };

// Convergence is data, one entry per label. `objective` and `gradient_norm` are those of the unpruned w.
struct LabelReport {
  LabelStatus status = LabelStatus::converged;
  int32_t outer_iterations = 0;  // Newton steps, or rounds of the dual solver
  int32_t inner_iterations = 0;  // CG steps, or epochs
  int64_t active_rows = 0;       // rows inside the margin at the end
  double objective = 0;
  double gradient_norm = 0;
  double seconds = 0;
};

// Solved and pruned labels, in label order: CSR labels x D.
struct LabelWeights {
  std::vector<int64_t> indptr{0};
  std::vector<int32_t> indices;
  std::vector<float> values;
};

}  // namespace xmc
