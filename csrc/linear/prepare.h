// The features of a problem, laid out once for all labels of a fit.
//
// Sparse: features are renamed by falling frequency, so that the hot rows of a feature-major W share cache
// lines and most ids fit in 16 bits. A row's ids lie in one stream of 16-bit words: first the `head` ids
// below 65,536, one word each, padded to a multiple of kPad, so that loops over a row need no loop for the
// rest; then the `tail` ids, two words each (low, high). Values follow the same order. Padding has the value
// 0 and the ids 0 to kPad - 1, which are in the cache and different, so that updates do not wait for each
// other. Dense: the caller's row-major matrix is used as it is.
//
// A last feature that is the same number in every row (a bias) is left out of the rows: its value is `bias`,
// its new id D - 1. Solvers treat it on its own.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "linear/problem.h"
#include "linear/row_ref.h"

namespace xmc {

struct PreparedFeatures {
  int64_t n = 0;
  int64_t D = 0;
  Buffer<RowRef> rows;            // n
  Buffer<uint16_t> ids;           // sparse only
  Buffer<float> values;           // sparse only
  const float* dense = nullptr;   // n x D, dense only: the caller's memory
  float bias = 0;                 // the last feature of every row, 0 when there is none
  std::vector<int32_t> original;  // new feature id -> the caller's
  std::vector<double> total;      // sum_i x_i, D
  std::vector<double> row_total;  // x_i . sum_k x_k, n
  double total_norm2 = 0;         // |sum_i x_i|^2; all three with the bias

  bool is_dense() const { return dense != nullptr; }
  int64_t width() const { return D - (bias != 0); }  // features stored in the rows
};

PreparedFeatures prepare_features(const LinearProblem& problem, int threads);

// fn(feature, value) for each stored entry of row i; the bias is not among them.
template <class Fn>
void for_entries(const PreparedFeatures& X, int64_t i, const Fn& fn) {
  if (X.is_dense()) {
    const float* row = X.dense + i * X.D;
    for (int64_t j = 0; j < X.width(); ++j) fn(j, row[j]);
    return;
  }
  const RowRef& row = X.rows[i];
  const uint16_t* id = X.ids.data() + row.id;
  const float* value = X.values.data() + row.value;
  for (int32_t t = 0; t < row.head; ++t) fn(int64_t{id[t]}, value[t]);
  id += row.stored;
  value += row.stored;
  for (int32_t t = 0; t < row.tail; ++t, id += 2) fn(int64_t{id[0]} | int64_t{id[1]} << 16, *value++);
}

}  // namespace xmc
