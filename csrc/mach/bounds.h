// Bounds on the scores of all labels for a tile of instances, one byte each: the inner loop of mach_topk.
//
// The outputs of a tile are rounded to bytes q and laid out [r][bucket][instance], so that one repetition of
// one label costs one load of 64 bytes for 64 instances and one saturating addition. Rounding is such that a
// label whose score may reach the instance's threshold T is never lost (x ^ 255 = 255 - x):
//   mean    gain     q = ceil((v - lo_r) / step),   sum q >= (R T - sum lo_r) / step
//           deficit  q = floor((hi_r - v) / step),  sum q <= (sum hi_r - R T) / step
//           whichever has the smaller right-hand side, which is made to be kScale of 255 by the choice of the
//           step: sums that saturate are then decided anyway
//   min     q = ceil((v - lo) / step),              min q >= (T - lo) / step,   lo the least of all lo_r
//   median  q = v >= T,                             sum q >= (R + 1) / 2
// T is known before rounding from a sample of labels; it grows while labels are found.
#pragma once

#include <cstdint>

#include "core/simd.h"

namespace xmc::mach {

inline constexpr int kMaxGroup = 8;

struct MergeArgs {
  const uint8_t* q;   // `group` tables of `lanes` bytes per bucket
  int64_t q_stride;   // from one table to the next
  const uint16_t* h;  // `group` rows of buckets of the n labels
  int64_t h_stride;   // from one row to the next
  int64_t n;
  int lanes;            // 16 or 64
  int group;            // repetitions at once: 1 to kMaxGroup
  bool least;           // min instead of the saturating sum
  const uint8_t* sums;  // n x lanes of the repetitions before, nullptr if there are none
  uint8_t* out;         // n x lanes, may be sums
};

struct BoundKernels {
  void (*merge)(const MergeArgs& a);
  // For the l < n with (sums[l][i] ^ flip[i]) >= limit[i] for some i: l to `hits`, bit i to `which`. Returns
  // how many.
  int64_t (*scan)(const uint8_t* sums, int64_t n, int lanes, const uint8_t* flip, const uint8_t* limit,
                  int32_t* hits, uint64_t* which);
  // out[j] = (x[j] - low) * scale + add, cut to [0, most] and to an integer
  void (*round)(const float* x, int64_t n, float low, float scale, float add, float most, uint8_t* out);
  // out[b][i] = rows[i][b], b < n (padded to 16), i < lanes; rows are `stride` apart
  void (*interleave)(const uint8_t* rows, int64_t stride, int lanes, int64_t n, uint8_t* out);
  // out[j] = x[h[j]]
  void (*gather)(const float* x, const uint16_t* h, int64_t n, float* out);
  // Smallest and largest; false if some x is not finite.
  bool (*extremes)(const float* x, int64_t n, float* low, float* high);
};
XMC_SIMD_TABLE(BoundKernels, bound_kernels)

}  // namespace xmc::mach
