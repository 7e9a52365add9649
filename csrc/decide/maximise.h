// The best prediction of k labels per row that this folder finds, and the one place that decides how the
// ascent (bca.h) starts:
//
//   a linear utility needs no ascent: one weighted top-k is its optimum (except from given labels);
//   relaxed   near the optimum of the relaxed problem: kRounds of Frank-Wolfe from the top-k. The ascent
//             mostly ends highest from there. Two exceptions: a custom metric (no gradient) starts from the
//             top-k; macro-precision, whose slope at q = 0 leads nowhere, starts from the optimum of coverage
//             and then of macro-F0.1 in its place, which also want each label once, where it is most probable;
//   topk      the most probable labels;  random  any candidates;  greedy  one row after the other from
//             nothing;  labels  given ones.
//
// If the ascent ends below the utility of the most probable labels, it is run once more from those, so that
// the result is never worse.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "decide/bca.h"

namespace xmc::decide {

struct Maximum : BcaResult {
  double value = 0;         // the utility of the result
  double topk_utility = 0;  // that of the k most probable labels
};

// start: one of the names above. labels: n x k label ids for "labels" (std::invalid_argument if one is not a
// candidate or occurs twice in its row), else unused.
Maximum maximise(const Probabilities& proba, const Metrics& metrics, const std::string& start,
                 const int32_t* labels, const BcaOptions& options);

}  // namespace xmc::decide
