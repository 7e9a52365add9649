// Which labels need no training after rows were added or removed.
//
// Let w be a label's old solution, gap a bound of f(w) - min f. New rows add what their slacks cost, and raise the
// minimum if anything: f_new(w) = f(w) + C sum_added max(0, 1 + z_i)^2 (rows without the label), min f_new >= f(w) -
// gap. Removed rows outside the margin change neither. So (f(w) + added) / (f(w) - gap) bounds how far w is from the
// new minimum. w is built from the multipliers: pruned weights are not enough.
#pragma once

#include <cstdint>
#include <vector>

#include "linear/problem.h"

namespace xmc::linear {

struct ChangedRows {
  int64_t first_added = 0;       // rows from this one on are new
  std::vector<int32_t> removed;  // ascending; no row of the new problem
};

// `problem` has the old rows, the removed ones too, then the new ones; `positives` those of the new problem. No
// changed row has a label of `labels`. Returns C sum_added xi_i^2 of each; infinity where a removed row is inside.
std::vector<double> added_loss(const LinearProblem& problem, const MultipliersView& old,
                               const ChangedRows& changed, Span<const int32_t> labels, int threads);

}  // namespace xmc::linear
