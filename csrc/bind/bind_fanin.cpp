// Tensors come as addresses (torch's data_ptr(), numpy's ctypes.data): the caller owns the memory, has
// checked shapes and contiguity (xmc_fast.nn.ops) and keeps it alive during the call.
#include "bind/bind.h"
#include "fanin/fanin.h"

namespace xmc::bind {
namespace {

using namespace fanin;

ConstTensor in(uintptr_t address, int type, int order = 0) {
  return {reinterpret_cast<const void*>(address), static_cast<DType>(type), static_cast<Order>(order)};
}
Tensor out(uintptr_t address, int type, int order = 0) {
  return {reinterpret_cast<void*>(address), static_cast<DType>(type), static_cast<Order>(order)};
}

CsrView<> csr(int64_t cols, const Array<int64_t>& indptr, const Array<int32_t>& indices,
              const Array<float>& data) {
  return csr_view<int32_t, float>(cols, indptr, indices, data);
}

}  // namespace

void bind_fanin(py::module_& m) {
  py::class_<Layer>(m, "FaninLayer")
      .def(
          py::init([](int64_t labels, int64_t features, int64_t fan_in, int64_t group_size, uintptr_t indices,
                      int index_bits, uintptr_t weights, int weight_type, uintptr_t bias, int bias_type) {
            return Layer{labels,
                         features,
                         fan_in,
                         group_size,
                         reinterpret_cast<const void*>(indices),
                         index_bits,
                         in(weights, weight_type),
                         in(bias, bias_type)};
          }),
          py::arg("labels"), py::arg("features"), py::arg("fan_in"), py::arg("group_size"),
          py::arg("indices"), py::arg("index_bits"), py::arg("weights"), py::arg("weight_type"),
          py::arg("bias"), py::arg("bias_type"));
  m.def(
      "fanin_forward",
      [](const Layer& layer, uintptr_t x, int x_type, int x_order, int64_t batch, uintptr_t to, int to_type,
         int to_order, int threads) {
        const py::gil_scoped_release release;
        forward(layer, in(x, x_type, x_order), batch, out(to, to_type, to_order), threads);
      },
      py::arg("layer"), py::arg("x"), py::arg("x_type"), py::arg("x_order"), py::arg("batch"), py::arg("to"),
      py::arg("to_type"), py::arg("to_order"), py::arg("threads"));
  m.def(
      "fanin_grad_features",
      [](const Layer& layer, uintptr_t g, int g_type, int g_order, int64_t batch, uintptr_t gx, int gx_type,
         int threads) {
        const py::gil_scoped_release release;
        grad_features(layer, in(g, g_type, g_order), batch, out(gx, gx_type), threads);
      },
      py::arg("layer"), py::arg("g"), py::arg("g_type"), py::arg("g_order"), py::arg("batch"), py::arg("gx"),
      py::arg("gx_type"), py::arg("threads"));
  m.def(
      "fanin_grad_weights",
      [](const Layer& layer, uintptr_t x, int x_type, int x_order, uintptr_t g, int g_type, int g_order,
         int64_t batch, uintptr_t gw, int gw_type, uintptr_t gbias, int gbias_type, int threads) {
        const py::gil_scoped_release release;
        grad_weights(layer, in(x, x_type, x_order), in(g, g_type, g_order), batch, out(gw, gw_type),
                     out(gbias, gbias_type), threads);
      },
      py::arg("layer"), py::arg("x"), py::arg("x_type"), py::arg("x_order"), py::arg("g"), py::arg("g_type"),
      py::arg("g_order"), py::arg("batch"), py::arg("gw"), py::arg("gw_type"), py::arg("gbias"),
      py::arg("gbias_type"), py::arg("threads"));
  m.def(
      "fanin_grad_features_sparse",
      [](const Layer& layer, const Array<int64_t>& indptr, const Array<int32_t>& indices,
         const Array<float>& data, uintptr_t gx, int gx_type, int threads) {
        const CsrView<> g = csr(layer.labels, indptr, indices, data);
        const py::gil_scoped_release release;
        grad_features_sparse(layer, g, out(gx, gx_type), threads);
      },
      py::arg("layer"), py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
      py::arg("data").noconvert(), py::arg("gx"), py::arg("gx_type"), py::arg("threads"));
  m.def(
      "fanin_grad_weights_sparse",
      [](const Layer& layer, uintptr_t x, int x_type, const Array<int64_t>& indptr,
         const Array<int32_t>& indices, const Array<float>& data, int threads) {
        const CsrView<> g = csr(layer.labels, indptr, indices, data);
        SparseGradients gradients;
        {
          const py::gil_scoped_release release;
          gradients = grad_weights_sparse(layer, in(x, x_type), g, threads);
        }
        return py::make_tuple(to_numpy(std::move(gradients.labels)), to_numpy(std::move(gradients.weights)),
                              to_numpy(std::move(gradients.bias)));
      },
      py::arg("layer"), py::arg("x"), py::arg("x_type"), py::arg("indptr").noconvert(),
      py::arg("indices").noconvert(), py::arg("data").noconvert(), py::arg("threads"));
  m.def(
      "fanin_loss",
      [](const Layer& layer, uintptr_t x, int x_type, int64_t batch, const Array<int64_t>& indptr,
         const Array<int32_t>& indices, int loss, float scale, uintptr_t gx, int gx_type, uintptr_t gw,
         int gw_type, uintptr_t gbias, int gbias_type, int threads) {
        const CsrView<> targets = csr(layer.labels, indptr, indices, Array<float>(0));
        if (targets.rows != batch)
          throw std::invalid_argument("targets and x have different numbers of rows");
        const py::gil_scoped_release release;
        return loss_and_gradients(layer, in(x, x_type), batch, targets, static_cast<Loss>(loss), scale,
                                  out(gx, gx_type), out(gw, gw_type), out(gbias, gbias_type), threads);
      },
      py::arg("layer"), py::arg("x"), py::arg("x_type"), py::arg("batch"), py::arg("indptr").noconvert(),
      py::arg("indices").noconvert(), py::arg("loss"), py::arg("scale"), py::arg("gx"), py::arg("gx_type"),
      py::arg("gw"), py::arg("gw_type"), py::arg("gbias"), py::arg("gbias_type"), py::arg("threads"));
  m.def(
      "fanin_topk",
      [](const Layer& layer, uintptr_t x, int x_type, int64_t batch, int64_t k, int threads) {
        std::vector<float> scores(batch * k);
        std::vector<int32_t> ids(batch * k);
        {
          const py::gil_scoped_release release;
          topk(layer, in(x, x_type), batch, k, scores.data(), ids.data(), threads);
        }
        return py::make_tuple(to_numpy(std::move(scores)), to_numpy(std::move(ids)));
      },
      py::arg("layer"), py::arg("x"), py::arg("x_type"), py::arg("batch"), py::arg("k"), py::arg("threads"));
  m.def(
      "fanin_rewire",
      [](const Layer& layer, const Array<float>& strength, float threshold, int64_t count,
         const Array<int32_t>& candidates, uint64_t seed, int threads) {
        const int64_t cells = layer.groups() * layer.fan_in;
        if (strength.size() != cells) throw std::invalid_argument("strength must be groups x fan_in");
        std::vector<uint8_t> changed(cells);
        const Rewire how{strength.data(),
                         threshold,
                         count,
                         candidates.data(),
                         layer.groups() ? candidates.size() / layer.groups() : 0,
                         seed};
        {
          const py::gil_scoped_release release;
          // in place: the layer's own indices and weights
          rewire(layer, const_cast<void*>(layer.indices),
                 {const_cast<void*>(layer.weights.data), layer.weights.type}, how, changed.data(), threads);
        }
        return to_numpy(std::move(changed));
      },
      py::arg("layer"), py::arg("strength").noconvert(), py::arg("threshold"), py::arg("count"),
      py::arg("candidates").noconvert(), py::arg("seed"), py::arg("threads"));
  m.def(
      "fanin_random_indices",
      [](int64_t groups, int64_t features, int64_t fan_in, int index_bits, uint64_t seed, uintptr_t to,
         int threads) {
        const py::gil_scoped_release release;
        random_indices(groups, features, fan_in, index_bits, seed, reinterpret_cast<void*>(to), threads);
      },
      py::arg("groups"), py::arg("features"), py::arg("fan_in"), py::arg("index_bits"), py::arg("seed"),
      py::arg("to"), py::arg("threads"));
}

}  // namespace xmc::bind
