// Truncated Newton for one-vs-all problems, kLanes labels in lock step (problem.h; DiSMEC, DiSMEC++).
//
//   squared hinge  f(w) = 1/2 |w|^2 + C sum_i c_i max(0, 1 - s_i w.x_i)^2      (LIBLINEAR -s 2)
//   logistic       f(w) = 1/2 |w|^2 + C sum_i c_i log(1 + exp(-s_i w.x_i))     (LIBLINEAR -s 0)
//
// A round, for all lanes together: gradient and active rows from the stored scores z = Xw; a lane whose exact
// gradient meets LIBLINEAR's rule, and bounds f to within 0.05 % of its minimum, leaves and the next label
// takes its place; conjugate gradients on the active rows for the rest; one pass over X for q = Xd; exact
// line search on z + t q; update.
//
// Conjugate gradients run in the row space. Every vector of the Krylov space of H = I + X'S^2 X started at g
// has the form  y g + X'S c  with one number y and one c per active row, and H maps (y, c) to
// (y, c + S X v). So of all vectors only the current residual v is ever written out per feature (one array
// instead of four: the rest is a tenth of the size), and the steps are those of textbook CG. That needs the
// identity as preconditioner, and a diagonal one does not pay: on EURLex-4K, 8 labels from head to tail, no
// bias / bias, 310 / 345 CG steps without, 290 / 415 with LIBLINEAR's 0.99 I + 0.01 diag(H), 358 / 789 with
// diag(H) (bench/newton_preconditioner.py).
//
// Results depend on the labels given and their order only: the caller cuts the labels into batches, and any
// number of threads may run batches at once, each with its own scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linear/init.h"
#include "linear/problem.h"

namespace xmc {

enum class Loss : int32_t { squared_hinge = 0, logistic = 1 };

// What all labels of a fit share. The views of `problem` (and `warm`) must outlive it.
struct NewtonFit {
  LinearProblem problem;
  Loss loss = Loss::squared_hinge;
  InitRule init = InitRule::mean;
  CsrView<int32_t, float> warm;  // labels x D, rule warm only
  RowTotals totals;
  std::vector<float> base_w;  // solution without positives at cost 1, D; empty when nothing needs it
  std::vector<float> base_z;  // X base_w, n
  LabelReport base_report;
};
NewtonFit prepare_newton(const LinearProblem& problem, Loss loss, InitRule init,
                         const CsrView<int32_t, float>& warm);

// The memory of one thread: O(kLanes (n + D)).
class NewtonScratch {
 public:
  NewtonScratch();
  ~NewtonScratch();
  NewtonScratch(NewtonScratch&&) noexcept;
  struct Memory;
  Memory& memory() { return *memory_; }

 private:
  std::unique_ptr<Memory> memory_;
};

// Solves the labels given, on the calling thread, and appends their pruned weights to `out` in the order
// given; reports[k] is about labels[k]. Labels without positives (negatives) get the shared all-negative
// (all-positive) solution when their cost is 1.
void solve_newton(const NewtonFit& fit, const int32_t* labels, int64_t count, const PruneRule& prune,
                  NewtonScratch& scratch, LabelWeights* out, LabelReport* reports);

}  // namespace xmc
