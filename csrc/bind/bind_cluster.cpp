#include "bind/convert.h"
#include "cluster/centroids.h"
#include "cluster/label_tree.h"

namespace xmc::bind {
using namespace cluster;

void bind_cluster(py::module_& m) {
  using py::arg;
  m.def(
      "label_centroids",
      [](const Csr<>& X, const Csr<>& positives, int64_t max_features, int threads) {
        auto v = without_gil([&] { return label_centroids(X, positives, max_features, threads); });
        return py::make_tuple(to_numpy(std::move(v.indptr)), to_numpy(std::move(v.indices)),
                              to_numpy(std::move(v.values)));
      },
      arg("X"), arg("positives"), arg("max_features"), arg("threads"));
  m.def(
      "label_tree",
      [](const Csr<>& X, const Csr<>& positives, int64_t max_leaf, int64_t max_features, int max_iter,
         double tol, uint64_t seed, int threads) {
        const LabelTreeOptions options{max_leaf, max_features, max_iter, tol, seed};
        auto tree = without_gil([&] { return label_tree(X, positives, options, threads); });
        return py::make_tuple(to_numpy(std::move(tree.order)), to_numpy(std::move(tree.cluster)),
                              to_numpy(std::move(tree.offsets)));
      },
      arg("X"), arg("positives"), arg("max_leaf"), arg("max_features"), arg("max_iter"), arg("tol"),
      arg("seed"), arg("threads"));
}

}  // namespace xmc::bind
