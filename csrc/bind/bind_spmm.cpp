#include <array>

#include "bind/convert.h"
#include "spmm/row_adam.h"
#include "spmm/spmm.h"

namespace xmc::bind {
using namespace spmm;
namespace {

py::array product(const Csr<>& A, const Array<float>& dense, int threads) {
  if (dense.ndim() != 2) throw std::invalid_argument("dense must be two-dimensional");
  need_size("dense's rows", dense.shape(0), A.view.cols);
  const DenseView<float> B{dense.shape(0), dense.shape(1), dense.data()};
  return filled<float>(A.view.rows, B.cols, [&](float* C) { spmm::spmm(A, B, threads, C); })[0];
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
  m.def("spmm", &product, py::arg("A"), py::arg("dense").noconvert(), py::arg("threads"));
  m.def("row_adam", &adam_step, py::arg("weight").noconvert(), py::arg("mean").noconvert(),
        py::arg("square").noconvert(), py::arg("rows").noconvert(), py::arg("gradient").noconvert(),
        py::arg("step"), py::arg("threads"));
}

}  // namespace xmc::bind
