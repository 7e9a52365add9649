// Tensors come as addresses, as in bind_fanin.cpp: xmc_fast.nn.gather_dot has checked shapes and contiguity.
#include "bind/bind.h"
#include "gather/gather_dot.h"

namespace xmc::bind {
using namespace gather;
namespace {

const float* in(uintptr_t address) {
  return reinterpret_cast<const float*>(address);
}
float* out(uintptr_t address) {
  return reinterpret_cast<float*>(address);
}

GatherDot shape(int64_t batch, int64_t width, int64_t dims, int64_t labels, uintptr_t candidates) {
  return {batch, width, dims, labels, reinterpret_cast<const int64_t*>(candidates)};
}

}  // namespace

void bind_gather(py::module_& m) {
  m.def(
      "gather_dot",
      [](int64_t batch, int64_t width, int64_t dims, int64_t labels, uintptr_t candidates, uintptr_t h,
         uintptr_t table, uintptr_t scores, int threads) {
        const py::gil_scoped_release release;
        gather_dot(shape(batch, width, dims, labels, candidates), in(h), in(table), out(scores), threads);
      },
      py::arg("batch"), py::arg("width"), py::arg("dims"), py::arg("labels"), py::arg("candidates"),
      py::arg("h"), py::arg("table"), py::arg("scores"), py::arg("threads"));
  m.def(
      "gather_dot_grad_h",
      [](int64_t batch, int64_t width, int64_t dims, int64_t labels, uintptr_t candidates, uintptr_t g,
         uintptr_t table, uintptr_t gh, int threads) {
        const py::gil_scoped_release release;
        gather_dot_grad_h(shape(batch, width, dims, labels, candidates), in(g), in(table), out(gh), threads);
      },
      py::arg("batch"), py::arg("width"), py::arg("dims"), py::arg("labels"), py::arg("candidates"),
      py::arg("g"), py::arg("table"), py::arg("gh"), py::arg("threads"));
  m.def(
      "gather_dot_grad_rows",
      [](int64_t batch, int64_t width, int64_t dims, int64_t labels, uintptr_t candidates, uintptr_t g,
         uintptr_t h, int threads) {
        RowGradients rows;
        {
          const py::gil_scoped_release release;
          rows = gather_dot_grad_rows(shape(batch, width, dims, labels, candidates), in(g), in(h), threads);
        }
        auto owner = std::make_unique<Buffer<float>>(std::move(rows.values));
        float* data = owner->data();
        const auto size = static_cast<py::ssize_t>(owner->size());
        const py::capsule free(owner.release(), [](void* p) { delete static_cast<Buffer<float>*>(p); });
        const py::array_t<float> values({size}, {static_cast<py::ssize_t>(sizeof(float))}, data, free);
        return py::make_tuple(to_numpy(std::move(rows.labels)), values);
      },
      py::arg("batch"), py::arg("width"), py::arg("dims"), py::arg("labels"), py::arg("candidates"),
      py::arg("g"), py::arg("h"), py::arg("threads"));
}

}  // namespace xmc::bind
