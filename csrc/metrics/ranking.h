// Metrics of a whole ranking of the labels, as scikit-learn defines them. With s the scores of a row, y its true
// labels, L labels:
//
//   coverage error  the largest, over the true labels, number of labels with a score of at least theirs (0 for a
//                   row without true labels): how far down the list one must go to find them all
//   ranking loss    the share of the pairs (true, false) with s_false >= s_true (0 where there is no such pair)
//
// A label that is not stored has the lowest score, and all of them the same one: with lists of the top k only, a
// true label that is not in its list costs the whole list. NaN ranks like a label that is not stored.
#pragma once

#include "core/types.h"

namespace xmc::metrics {

struct RankingSums {
  double coverage = 0, loss = 0;  // sums over the rows
};

// scores: rows x L, each column at most once in a row. truth: rows x L, binary, ids ascending.
template <class Value>
RankingSums ranking_sums(const CsrView<int32_t, float>& truth, const CsrView<int32_t, Value>& scores,
                         int threads);

}  // namespace xmc::metrics
