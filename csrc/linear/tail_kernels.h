// The scan of the row search (row_search.h), one table per instruction set.
#pragma once

#include <cstdint>

#include "core/simd.h"

namespace xmc::linear {

struct TailKernels {
  // rows gets first + i, i < n, where sums[i] + factor * norms[i] > level, ascending; returns their number.
  // sums becomes 0.
  int64_t (*scan)(float* sums, const float* norms, int64_t n, float factor, float level, int32_t first,
                  int32_t* rows);
};
XMC_SIMD_TABLE(TailKernels, tail_kernels)

}  // namespace xmc::linear
