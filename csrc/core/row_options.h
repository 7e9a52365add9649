// Rows as a linear model sees them: scaled to length 1, then extended by a constant feature. Training
// (linear/prepare.cpp) and prediction (predict/row_batch.cpp, tree/predict.cpp, and xmc_fast.mach, which multiplies in
// numpy) share this one implementation.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/types.h"

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

// The factor of every row.
inline std::vector<float> row_scales(const RowOptions& options, const CsrView<>& x) {
  std::vector<float> scales(static_cast<size_t>(x.rows));
  for (int64_t i = 0; i < x.rows; ++i) {
    scales[static_cast<size_t>(i)] = row_scale(options, squared_length(x.data + x.begin(i), x.size(i)));
  }
  return scales;
}

}  // namespace xmc
