// Label scores from neighbours (DECLARE's recovery): score(l) = sum over the neighbours r of s_r * Y[r, l],
// then the k best labels per query. Memory O(labels) per thread, never queries x labels.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace xmc::knn {

// neighbours, similarity: m x q (a negative id ends a row). Y: n x L, binary or weighted.
// labels, scores: m x k, best first; rows with fewer labels are filled with id -1. found[i] <= k is the
// count.
void recover_labels(const int32_t* neighbours, const float* similarity, int64_t m, int64_t q,
                    CsrView<int32_t, float> Y, int64_t k, int threads, int32_t* labels, float* scores,
                    int64_t* found);

}  // namespace xmc::knn
