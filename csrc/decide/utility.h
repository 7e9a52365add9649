// A utility: sum over labels of  a_j t_j + b_j q_j + c_j + sum_m w_m psi_m(t_j, q_j, p_j, n), perhaps with a
// metric that the caller gives as a function of arrays.
//
// Linear metrics are folded into a, b, c, whatever their number; only the others stay as terms. Scales are
// folded in too: 1 / labels for macro averages, 1 / (n k) for instance-wise precision.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "decide/metric.h"

namespace xmc::decide {

// Values of a metric of the caller: out[i] = psi(t[i], q[i], p[i], n) for `count` labels.
using MetricCallback =
    std::function<void(const double* t, const double* q, const double* p, int64_t count, double* out)>;

// What is to be maximised, in the words of the caller.
struct Metrics {
  std::vector<MetricTerm> terms;
  const double* label_weights = nullptr;  // of weighted_precision terms, `labels` entries
  std::vector<double> p;                  // positives per label
  MetricCallback custom;                  // or empty; its mean over labels is added with custom_weight
  double custom_weight = 0;
};

struct Utility {
  std::vector<double> a, b;  // labels each
  double constant = 0;
  std::vector<MetricTerm> terms;  // the non-linear ones
  std::vector<double> p;          // positives per label
  double n = 0;
  MetricCallback custom;
  double custom_weight = 0;  // of the mean over labels

  int64_t labels() const { return static_cast<int64_t>(p.size()); }
};

Utility make_utility(const Metrics& metrics, int64_t n, int64_t k);

// The whole utility from t and q (labels each).
double utility_value(const Utility& utility, const double* t, const double* q);

// Its gradient at (t, q), labels each, without the custom metric: the best response to it is the top-k of
// a_j eta + b_j.
void utility_gradient(const Utility& utility, const double* t, const double* q, double* a, double* b);

}  // namespace xmc::decide
