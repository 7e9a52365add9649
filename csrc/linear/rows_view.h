// The rows of X as kernels read them (layout: prepare.h), and the number of labels solved side by side.
#pragma once

#include <cstdint>

namespace xmc::linear {

inline constexpr int kLanes = 16;  // labels of a lane group
inline constexpr uint32_t kAllLanes = (1u << kLanes) - 1;
inline constexpr int32_t kHeadIds = 65536;  // smaller ids take one 16-bit word, others two
inline constexpr int32_t kPad = 8;  // head entries are stored in multiples of so many, the last ones zeros

struct RowRef {
  int64_t value;       // first value of the row
  int64_t id;          // first 16-bit word of the row's ids
  int32_t head;        // entries with one-word ids
  int32_t tail;        // entries with two-word ids
  float norm2;         // |x_i|^2, without the bias
  int32_t stored = 0;  // head entries with their padding
};

struct RowsView {
  const RowRef* rows = nullptr;  // norm2 is that of dense rows too
  const uint16_t* ids = nullptr;
  const float* values = nullptr;
  const float* dense = nullptr;  // n x width, row-major; null: packed rows
  int64_t width = 0;             // features stored in a row
  float bias = 0;                // value of the last feature, which is not stored; 0: none
};

}  // namespace xmc::linear
