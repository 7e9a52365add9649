// The order in which an epoch visits rows: shuffled, then in windows too small to matter to the descent sorted by the
// rows' length, so that the branch predictor learns the trip counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "linear/dual_tuning.h"
#include "linear/prepare.h"

namespace xmc::linear {

class EpochOrder {
 public:
  explicit EpochOrder(const PreparedFeatures& X) : length_(X.n) {
    for (int64_t i = 0; i < X.n; ++i) {
      length_[i] = static_cast<uint8_t>(std::min(X.rows[i].stored / kPad, kLengths - 1));
    }
  }

  void shuffle_rows(int32_t* rows, int64_t count, Rng& rng) const {
    shuffle(rows, count, rng);
    int32_t sorted[kWindow];
    for (int64_t begin = 0; begin < count; begin += kWindow) {
      const int64_t size = std::min(kWindow, count - begin);
      int32_t* window = rows + begin;
      int64_t next[kLengths + 1] = {};
      for (int64_t t = 0; t < size; ++t) ++next[length_[window[t]] + 1];
      std::partial_sum(next, next + kLengths, next);
      for (int64_t t = 0; t < size; ++t) sorted[next[length_[window[t]]]++] = window[t];
      std::copy_n(sorted, size, window);
    }
  }

 private:
  std::vector<uint8_t> length_;  // n
};

// The mean product of two rows over the mean of |x|^2: about their mean cosine.
inline double alike(const PreparedFeatures& X) {
  double norms = 0;
  for (int64_t i = 0; i < X.n; ++i) norms += static_cast<double>(X.rows[i].norm2);
  const double n = static_cast<double>(X.n), bias = n * X.bias;
  return norms > 0 ? (X.total_norm2 - bias * bias) / (n * norms) : 1.0;
}

}  // namespace xmc::linear
