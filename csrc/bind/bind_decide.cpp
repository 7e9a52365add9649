#include "bind/convert.h"
#include "decide/frank_wolfe.h"
#include "decide/maximise.h"
#include "decide/thresholds.h"
#include "decide/weighted_topk.h"

namespace xmc::bind {
using namespace decide;
namespace {

// What to maximise, as Python passes it: terms (kind, weight, beta), label weights (or empty), positives per
// label, a function (t, q, p) -> values of arrays (or None), its weight.
using Goal = std::tuple<std::vector<std::tuple<int, double, double>>, Array<double>, Array<double>,
                        py::object, double>;

// The arrays and the function must outlive the result.
Metrics to_metrics(const Goal& goal) {
  const auto& [terms, label_weights, positives, custom, custom_weight] = goal;
  Metrics m;
  for (const auto& [kind, weight, beta] : terms)
    m.terms.push_back({static_cast<MetricKind>(kind), weight, beta});
  if (label_weights.size()) need_size("label_weights", label_weights.size(), positives.size());
  m.label_weights = or_null(label_weights);
  m.p.assign(positives.data(), positives.data() + positives.size());
  m.custom_weight = custom_weight;
  if (custom.is_none()) return m;
  m.custom = [&metric = custom](const double* t, const double* q, const double* p, int64_t count,
                                double* out) {
    const py::gil_scoped_acquire gil;
    const auto array = [count](const double* x) { return py::array_t<double>(count, x); };
    const auto values = metric(array(t), array(q), array(p))
                            .cast<py::array_t<double, py::array::c_style | py::array::forcecast>>();
    need_size("the metric's result", values.size(), count);
    std::copy(values.data(), values.data() + count, out);
  };
  return m;
}

Utility to_utility(const Goal& goal, int64_t n, int64_t k) {
  return make_utility(to_metrics(goal), n, k);
}

py::tuple scan(const Csr<>& proba, int64_t k, int threads) {
  const auto r = without_gil([&] { return scan_probabilities(proba, k, threads); });
  return py::make_tuple(r.bad_entry, r.duplicates, r.ready);
}

py::tuple candidates(const Csr<>& proba, int64_t k, int threads) {
  auto r = without_gil([&] { return make_candidates(proba, k, threads); });
  return py::make_tuple(to_numpy(std::move(r.indptr)), to_numpy(std::move(r.labels)),
                        to_numpy(std::move(r.eta)));
}

py::array truth(const Csr<>& proba, const Csr<>& y, const Array<float>& trust, int threads) {
  need_size("Y's rows", y.view.rows, proba.view.rows);
  need_size("trust", trust.size(), proba.view.cols);
  return to_numpy(without_gil([&] { return blended_truth(proba, y, trust.data(), threads); }));
}

double value(const Goal& goal, int64_t n, int64_t k, const Array<double>& t, const Array<double>& q) {
  const Utility u = to_utility(goal, n, k);
  need_size("t", t.size(), u.labels());
  need_size("q", q.size(), u.labels());
  return utility_value(u, t.data(), q.data());
}

py::tuple gradient(const Goal& goal, int64_t n, int64_t k, const Array<double>& t, const Array<double>& q) {
  const Utility u = to_utility(goal, n, k);
  need_size("t", t.size(), u.labels());
  need_size("q", q.size(), u.labels());
  std::vector<double> a(u.p.size()), b(u.p.size());
  utility_gradient(u, t.data(), q.data(), a.data(), b.data());
  return py::make_tuple(to_numpy(std::move(a)), to_numpy(std::move(b)));
}

py::tuple sparse_topk(const Csr<>& proba, const Array<double>& a, const Array<double>& b, int64_t k,
                      int threads) {
  need_size("a", a.size(), proba.view.cols);
  need_size("b", b.size(), proba.view.cols);
  auto [labels, gains] = without_gil([&] {
    RowChoice choice = weighted_topk(proba, a.data(), b.data(), k, threads);
    return std::pair(labels_at(proba, choice.at, k), std::move(choice.gain));
  });
  return py::make_tuple(to_numpy(std::move(labels)), to_numpy(std::move(gains)));
}

py::tuple bca(const Csr<>& proba, const Goal& goal, int64_t k, const std::string& start,
              const Array<int32_t>& start_labels, double tol, int max_iter, uint64_t seed, int threads) {
  if (start == "labels") need_size("init", start_labels.size(), proba.view.rows * k);
  const Metrics metrics = to_metrics(goal);
  Maximum r = without_gil([&] {
    return maximise(proba, metrics, start, start_labels.data(), {k, tol, max_iter, seed, threads});
  });
  return py::make_tuple(to_numpy(std::move(r.labels)), to_numpy(std::move(r.scores)), r.value,
                        r.start_utility, r.topk_utility, r.utility, r.changed, r.converged);
}

py::tuple fit_mixture(const Csr<>& proba, const Csr<>& y, const Array<float>& trust, const Goal& goal,
                      int64_t k, int max_iter, double tol, double smoothing, int threads) {
  if (y.view.rows > 0) {
    need_size("Y's rows", y.view.rows, proba.view.rows);
    need_size("trust", trust.size(), proba.view.cols);
  }
  const Utility u = to_utility(goal, proba.view.rows, k);
  FrankWolfeResult r = without_gil(
      [&] { return frank_wolfe(proba, {y, trust.data()}, u, {k, max_iter, tol, smoothing, threads}); });
  return py::make_tuple(to_numpy(std::move(r.a)), to_numpy(std::move(r.b)), to_numpy(std::move(r.weights)),
                        r.utility, r.steps, r.converged);
}

py::tuple apply_mixture(const Csr<>& proba, const Array<double>& a, const Array<double>& b,
                        const std::vector<double>& cumulative, int64_t k, uint64_t seed, int threads) {
  need_size("a", a.size(), proba.view.cols * static_cast<int64_t>(cumulative.size()));
  need_size("b", b.size(), a.size());
  auto r =
      without_gil([&] { return predict_mixture(proba, a.data(), b.data(), cumulative, k, seed, threads); });
  return py::make_tuple(to_numpy(std::move(r.labels)), to_numpy(std::move(r.gains)));
}

py::tuple thresholds(const Csr<>& proba, const Array<float>& truth, const Goal& goal, int threads) {
  need_size("truth", truth.size(), proba.view.nnz());
  const Utility u = to_utility(goal, proba.view.rows, 1);
  auto r = without_gil([&] { return label_thresholds(proba, truth.data(), u, threads); });
  return py::make_tuple(to_numpy(std::move(r.theta)), r.utility);
}

void dense_topk(uintptr_t eta, int64_t rows, int64_t labels, int64_t stride, uintptr_t a, uintptr_t b,
                int64_t k, int threads, uintptr_t out_labels, uintptr_t out_gains) {
  const auto floats = [](uintptr_t address) { return reinterpret_cast<float*>(address); };
  const py::gil_scoped_release release;
  dense_weighted_topk(floats(eta), rows, labels, stride, floats(a), floats(b), k, threads,
                      reinterpret_cast<int32_t*>(out_labels), floats(out_gains));
}

}  // namespace

void bind_decide(py::module_& m) {
  using py::arg;
  m.def("decide_scan", &scan, arg("proba"), arg("k"), arg("threads"));
  m.def("decide_candidates", &candidates, arg("proba"), arg("k"), arg("threads"));
  m.def(
      "decide_column_sums",
      [](const Csr<>& proba) { return to_numpy(without_gil([&] { return column_sums(proba); })); },
      arg("proba"));
  m.def("decide_truth", &truth, arg("proba"), arg("y"), arg("trust").noconvert(), arg("threads"));
  m.def("decide_utility", &value, arg("goal"), arg("n"), arg("k"), arg("t").noconvert(),
        arg("q").noconvert());
  m.def("decide_gradient", &gradient, arg("goal"), arg("n"), arg("k"), arg("t").noconvert(),
        arg("q").noconvert());
  m.def("decide_weighted_topk", &sparse_topk, arg("proba"), arg("a").noconvert(), arg("b").noconvert(),
        arg("k"), arg("threads"));
  m.def("decide_bca", &bca, arg("proba"), arg("goal"), arg("k"), arg("start"),
        arg("start_labels").noconvert(), arg("tol"), arg("max_iter"), arg("seed"), arg("threads"));
  m.def("decide_frank_wolfe", &fit_mixture, arg("proba"), arg("y"), arg("trust").noconvert(), arg("goal"),
        arg("k"), arg("max_iter"), arg("tol"), arg("smoothing"), arg("threads"));
  m.def("decide_predict_mixture", &apply_mixture, arg("proba"), arg("a").noconvert(), arg("b").noconvert(),
        arg("cumulative"), arg("k"), arg("seed"), arg("threads"));
  m.def("decide_thresholds", &thresholds, arg("proba"), arg("truth").noconvert(), arg("goal"),
        arg("threads"));
  // Dense, on memory of the caller (torch): addresses of float32 eta (rows x labels), a and b (or 0), and of
  // the outputs, int32 and float32, rows x k.
  m.def("decide_dense_weighted_topk", &dense_topk, arg("eta"), arg("rows"), arg("labels"), arg("stride"),
        arg("a"), arg("b"), arg("k"), arg("threads"), arg("out_labels"), arg("out_gains"));
}

}  // namespace xmc::bind
