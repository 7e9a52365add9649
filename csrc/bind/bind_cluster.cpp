#include "bind/bind.h"
#include "cluster/centroids.h"
#include "cluster/label_tree.h"

namespace xmc::bind {

void bind_cluster(py::module_& m) {
  m.def(
      "label_centroids",
      [](int64_t cols, const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         const Array<int64_t>& positives_indptr, const Array<int32_t>& positives_indices,
         int64_t max_features, int threads) {
        const auto X = csr_view(cols, indptr, indices, data);
        const auto positives = csr_view(X.rows, positives_indptr, positives_indices, Array<float>(0));
        Centroids v;
        {
          const py::gil_scoped_release release;
          v = label_centroids(X, positives, max_features, threads);
        }
        return py::make_tuple(to_numpy(std::move(v.indptr)), to_numpy(std::move(v.indices)),
                              to_numpy(std::move(v.values)));
      },
      py::arg("cols"), py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
      py::arg("data").noconvert(), py::arg("positives_indptr").noconvert(),
      py::arg("positives_indices").noconvert(), py::arg("max_features"), py::arg("threads"));
  m.def(
      "label_tree",
      [](int64_t cols, const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         const Array<int64_t>& positives_indptr, const Array<int32_t>& positives_indices, int64_t max_leaf,
         int64_t max_features, int max_iterations, double tolerance, uint64_t seed, int threads) {
        const auto X = csr_view(cols, indptr, indices, data);
        const auto positives = csr_view(X.rows, positives_indptr, positives_indices, Array<float>(0));
        LabelTree tree;
        {
          const py::gil_scoped_release release;
          tree = label_tree(X, positives, {max_leaf, max_features, max_iterations, tolerance, seed}, threads);
        }
        return py::make_tuple(to_numpy(std::move(tree.order)), to_numpy(std::move(tree.cluster)),
                              to_numpy(std::move(tree.offsets)));
      },
      py::arg("cols"), py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
      py::arg("data").noconvert(), py::arg("positives_indptr").noconvert(),
      py::arg("positives_indices").noconvert(), py::arg("max_leaf"), py::arg("max_features"),
      py::arg("max_iterations"), py::arg("tolerance"), py::arg("seed"), py::arg("threads"));
}

}  // namespace xmc::bind
