// Where block coordinate ascent starts: n x k positions within the rows (0 = a row's first candidate).
// weighted_topk.h gives the start from the most probable labels.
#pragma once

#include <cstdint>
#include <vector>

#include "decide/candidates.h"
#include "decide/utility.h"

namespace xmc {

std::vector<int32_t> random_positions(const Probabilities& proba, int64_t k, uint64_t seed);

// From label ids (n x k). Throws std::invalid_argument if one is not a candidate or named twice.
std::vector<int32_t> positions_of(const Probabilities& proba, const int32_t* labels, int64_t k);

// Near the optimum of the relaxed problem: from the top-k, `rounds` times the best response (weighted top-k)
// to the utility linearised at the mean counts of all rounds so far, as Frank-Wolfe with steps 1 / (r + 1).
// The ascent then ends in a better local optimum than from the top-k, which *topk gets.
std::vector<int32_t> relaxed_positions(const Probabilities& proba, const Utility& utility, int64_t k,
                                       int rounds, int threads, std::vector<int32_t>* topk = nullptr);

}  // namespace xmc
