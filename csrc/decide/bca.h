// Block coordinate ascent for macro-at-k metrics on a fixed test set (thesis, section 4.3; Schultheis,
// Wydmuch, Kotlowski, Babbar, Dembczynski, NeurIPS 2023).
//
// One block is the prediction of one instance: take it out of (t, q), choose the k candidates with the
// largest gains  psi(t + eta, q + 1, p) - psi(t, q, p),  put it back. Every step is the best response to all
// other instances, so the utility never decreases.
//
// What makes it fast: psi is affine in t for most metrics, hence a gain is A_j + B_j eta with A_j, B_j
// changing only when label j's counts do (ascent_state.h). A step evaluates all candidates of its row in
// float32 (SIMD, row_kernels.h) and only those that may beat a chosen label again in double, which decides: a
// settled row costs a load, a multiply-add and a compare per candidate. Rows are visited in runs of
// neighbours, the runs in random order, so that memory is read in streams.
//
// Threads: while many rows change, rows are visited one after another. Once fewer than a quarter of them
// change, a pass goes batch by batch: all rows of a batch are checked in parallel against the counts at its
// start, then those that would change make their (exact, up-to-date) step one after another. The schedule
// depends on the data only: any number of threads gives the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "decide/candidates.h"
#include "decide/utility.h"

namespace xmc::decide {

struct BcaOptions {
  int64_t k = 1;
  double tol = 0;    // stop when a pass gains less than this share of the utility
  int max_iter = 0;  // passes over the rows
  uint64_t seed = 0;
  int threads = 1;  // 1 with a custom metric
};

struct BcaResult {
  std::vector<int32_t> labels;  // n x k, best first
  std::vector<float> scores;    // n x k: what the utility loses without the label
  double start_utility = 0;
  std::vector<double> utility;   // after each pass
  std::vector<int64_t> changed;  // instances changed by each pass
  bool converged = false;
};

// start: n x k positions within the rows (0 = a row's first candidate), or empty: greedy, the first pass then
// starts from no predictions.
BcaResult block_coordinate_ascent(const Probabilities& proba, const Utility& utility,
                                  const std::vector<int32_t>& start, const BcaOptions& options);

// The utility of a prediction, n x k positions; of options only k counts.
double prediction_utility(const Probabilities& proba, const Utility& utility,
                          const std::vector<int32_t>& chosen, const BcaOptions& options);

}  // namespace xmc::decide
