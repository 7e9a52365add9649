#include <optional>

#include "bind/bind.h"
#include "predict/layout.h"
#include "predict/merge.h"
#include "predict/predict.h"

namespace xmc::bind {
namespace {

// One label block: (first_label, indptr, indices of 16 or 32 bits, data).
struct BlockArrays {
  int64_t first_label;
  Array<int64_t> indptr;
  py::array indices;
  Array<float> data;

  template <class Fn>
  void visit(int64_t columns, Fn&& fn) const {
    if (py::isinstance<Array<uint16_t>>(indices)) {
      fn(csr_view(columns, indptr, py::cast<Array<uint16_t>>(indices), data));
    } else {
      fn(csr_view(columns, indptr, py::cast<Array<int32_t>>(indices), data));
    }
  }
};

// The memory of a buffer as an array of numbers: a Posting is three of 16 bits, a Cell two of 64, a
// LayoutBlock six.
template <class Number, class T>
py::array_t<Number> take_as(Buffer<T>&& values) {
  static_assert(sizeof(T) % sizeof(Number) == 0);
  auto owner = std::make_unique<Buffer<T>>(std::move(values));
  auto* data = reinterpret_cast<Number*>(owner->data());
  const auto size =
      static_cast<py::ssize_t>(owner->size()) * static_cast<py::ssize_t>(sizeof(T) / sizeof(Number));
  py::capsule free(owner.release(), [](void* p) { delete static_cast<Buffer<T>*>(p); });
  return py::array_t<Number>({size}, {static_cast<py::ssize_t>(sizeof(Number))}, data, free);
}
template <class T>
py::array_t<T> take(Buffer<T>&& values) {
  return take_as<T>(std::move(values));
}
const Posting* postings(const Array<uint16_t>& numbers) {
  return reinterpret_cast<const Posting*>(numbers.data());
}

py::tuple build_layout(int64_t labels, int64_t columns, const std::vector<py::tuple>& blocks,
                       double min_density, double budget_ratio, int threads) {
  std::vector<BlockArrays> parts;
  for (const auto& b : blocks) {
    parts.push_back({py::cast<int64_t>(b[0]), py::cast<Array<int64_t>>(b[1]), py::cast<py::array>(b[2]),
                     py::cast<Array<float>>(b[3])});
  }
  std::vector<int64_t> sizes(static_cast<size_t>(labels));
  int64_t nnz = 0;
  for (const auto& part : parts) {
    const int64_t* indptr = part.indptr.data();
    for (int64_t r = 0; r + 1 < part.indptr.size(); ++r) {
      nnz += sizes[static_cast<size_t>(part.first_label + r)] = indptr[r + 1] - indptr[r];
    }
  }
  LayoutBuilder builder(columns, sizes);
  const auto for_each = [&](auto&& call) {
    for (const auto& part : parts) {
      part.visit(columns, [&](const auto& rows) {
        py::gil_scoped_release nogil;
        call(part.first_label, rows);
      });
    }
  };
  for_each([&](int64_t first_label, const auto& rows) { builder.count(first_label, rows); });
  builder.plan(min_density, static_cast<int64_t>(budget_ratio * static_cast<double>(nnz) * 8));
  for_each([&](int64_t first_label, const auto& rows) { builder.fill(first_label, rows, threads); });
  builder.plan_cells();
  for_each([&](int64_t first_label, const auto& rows) { builder.fill_cells(first_label, rows, threads); });
  return py::make_tuple(
      builder.block, take(std::move(builder.label)), take_as<int64_t>(std::move(builder.parts)),
      take(std::move(builder.entry)), take_as<int64_t>(std::move(builder.cell)),
      take(std::move(builder.weight)), take(std::move(builder.heavy)), take(std::move(builder.byte)),
      take(std::move(builder.step)), take(std::move(builder.error)), take(std::move(builder.spread)),
      take(std::move(builder.norm)), take_as<uint16_t>(std::move(builder.posting)),
      take(std::move(builder.out_ptr)), take_as<uint16_t>(std::move(builder.outlier)));
}

// Holds the arrays of a layout (built or mapped from disk) and predicts with them.
class PredictLayout {
 public:
  PredictLayout(int64_t labels, int64_t columns, int64_t block, Array<int32_t> label, Array<int64_t> parts,
                Array<int32_t> entry, Array<int64_t> cell, Array<float> weight, Array<float> heavy,
                Array<int8_t> byte, Array<float> step, Array<float> error, Array<float> spread,
                Array<float> norm, Array<uint16_t> posting, Array<int32_t> out_ptr, Array<uint16_t> outlier)
      : label_(std::move(label)),
        parts_(std::move(parts)),
        entry_(std::move(entry)),
        cell_(std::move(cell)),
        weight_(std::move(weight)),
        heavy_(std::move(heavy)),
        byte_(std::move(byte)),
        step_(std::move(step)),
        error_(std::move(error)),
        spread_(std::move(spread)),
        norm_(std::move(norm)),
        posting_(std::move(posting)),
        out_ptr_(std::move(out_ptr)),
        outlier_(std::move(outlier)) {
    if (block <= 0 || block % kTile) throw std::invalid_argument("block must be a multiple of the tile");
    view_.labels = labels;
    view_.columns = columns;
    view_.block = block;
    view_.label = label_.data();
    view_.parts = reinterpret_cast<const LayoutBlock*>(parts_.data());
    view_.entry = entry_.data();
    view_.cell = reinterpret_cast<const Cell*>(cell_.data());
    view_.weight = weight_.data();
    view_.heavy = heavy_.data();
    view_.byte = byte_.data();
    view_.step = step_.data();
    view_.error = error_.data();
    view_.spread = spread_.data();
    view_.norm = norm_.data();
    view_.posting = postings(posting_);
    view_.out_ptr = out_ptr_.data();
    view_.outlier = postings(outlier_);
    if (!fits()) throw std::invalid_argument("the arrays of the layout do not fit together");
    most_ = tile_bounds(view_);
    view_.most = most_.data();
  }

  py::tuple topk(const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
                 bool normalize, std::optional<float> bias, const Array<float>& scale,
                 const Array<float>& shift, int64_t k, int threads) const {
    const auto x = csr_view(view_.columns - (bias ? 1 : 0), indptr, indices, data);
    if (scale.size() != shift.size() || (scale.size() && scale.size() != view_.tiles() * kTile)) {
      throw std::invalid_argument("scale and shift must be empty or cover whole tiles");
    }
    const Calibration calibration{scale.size() ? scale.data() : nullptr, shift.data()};
    const int64_t given = std::max<int64_t>(0, std::min(k, view_.labels));
    py::array_t<int32_t> ids(x.rows * given);
    py::array_t<float> scores(x.rows * given);
    int32_t* id = ids.mutable_data();
    float* score = scores.mutable_data();
    {
      py::gil_scoped_release nogil;
      predict_topk(view_, x, {normalize, bias.has_value(), bias.value_or(0.f)}, calibration, given, threads,
                   id, score);
    }
    return py::make_tuple(std::move(ids), std::move(scores));
  }

 private:
  bool fits() const {
    const int64_t blocks = view_.blocks();
    bool fit = label_.size() == view_.labels && parts_.size() == 6 * blocks &&
               entry_.size() == blocks * view_.columns && byte_.size() == cell_.size() / 2 * kTile &&
               out_ptr_.size() > 0;
    for (const auto* per_label : {&step_, &error_, &spread_, &norm_}) {
      fit = fit && per_label->size() == view_.tiles() * kTile;
    }
    int64_t cells = 0, heavy = 0, slots = 0;
    for (int64_t b = 0; fit && b < blocks; ++b) {
      const LayoutBlock& part = view_.parts[b];
      fit = part.first_cell == cells && part.first_heavy == heavy && part.first_slot == slots &&
            0 <= part.n_heavy && part.n_heavy <= part.n_dense && 0 <= part.first_posting &&
            3 * part.first_posting <= posting_.size();
      cells += view_.tiles_of(b) * part.n_dense;
      heavy += view_.tiles_of(b) * part.n_heavy * kTile;
      slots += part.n_dense;
    }
    return fit && cell_.size() == 2 * cells && heavy_.size() == heavy && out_ptr_.size() == slots + 1 &&
           int64_t{3} * (out_ptr_.data()[slots] + 1) == outlier_.size();
  }

  Array<int32_t> label_;
  Array<int64_t> parts_;
  Array<int32_t> entry_;
  Array<int64_t> cell_;
  Array<float> weight_, heavy_;
  Array<int8_t> byte_;
  Array<float> step_, error_, spread_, norm_;
  Array<uint16_t> posting_;
  Array<int32_t> out_ptr_;
  Array<uint16_t> outlier_;
  std::vector<TileBounds> most_;
  LayoutView view_;
};

py::tuple merge(const std::vector<py::tuple>& lists, int64_t k, int threads) {
  std::vector<CsrView<>> views;
  for (const auto& list : lists) {
    views.push_back(csr_view(0, py::cast<Array<int64_t>>(list[0]), py::cast<Array<int32_t>>(list[1]),
                             py::cast<Array<float>>(list[2])));
  }
  const int64_t rows = views.empty() ? 0 : views[0].rows;
  py::array_t<int32_t> ids(rows * k), counts(rows);
  py::array_t<float> scores(rows * k);
  int32_t *id = ids.mutable_data(), *count = counts.mutable_data();
  float* score = scores.mutable_data();
  {
    py::gil_scoped_release nogil;
    merge_topk(views, k, threads, id, score, count);
  }
  return py::make_tuple(std::move(ids), std::move(scores), std::move(counts));
}

}  // namespace

void bind_predict(py::module_& m) {
  m.def("build_layout", &build_layout, py::arg("labels"), py::arg("columns"), py::arg("blocks"),
        py::arg("min_density"), py::arg("budget_ratio"), py::arg("threads"),
        "The block size and the arrays of a prediction layout: label, parts, entry, cell, weight, heavy, "
        "byte, step, error, "
        "spread, norm, posting, out_ptr, outlier.");
  m.def("merge_topk", &merge, py::arg("lists"), py::arg("k"), py::arg("threads"));
  py::class_<PredictLayout>(m, "PredictLayout")
      .def(py::init<int64_t, int64_t, int64_t, Array<int32_t>, Array<int64_t>, Array<int32_t>, Array<int64_t>,
                    Array<float>, Array<float>, Array<int8_t>, Array<float>, Array<float>, Array<float>,
                    Array<float>, Array<uint16_t>, Array<int32_t>, Array<uint16_t>>(),
           py::arg("labels"), py::arg("columns"), py::arg("block"), py::arg("label").noconvert(),
           py::arg("parts").noconvert(), py::arg("entry").noconvert(), py::arg("cell").noconvert(),
           py::arg("weight").noconvert(), py::arg("heavy").noconvert(), py::arg("byte").noconvert(),
           py::arg("step").noconvert(), py::arg("error").noconvert(), py::arg("spread").noconvert(),
           py::arg("norm").noconvert(), py::arg("posting").noconvert(), py::arg("out_ptr").noconvert(),
           py::arg("outlier").noconvert())
      .def("topk", &PredictLayout::topk, py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
           py::arg("data").noconvert(), py::arg("normalize"), py::arg("bias"), py::arg("scale").noconvert(),
           py::arg("shift").noconvert(), py::arg("k"), py::arg("threads"));
}

}  // namespace xmc::bind
