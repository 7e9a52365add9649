// What every one-vs-all solver takes and gives (spec: linear one-vs-all, DiSMEC / DiSMEC++).
//
//   f(w) = 1/2 |w|^2 + C sum_i c_i max(0, 1 - s_i w.x_i)^2          (LIBLINEAR's convention)
//
// s_i = +1 if row i has the label, else -1; c_i = cost_positive[label] for positives, 1 for negatives.
// Stop when |g(w)| <= tol * max(min(#pos, #neg), 1) / n * |g(0)|, LIBLINEAR's rule, on the exact gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/row_options.h"
#include "core/types.h"

namespace xmc::linear {

inline constexpr int32_t kNoLabel = -1;  // the problem without positives

struct LinearProblem {
  CsrView<> X;               // n x columns, as given; X.indptr == null means dense:
  DenseView<float> X_dense;  // n x columns
  RowOptions rows;           // how rows are prepared: scaled, with a bias as feature D - 1
  CsrView<> positives;       // labels x n, binary: the rows that have the label, ascending
  double C = 1.0;
  double tol = 0.01;
  const float* cost_positive = nullptr;  // per label; null means 1
  int max_iter = 1000;
  uint64_t seed = 0;

  bool dense() const { return X.indptr == nullptr; }
  int64_t n() const { return dense() ? X_dense.rows : X.rows; }
  int64_t columns() const { return dense() ? X_dense.cols : X.cols; }
  int64_t D() const { return columns() + rows.has_bias; }

  // Of a label or kNoLabel.
  Span<const int32_t> positive_rows(int64_t label) const {
    if (label == kNoLabel) return {};
    return {positives.indices + positives.begin(label), positives.size(label)};
  }
  double positive_cost(int64_t label) const {
    return cost_positive && label != kNoLabel ? static_cast<double>(cost_positive[label]) : 1.0;
  }
  // Whether the label has no positives or no negatives.
  bool one_class(int64_t label) const {
    const int64_t size = positive_rows(label).size();
    return size == 0 || size == n();
  }
};

// What is kept of a solved label: |w_j| >= threshold, the weight of the bias if it is at least bias_threshold, and of
// those the keep_top largest (0 = all).
struct PruneRule {
  float threshold = 0.01f;
  int64_t keep_top = 0;
  float bias_threshold = threshold;
};

enum class LabelStatus : int32_t { converged = 0, iteration_limit = 1, trivial = 2 };

// Convergence is data, one entry per label. `objective` and `gradient_norm` are those of the unpruned w.
struct LabelReport {
  LabelStatus status = LabelStatus::converged;
  int32_t outer_iterations = 0;  // Newton steps, rounds of the dual solver or sweeps (l1)
  int32_t inner_iterations = 0;  // CG steps, epochs or steps of a coordinate
  int64_t active_rows = 0;       // rows inside the margin at the end
  double objective = 0;
  double gradient_norm = 0;  // NaN where the gap decided
  double gap = 0;            // objective - min f is at most so much (dual solver only)
  double seconds = 0;
};

// Where a label's multipliers are above 0 at its solution, ascending rows: w = sum_i alpha_i s_i x_i, but the
// bias's weight is a number of its own (bias.h). With the rows, all that an update starts from (dual.h).
struct Multipliers {
  std::vector<int32_t> rows;
  std::vector<float> alpha;
  float bias_weight = 0;
};

// The same of many labels: rows and alpha as CSR labels x n, bias weights (NaN: a label that has none yet), and
// the objective that was reached.
struct MultipliersView {
  CsrView<> alpha;
  const float* bias_weight = nullptr;
  const double* objective = nullptr;
  bool has(int64_t label) const { return bias_weight && bias_weight[label] == bias_weight[label]; }
};

struct SolvedLabel {
  std::vector<int32_t> features;  // the caller's ids, ascending
  std::vector<float> weights;
  LabelReport report;
  Multipliers multipliers;  // if required
};
using LabelSink = std::function<void(int64_t label, SolvedLabel&& solved)>;

// The solution without positives at cost 1, unpruned, in the numbering of prepare.h.
struct BaseSolution {
  std::vector<float> w;  // D
  LabelReport report;
  Multipliers multipliers;  // if required
};

}  // namespace xmc::linear
