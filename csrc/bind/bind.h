// The only folder that sees pybind11. Bindings convert, release the GIL, call, wrap: no algorithms, no defaults.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/numa.h"
#include "core/types.h"

namespace xmc::bind {

namespace py = pybind11;

// Arrays come in contiguous and of the right type; the Python layer sees to it (xmc_fast._validate), so a copy
// here would be a mistake and is refused.
template <class T>
using Array = py::array_t<T, py::array::c_style>;

// A binding's parameter list ends with .noconvert() for each array: wrong dtypes raise TypeError.
template <class Index, class Value>
CsrView<Index, Value> csr_view(int64_t cols, const Array<int64_t>& indptr, const Array<Index>& indices,
                               const Array<Value>& data) {
  if (indptr.size() < 1) throw std::invalid_argument("indptr is empty");
  const int64_t rows = indptr.size() - 1;
  if (indptr.data()[rows] != indices.size() || (data.size() != indices.size() && data.size() != 0)) {
    throw std::invalid_argument("indptr, indices and data have different lengths");
  }
  return {rows, cols, indptr.data(), indices.data(), data.size() ? data.data() : nullptr};
}

// A sparse matrix as one argument: the tuple (indptr, indices, data, (rows, cols)) of Python, e.g.
// xmc_fast._validate.Csr, which owns the arrays. Empty data: binary. The dtypes must be exact, else TypeError.
template <class Value = float, class Index = int32_t>
struct Csr {
  Array<int64_t> indptr;
  Array<Index> indices;
  Array<Value> data;
  CsrView<Index, Value> view;
  operator const CsrView<Index, Value>&() const { return view; }
};

// Hands a vector or Buffer to numpy without a copy.
template <class T, template <class...> class Container, class... Rest>
py::array_t<T> to_numpy(Container<T, Rest...>&& values) {
  auto owner = std::make_unique<Container<T, Rest...>>(std::move(values));
  T* data = owner->data();
  const auto size = static_cast<py::ssize_t>(owner->size());
  py::capsule free(owner.release(), [](void* p) { delete static_cast<Container<T, Rest...>*>(p); });
  return py::array_t<T>({size}, {static_cast<py::ssize_t>(sizeof(T))}, data, free);
}

void bind_core(py::module_& m);
void bind_numa(py::module_& m);
py::list placement_list(const std::vector<NodePlacement>& placement);  // for report_["placement"]
void bind_fanin(py::module_& m);
void bind_linear(py::module_& m);
void bind_cluster(py::module_& m);
void bind_mach(py::module_& m);
void bind_metrics(py::module_& m);
void bind_data(py::module_& m);
void bind_text(py::module_& m);
void bind_decide(py::module_& m);
void bind_knn(py::module_& m);
void bind_gather(py::module_& m);
void bind_spmm(py::module_& m);
void bind_predict(py::module_& m);
void bind_tree(py::module_& m);

}  // namespace xmc::bind

namespace pybind11::detail {

template <class Value, class Index>
struct type_caster<xmc::bind::Csr<Value, Index>> {
  using Matrix = xmc::bind::Csr<Value, Index>;
  template <class T>
  static constexpr auto name_of = handle_type_name<array_t<T>>::name;
  PYBIND11_TYPE_CASTER(Matrix, const_name("tuple[") + name_of<int64_t> + const_name(", ") + name_of<Index> +
                                   const_name(", ") + name_of<Value> + const_name(", tuple[int, int]]"));

  bool load(handle source, bool) {
    if (!PyTuple_Check(source.ptr()) || PyTuple_GET_SIZE(source.ptr()) != 4) return false;
    const auto part = [&](int i) { return handle(PyTuple_GET_ITEM(source.ptr(), i)); };
    if (!take(part(0), value.indptr) || !take(part(1), value.indices) || !take(part(2), value.data)) {
      return false;
    }
    const auto [rows, cols] = pybind11::cast<std::pair<int64_t, int64_t>>(part(3));
    value.view = xmc::bind::csr_view(cols, value.indptr, value.indices, value.data);
    if (value.view.rows != rows) throw std::invalid_argument("a matrix has other rows than its indptr");
    return true;
  }

 private:
  template <class T>
  static bool take(handle source, xmc::bind::Array<T>& to) {
    if (!isinstance<xmc::bind::Array<T>>(source)) return false;
    to = reinterpret_borrow<xmc::bind::Array<T>>(source);
    return true;
  }
};

}  // namespace pybind11::detail
