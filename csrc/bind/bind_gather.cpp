// Tensors come as addresses, as in bind_fanin.cpp: xmc_fast.nn.gather_dot has checked shapes and contiguity.
#include "bind/convert.h"
#include "gather/gather_dot.h"

namespace xmc::bind {
using namespace gather;
namespace {

using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t, uintptr_t>;  // the fields of GatherDot
GatherDot to_shape(const Shape& s) {
  const auto [batch, width, dims, labels, candidates] = s;
  return {batch, width, dims, labels, reinterpret_cast<const int64_t*>(candidates)};
}

float* at(uintptr_t address) {
  return reinterpret_cast<float*>(address);
}

// scores or gh, from the two tensors before it
template <auto kPass>
void pass(const Shape& shape, uintptr_t rows, uintptr_t table, uintptr_t out, int threads) {
  without_gil([&] { kPass(to_shape(shape), at(rows), at(table), at(out), threads); });
}

py::tuple grad_rows(const Shape& shape, uintptr_t g, uintptr_t h, int threads) {
  RowGradients rows =
      without_gil([&] { return gather_dot_grad_rows(to_shape(shape), at(g), at(h), threads); });
  return py::make_tuple(to_numpy(std::move(rows.labels)), to_numpy(std::move(rows.values)));
}

}  // namespace

void bind_gather(py::module_& m) {
  using py::arg;
  m.def("gather_dot", &pass<&gather_dot>, arg("shape"), arg("h"), arg("table"), arg("scores"),
        arg("threads"));
  m.def("gather_dot_grad_h", &pass<&gather_dot_grad_h>, arg("shape"), arg("g"), arg("table"), arg("gh"),
        arg("threads"));
  m.def("gather_dot_grad_rows", &grad_rows, arg("shape"), arg("g"), arg("h"), arg("threads"));
}

}  // namespace xmc::bind
