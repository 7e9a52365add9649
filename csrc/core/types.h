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

// Consecutive items, counted in 64 bits.
template <class T>
class Span {
 public:
  Span() = default;
  Span(T* data, int64_t size) : data_(data), size_(size) {}
  T* data() const { return data_; }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
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
