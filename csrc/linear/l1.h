// The l1-regularised squared hinge, one label at a time by coordinate descent (LIBLINEAR -s 5).
//
//   f(w) = |w|_1 + C sum_i c_i max(0, 1 - s_i w.x_i)^2
//
// CDN: each feature in random order takes a Newton step of its one-variable problem with a short line search;
// a feature at zero that is far from moving is shrunk away until the rest has converged (Yuan, Chang, Hsieh,
// Lin 2010, "A comparison of optimization methods ... L1-regularized linear classification", section 4).
// Stop when the violation of optimality, summed over a sweep of all features, is at most
// eps max(min(#pos, #neg), 1) / n times that of the first sweep: LIBLINEAR's rule.
//
// Needs X by columns, once per fit. Memory per thread: O(n + D).
#pragma once

#include <cstdint>
#include <vector>

#include "linear/problem.h"

namespace xmc {

// What all labels of a fit share: X by columns. The views of `problem` must outlive it.
struct L1Fit {
  LinearProblem problem;
  std::vector<int64_t> begin;  // D + 1
  std::vector<int32_t> rows;   // nnz
  std::vector<float> values;   // nnz
  std::vector<double> norm2;   // D: sum_i x_ij^2
  std::vector<float> base_w;   // solution without positives at cost 1, D; empty when no label needs it
  LabelReport base_report;
};
L1Fit prepare_l1(const LinearProblem& problem);

// The memory of one thread.
struct L1Scratch {
  std::vector<double> slack;    // n: 1 - s_i w.x_i
  std::vector<double> cost;     // n: C c_i
  std::vector<int8_t> sign;     // n
  std::vector<double> w;        // D
  std::vector<double> bound;    // D: sum_i C c_i x_ij^2
  std::vector<int32_t> active;  // D: features in play first
};

// Solves the labels given, on the calling thread, and appends their pruned weights to `out` in the order
// given; reports[k] is about labels[k]: outer_iterations counts sweeps, inner_iterations steps of a
// coordinate, gradient_norm is the violation of the last sweep. The result of a label depends on the label
// only, not on the others.
void solve_l1(const L1Fit& fit, const int32_t* labels, int64_t count, const PruneRule& prune,
              L1Scratch& scratch, LabelWeights* out, LabelReport* reports);

}  // namespace xmc
