// Where a packed row lies (layout: prepare.h).
#pragma once

#include <cstdint>

namespace xmc {

struct RowRef {
  int64_t value;  // first value of the row
  int64_t id;     // first 16-bit word of the row's ids
  int32_t head;   // entries with one-word ids
  int32_t tail;   // entries with two-word ids
  float norm2;    // |x_i|^2, without the bias
  int32_t unused = 0;
};

}  // namespace xmc
