// Without a budget k the labels are independent: each has its own threshold, predict j where eta >= theta_j.
// For a metric that grows with t the best q instances are those with the largest eta, so one scan down the
// sorted column finds the optimum: O(entries log entries) in all, no grid.
#pragma once

#include <cstdint>
#include <vector>

#include "decide/candidates.h"
#include "decide/utility.h"

namespace xmc::decide {

struct Thresholds {
  std::vector<double> theta;  // labels; above 1: never predict
  std::vector<double> t, q;   // labels: counts at the optimum
  double utility = 0;
};

// truth: aligned with proba's entries (1 = true, 0 = false, or a probability). Instances with equal eta are
// decided alike. theta lies half way between the last accepted and the first refused probability. Coverage is
// taken in its Poisson form (core/confusion.h).
Thresholds label_thresholds(const Probabilities& proba, const float* truth, const Utility& utility,
                            int threads);

}  // namespace xmc::decide
