// The SIMD part of the dense weighted top-k.
#pragma once

#include <cstdint>

#include "core/simd.h"

namespace xmc::decide {

// Labels in [first, last) of a row whose gain a_j eta_j + b_j is not below `threshold`, in order, with their
// gains; a and b may be null (1 and 0). Stops when fewer than kDenseTopkLanes places of `room` are left, with
// *next at the first label not looked at. Returns how many were found.
inline constexpr int64_t kDenseTopkLanes = 16;
struct DenseTopkKernels {
  int64_t (*above)(const float* eta, const float* a, const float* b, int64_t first, int64_t last,
                   float threshold, int64_t room, int32_t* labels, float* gains, int64_t* next);
};
XMC_SIMD_TABLE(DenseTopkKernels, dense_topk_kernels)

}  // namespace xmc::decide
