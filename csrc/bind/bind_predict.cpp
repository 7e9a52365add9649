#include <optional>
#include <variant>

#include "bind/bind.h"
#include "predict/layout.h"
#include "predict/merge.h"
#include "predict/predict.h"

namespace xmc::bind {
using namespace predict;
namespace {

template <class T>
struct StoredAs {
  using Number = T;
};
template <class T>
  requires requires { typename T::Number; }
struct StoredAs<T> {
  using Number = typename T::Number;
};

class PredictLayout {
 public:
  static PredictLayout build(
      int64_t labels, int64_t columns,
      const std::vector<std::pair<int64_t, std::variant<Csr<float, uint16_t>, Csr<>>>>& blocks,
      std::optional<double> min_density, int threads) {
    std::vector<LabelBlock> parts;
    for (const auto& [first_label, weights] : blocks) {
      std::visit([&, first = first_label](const auto& w) { parts.push_back({first, w.view}); }, weights);
    }
    py::gil_scoped_release nogil;
    return PredictLayout(
        Layout::build(labels, columns, parts, min_density.value_or(Layout::kMinDensity), threads));
  }

  // Views by name; they keep the layout alive.
  static py::dict arrays(const py::object& self) {
    LayoutArrays<ArrayView> views = py::cast<const PredictLayout&>(self).layout_.view();
    py::dict result;
    result["block"] = py::array_t<int64_t>(1, &views.block);
    views.for_each([&]<class T>(const char* name, const ArrayView<T>& view) {
      using Number = typename StoredAs<T>::Number;
      const auto size =
          static_cast<py::ssize_t>(view.size) * static_cast<py::ssize_t>(sizeof(T) / sizeof(Number));
      result[name] = py::array_t<Number>(size, reinterpret_cast<const Number*>(view.data), self);
    });
    return result;
  }

  py::typing::Tuple<py::array_t<int32_t>, py::array_t<float>> topk(const Csr<>& x, bool normalize,
                                                                   std::optional<float> bias,
                                                                   const Array<float>& scale,
                                                                   const Array<float>& shift, int64_t k,
                                                                   int threads) const {
    const LayoutView& view = layout_.view();
    if (x.view.cols + bias.has_value() != view.columns)
      throw std::invalid_argument("x: wrong number of columns");
    if (scale.size() != shift.size() ||
        (scale.size() && (scale.size() < view.tiles() * kTile || scale.size() % kTile))) {
      throw std::invalid_argument("scale and shift must be empty or cover whole tiles");
    }
    const Calibration calibration{scale.size() ? scale.data() : nullptr, shift.data()};
    const int64_t given = std::max<int64_t>(0, std::min(k, view.labels));
    py::array_t<int32_t> ids(x.view.rows * given);
    py::array_t<float> scores(x.view.rows * given);
    int32_t* id = ids.mutable_data();
    float* score = scores.mutable_data();
    {
      py::gil_scoped_release nogil;
      predict_topk(view, x, {normalize, bias.has_value(), bias.value_or(0.f)}, calibration, given, threads,
                   id, score);
    }
    return py::make_tuple(std::move(ids), std::move(scores));
  }

 private:
  explicit PredictLayout(Layout layout) : layout_(std::move(layout)) {}
  Layout layout_;
};

py::typing::Tuple<py::array_t<int32_t>, py::array_t<float>, py::array_t<int32_t>> merge(
    const std::vector<Csr<>>& lists, int64_t k, int threads) {
  std::vector<CsrView<>> views;
  for (const auto& list : lists) views.push_back(list.view);
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

void bind_packed(py::module_& m);  // bind_packed.cpp

void bind_predict(py::module_& m) {
  bind_packed(m);
  m.def("merge_topk", &merge, py::arg("lists"), py::arg("k"), py::arg("threads"));
  py::class_<PredictLayout>(m, "PredictLayout")
      .def_static("build", &PredictLayout::build, py::arg("labels"), py::arg("columns"), py::arg("blocks"),
                  py::arg("min_density"), py::arg("threads"))
      .def("arrays", &PredictLayout::arrays)
      .def("topk", &PredictLayout::topk, py::arg("x"), py::arg("normalize"), py::arg("bias"),
           py::arg("scale").noconvert(), py::arg("shift").noconvert(), py::arg("k"), py::arg("threads"));
}

}  // namespace xmc::bind
