// Which weights of a solved label are kept (PruneRule).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "linear/problem.h"

namespace xmc {

inline bool keeps(const PruneRule& rule, float w) {
  return w != 0.f && std::abs(w) >= rule.threshold;
}

// Of the kept weights (features ascending) the keep_top largest by |w|, then by lower feature.
inline void keep_largest(const PruneRule& rule, std::vector<int32_t>& indices, std::vector<float>& values) {
  const auto top = static_cast<size_t>(rule.keep_top);
  if (top == 0 || indices.size() <= top) return;
  std::vector<size_t> order(indices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::nth_element(order.begin(), order.begin() + static_cast<int64_t>(top), order.end(),
                   [&](size_t x, size_t y) {
                     const float a = std::abs(values[x]), b = std::abs(values[y]);
                     return a != b ? a > b : x < y;
                   });
  order.resize(top);
  std::sort(order.begin(), order.end());
  for (size_t k = 0; k < top; ++k) {
    indices[k] = indices[order[k]];
    values[k] = values[order[k]];
  }
  indices.resize(top);
  values.resize(top);
}

}  // namespace xmc
