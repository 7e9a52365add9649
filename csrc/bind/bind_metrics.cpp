#include <optional>

#include "bind/convert.h"
#include "metrics/at_k.h"
#include "metrics/rank.h"
#include "metrics/ranking.h"

namespace xmc::bind {
using namespace metrics;
namespace {

using Filter = std::optional<Csr<>>;
PairView pairs(const Filter& filter) {
  return filter ? filter->view : PairView{};
}

py::tuple wrap(RankedLists&& lists) {
  return py::make_tuple(to_numpy(std::move(lists.indptr)), to_numpy(std::move(lists.ids)));
}

template <class Value>
py::tuple sparse(const Csr<Value>& scores, const Filter& filter, int64_t k, int threads) {
  return wrap(without_gil([&] { return rank_sparse(scores.view, pairs(filter), k, threads); }));
}

template <class Value>
py::tuple dense(const Array<Value>& scores, const Filter& filter, int64_t k, int threads) {
  const DenseView<Value> view{scores.shape(0), scores.shape(1), scores.data()};
  return wrap(without_gil([&] { return rank_dense(view, pairs(filter), k, threads); }));
}

py::tuple ids(const Array<int64_t>& lists, int64_t labels, const Filter& filter, int64_t k, int threads) {
  const DenseView<int64_t> view{lists.shape(0), lists.shape(1), lists.data()};
  return wrap(without_gil([&] { return rank_ids(view, labels, pairs(filter), k, threads); }));
}

py::array hits(const Csr<>& truth, const Array<int64_t>& indptr, const Array<int32_t>& ids, int threads) {
  need_size("indptr", indptr.size(), truth.view.rows + 1);
  return to_numpy(without_gil([&] { return match_hits(truth, indptr.data(), ids.data(), threads); }));
}

// Truth, and the ranked lists: indptr, ids, hits; threads.
using Ranked = std::tuple<Csr<>, Array<int64_t>, Array<int32_t>, Array<uint8_t>, int>;

AtK at_k(const Ranked& ranked, const Array<int32_t>& weights, const std::vector<int64_t>& ks) {
  const auto& [truth, indptr, ids, hits, threads] = ranked;
  need_size("indptr", indptr.size(), truth.view.rows + 1);
  need_size("ids", ids.size(), indptr.data()[truth.view.rows]);
  need_size("hits", hits.size(), ids.size());
  if (weights.size()) need_size("weights", weights.size(), truth.view.rows);
  return {truth, indptr.data(), ids.data(), hits.data(), or_null(weights), ks};
}

py::array by_instance(const Ranked& ranked, const Array<int32_t>& weights, const std::vector<int64_t>& ks,
                      const Array<double>& inverse_propensity) {
  const AtK at = at_k(ranked, weights, ks);
  if (inverse_propensity.size()) need_size("inverse_propensity", inverse_propensity.size(), at.truth.cols);
  return to_numpy(
      without_gil([&] { return instance_sums(at, or_null(inverse_propensity), std::get<4>(ranked)); }));
}

py::array counts(const Ranked& ranked, const Array<int32_t>& weights, const std::vector<int64_t>& ks) {
  const AtK at = at_k(ranked, weights, ks);
  return to_numpy(without_gil([&] { return label_counts(at, std::get<4>(ranked)); }));
}

py::array by_label(const Array<int32_t>& counts, int64_t ks, double rows, double beta,
                   const Array<int32_t>& group, int64_t groups, bool positives_only, int threads) {
  const int64_t labels = counts.size() / (2 * ks + 1);
  need_size("counts", counts.size(), labels * (2 * ks + 1));
  if (group.size()) need_size("group", group.size(), labels);
  return to_numpy(without_gil([&] {
    return macro_sums(counts.data(), labels, ks, rows, beta, or_null(group), groups, positives_only, threads);
  }));
}

template <class Value>
std::pair<double, double> ranking(const Csr<>& truth, const Csr<Value>& scores, int threads) {
  need_size("scores' rows", scores.view.rows, truth.view.rows);
  const auto sums = without_gil([&] { return ranking_sums(truth.view, scores.view, threads); });
  return {sums.coverage, sums.loss};
}

}  // namespace

void bind_metrics(py::module_& m) {
  using py::arg;
  m.def("rank_sparse_f32", &sparse<float>, arg("scores"), arg("filter"), arg("k"), arg("threads"));
  m.def("rank_sparse_f64", &sparse<double>, arg("scores"), arg("filter"), arg("k"), arg("threads"));
  m.def("rank_dense_f32", &dense<float>, arg("scores").noconvert(), arg("filter"), arg("k"), arg("threads"));
  m.def("rank_dense_f64", &dense<double>, arg("scores").noconvert(), arg("filter"), arg("k"), arg("threads"));
  m.def("rank_ids", &ids, arg("ids").noconvert(), arg("labels"), arg("filter"), arg("k"), arg("threads"));
  m.def("match_hits", &hits, arg("truth"), arg("indptr").noconvert(), arg("ids").noconvert(), arg("threads"));
  m.def("instance_sums", &by_instance, arg("ranked").noconvert(), arg("weights").noconvert(), arg("ks"),
        arg("inverse_propensity").noconvert());
  m.def("label_counts", &counts, arg("ranked").noconvert(), arg("weights").noconvert(), arg("ks"));
  m.def("macro_sums", &by_label, arg("counts").noconvert(), arg("ks"), arg("rows"), arg("beta"),
        arg("group").noconvert(), arg("groups"), arg("positives_only"), arg("threads"));
  m.def("ranking_sums_f32", &ranking<float>, arg("truth"), arg("scores"), arg("threads"));
  m.def("ranking_sums_f64", &ranking<double>, arg("truth"), arg("scores"), arg("threads"));
}

}  // namespace xmc::bind
