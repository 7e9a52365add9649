// Frank-Wolfe for population utilities at k (thesis, section 4.4; Schultheis, Kotlowski, Wydmuch, Babbar,
// Borman, Dembczynski, ICLR 2024).
//
// A classifier is a mixture of weighted top-k rules. Repeat: linearise the utility at the mixture's counts
// (t, q); its best response is the top-k of eta dt_j + dq_j; a line search mixes it in. Counts are linear in
// the mixture weights, so only t and q of the new rule are needed.
#pragma once

#include <cstdint>
#include <vector>

#include "decide/candidates.h"
#include "decide/response.h"
#include "decide/utility.h"

namespace xmc::decide {

struct FrankWolfeOptions {
  int64_t k = 1;
  int max_iter = 0;
  double tol = 0;        // stop when an iteration gains less than this share of the utility
  double smoothing = 0;  // added to q: the slope of t / q stays finite at q = 0
  int threads = 1;
};

struct FrankWolfeResult {
  std::vector<double> a, b;     // rules x labels
  std::vector<double> weights;  // rules, sum 1
  std::vector<double> utility;  // of the mixture: at the start, after each iteration
  std::vector<double> steps;    // mixing weight found by each line search
  bool converged = false;
};

// utility.p must come from the same source as the truth (response.h).
FrankWolfeResult frank_wolfe(const Probabilities& proba, const Truth& truth, const Utility& utility,
                             const FrankWolfeOptions& options);

// Each instance draws a rule of the mixture (cumulative: running sums of the weights, last one 1), then its
// weighted top-k. Returns labels and gains, n x k.
struct MixtureChoice {
  std::vector<int32_t> labels;
  std::vector<float> gains;
};
MixtureChoice predict_mixture(const Probabilities& proba, const double* a, const double* b,
                              const std::vector<double>& cumulative, int64_t k, uint64_t seed, int threads);

}  // namespace xmc::decide
