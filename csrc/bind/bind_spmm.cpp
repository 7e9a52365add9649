#include <array>

#include "bind/bind.h"
#include "spmm/row_adam.h"
#include "spmm/spmm.h"

namespace xmc::bind {
namespace {

py::array_t<float> product(const Array<int64_t>& indptr, const Array<int32_t>& indices,
                           const Array<float>& data, const Array<float>& dense, int threads) {
  if (dense.ndim() != 2) throw std::invalid_argument("dense must be two-dimensional");
  const auto A = csr_view(dense.shape(0), indptr, indices, data);
  const DenseView<float> B{dense.shape(0), dense.shape(1), dense.data()};
  py::array_t<float> out({A.rows, B.cols});
  float* C = out.mutable_data();
  {
    const py::gil_scoped_release release;
    spmm(A, B, threads, C);
  }
  return out;
}

void adam_step(Array<float>& weight, Array<float>& mean, Array<float>& square, const Array<int64_t>& rows,
               const Array<float>& gradient, const std::array<float, 5>& step, int threads) {
  const int64_t n = weight.shape(0), k = weight.shape(1);
  if (mean.size() != n * k || square.size() != n * k || gradient.ndim() != 2 || gradient.shape(1) != k ||
      gradient.shape(0) != rows.size()) {
    throw std::invalid_argument("weight, moments, rows and gradient do not fit together");
  }
  const DenseView<float> G{gradient.shape(0), k, gradient.data()};
  float *w = weight.mutable_data(), *m = mean.mutable_data(), *v = square.mutable_data();
  const py::gil_scoped_release release;
  row_adam({step[0], step[1], step[2], step[3], step[4]}, rows.data(), G, n, threads, w, m, v);
}

}  // namespace

void bind_spmm(py::module_& m) {
  m.def("spmm", &product, py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
        py::arg("data").noconvert(), py::arg("dense").noconvert(), py::arg("threads"));
  m.def("row_adam", &adam_step, py::arg("weight").noconvert(), py::arg("mean").noconvert(),
        py::arg("square").noconvert(), py::arg("rows").noconvert(), py::arg("gradient").noconvert(),
        py::arg("step"), py::arg("threads"));
}

}  // namespace xmc::bind
