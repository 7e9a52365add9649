// The k largest gains of a short row (a few hundred candidates). Branches on random gains cost more than
// reading it again, so the maximum is taken k times; only many picks go through a sort.
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
  for (int64_t s = 0; s < k; ++s) {
    best[s] = largest(gains, m);
    at[s] = static_cast<int32_t>(std::find(gains, gains + m, best[s]) - gains);
    gains[at[s]] = kNever;
  }
}

}  // namespace xmc
