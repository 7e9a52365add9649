// Scores of all labels from R models of B buckets, and the k best of them (spec: MACH).
//
//   p: R x n x B, the outputs of the R models (probabilities, logits: numbers up to 1e36 in absolute value)
//   s_i(l) = aggregate over r of p[r][i][h_r(l)]: mean, min (count-min) or median (mean of the middle two)
//
// Exact without n x L memory: see bounds.h for how most labels are passed over. What is left is scored in
// float (summed over r ascending), so ids and scores are those of the plain computation.
#pragma once

#include <cstdint>

namespace xmc::mach {

enum class Aggregate { mean = 0, min = 1, median = 2 };

struct MachScores {
  const float* p = nullptr;         // R x n x B
  const uint16_t* table = nullptr;  // R x L
  int64_t repeats = 0, rows = 0, buckets = 0, labels = 0;
  Aggregate aggregate = Aggregate::mean;
};

// The aggregate of v[r * stride], r < R; `order` has room for R numbers.
float aggregate_of(Aggregate aggregate, const float* v, int64_t repeats, int64_t stride, float* order);
// The score of one label; `values` and `order` have room for R numbers.
float score_of(const MachScores& in, int64_t row, int64_t label, float* values, float* order);
// Throws std::invalid_argument unless 1 <= k <= L and 1 <= R <= 256.
void check_topk(const MachScores& in, int64_t k);

// ids, scores: n x k, best first (score descending, then lower id); 1 <= k <= L, 1 <= R <= 256.
// Throws std::invalid_argument if p has a NaN, inf or a number beyond 1e36.
void mach_topk(const MachScores& in, int64_t k, int threads, int32_t* ids, float* scores);

// Scores only the labels in one of the m best buckets of some repetition (exactly); rows with fewer than k
// such labels are filled with id -1 and score -inf. offsets, by_bucket: `offsets` and `labels` of mach/hash.h's
// InvertedTable.
void mach_topk_candidates(const MachScores& in, const int64_t* offsets, const int32_t* by_bucket, int64_t m,
                          int64_t k, int threads, int32_t* ids, float* scores);

}  // namespace xmc::mach
