// The candidates of every instance: CSR of probabilities, rows sorted by label, no zeros, at least k per row.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace xmc::decide {

using Probabilities = CsrView<int32_t, float>;  // n x labels, eta in [0, 1], missing = 0

// Candidates of the longest row.
inline int64_t widest_row(const Probabilities& proba) {
  int64_t widest = 0;
  for (int64_t i = 0; i < proba.rows; ++i) widest = widest < proba.size(i) ? proba.size(i) : widest;
  return widest;
}

// What is wrong with a matrix of probabilities, found in one scan.
struct ProbabilityScan {
  int64_t bad_entry = -1;   // the first entry outside [0, 1] (or NaN, or with a label id out of range)
  bool duplicates = false;  // some row names a label twice
  bool ready = true;        // rows sorted, no stored zeros, at least k entries each
};
ProbabilityScan scan_probabilities(const Probabilities& proba, int64_t k, int threads);

struct Candidates {
  std::vector<int64_t> indptr;
  std::vector<int32_t> labels;
  std::vector<float> eta;
};

// Sorts the rows, drops stored zeros and fills rows that have fewer than k candidates with the lowest labels
// that are not candidates, eta = 0: from there on they count like any other label. k <= labels.
Candidates make_candidates(const Probabilities& proba, int64_t k, int threads);

// Sum of eta per label.
std::vector<double> column_sums(const Probabilities& proba);

// At each entry of `proba`: trust_j y + (1 - trust_j) eta, y = 1 where its label j is also in the same row of
// `truth` (rows sorted), else 0.
std::vector<float> blended_truth(const Probabilities& proba, const CsrView<int32_t, float>& truth,
                                 const float* trust, int threads);

}  // namespace xmc::decide
