// The k best pairs of each of many rows in one flat array (see core/topk.h for the order and the heap).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/topk.h"

namespace xmc::predict {

class TopKRows {
 public:
  TopKRows(int64_t rows, int64_t k) : k_(k) { reset(rows); }

  void reset(int64_t rows) {
    heaps_.resize(static_cast<size_t>(rows * k_));
    sizes_.assign(static_cast<size_t>(rows), 0);
    thresholds_.assign(static_cast<size_t>(rows), std::numeric_limits<float>::quiet_NaN());
  }
  // A row's k-th best score: one below it cannot enter. NaN, to which nothing compares, while anything may.
  const float* thresholds() const { return thresholds_.data(); }

  void push(int64_t row, Scored s) {
    Scored* heap = heaps_.data() + row * k_;
    int64_t& size = sizes_[static_cast<size_t>(row)];
    if (size < k_) {
      heap[size++] = s;
      if (size < k_) return;
      std::make_heap(heap, heap + k_, better);
    } else if (k_ > 0 && better(s, heap[0])) {
      std::pop_heap(heap, heap + k_, better);
      heap[k_ - 1] = s;
      std::push_heap(heap, heap + k_, better);
    } else {
      return;
    }
    if (heap[0].score == heap[0].score) thresholds_[static_cast<size_t>(row)] = heap[0].score;
  }

  // The row's pairs, best first.
  const Scored* sorted(int64_t row) {
    Scored* heap = heaps_.data() + row * k_;
    std::sort(heap, heap + sizes_[static_cast<size_t>(row)], better);
    return heap;
  }

 private:
  int64_t k_;
  std::vector<Scored> heaps_;
  std::vector<int64_t> sizes_;
  std::vector<float> thresholds_;
};

}  // namespace xmc::predict
