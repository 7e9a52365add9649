#include <optional>
#include <variant>

#include "bind/bind.h"
#include "bind/model_arrays.h"
#include "predict/check_rows.h"
#include "predict/packed.h"

namespace xmc::bind {
using namespace predict;
namespace {

using Arrays = py::typing::Dict<py::str, py::array>;

py::typing::Tuple<Arrays, int64_t> pack_model(int64_t labels, int64_t columns, const ModelBlocks& blocks,
                                              bool has_bias, float delta, int threads) {
  const std::vector<LabelBlock> parts = views_of(blocks);
  Packed packed;
  {
    py::gil_scoped_release nogil;
    packed = pack(labels, columns, parts, has_bias, delta, threads);
  }
  Arrays arrays;
  arrays["label"] = to_numpy(std::move(packed.label));
  arrays["bias"] = to_numpy(std::move(packed.bias));
  arrays["step"] = to_numpy(std::move(packed.step));
  arrays["first"] = to_numpy(std::move(packed.first));
  arrays["ptr"] = to_numpy(std::move(packed.ptr));
  arrays["list"] = to_numpy(std::move(packed.list));
  return py::make_tuple(std::move(arrays), packed.weights);
}

// A checked packed model on arrays of Python.
class PackedModel {
 public:
  static PackedModel open(int64_t labels, int64_t columns, const py::dict& arrays) {
    PackedModel model;
    model.view_.labels = labels;
    model.view_.columns = columns;
    const auto take = [&]<class T>(const char* name, Span<const T>& to) {
      if (!arrays.contains(name)) throw std::invalid_argument(std::string(name) + " is missing");
      const py::object array = arrays[name];
      if (!py::isinstance<Array<T>>(array)) throw std::invalid_argument(std::string(name) + ": wrong dtype");
      auto numbers = py::reinterpret_borrow<Array<T>>(array);
      if (numbers.ndim() != 1) throw std::invalid_argument(std::string(name) + ": wrong shape");
      to = {numbers.data(), numbers.size()};
      model.keep_.push_back(std::move(numbers));
    };
    take("label", model.view_.label);
    take("bias", model.view_.bias);
    take("step", model.view_.step);
    take("first", model.view_.first);
    take("ptr", model.view_.ptr);
    take("list", model.view_.list);
    check_packed(model.view_);
    return model;
  }

  py::typing::Tuple<py::array_t<int64_t>, py::array_t<int32_t>, py::array_t<float>> unpack() const {
    UnpackedRows rows;
    {
      py::gil_scoped_release nogil;
      rows = predict::unpack(view_);
    }
    return py::make_tuple(to_numpy(std::move(rows.indptr)), to_numpy(std::move(rows.indices)),
                          to_numpy(std::move(rows.data)));
  }

  TopkArrays topk(const Csr<>& x, bool normalize, std::optional<float> bias, const Array<float>& scale,
                  const Array<float>& shift, int64_t k, int threads) const {
    if (bias.has_value() && view_.bias.size() != view_.labels)
      throw std::invalid_argument("x: wrong number of columns");
    const RowOptions rows{normalize, bias.has_value(), bias.value_or(0.f)};
    return topk_arrays(x, view_.labels, view_.columns, rows, scale, shift, kTile, k,
                       [&](const Calibration& calibration, int64_t given, int32_t* ids, float* scores) {
                         predict_packed(view_, x, rows, calibration, given, threads, ids, scores);
                       });
  }

 private:
  PackedView view_;
  std::vector<py::array> keep_;
};

void check(const Array<int64_t>& indptr, const std::variant<Array<uint16_t>, Array<int32_t>>& indices,
           int64_t columns, int threads) {
  if (indptr.size() < 1) throw std::invalid_argument("indptr is empty");
  std::visit(
      [&]<class Index>(const Array<Index>& of) {
        const CsrView<Index> rows{indptr.size() - 1, columns, indptr.data(), of.data(), nullptr};
        const int64_t entries = of.size();
        py::gil_scoped_release nogil;
        check_rows(rows, entries, threads);
      },
      indices);
}

}  // namespace

void bind_packed(py::module_& m) {
  m.def("check_rows", &check, py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
        py::arg("columns"), py::arg("threads"));
  m.def("pack_model", &pack_model, py::arg("labels"), py::arg("columns"), py::arg("blocks"),
        py::arg("has_bias"), py::arg("delta"), py::arg("threads"));
  py::class_<PackedModel>(m, "PackedModel")
      .def_static("open", &PackedModel::open, py::arg("labels"), py::arg("columns"), py::arg("arrays"))
      .def("unpack", &PackedModel::unpack)
      .def("topk", &PackedModel::topk, py::arg("x"), py::arg("normalize"), py::arg("bias"),
           py::arg("scale").noconvert(), py::arg("shift").noconvert(), py::arg("k"), py::arg("threads"));
}

}  // namespace xmc::bind
