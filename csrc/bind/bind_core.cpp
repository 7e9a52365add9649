#include "bind/bind.h"
#include "bind/convert.h"
#include "core/buffer_pool.h"
#include "core/csr_check.h"
#include "core/parallel.h"
#include "core/row_options.h"
#include "core/simd.h"

// threadpoolctl finds these by name in the loaded library (xmc_fast._threads).
#if defined(_WIN32)
#define XMC_EXPORT extern "C" __declspec(dllexport)
#else
#define XMC_EXPORT extern "C" __attribute__((visibility("default")))
#endif
XMC_EXPORT int xmc_fast_get_num_threads() {
  return xmc::default_threads();
}
XMC_EXPORT void xmc_fast_set_num_threads(int threads) {
  xmc::set_default_threads(threads);
}

namespace xmc::bind {
namespace {

void raise_pending_signal() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// (state, first place), see core/csr_check.h.
template <class Index>
py::tuple csr_check(const Array<int64_t>& indptr, const Array<Index>& indices, int64_t cols, int threads) {
  if (indptr.size() < 1) throw std::invalid_argument("indptr is empty");
  const CsrCheck found =
      without_gil([&, rows = indptr.size() - 1, ptr = indptr.data(), ids = indices.data(),
                   entries = indices.size()] { return check_csr(rows, cols, ptr, ids, entries, threads); });
  return py::make_tuple(static_cast<int>(found.state), found.at);
}

}  // namespace

void bind_core(py::module_& m) {
  set_interrupt_hook(&raise_pending_signal);
  m.def("simd_level", [] { return simd_name(simd_level()); });
  m.def("simd_supported", [] { return simd_name(simd_supported()); });
  m.def(
      "force_simd_level", [](const std::string& name) { force_simd_level(simd_from_name(name.c_str())); },
      py::arg("name"));
  m.def("available_cpus", &available_cpus);
  m.def("default_threads", &default_threads);
  m.def("set_default_threads", &set_default_threads, py::arg("threads"));
  // Uninitialised bytes that go back to core/buffer_pool.h when the last view of them is gone.
  m.def(
      "new_result",
      [](int64_t bytes) {
        auto owner = std::make_unique<Recycled>(bytes);
        void* data = owner->data();
        py::capsule give_back(owner.release(), [](void* p) { delete static_cast<Recycled*>(p); });
        return py::array_t<uint8_t>({bytes}, {1}, static_cast<uint8_t*>(data), give_back);
      },
      py::arg("bytes"));
  m.def("csr_check_i32", &csr_check<int32_t>, py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
        py::arg("cols"), py::arg("threads"));
  m.def("csr_check_i64", &csr_check<int64_t>, py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
        py::arg("cols"), py::arg("threads"));
  m.def(
      "row_scales", [](const Csr<>& x) { return to_numpy(row_scales({.normalize = true}, x.view)); },
      py::arg("x"));
  m.def("recycled_bytes", &recycled_bytes, py::arg("release"));
  // For the tests of parallel_for: the order-free sum of fn's results, called with the GIL held.
  m.def(
      "parallel_for_test",
      [](int64_t blocks, int threads, const py::function& fn) {
        const py::gil_scoped_release release;
        parallel_for(blocks, threads, [&](int64_t block, int) {
          const py::gil_scoped_acquire gil;
          fn(block);
        });
      },
      py::arg("blocks"), py::arg("threads"), py::arg("fn"));
}

}  // namespace xmc::bind
