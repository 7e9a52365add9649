// Whether a sparse matrix is what it says: the one pass that makes kernels safe, since they never look again.
#pragma once

#include <cstdint>

namespace xmc {

enum class CsrState : int {
  kCanonical = 0,  // columns of each row ascend
  kUnordered = 1,  // all in range, but not sorted, or a column twice
  kBadIndptr = 2,  // does not begin at 0, falls, or goes past the entries; `at` is the row
  kBadColumn = 3,  // below 0 or not below `cols`; `at` is the entry
};

struct CsrCheck {
  CsrState state = CsrState::kCanonical;
  int64_t at = -1;  // the first of its kind
};

// indptr: rows + 1; indices: `entries`, of which the first indptr[rows] count.
template <class Index>
CsrCheck check_csr(int64_t rows, int64_t cols, const int64_t* indptr, const Index* indices, int64_t entries,
                   int threads);

}  // namespace xmc
