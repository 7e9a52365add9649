// A copy of X that belongs to one memory node (core/numa.h).
#pragma once

#include <cstring>
#include <vector>

#include "core/buffer.h"
#include "core/numa.h"
#include "linear/problem.h"

namespace xmc {

// The problem, with X copied if asked; the copy lives as long as this object.
class OwnedProblem {
 public:
  OwnedProblem(const LinearProblem& original, bool copy) : problem_(original) {
    if (!copy) return;
    if (original.dense()) {
      problem_.X_dense.data = keep(dense_, original.X_dense.data, original.rows() * original.features());
    } else {
      problem_.X.indptr = keep(indptr_, original.X.indptr, original.X.rows + 1);
      problem_.X.indices = keep(indices_, original.X.indices, original.X.nnz());
      problem_.X.data = keep(data_, original.X.data, original.X.nnz());
    }
  }

  const LinearProblem& problem() const { return problem_; }

  // What was copied.
  std::vector<MemoryRange> memory() const {
    return {range(indptr_), range(indices_), range(data_), range(dense_)};
  }

 private:
  template <class T>
  static const T* keep(Buffer<T>& to, const T* from, int64_t size) {
    to = Buffer<T>(size);
    if (size > 0) std::memcpy(to.data(), from, static_cast<size_t>(size) * sizeof(T));
    return to.data();
  }
  template <class T>
  static MemoryRange range(const Buffer<T>& b) {
    return {b.data(), static_cast<size_t>(b.size()) * sizeof(T)};
  }

  LinearProblem problem_;
  Buffer<int64_t> indptr_;
  Buffer<int32_t> indices_;
  Buffer<float> data_, dense_;
};

}  // namespace xmc
