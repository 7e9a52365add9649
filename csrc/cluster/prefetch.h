// Asks for a row of a CSR matrix ahead of its use: rows are visited in no order that the hardware could
// guess.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/types.h"

namespace xmc {

inline void prefetch_row([[maybe_unused]] const CsrView<>& A, [[maybe_unused]] int64_t row) {
#if defined(__GNUC__)
  constexpr int64_t kLine = 16, kMost = 16 * kLine;  // entries
  const int64_t end = std::min(A.end(row), A.begin(row) + kMost);
  for (int64_t e = A.begin(row); e < end; e += kLine) {
    __builtin_prefetch(A.indices + e);
    __builtin_prefetch(A.data + e);
  }
#endif
}

}  // namespace xmc
