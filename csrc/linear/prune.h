// Which weights of a solved label are kept (PruneRule).
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "linear/prepare.h"

namespace xmc::linear {

// Leaves the `top` weights of largest absolute value (0 = all), among equal ones the lower feature.
inline void keep_largest(SolvedLabel& label, int64_t top) {
  if (top <= 0 || static_cast<int64_t>(label.features.size()) <= top) return;
  std::vector<int64_t> by_size(label.features.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::nth_element(by_size.begin(), by_size.begin() + top, by_size.end(), [&](int64_t a, int64_t b) {
    const float x = std::abs(label.weights[a]), y = std::abs(label.weights[b]);
    return x != y ? x > y : a < b;
  });
  by_size.resize(top);
  std::sort(by_size.begin(), by_size.end());
  for (int64_t k = 0; k < top; ++k) {
    label.features[k] = label.features[by_size[k]];
    label.weights[k] = label.weights[by_size[k]];
  }
  label.features.resize(top);
  label.weights.resize(top);
}

// The kept weights of a label; weight(j) is that of feature j in the numbering of prepare.h.
template <class Weight>
SolvedLabel prune(const PruneRule& rule, const PreparedFeatures& X, const LabelReport& report,
                  const Weight& weight) {
  SolvedLabel out{{}, {}, report, {}};
  for (int64_t feature = 0; feature < X.D; ++feature) {
    const float w = weight(X.renamed[feature]);
    const bool is_bias = X.bias != 0 && feature == X.D - 1;
    if (w == 0 || std::abs(w) < (is_bias ? rule.bias_threshold : rule.threshold)) continue;
    out.features.push_back(static_cast<int32_t>(feature));
    out.weights.push_back(w);
  }
  keep_largest(out, rule.keep_top);
  return out;
}

}  // namespace xmc::linear
