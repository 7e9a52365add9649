// Where a packed row lies (layout: prepare.h).
#pragma once

#include <cstdint>

namespace xmc {

inline constexpr int32_t kPad = 8;  // head entries are stored in multiples of so many, the last ones zeros

struct RowRef {
  int64_t value;       // first value of the row
  int64_t id;          // first 16-bit word of the row's ids
  int32_t head;        // entries with one-word ids
  int32_t tail;        // entries with two-word ids
  float norm2;         // |x_i|^2, without the bias
  int32_t stored = 0;  // head entries with their padding
};

}  // namespace xmc
