#include "bind/bind.h"
#include "metrics/at_k.h"
#include "metrics/rank.h"

namespace xmc::bind {
namespace {

// A filter without pairs comes as an empty indptr.
PairView pair_view(int64_t cols, const Array<int64_t>& indptr, const Array<int32_t>& indices) {
  if (indptr.size() == 0) return {};
  return csr_view<int32_t, float>(cols, indptr, indices, Array<float>());
}

py::tuple wrap(RankedLists&& lists) {
  return py::make_tuple(to_numpy(std::move(lists.indptr)), to_numpy(std::move(lists.ids)));
}

template <class T>
py::array_t<T> to_numpy(Buffer<T>&& values) {
  auto owner = std::make_unique<Buffer<T>>(std::move(values));
  T* data = owner->data();
  const auto size = static_cast<py::ssize_t>(owner->size());
  py::capsule free(owner.release(), [](void* p) { delete static_cast<Buffer<T>*>(p); });
  return py::array_t<T>({size}, {static_cast<py::ssize_t>(sizeof(T))}, data, free);
}
using bind::to_numpy;

template <class Value>
void bind_rank(py::module_& m, const char* sparse, const char* dense) {
  m.def(
      sparse,
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<Value>& data, int64_t cols,
         const Array<int64_t>& filter_indptr, const Array<int32_t>& filter_indices, int64_t k, int threads) {
        auto scores = csr_view<int32_t, Value>(cols, indptr, indices, data);
        const auto filter = pair_view(cols, filter_indptr, filter_indices);
        RankedLists lists;
        {
          const py::gil_scoped_release release;
          lists = rank_sparse(scores, filter, k, threads);
        }
        return wrap(std::move(lists));
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("cols"), py::arg("filter_indptr").noconvert(), py::arg("filter_indices").noconvert(),
      py::arg("k"), py::arg("threads"));
  m.def(
      dense,
      [](const Array<Value>& scores, const Array<int64_t>& filter_indptr,
         const Array<int32_t>& filter_indices, int64_t k, int threads) {
        const DenseView<Value> view{scores.shape(0), scores.shape(1), scores.data()};
        const auto filter = pair_view(view.cols, filter_indptr, filter_indices);
        RankedLists lists;
        {
          const py::gil_scoped_release release;
          lists = rank_dense(view, filter, k, threads);
        }
        return wrap(std::move(lists));
      },
      py::arg("scores").noconvert(), py::arg("filter_indptr").noconvert(),
      py::arg("filter_indices").noconvert(), py::arg("k"), py::arg("threads"));
}

AtK at_k(int64_t cols, const Array<int64_t>& truth_indptr, const Array<int32_t>& truth_indices,
         const Array<int64_t>& indptr, const Array<int32_t>& ids, const Array<uint8_t>& hits,
         const Array<int32_t>& weights, const std::vector<int64_t>& ks) {
  AtK at;
  at.truth = csr_view<int32_t, float>(cols, truth_indptr, truth_indices, Array<float>());
  if (indptr.size() != at.truth.rows + 1 || ids.size() != hits.size() ||
      indptr.data()[at.truth.rows] != ids.size() || (weights.size() && weights.size() != at.truth.rows)) {
    throw std::invalid_argument("indptr, ids, hits and weights have different lengths");
  }
  at.indptr = indptr.data();
  at.ids = ids.data();
  at.hits = hits.data();
  at.weights = weights.size() ? weights.data() : nullptr;
  at.ks = ks;
  return at;
}

}  // namespace

void bind_metrics(py::module_& m) {
  bind_rank<float>(m, "rank_sparse_f32", "rank_dense_f32");
  bind_rank<double>(m, "rank_sparse_f64", "rank_dense_f64");
  m.def(
      "rank_ids",
      [](const Array<int64_t>& ids, int64_t labels, const Array<int64_t>& filter_indptr,
         const Array<int32_t>& filter_indices, int64_t k, int threads) {
        const DenseView<int64_t> view{ids.shape(0), ids.shape(1), ids.data()};
        const auto filter = pair_view(labels, filter_indptr, filter_indices);
        RankedLists lists;
        {
          const py::gil_scoped_release release;
          lists = rank_ids(view, labels, filter, k, threads);
        }
        return wrap(std::move(lists));
      },
      py::arg("ids").noconvert(), py::arg("labels"), py::arg("filter_indptr").noconvert(),
      py::arg("filter_indices").noconvert(), py::arg("k"), py::arg("threads"));
  m.def(
      "match_hits",
      [](const Array<int64_t>& truth_indptr, const Array<int32_t>& truth_indices,
         const Array<int64_t>& indptr, const Array<int32_t>& ids, int threads) {
        const auto truth = csr_view<int32_t, float>(0, truth_indptr, truth_indices, Array<float>());
        if (indptr.size() != truth.rows + 1) throw std::invalid_argument("truth and lists differ in rows");
        std::vector<uint8_t> hits;
        {
          const py::gil_scoped_release release;
          hits = match_hits(truth, indptr.data(), ids.data(), threads);
        }
        return to_numpy(std::move(hits));
      },
      py::arg("truth_indptr").noconvert(), py::arg("truth_indices").noconvert(),
      py::arg("indptr").noconvert(), py::arg("ids").noconvert(), py::arg("threads"));
  m.def(
      "instance_sums",
      [](int64_t cols, const Array<int64_t>& truth_indptr, const Array<int32_t>& truth_indices,
         const Array<int64_t>& indptr, const Array<int32_t>& ids, const Array<uint8_t>& hits,
         const Array<int32_t>& weights, const std::vector<int64_t>& ks,
         const Array<double>& inverse_propensity, int threads) {
        const AtK at = at_k(cols, truth_indptr, truth_indices, indptr, ids, hits, weights, ks);
        const double* q = inverse_propensity.size() ? inverse_propensity.data() : nullptr;
        if (q && inverse_propensity.size() != cols)
          throw std::invalid_argument("propensity has a wrong size");
        std::vector<double> sums;
        {
          const py::gil_scoped_release release;
          sums = instance_sums(at, q, threads);
        }
        return to_numpy(std::move(sums));
      },
      py::arg("cols"), py::arg("truth_indptr").noconvert(), py::arg("truth_indices").noconvert(),
      py::arg("indptr").noconvert(), py::arg("ids").noconvert(), py::arg("hits").noconvert(),
      py::arg("weights").noconvert(), py::arg("ks"), py::arg("inverse_propensity").noconvert(),
      py::arg("threads"));
  m.def(
      "label_counts",
      [](int64_t cols, const Array<int64_t>& truth_indptr, const Array<int32_t>& truth_indices,
         const Array<int64_t>& indptr, const Array<int32_t>& ids, const Array<uint8_t>& hits,
         const Array<int32_t>& weights, const std::vector<int64_t>& ks, int threads) {
        const AtK at = at_k(cols, truth_indptr, truth_indices, indptr, ids, hits, weights, ks);
        Buffer<int32_t> counts;
        {
          const py::gil_scoped_release release;
          counts = label_counts(at, threads);
        }
        return to_numpy(std::move(counts));
      },
      py::arg("cols"), py::arg("truth_indptr").noconvert(), py::arg("truth_indices").noconvert(),
      py::arg("indptr").noconvert(), py::arg("ids").noconvert(), py::arg("hits").noconvert(),
      py::arg("weights").noconvert(), py::arg("ks"), py::arg("threads"));
  m.def(
      "macro_sums",
      [](const Array<int32_t>& counts, int64_t labels, int64_t ks, double rows, double beta,
         const Array<int32_t>& group, int64_t groups, bool positives_only, int threads) {
        if (counts.size() != labels * (2 * ks + 1) || (group.size() && group.size() != labels)) {
          throw std::invalid_argument("counts and group have different lengths");
        }
        std::vector<double> sums;
        {
          const py::gil_scoped_release release;
          sums = macro_sums(counts.data(), labels, ks, rows, beta, group.size() ? group.data() : nullptr,
                            groups, positives_only, threads);
        }
        return to_numpy(std::move(sums));
      },
      py::arg("counts").noconvert(), py::arg("labels"), py::arg("ks"), py::arg("rows"), py::arg("beta"),
      py::arg("group").noconvert(), py::arg("groups"), py::arg("positives_only"), py::arg("threads"));
}

}  // namespace xmc::bind
