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
// diag(H) (bench/speed/newton_preconditioner.py).
//
// Results depend on the labels given and their order only, never on threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linear/init.h"
#include "linear/prepare.h"

namespace xmc::linear {

enum class Loss : int32_t { squared_hinge = 0, logistic = 1 };

// What all labels of a fit share. The views must outlive it.
struct NewtonFit {
  const LinearProblem& problem;
  Loss loss = Loss::squared_hinge;
  InitRule init = InitRule::mean;
  CsrView<> warm;             // labels x D in the caller's numbering, rule warm only
  std::vector<float> base_w;  // rule bias only: the solution without positives, D
  std::vector<float> base_z;  // X base_w, n
};

// Memory of one thread: O(kLanes (n + D)).
class NewtonSolver {
 public:
  NewtonSolver(const NewtonFit& fit, const PreparedFeatures& X);
  ~NewtonSolver();
  NewtonSolver(const NewtonSolver&) = delete;
  NewtonSolver& operator=(const NewtonSolver&) = delete;

  // Solves labels[0, count); the sink gets each label as soon as it is done. The seed is not used.
  void solve(const int32_t* labels, int64_t count, const PruneRule& prune, uint64_t seed,
             const LabelSink& sink);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// The solution without positives; *z (may be null) gets its scores, n.
BaseSolution solve_newton_base(const NewtonFit& fit, const PreparedFeatures& X, std::vector<float>* z);

}  // namespace xmc::linear
