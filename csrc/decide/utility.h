// A utility: sum over labels of  a_j t_j + b_j q_j + c_j + sum_m w_m psi_m(t_j, q_j, p_j, n).
//
// Linear metrics are folded into a, b, c, whatever their number; only the others stay as terms. Scales are
// folded in too: 1 / labels for macro averages, 1 / (n k) for instance-wise precision.
#pragma once

#include <cstdint>
#include <vector>

#include "decide/metric.h"

namespace xmc {

struct Utility {
  std::vector<double> a, b;  // labels each
  double constant = 0;
  std::vector<MetricTerm> terms;  // the non-linear ones
  std::vector<double> p;          // positives per label
  double n = 0;

  int64_t labels() const { return static_cast<int64_t>(p.size()); }
};

// label_weights: of weighted_precision terms, `labels` entries; null if there is no such term.
Utility make_utility(const std::vector<MetricTerm>& terms, const double* label_weights, std::vector<double> p,
                     int64_t n, int64_t k);

// The whole utility from t and q (labels each).
double utility_value(const Utility& utility, const double* t, const double* q);

}  // namespace xmc
