// The l1-regularised squared hinge, one label at a time by coordinate descent (LIBLINEAR -s 5).
//
//   f(w) = |w|_1 + C sum_i c_i max(0, 1 - s_i w.x_i)^2
//
// CDN: each feature in random order takes a Newton step of its one-variable problem with a short line search;
// a feature at zero that is far from moving is shrunk away until the rest has converged (Yuan, Chang, Hsieh,
// Lin 2010, "A comparison of optimization methods ... L1-regularized linear classification", section 4).
// Stop when the violation of optimality, summed over a sweep of all features, is at most
// tol max(min(#pos, #neg), 1) / n times that of the first sweep: LIBLINEAR's rule.
//
// Needs X by columns, once per fit. Features are in the caller's numbering.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linear/prepare.h"

namespace xmc::linear {

// X by columns, with the bias.
struct L1Columns {
  std::vector<int64_t> begin;  // D + 1
  std::vector<int32_t> rows;   // nnz
  std::vector<float> values;   // nnz
  std::vector<double> norm2;   // D: sum_i x_ij^2
};
L1Columns l1_columns(const PreparedFeatures& X);
std::vector<MemoryRange> memory_of(const L1Columns& columns);  // for NumaReplicas

// Memory of one thread: O(n + D).
class L1Solver {
 public:
  L1Solver(const LinearProblem& problem, const PreparedFeatures& X, const L1Columns& columns);
  ~L1Solver();
  L1Solver(const L1Solver&) = delete;
  L1Solver& operator=(const L1Solver&) = delete;

  // Solves labels[0, count). Of a report outer_iterations counts sweeps, inner_iterations steps of a
  // coordinate, gradient_norm is the violation of the last sweep. The result of a label depends on the label
  // only, not on the others; the seed is not used (that of the problem is).
  void solve(const int32_t* labels, int64_t count, const PruneRule& prune, uint64_t seed,
             const LabelSink& sink);
  BaseSolution solve_base();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xmc::linear
