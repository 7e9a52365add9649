// The k best of several top-k lists over one label space (shards of labels, members of an ensemble).
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace xmc::predict {

// For each row the k best of the union of that row's entries in all lists. A label that occurs in several
// lists gets the sum of its scores, in the order of the lists. All lists have the same rows.
// ids, scores: rows * k; counts: rows, the entries given (at most k).
void merge_topk(const std::vector<CsrView<>>& lists, int64_t k, int threads, int32_t* ids, float* scores,
                int32_t* counts);

}  // namespace xmc::predict
