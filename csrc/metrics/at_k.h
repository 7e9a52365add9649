// The two sums behind every metric at k: over instances, and over labels.
//
// Truth y is binary CSR (n x L, ids ascending in a row), predictions are ranked lists (metrics/rank.h). With
// h_j = 1 if the label at rank j is true, q = 1/propensity, w the row's weight (its count in a bootstrap
// sample, 1 if there are no weights), d_j = 1/log2(j + 1), ranks from 1:
//
//   hits        sum_i w sum_{j<=k} h_j
//   recall      sum_i w sum_{j<=k} h_j / |y|                                 (0 for a row without labels)
//   ndcg        sum_i w sum_{j<=k} h_j d_j / sum_{j<=min(k,|y|)} d_j         (0 for a row without labels)
//   psp         sum_i w sum_{j<=k} h_j q_j / k, psp_square the same of its square
//   psp_best    sum_i w of the largest psp any prediction reaches: the k largest q of the true labels
//   psndcg      as ndcg with h_j q_j d_j in place of h_j d_j; psndcg_best its largest value
//   success     sum_i w [some h_j = 1, j <= k]
//   errors      sum_i w (|predicted| + |y| - 2 hits), the wrong entries of the row
//   exact       sum_i w [the first k are exactly y]
//   predicted   sum_i w |predicted|, at most k: hits, predicted and sum_i w |y| give the micro averages
//   set_precision  sum_i w hits / |predicted|, set_f1 sum_i w 2 hits / (|predicted| + |y|), with 0/0 = 0
//
// (Jain, Prabhu and Varma 2016 for psp and psndcg; a list shorter than k has no hit at its missing ranks.)
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/types.h"

namespace xmc::metrics {

// What a ranked id is. kIgnored: it takes its rank but is not counted as predicted (a label outside the bin
// of labels under study; truth is then restricted to the bin).
enum Flag : uint8_t { kMiss = 0, kHit = 1, kIgnored = 2 };

struct AtK {
  CsrView<int32_t, float> truth;
  const int64_t* indptr = nullptr;   // rows + 1: the ranked lists
  const int32_t* ids = nullptr;      // indptr[rows]
  const uint8_t* hits = nullptr;     // beside ids: Flag
  const int32_t* weights = nullptr;  // rows, or null
  std::vector<int64_t> ks;           // ascending, positive
};

enum InstanceSum : int {
  kHits,
  kRecall,
  kNdcg,
  kPsp,
  kPspSquare,
  kPspBest,
  kPsndcg,
  kPsndcgBest,
  kSuccess,
  kErrors,
  kExact,
  kPredicted,
  kSetPrecision,
  kSetF1,
  kInstanceSums
};

// kHit for each ranked id that is a true label of its row, else kMiss.
std::vector<uint8_t> match_hits(const CsrView<int32_t, float>& truth, const int64_t* indptr,
                                const int32_t* ids, int threads);

// kInstanceSums x |ks| row-major, then the weight of all rows, of those with a true label, and sum_i w |y|.
// inverse_propensity (L entries) may be null: then the four ps sums are 0.
std::vector<double> instance_sums(const AtK& at, const double* inverse_propensity, int threads);

// Counts per label, L x (2 |ks| + 1) row-major: positives; true positives that enter at each k (those of
// rank > previous k and <= this k); predictions that enter at each k.
Buffer<int32_t> label_counts(const AtK& at, int threads);

enum MacroSum : int { kPrecision, kMacroRecall, kFbeta, kCoverage, kBalanced, kGmean, kJaccard, kMacroSums };

// Sums over labels of the metrics of core/confusion.h at each k, and of coverage [tp > 0].
// group: a number in [0, groups) per label, or -1 for a label of no group. Result: per group
// kMacroSums x |ks| row-major, the number of labels, and of those with a positive: groups rows of
// kMacroSums * |ks| + 2. positives_only leaves labels without positives out of the sums.
std::vector<double> macro_sums(const int32_t* counts, int64_t labels, int64_t ks, double rows, double beta,
                               const int32_t* group, int64_t groups, bool positives_only, int threads);

}  // namespace xmc::metrics
