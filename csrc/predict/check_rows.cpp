#include "predict/check_rows.h"

#include <stdexcept>

#include "core/parallel.h"

namespace xmc::predict {
namespace {

constexpr int64_t kRowsAtOnce = 64;

template <class Index>
void check(const CsrView<Index>& rows, int64_t entries, int threads) {
  bool fits = rows.indptr[0] == 0 && rows.indptr[rows.rows] == entries;
  for (int64_t r = 0; r < rows.rows; ++r) fits &= rows.indptr[r] <= rows.indptr[r + 1];
  if (!fits) throw std::invalid_argument("indptr does not ascend from 0 to the number of weights");
  parallel_items(rows.rows, kRowsAtOnce, threads, [&](int64_t r, int) {
    const int64_t n = rows.size(r);
    if (!n) return;
    const Index* column = rows.indices + rows.begin(r);
    Index falls = 0;  // as wide as the columns: the loop vectorises
    for (int64_t i = 0; i + 1 < n; ++i) falls |= static_cast<Index>(column[i] >= column[i + 1]);
    if (falls || static_cast<int64_t>(column[0]) < 0 || static_cast<int64_t>(column[n - 1]) >= rows.cols) {
      throw std::invalid_argument("columns of a label are not ascending or past the last column");
    }
  });
}

}  // namespace

void check_rows(const CsrView<int32_t>& rows, int64_t entries, int threads) {
  check(rows, entries, threads);
}
void check_rows(const CsrView<uint16_t>& rows, int64_t entries, int threads) {
  check(rows, entries, threads);
}

}  // namespace xmc::predict
