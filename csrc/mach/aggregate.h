// Scores of all labels from R models of B buckets, and the k best of them (spec: MACH).
//
//   p: R x n x B, the outputs of the R models (probabilities, logits: any finite numbers)
//   s_i(l) = aggregate over r of p[r][i][h_r(l)]: mean, min (count-min) or median (mean of the middle two)
//
// Exact without n x L memory: sixteen instances at a time, outputs are rounded *up* to 8 bits and laid out
// [r][bucket][instance], so that adding a repetition for a label and sixteen instances is one 16-byte load;
// the 16-bit sums of a block of labels are bounds on s. Only labels whose bound reaches the k-th best score
// so far are scored in float (summed over r ascending), so ids and scores are those of the plain computation.
//   mean    sum_r v_r >= T              only if  sum q >= (T - sum lo_r) / step,    q = ceil((v - lo_r) /
//   step) min     min_r v_r >= T              only if  min q >= (T - lo) / step,          lo = min_r lo_r
//   median  R/2 + 1 of the v_r reach it on average, so only if  sum q >= (T - lo)(floor(R/2) + 1) / step
#pragma once

#include <cstdint>

#include "core/simd.h"

namespace xmc {

enum class Aggregate { mean = 0, min = 1, median = 2 };

struct AggregateKernels {
  // Four repetitions at once: sums[l][0..16) = (first ? 0 : sums[l]) + sum over j < 4 of q_j[h_j[l]], l < n;
  // q_j = q + j q_stride is B x 16, h_j = h + j h_stride.
  void (*add_four)(const uint8_t* q, int64_t q_stride, const uint16_t* h, int64_t h_stride, int64_t n,
                   bool first, uint16_t* sums);
  void (*add_one)(const uint8_t* q, const uint16_t* h, int64_t n, bool first, uint16_t* sums);
  // the same with min in place of +
  void (*min_four)(const uint8_t* q, int64_t q_stride, const uint16_t* h, int64_t h_stride, int64_t n,
                   bool first, uint16_t* sums);
  void (*min_one)(const uint8_t* q, const uint16_t* h, int64_t n, bool first, uint16_t* sums);
  // Writes the l < n with sums[l][i] >= threshold[i] for some i to `hits`; returns how many.
  int64_t (*scan)(const uint16_t* sums, int64_t n, const uint16_t* threshold, int32_t* hits);
  // out[j] = ceil((x[j] - low) * inverse) as bytes, a little on the safe side, clamped to [0, 255]
  void (*round_up)(const float* x, int64_t n, float low, float inverse, uint8_t* out);
  // Smallest and largest; false if some x is not finite.
  bool (*extremes)(const float* x, int64_t n, float* low, float* high);
};
XMC_SIMD_TABLE(AggregateKernels, aggregate_kernels)

struct MachScores {
  const float* p = nullptr;         // R x n x B
  const uint16_t* table = nullptr;  // R x L
  int64_t repeats = 0, rows = 0, buckets = 0, labels = 0;
  Aggregate aggregate = Aggregate::mean;
};

// ids, scores: n x k, best first (score descending, then lower id); 1 <= k <= L, 1 <= R <= 256.
// Throws std::invalid_argument if p has a NaN or inf.
void mach_topk(const MachScores& in, int64_t k, int threads, int32_t* ids, float* scores);

// Scores only the labels in one of the m best buckets of some repetition (exactly); rows with fewer than k
// such labels are filled with id -1 and score -inf. offsets, labels: mach/hash.h's InvertedTable.
void mach_topk_candidates(const MachScores& in, const int64_t* offsets, const int32_t* by_bucket, int64_t m,
                          int64_t k, int threads, int32_t* ids, float* scores);

}  // namespace xmc
