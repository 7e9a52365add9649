// Views on memory that somebody else owns (numpy, a memory map, a std::vector).
// 64-bit offsets, 32-bit ids. A view never allocates, never frees, never checks: checks are at the edge.
#pragma once

#include <cstdint>

namespace xmc {

// Compressed sparse rows. Row i holds columns indices[indptr[i] .. indptr[i+1]) with the values beside them.
// data may be null: then every stored entry is 1 (binary label matrices).
template <class Index = int32_t, class Value = float>
struct CsrView {
  int64_t rows = 0;
  int64_t cols = 0;
  const int64_t* indptr = nullptr;  // rows + 1
  const Index* indices = nullptr;   // indptr[rows]
  const Value* data = nullptr;      // indptr[rows] or null

  int64_t begin(int64_t row) const { return indptr[row]; }
  int64_t end(int64_t row) const { return indptr[row + 1]; }
  int64_t size(int64_t row) const { return indptr[row + 1] - indptr[row]; }
  int64_t nnz() const { return rows ? indptr[rows] : 0; }
};

// Row-major dense matrix.
template <class Value = float>
struct DenseView {
  int64_t rows = 0;
  int64_t cols = 0;
  const Value* data = nullptr;

  const Value* row(int64_t i) const { return data + i * cols; }
};

}  // namespace xmc
