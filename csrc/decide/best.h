// The k largest gains of a short row (a few hundred candidates). Branches on random gains cost more than
// reading them again, so maxima are taken: of blocks of the row once, then k times of the blocks' maxima and
// of the block that lost its largest. Only many picks go through a sort.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace xmc {

inline constexpr double kNever = -std::numeric_limits<double>::infinity();

inline double largest(const double* gains, int64_t m) {
  double a = kNever, b = kNever, c = kNever, d = kNever;
  int64_t i = 0;
  for (; i + 4 <= m; i += 4) {
    a = gains[i] > a ? gains[i] : a;
    b = gains[i + 1] > b ? gains[i + 1] : b;
    c = gains[i + 2] > c ? gains[i + 2] : c;
    d = gains[i + 3] > d ? gains[i + 3] : d;
  }
  for (; i < m; ++i) a = gains[i] > a ? gains[i] : a;
  return std::max(std::max(a, b), std::max(c, d));
}

// Positions of the k largest gains and the gains themselves, larger first, then lower position. All gains are
// finite and k <= m. Uses `gains` up.
inline void pick_largest(double* gains, int64_t m, int64_t k, int32_t* at, double* best) {
  if (k > 16 && k * 8 > m) {
    std::vector<int32_t> order(static_cast<size_t>(m));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [gains](int32_t x, int32_t y) {
      return gains[x] != gains[y] ? gains[x] > gains[y] : x < y;
    });
    for (int64_t s = 0; s < k; ++s) {
      at[s] = order[static_cast<size_t>(s)];
      best[s] = gains[at[s]];
    }
    return;
  }
  if (k == 1) {
    best[0] = largest(gains, m);
    at[0] = static_cast<int32_t>(std::find(gains, gains + m, best[0]) - gains);
    return;
  }
  constexpr int64_t kBlocks = 64;
  const int64_t size = std::max<int64_t>(16, (m + kBlocks - 1) / kBlocks), blocks = (m + size - 1) / size;
  double maxima[kBlocks];
  for (int64_t b = 0; b < blocks; ++b) maxima[b] = largest(gains + b * size, std::min(size, m - b * size));
  for (int64_t s = 0; s < k; ++s) {
    best[s] = largest(maxima, blocks);
    const int64_t b = std::find(maxima, maxima + blocks, best[s]) - maxima;
    double *first = gains + b * size, *last = first + std::min(size, m - b * size);
    double* found = std::find(first, last, best[s]);
    at[s] = static_cast<int32_t>(found - gains);
    *found = kNever;
    maxima[b] = largest(first, last - first);
  }
}

}  // namespace xmc
