// The SIMD part of one row of candidates: their gains in float32, and which of them are large.
//
// Float gains only choose whom to look at: gains that decide are evaluated in double (see RowFilter). A row
// of gains is padded with -infinity to whole groups of kRowLanes; `m` is the number without the padding.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/simd.h"

namespace xmc::decide {

inline constexpr int64_t kRowLanes = 16;
inline constexpr int64_t padded_row(int64_t m) {
  return (m + kRowLanes - 1) / kRowLanes * kRowLanes;
}

// A gain as a function of eta, to rank by and to filter by.
struct Line {
  double offset, slope;
  double operator()(double eta) const { return offset + slope * eta; }
};
struct FloatLine {
  float offset, slope;
};

// Float gains err by less than 2^-22 (|gain| + 2 |offset|): a candidate that may reach `gain` in double has
// at least lower(gain) in float.
struct RowFilter {
  double largest_offset = 0;
  float lower(double gain) const {
    return static_cast<float>(gain - 0x1.0p-21 * (std::abs(gain) + 2 * largest_offset) - 1e-37);
  }
  float lower(float gain) const { return lower(static_cast<double>(gain)); }
};

struct RowKernels {
  // gains[c] = line[labels[c]](eta[c]), padded
  void (*line_gains)(const FloatLine* line, const int32_t* labels, const float* eta, int64_t m, float* gains);
  // The same for lines through 0.
  void (*slope_gains)(const float* slope, const int32_t* labels, const float* eta, int64_t m, float* gains);
  float (*largest)(const float* gains, int64_t m);
  // A lower bound of the k-th largest gain, k <= kRowLanes: the k-th of the maxima of the lanes.
  float (*kth_bound)(const float* gains, int64_t m, int64_t k);
  // Positions, ascending, of the gains >= bound. `at` has room for the padded row and kRowLanes more.
  int64_t (*at_least)(const float* gains, int64_t m, float bound, int32_t* at);
  // The same in one go with line_gains: only the gains of those found are kept, padded. `gains` has room for
  // the padded row and kRowLanes more.
  int64_t (*lines_at_least)(const FloatLine* line, const int32_t* labels, const float* eta, int64_t m,
                            float bound, int32_t* at, float* gains);
  // Labels ascend and all eta are in (0, 1].
  bool (*usual)(const int32_t* labels, const float* eta, int64_t m);
};
XMC_SIMD_TABLE(RowKernels, row_kernels)

}  // namespace xmc::decide
