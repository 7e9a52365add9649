// A batch of rows on its way through the blocks of a layout (predict.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "predict/predict.h"

namespace xmc::predict {

// Features of one kind, by row.
struct Features {
  std::vector<int64_t> start;  // rows + 1
  std::vector<int32_t> id;
  std::vector<float> value;
};

class RowBatch {
 public:
  // Rows [from, to) of x, normalised, with the bias.
  void take(const CsrView<>& x, const RowOptions& options, int64_t columns, int64_t from, int64_t to);

  // Sorts the features of rows [from, to) of the batch by the kind of their columns in block b, and rounds
  // the dense ones (predict.h).
  void split(const LayoutView& layout, int64_t b, int64_t from, int64_t to);

  // Of the last split, its first row being row 0.
  Features dense;   // slots
  Features sparse;  // entries
  PredictRows view() const {
    return {dense.start.data(), dense.id.data(), dense.value.data(), row_.data() + from_,
            four_.data(),       n_heavy_,        heavy_.data()};
  }

 private:
  Features all_;  // columns
  std::vector<PredictRow> row_;
  std::vector<Four> four_;
  int64_t from_ = 0, n_heavy_ = 0;
  std::vector<float> heavy_;

  Four* add_fours(int64_t i, Four* four);  // of row from_ + i
};

}  // namespace xmc::predict
