#include <optional>
#include <variant>

#include "bind/bind.h"
#include "bind/model_arrays.h"
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

// A layout, and the Python arrays that it reads if it came from a file.
class PredictLayout {
 public:
  static PredictLayout build(int64_t labels, int64_t columns, const ModelBlocks& blocks,
                             std::optional<double> min_density, int threads) {
    const std::vector<LabelBlock> parts = views_of(blocks);
    py::gil_scoped_release nogil;
    return {Layout::build(labels, columns, parts, min_density.value_or(Layout::kMinDensity), threads), {}};
  }

  static PredictLayout open(int64_t labels, int64_t columns, const py::dict& arrays, bool known,
                            int threads) {
    std::vector<py::array> keep;
    const auto take = [&]<class T>(const char* name, ArrayView<T>& view) {
      using Number = typename StoredAs<T>::Number;
      constexpr auto kNumbers = static_cast<py::ssize_t>(sizeof(T) / sizeof(Number));
      if (!arrays.contains(name)) throw std::invalid_argument(std::string(name) + " is missing");
      const py::object array = arrays[name];
      if (!py::isinstance<Array<Number>>(array)) {
        throw std::invalid_argument(std::string(name) + ": wrong dtype");
      }
      auto numbers = py::reinterpret_borrow<Array<Number>>(array);
      if (numbers.ndim() != 1 || numbers.size() % kNumbers) {
        throw std::invalid_argument(std::string(name) + ": wrong shape");
      }
      view = {reinterpret_cast<const T*>(numbers.data()), numbers.size() / kNumbers};
      keep.push_back(std::move(numbers));
    };
    ArrayView<int64_t> block;
    take("block", block);
    if (block.size != 1) throw std::invalid_argument("block: wrong shape");
    LayoutArrays<ArrayView> views(labels, columns, block[0]);
    views.for_each(take);
    py::gil_scoped_release nogil;
    return {Layout::open(views, known, threads), std::move(keep)};
  }

  py::typing::Tuple<py::array_t<int64_t>, py::array_t<int32_t>, py::array_t<float>> rows(int threads) const {
    UnpackedRows rows;
    {
      py::gil_scoped_release nogil;
      rows = rows_of(layout_.view(), threads);
    }
    return py::make_tuple(to_numpy(std::move(rows.indptr)), to_numpy(std::move(rows.indices)),
                          to_numpy(std::move(rows.data)));
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

  TopkArrays topk(const Csr<>& x, bool normalize, std::optional<float> bias, const Array<float>& scale,
                  const Array<float>& shift, int64_t k, int threads) const {
    const LayoutView& view = layout_.view();
    const RowOptions rows{normalize, bias.has_value(), bias.value_or(0.f)};
    return topk_arrays(x, view.labels, view.columns, rows, scale, shift, kTile, k,
                       [&](const Calibration& calibration, int64_t given, int32_t* ids, float* scores) {
                         predict_topk(view, x, rows, calibration, given, threads, ids, scores);
                       });
  }

 private:
  PredictLayout(Layout layout, std::vector<py::array> keep)
      : layout_(std::move(layout)), keep_(std::move(keep)) {}
  Layout layout_;
  std::vector<py::array> keep_;
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
      .def_static("open", &PredictLayout::open, py::arg("labels"), py::arg("columns"), py::arg("arrays"),
                  py::arg("known") = false, py::arg("threads") = 1)
      .def("arrays", &PredictLayout::arrays)
      .def("rows", &PredictLayout::rows, py::arg("threads"))
      .def("topk", &PredictLayout::topk, py::arg("x"), py::arg("normalize"), py::arg("bias"),
           py::arg("scale").noconvert(), py::arg("shift").noconvert(), py::arg("k"), py::arg("threads"));
}

}  // namespace xmc::bind
