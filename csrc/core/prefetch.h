// Asks for memory ahead of its use, where rows or labels are visited in an order that the hardware cannot guess.
// Does nothing where the compiler has no such builtin.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/types.h"

namespace xmc {

inline void prefetch([[maybe_unused]] const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address);
#endif
}

// The cache lines of a row, those of its first 256 entries: from there on the hardware sees the pattern itself.
template <class Index, class Value>
inline void prefetch_row(const CsrView<Index, Value>& A, int64_t row) {
  constexpr int64_t kLine = 16, kMost = 16 * kLine;  // entries
  const int64_t end = A.begin(row) + std::min(A.size(row), kMost);
  for (int64_t e = A.begin(row); e < end; e += kLine) {
    prefetch(A.indices + e);
    prefetch(A.data + e);
  }
}

}  // namespace xmc
