// Blocked dual coordinate descent for the l2-regularised squared hinge (problem.h), sixteen labels at a time.
//
// Dual of one label (Hsieh et al. 2008): min_{alpha >= 0} 1/2 |sum_i alpha_i s_i x_i|^2
//   + sum_i alpha_i^2 / (4 C c_i) - sum_i alpha_i, with w = sum_i alpha_i s_i x_i kept up to date.
//
// Rounds: (1) coordinate descent on a working set of rows shared by the lanes, reshuffled every epoch: one
// epoch in a label's first round (its positives and the rows of the shared start), later to a tightening
// tolerance; (2) one pass over all rows, which finds the violators and the exact primal gradient; a label's
// first pass takes the steps of an epoch as it goes, so that fewer rows violate. A lane whose gradient meets
// the stopping rule is pruned and written out, and the next label takes the lane. The rule alone is loose for
// frequent labels; f is 1-strongly convex, |w - w*| <= |g|, so |g| <= min(20 tol, 200 tol^1.5) |w| is
// required as well, for kCloser rounds more at most.
// Every label starts from the same w and alpha (DualStart): without a bias from the solution of the problem
// without positives, with one (bias.h) from w = 0 and a guess of the bias's weight.
//
// Labels with multipliers of an earlier solution (DualOptions) start there instead: w is built from them, the
// first working set is their rows, the label's positives and the new rows. After two epochs on the new rows alone the
// first round goes to a small tolerance at once.
//
// The result depends on the labels given to solve() and their order, never on threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linear/prepare.h"
#include "linear/problem.h"

namespace xmc::linear {

struct DualStart {
  std::vector<float> w;       // D
  std::vector<float> alpha;   // n
  std::vector<int32_t> rows;  // where alpha > 0
  float balance = 0;          // sum_i alpha_i s_i
  LabelReport report;         // of this problem
};

struct DualOptions {
  MultipliersView old;
  int64_t old_rows = 0;  // rows from this one on are new
  bool keep_multipliers = false;
};

// Memory of one thread: O(16 (n + D)).
class DualSolver {
 public:
  DualSolver(const LinearProblem& problem, const PreparedFeatures& X, const DualStart& start,
             const DualOptions& options = {});
  ~DualSolver();
  DualSolver(const DualSolver&) = delete;
  DualSolver& operator=(const DualSolver&) = delete;

  // Solves labels[0, count) in the given order (neighbours share lanes). The sink gets each label as soon as
  // it is done.
  void solve(const int32_t* labels, int64_t count, const PruneRule& prune, uint64_t seed,
             const LabelSink& sink);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// The problem without positives, solved to a tenth of tol.
DualStart solve_dual_start(const LinearProblem& problem, const PreparedFeatures& X);

Multipliers multipliers_of(const DualStart& start, bool has_bias);

// Where labels start when rows have a bias: its weight alone, all rows at the negatives' margin.
DualStart bias_alone(const PreparedFeatures& X);

}  // namespace xmc::linear
