// Rows as a linear model sees them: scaled to length 1, then extended by a constant feature. Training
// (linear/prepare.cpp) and prediction (predict/row_batch.cpp) share this one implementation.
#pragma once

#include <cmath>
#include <cstdint>

namespace xmc {

struct RowOptions {
  bool normalize = false;  // l2-normalise the row first
  bool has_bias = false;   // then append the constant feature `bias` as the last column
  float bias = 0;
};

inline double squared_length(const float* x, int64_t n) {
  double squares = 0;
  for (int64_t j = 0; j < n; ++j) squares += static_cast<double>(x[j]) * x[j];
  return squares;
}

// The factor of a row with this squared length: 1 / |x| if rows are normalised, 1 for a row of zeros.
inline float row_scale(const RowOptions& options, double squares) {
  return options.normalize && squares > 0 ? static_cast<float>(1 / std::sqrt(squares)) : 1.f;
}

}  // namespace xmc
