// Starting weights of one label (DiSMEC++, "mean-separating initialisation").
//
// All are combinations of the label's positive rows and the sum of all rows, so that they cost only the
// positives once T = sum_i x_i is known:  w0 = sum_k positive[k] x_(k-th positive) + all * T.
//
//   mean            w0 = u p + v m with w0.p = +1 and w0.q = -2, where p is the mean of the positives, m of
//                   all rows, q of the negatives.
//   multi_positive  at most 20 positives: each at +1 and q at -2 (the regularised Gram system of the
//                   positives and q); more positives: mean.
//
// zero, bias (the solution without positives) and warm (a given model) need no such combination.
#pragma once

#include <cstdint>
#include <vector>

#include "linear/stopping.h"

namespace xmc::linear {

enum class InitRule : int32_t { zero = 0, mean = 1, multi_positive = 2, bias = 3, warm = 4 };

struct Start {
  std::vector<double> positive;  // per positive row
  double all = 0;
};

// The start of rule mean or multi_positive; zero (empty `positive`) when the system is singular or the label
// has no positives or no negatives. `work` (D zeros) is given back as zeros.
Start separating_start(const PreparedFeatures& X, InitRule rule, Span<const int32_t> positives,
                       const PositiveMoments& moments, std::vector<double>& work);

}  // namespace xmc::linear
