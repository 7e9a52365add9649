// The rows of a problem, scaled and laid out once for all labels of a fit.
//
// Sparse: features are renamed by falling frequency, so that the hot rows of a feature-major W share cache
// lines and most ids fit in 16 bits. A row's ids lie in one stream of 16-bit words:
//
//   | head: ids below 65,536, one word each | padding to a multiple of kPad | tail: two words (low, high) |
//
// so that loops over a row need no remainder loop. Values follow the same order. Padding has the value 0 and
// the ids 0 to kPad - 1, which are in the cache and different, so that updates do not wait for each other.
// Dense: row-major; the caller's matrix where neither scaling nor a copy is needed.
//
// The bias is not stored in the rows: its value is `bias`, its id D - 1. Solvers treat it on its own.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/numa.h"
#include "linear/problem.h"
#include "linear/rows_view.h"

namespace xmc::linear {

struct PreparedFeatures {
  int64_t n = 0;
  int64_t D = 0;                  // with the bias
  int64_t width = 0;              // features stored in the rows: D without the bias
  float bias = 0;                 // the last feature of every row, 0 when there is none
  Buffer<RowRef> rows;            // n
  Buffer<uint16_t> ids;           // sparse only
  Buffer<float> values;           // sparse, or the copy of dense rows
  const float* dense = nullptr;   // n x width: the caller's memory or `values`; null when sparse
  std::vector<int32_t> original;  // D: new feature id -> the caller's
  std::vector<int32_t> renamed;   // D: the caller's feature id -> new
  std::vector<float> scale;       // n: factor of each of the caller's rows
  std::vector<double> total;      // sum_i x_i, D
  std::vector<double> row_total;  // x_i . sum_k x_k, n
  double total_norm2 = 0;         // |sum_i x_i|^2; all three with the bias

  RowsView view() const { return {rows.data(), ids.data(), values.data(), dense, width, bias}; }
};

// `copy`: dense rows are copied even if they need no scaling (a memory node's own).
PreparedFeatures prepare_features(const LinearProblem& problem, bool copy, int threads);

std::vector<MemoryRange> memory_of(const PreparedFeatures& X);  // for NumaReplicas

// fn(feature, value) for each stored entry of row i; the bias is not among them.
template <class Fn>
void for_entries(const PreparedFeatures& X, int64_t i, const Fn& fn) {
  if (X.dense) {
    const float* row = X.dense + i * X.width;
    for (int64_t j = 0; j < X.width; ++j) fn(j, row[j]);
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

// The same with the bias.
template <class Fn>
void for_features(const PreparedFeatures& X, int64_t i, const Fn& fn) {
  for_entries(X, i, fn);
  if (X.bias != 0) fn(X.D - 1, X.bias);
}

}  // namespace xmc::linear
