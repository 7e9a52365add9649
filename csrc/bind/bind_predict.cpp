#include <algorithm>
#include <optional>
#include <variant>

#include "bind/bind.h"
#include "bind/model_arrays.h"
#include "predict/layout.h"
#include "predict/merge.h"
#include "predict/near.h"
#include "predict/predict.h"

namespace xmc::bind {
using namespace predict;
namespace {

// What a view of an array is as Python's arrays of numbers.
template <class T>
struct StoredAs {
  using Number = T;
};
template <class T>
  requires requires { typename T::Number; }
struct StoredAs<T> {
  using Number = typename T::Number;
};

// Views of named arrays from Python, which `keep` keeps alive.
struct TakeArrays {
  const py::dict& arrays;
  std::vector<py::array>& keep;

  template <class T>
  void operator()(const char* name, ArrayView<T>& view) const {
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
  }
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
    const TakeArrays take{arrays, keep};
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

  const LayoutView& view() const { return layout_.view(); }

  // The arrays of an index for nearly exact prediction.
  py::dict near(std::optional<float> bias, double density, int64_t budget, int threads) const {
    NearArrays<Buffer> near;
    {
      py::gil_scoped_release nogil;
      near =
          build_near(layout_.view(), {false, bias.has_value(), bias.value_or(0.f)}, density, budget, threads);
    }
    py::dict result;
    near.for_each(
        [&]<class T>(const char* name, Buffer<T>& array) { result[name] = to_numpy(std::move(array)); });
    return result;
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

// A checked index for nearly exact prediction on arrays of Python.
class NearIndex {
 public:
  // copy: large arrays are read into memory of huge pages, which a mapped file does not have.
  static NearIndex open(int64_t labels, int64_t features, const py::dict& arrays, bool known, bool copy,
                        int threads) {
    NearIndex index;
    index.view_.labels = labels;
    index.view_.features = features;
    index.view_.for_each(TakeArrays{arrays, index.keep_});
    py::gil_scoped_release nogil;
    check_near(index.view_, known, threads);
    const auto own = [&]<class T>(ArrayView<T>& view, Buffer<T>& to) {
      to = Buffer<T>(view.size);
      std::copy_n(view.data, view.size, to.data());
      view.data = to.data();
    };
    if (copy) {
      own(index.view_.byte, index.byte_);
      own(index.view_.posting, index.posting_);
    }
    return index;
  }

  // Labels, scores and rough scores.
  py::typing::Tuple<py::array_t<int32_t>, py::array_t<float>, py::array_t<float>> topk(
      const PredictLayout& of, const Csr<>& x, bool normalize, std::optional<float> bias, int64_t k,
      int64_t candidates, float margin, int threads) const {
    const LayoutView& layout = of.view();
    const RowOptions rows{normalize, bias.has_value(), bias.value_or(0.f)};
    if (layout.labels != view_.labels || layout.columns != view_.features + rows.has_bias) {
      throw std::invalid_argument("the index is of a layout with other labels or columns");
    }
    py::array_t<float> rough(x.view.rows * std::max<int64_t>(0, std::min(k, layout.labels)));
    float* to = rough.mutable_data();
    const auto search = [&](const Calibration&, int64_t given, int32_t* ids, float* scores) {
      predict_near(view_, layout, x, rows, given, candidates, margin, threads, ids, scores, to);
    };
    const py::tuple top = topk_arrays(x, layout.labels, layout.columns, rows, {}, {}, kTile, k, search);
    return py::make_tuple(top[0], top[1], std::move(rough));
  }

 private:
  NearView view_;
  std::vector<py::array> keep_;
  Buffer<int8_t> byte_;
  Buffer<uint32_t> posting_;
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
      .def("near", &PredictLayout::near, py::arg("bias"), py::arg("density"), py::arg("budget"),
           py::arg("threads"))
      .def("rows", &PredictLayout::rows, py::arg("threads"))
      .def("topk", &PredictLayout::topk, py::arg("x"), py::arg("normalize"), py::arg("bias"),
           py::arg("scale").noconvert(), py::arg("shift").noconvert(), py::arg("k"), py::arg("threads"));
  py::class_<NearIndex>(m, "NearIndex")
      .def_static("open", &NearIndex::open, py::arg("labels"), py::arg("features"), py::arg("arrays"),
                  py::arg("known") = false, py::arg("copy") = false, py::arg("threads") = 1)
      .def("topk", &NearIndex::topk, py::arg("layout"), py::arg("x"), py::arg("normalize"), py::arg("bias"),
           py::arg("k"), py::arg("candidates"), py::arg("margin"), py::arg("threads"));
}

}  // namespace xmc::bind
