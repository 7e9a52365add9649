// What the bindings of the two forms of a model (bind_predict.cpp, bind_packed.cpp) share.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "bind/bind.h"
#include "predict/layout.h"
#include "predict/predict.h"

namespace xmc::bind {

// Consecutive labels from Python: (first label, weights).
using ModelBlocks = std::vector<std::pair<int64_t, std::variant<Csr<float, uint16_t>, Csr<>>>>;

inline std::vector<predict::LabelBlock> views_of(const ModelBlocks& blocks) {
  std::vector<predict::LabelBlock> views;
  for (const auto& [first_label, weights] : blocks) {
    std::visit([&, first = first_label](const auto& w) { views.push_back({first, w.view}); }, weights);
  }
  return views;
}

using TopkArrays = py::typing::Tuple<py::array_t<int32_t>, py::array_t<float>>;

// The labels and scores of each row, rows * min(k, labels), that `search(rows, calibration, k, ids, scores)`
// finds. scale, shift: empty, or for every label and on to a multiple of `unit`.
template <class Search>
TopkArrays topk_arrays(const Csr<>& x, int64_t labels, int64_t columns, const RowOptions& rows,
                       const Array<float>& scale, const Array<float>& shift, int64_t unit, int64_t k,
                       Search&& search) {
  if (x.view.cols + rows.has_bias != columns) throw std::invalid_argument("x: wrong number of columns");
  if (scale.size() != shift.size() || (scale.size() && (scale.size() < labels || scale.size() % unit))) {
    throw std::invalid_argument("scale and shift must be empty or cover all labels, padded");
  }
  const predict::Calibration calibration{scale.size() ? scale.data() : nullptr, shift.data()};
  const int64_t given = std::max<int64_t>(0, std::min(k, labels));
  py::array_t<int32_t> ids(x.view.rows * given);
  py::array_t<float> scores(x.view.rows * given);
  int32_t* id = ids.mutable_data();
  float* score = scores.mutable_data();
  {
    py::gil_scoped_release nogil;
    search(calibration, given, id, score);
  }
  return py::make_tuple(std::move(ids), std::move(scores));
}

}  // namespace xmc::bind
