#include "core/csr_check.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"

namespace xmc {
namespace {

constexpr int64_t kRows = 1 << 14;  // of a task

// The worst state of rows, and the first place of it.
template <class Index>
CsrCheck check_rows(const int64_t* indptr, const Index* indices, int64_t cols, int64_t from, int64_t to) {
  CsrCheck found;
  for (int64_t row = from; row < to; ++row) {
    const int64_t begin = indptr[row], end = indptr[row + 1];
    int64_t above = -1;
    bool ascending = true;
    for (int64_t e = begin; e < end; ++e) {
      const auto column = static_cast<int64_t>(indices[e]);
      if (column < 0 || column >= cols) return {CsrState::kBadColumn, e};
      ascending &= column > above;
      above = column;
    }
    if (!ascending && found.state == CsrState::kCanonical) found = {CsrState::kUnordered, begin};
  }
  return found;
}

}  // namespace

template <class Index>
CsrCheck check_csr(int64_t rows, int64_t cols, const int64_t* indptr, const Index* indices, int64_t entries,
                   int threads) {
  if (indptr[0] != 0) return {CsrState::kBadIndptr, 0};
  for (int64_t row = 0; row < rows; ++row) {
    if (indptr[row + 1] < indptr[row] || indptr[row + 1] > entries) return {CsrState::kBadIndptr, row};
  }
  if (rows <= kRows) return check_rows(indptr, indices, cols, 0, rows);
  const int64_t tasks = chunk_count(rows, kRows);
  std::vector<CsrCheck> found(static_cast<size_t>(tasks));
  parallel_for(tasks, threads, [&](int64_t task, int) {
    found[static_cast<size_t>(task)] =
        check_rows(indptr, indices, cols, task * kRows, std::min(rows, (task + 1) * kRows));
  });
  return *std::max_element(found.begin(), found.end(),
                           [](const CsrCheck& a, const CsrCheck& b) { return a.state < b.state; });
}

template CsrCheck check_csr(int64_t, int64_t, const int64_t*, const int32_t*, int64_t, int);
template CsrCheck check_csr(int64_t, int64_t, const int64_t*, const int64_t*, int64_t, int);

}  // namespace xmc
