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

template <class T>
py::array_t<T> take(Buffer<T>&& values) {
  auto owner = std::make_unique<Buffer<T>>(std::move(values));
  T* data = owner->data();
  const auto size = static_cast<py::ssize_t>(owner->size());
  py::capsule free(owner.release(), [](void* p) { delete static_cast<Buffer<T>*>(p); });
  return py::array_t<T>({size}, {static_cast<py::ssize_t>(sizeof(T))}, data, free);
}

// Postings as three numbers of 16 bits each.
static_assert(sizeof(Posting) == 3 * sizeof(uint16_t));
py::array_t<uint16_t> take_postings(Buffer<Posting>&& postings) {
  auto owner = std::make_unique<Buffer<Posting>>(std::move(postings));
  auto* data = reinterpret_cast<uint16_t*>(owner->data());
  const auto size = static_cast<py::ssize_t>(3 * owner->size());
  py::capsule free(owner.release(), [](void* p) { delete static_cast<Buffer<Posting>*>(p); });
  return py::array_t<uint16_t>({size}, {static_cast<py::ssize_t>(sizeof(uint16_t))}, data, free);
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
  std::vector<ColumnStats> stats(static_cast<size_t>(columns));
  int64_t nnz = 0;
  for (const auto& part : parts) {
    part.visit(columns, [&](const auto& rows) {
      py::gil_scoped_release nogil;
      count_columns(rows.indices, rows.data, rows.nnz(), stats);
      nnz += rows.nnz();
    });
  }
  const auto budget = static_cast<int64_t>(budget_ratio * static_cast<double>(nnz) * 8);
  LayoutBuilder builder(labels, plan_layout(labels, stats, min_density, budget));
  for (const auto& part : parts) {
    part.visit(columns, [&](const auto& rows) {
      py::gil_scoped_release nogil;
      builder.count(part.first_label, rows);
    });
  }
  builder.start_fill();
  for (const auto& part : parts) {
    part.visit(columns, [&](const auto& rows) {
      py::gil_scoped_release nogil;
      builder.fill(part.first_label, rows, threads);
    });
  }
  builder.finish();
  return py::make_tuple(
      std::pair(builder.plan.block, builder.plan.n_heavy), to_numpy(std::move(builder.plan.slot)),
      take(std::move(builder.value)), take(std::move(builder.byte)), take(std::move(builder.step)),
      take(std::move(builder.error)), take(std::move(builder.spread)), take(std::move(builder.norm)),
      take(std::move(builder.ptr)), take_postings(std::move(builder.posting)),
      take(std::move(builder.out_ptr)), take_postings(std::move(builder.outlier)));
}

// Holds the arrays of a layout (built or mapped from disk) and predicts with them.
class PredictLayout {
 public:
  PredictLayout(int64_t labels, int64_t columns, int64_t block, int64_t heavy, Array<int32_t> slot,
                Array<float> value, Array<int8_t> byte, Array<float> step, Array<float> error,
                Array<float> spread, Array<float> norm, Array<int64_t> ptr, Array<uint16_t> posting,
                Array<int32_t> out_ptr, Array<uint16_t> outlier)
      : slot_(std::move(slot)),
        value_(std::move(value)),
        byte_(std::move(byte)),
        step_(std::move(step)),
        error_(std::move(error)),
        spread_(std::move(spread)),
        norm_(std::move(norm)),
        ptr_(std::move(ptr)),
        posting_(std::move(posting)),
        out_ptr_(std::move(out_ptr)),
        outlier_(std::move(outlier)) {
    const int64_t padded = (labels + kTile - 1) / kTile * kTile;
    const int64_t blocks = block > 0 ? (labels + block - 1) / block : 0;
    if (block <= 0 || block % kTile) throw std::invalid_argument("block must be a multiple of the tile");
    view_.labels = labels;
    view_.columns = columns;
    view_.n_dense = padded ? value_.size() / padded : 0;
    view_.n_heavy = heavy;
    view_.n_sparse = blocks ? (ptr_.size() - 1) / blocks - 1 : 0;
    view_.block = block;
    view_.slot = slot_.data();
    view_.value = value_.data();
    view_.byte = byte_.data();
    view_.step = step_.data();
    view_.error = error_.data();
    view_.spread = spread_.data();
    view_.norm = norm_.data();
    view_.ptr = ptr_.data();
    view_.posting = postings(posting_);
    view_.out_ptr = out_ptr_.data();
    view_.outlier = postings(outlier_);
    bool fits = slot_.size() == columns && value_.size() == padded * view_.n_dense &&
                byte_.size() == value_.size() && 0 <= heavy && heavy <= view_.n_dense &&
                ptr_.size() == blocks * (view_.n_sparse + 1) + 1 &&
                3 * ptr_.data()[ptr_.size() - 1] == posting_.size() &&
                out_ptr_.size() == blocks * view_.n_dense + 1 &&
                int64_t{3} * (out_ptr_.data()[out_ptr_.size() - 1] + 1) == outlier_.size();
    for (const auto* per_label : {&step_, &error_, &spread_, &norm_}) fits &= per_label->size() == padded;
    if (!fits) throw std::invalid_argument("the arrays of the layout do not fit together");
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
  Array<int32_t> slot_;
  Array<float> value_;
  Array<int8_t> byte_;
  Array<float> step_, error_, spread_, norm_;
  Array<int64_t> ptr_;
  Array<uint16_t> posting_;
  Array<int32_t> out_ptr_;
  Array<uint16_t> outlier_;
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
  m.def(
      "build_layout", &build_layout, py::arg("labels"), py::arg("columns"), py::arg("blocks"),
      py::arg("min_density"), py::arg("budget_ratio"), py::arg("threads"),
      "The arrays of a prediction layout: (block, heavy), slot, value, byte, step, error, spread, norm, ptr, "
      "posting, out_ptr, outlier.");
  m.def("merge_topk", &merge, py::arg("lists"), py::arg("k"), py::arg("threads"));
  py::class_<PredictLayout>(m, "PredictLayout")
      .def(py::init<int64_t, int64_t, int64_t, int64_t, Array<int32_t>, Array<float>, Array<int8_t>,
                    Array<float>, Array<float>, Array<float>, Array<float>, Array<int64_t>, Array<uint16_t>,
                    Array<int32_t>, Array<uint16_t>>(),
           py::arg("labels"), py::arg("columns"), py::arg("block"), py::arg("heavy"),
           py::arg("slot").noconvert(), py::arg("value").noconvert(), py::arg("byte").noconvert(),
           py::arg("step").noconvert(), py::arg("error").noconvert(), py::arg("spread").noconvert(),
           py::arg("norm").noconvert(), py::arg("ptr").noconvert(), py::arg("posting").noconvert(),
           py::arg("out_ptr").noconvert(), py::arg("outlier").noconvert())
      .def("topk", &PredictLayout::topk, py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
           py::arg("data").noconvert(), py::arg("normalize"), py::arg("bias"), py::arg("scale").noconvert(),
           py::arg("shift").noconvert(), py::arg("k"), py::arg("threads"));
}

}  // namespace xmc::bind
