// The only folder that sees pybind11. Bindings convert, release the GIL, call, wrap: no loops, no defaults.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/numa.h"
#include "core/types.h"

namespace xmc::bind {

namespace py = pybind11;

// Arrays come in contiguous and of the right type; the Python layer sees to it (xmc_fast._arrays), so a copy
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

// Hands a vector to numpy without a copy.
template <class T>
py::array_t<T> to_numpy(std::vector<T>&& values) {
  auto owner = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owner->data();
  const auto size = static_cast<py::ssize_t>(owner->size());
  py::capsule free(owner.release(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
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

}  // namespace xmc::bind
