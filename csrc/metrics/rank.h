// Predictions in one form: per row the ids of its best labels, best first.
//
// Order: higher score first, then lower id; NaN last (core/topk.h). A pair (row, label) of the filter is
// ignored: it takes no rank, the next label moves up.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace xmc::metrics {

// Ragged lists: row i holds ids[indptr[i] .. indptr[i+1]).
struct RankedLists {
  std::vector<int64_t> indptr{0};
  std::vector<int32_t> ids;
};

// Column ids of a binary matrix, ascending in each row. indptr == null: no pairs at all.
using PairView = CsrView<int32_t, float>;

// The k best stored entries of each row. Entries may be stored in any order, explicit zeros count.
// Throws std::invalid_argument when a row stores a column twice or outside [0, cols).
template <class Value>
RankedLists rank_sparse(const CsrView<int32_t, Value>& scores, const PairView& filter, int64_t k,
                        int threads);

// The k best columns of each row.
template <class Value>
RankedLists rank_dense(const DenseView<Value>& scores, const PairView& filter, int64_t k, int threads);

// rows x width ids in rank order: checked (range [0, labels), no id twice in a row), filtered, cut to k.
RankedLists rank_ids(const DenseView<int64_t>& ids, int64_t labels, const PairView& filter, int64_t k,
                     int threads);

}  // namespace xmc::metrics
