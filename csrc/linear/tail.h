// Rare labels of the l2-regularised squared hinge with a bias, one at a time: the problem of dual.h, but no
// pass visits all rows.
//
// A rare label's bias leaves a gap: at w = 0 a negative row is -1 - b outside the margin, so only rows that
// share heavy features with the positives come near it. Rounds: (1) dual coordinate descent on the rows known
// to be near; (2) a search by postings (row_search.h) for all rows that are less than kNear + reach outside
// the margin. As long as w and b have moved by less than the reach since, no other row can be within kNear:
// then the known rows give the exact gradient, and the stopping rule is that of dual.h, over all rows.
//
// Labels with multipliers of an earlier solution, and those whose gap is too small, are left to dual.h.
// A label's result depends on the labels given to solve() before it (the guess of its bias), never on threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linear/dual.h"
#include "linear/postings.h"
#include "linear/problem.h"

namespace xmc::linear {

// Memory of one thread: O(n + D).
class TailSolver {
 public:
  TailSolver(const LinearProblem& problem, const PreparedFeatures& X, const Postings& postings,
             const DualOptions& options = {});
  ~TailSolver();
  TailSolver(const TailSolver&) = delete;
  TailSolver& operator=(const TailSolver&) = delete;

  // Solves those of labels[0, count) that are rare enough, in the given order; returns the others.
  std::vector<int32_t> solve(const int32_t* labels, int64_t count, const PruneRule& prune, uint64_t seed,
                             const LabelSink& sink);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xmc::linear
