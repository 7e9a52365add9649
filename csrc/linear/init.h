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
// zero, bias (the all-negative solution) and warm (a given model) need no such combination.
#pragma once

#include <cstdint>
#include <vector>

#include "linear/problem.h"

namespace xmc {

enum class InitRule : int32_t { zero = 0, mean = 1, multi_positive = 2, bias = 3, warm = 4 };

// Calls fn(feature, value) for the stored entries of row i.
template <class Fn>
void for_each_entry(const LinearProblem& problem, int64_t i, const Fn& fn) {
  if (problem.dense()) {
    const float* x = problem.X_dense.row(i);
    for (int64_t j = 0; j < problem.X_dense.cols; ++j) fn(j, x[j]);
  } else {
    for (int64_t t = problem.X.begin(i); t < problem.X.end(i); ++t) {
      fn(int64_t{problem.X.indices[t]}, problem.X.data[t]);
    }
  }
}

// T = sum_i x_i, its square, and x_i . T of every row.
struct RowTotals {
  std::vector<double> total;  // D
  std::vector<float> total_float;
  std::vector<double> along;  // n: x_i . T
  double norm2 = 0;
};
RowTotals row_totals(const LinearProblem& problem);

struct Start {
  std::vector<double> positive;  // per positive row
  double all = 0;
};

// p.p and p.T with p the sum of the label's positive rows; `work` (D zeros) is given back as zeros.
struct PositiveMoments {
  double pp = 0;
  double pT = 0;
};
PositiveMoments positive_moments(const LinearProblem& problem, const RowTotals& totals, const int32_t* rows,
                                 int64_t count, std::vector<double>& work);

// The start of rule mean or multi_positive; zero (empty `positive`) when the system is singular or the label
// has no positives or no negatives.
Start separating_start(const LinearProblem& problem, const RowTotals& totals, InitRule rule,
                       const int32_t* rows, int64_t count, const PositiveMoments& moments,
                       std::vector<double>& work);

}  // namespace xmc
