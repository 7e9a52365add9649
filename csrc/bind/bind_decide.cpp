#include <cmath>
#include <numeric>

#include "bind/bind.h"
#include "decide/bca.h"
#include "decide/frank_wolfe.h"
#include "decide/start.h"
#include "decide/thresholds.h"
#include "decide/weighted_topk.h"

namespace xmc::bind {
namespace {

using Terms = std::vector<std::tuple<int, double, double>>;  // kind, weight, beta

std::vector<MetricTerm> to_terms(const Terms& terms) {
  std::vector<MetricTerm> out;
  for (const auto& [kind, weight, beta] : terms) out.push_back({static_cast<MetricKind>(kind), weight, beta});
  return out;
}

std::vector<double> to_vector(const Array<double>& values) {
  return {values.data(), values.data() + values.size()};
}

const double* or_null(const Array<double>& values) {
  return values.size() ? values.data() : nullptr;
}

void need_size(const char* name, int64_t got, int64_t expected) {
  if (got != expected) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(got) + " entries, expected " +
                                std::to_string(expected));
  }
}

Utility build_utility(const Terms& terms, const Array<double>& label_weights, const Array<double>& positives,
                      int64_t n, int64_t k) {
  if (label_weights.size()) need_size("label_weights", label_weights.size(), positives.size());
  return make_utility(to_terms(terms), or_null(label_weights), to_vector(positives), n, k);
}

// A Python function (t, q, p) -> values, all arrays, as a metric. `metric` outlives the call.
MetricCallback python_metric(const py::object& metric) {
  if (metric.is_none()) return {};
  return [&metric](const double* t, const double* q, const double* p, int64_t count, double* out) {
    const py::gil_scoped_acquire gil;
    const auto size = static_cast<py::ssize_t>(count);
    const auto values =
        metric(py::array_t<double>(size, t), py::array_t<double>(size, q), py::array_t<double>(size, p))
            .cast<py::array_t<double, py::array::c_style | py::array::forcecast>>();
    need_size("the metric's result", values.size(), count);
    std::copy(values.data(), values.data() + count, out);
  };
}

}  // namespace

void bind_decide(py::module_& m) {
  m.def(
      "decide_scan",
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         int64_t labels, int64_t k, int threads) {
        const Probabilities proba = csr_view(labels, indptr, indices, data);
        ProbabilityScan scan;
        {
          const py::gil_scoped_release release;
          scan = scan_probabilities(proba, k, threads);
        }
        return py::make_tuple(scan.bad_entry, scan.duplicates, scan.ready);
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("labels"), py::arg("k"), py::arg("threads"));
  m.def(
      "decide_candidates",
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         int64_t labels, int64_t k, int threads) {
        const Probabilities proba = csr_view(labels, indptr, indices, data);
        Candidates out;
        {
          const py::gil_scoped_release release;
          out = make_candidates(proba, k, threads);
        }
        return py::make_tuple(to_numpy(std::move(out.indptr)), to_numpy(std::move(out.labels)),
                              to_numpy(std::move(out.eta)));
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("labels"), py::arg("k"), py::arg("threads"));
  m.def(
      "decide_column_sums",
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         int64_t labels) {
        const Probabilities proba = csr_view(labels, indptr, indices, data);
        std::vector<double> sums;
        {
          const py::gil_scoped_release release;
          sums = column_sums(proba);
        }
        return to_numpy(std::move(sums));
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("labels"));
  m.def(
      "decide_truth",
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         const Array<int64_t>& y_indptr, const Array<int32_t>& y_indices, const Array<float>& trust,
         int threads) {
        const Probabilities proba = csr_view(trust.size(), indptr, indices, data);
        const Array<float> none;
        const CsrView<int32_t, float> truth = csr_view(trust.size(), y_indptr, y_indices, none);
        need_size("Y's rows", truth.rows, proba.rows);
        std::vector<float> blended;
        {
          const py::gil_scoped_release release;
          blended = blended_truth(proba, truth, trust.data(), threads);
        }
        return to_numpy(std::move(blended));
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("y_indptr").noconvert(), py::arg("y_indices").noconvert(), py::arg("trust").noconvert(),
      py::arg("threads"));
  m.def(
      "decide_utility",
      [](const Terms& terms, const Array<double>& label_weights, const Array<double>& positives, int64_t n,
         int64_t k, const Array<double>& t, const Array<double>& q) {
        const Utility u = build_utility(terms, label_weights, positives, n, k);
        need_size("t", t.size(), u.labels());
        need_size("q", q.size(), u.labels());
        return utility_value(u, t.data(), q.data());
      },
      py::arg("terms"), py::arg("label_weights").noconvert(), py::arg("positives").noconvert(), py::arg("n"),
      py::arg("k"), py::arg("t").noconvert(), py::arg("q").noconvert());
  m.def(
      "decide_gradient",
      [](const Terms& terms, const Array<double>& label_weights, const Array<double>& positives, int64_t n,
         int64_t k, const Array<double>& t, const Array<double>& q) {
        const Utility u = build_utility(terms, label_weights, positives, n, k);
        need_size("t", t.size(), u.labels());
        need_size("q", q.size(), u.labels());
        std::vector<double> a(u.p.size()), b(u.p.size());
        utility_gradient(u, t.data(), q.data(), a.data(), b.data());
        return py::make_tuple(to_numpy(std::move(a)), to_numpy(std::move(b)));
      },
      py::arg("terms"), py::arg("label_weights").noconvert(), py::arg("positives").noconvert(), py::arg("n"),
      py::arg("k"), py::arg("t").noconvert(), py::arg("q").noconvert());
  m.def(
      "decide_weighted_topk",
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         const Array<double>& a, const Array<double>& b, int64_t k, int threads) {
        const Probabilities proba = csr_view(a.size(), indptr, indices, data);
        need_size("b", b.size(), a.size());
        RowChoice choice;
        std::vector<int32_t> labels;
        {
          const py::gil_scoped_release release;
          choice = weighted_topk(proba, a.data(), b.data(), k, threads);
          labels = labels_at(proba, choice.at, k);
        }
        return py::make_tuple(to_numpy(std::move(labels)), to_numpy(std::move(choice.gain)));
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("a").noconvert(), py::arg("b").noconvert(), py::arg("k"), py::arg("threads"));
  m.def(
      "decide_bca",
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         const Terms& terms, const Array<double>& label_weights, const Array<double>& positives,
         const py::object& custom, double custom_weight, int64_t k, const std::string& start,
         const Array<int32_t>& start_labels, int relaxed_rounds, double tolerance, int max_passes,
         uint64_t seed, int threads) {
        const Probabilities proba = csr_view(positives.size(), indptr, indices, data);
        const Utility u = build_utility(terms, label_weights, positives, proba.rows, k);
        const MetricCallback callback = python_metric(custom);
        const BcaOptions options{k, tolerance, max_passes, seed, threads};
        if (start == "labels") need_size("init", start_labels.size(), proba.rows * k);
        BcaResult r;
        double topk_utility;
        {
          const py::gil_scoped_release release;
          std::vector<int32_t> from, topk;
          if (start == "relaxed") {
            from = relaxed_positions(proba, u, k, relaxed_rounds, threads, &topk);
          } else {
            topk = topk_positions(proba, k, threads);
          }
          if (start == "topk") {
            from = topk;
          } else if (start == "random") {
            from = random_positions(proba, k, seed);
          } else if (start == "labels") {
            from = positions_of(proba, start_labels.data(), k);
          }
          r = block_coordinate_ascent(proba, u, callback, custom_weight, from, options);
          topk_utility = start == "topk"
                             ? r.start_utility
                             : prediction_utility(proba, u, callback, custom_weight, topk, options);
        }
        return py::make_tuple(to_numpy(std::move(r.labels)), to_numpy(std::move(r.scores)), r.start_utility,
                              r.utility, r.changed, r.converged, topk_utility);
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("terms"), py::arg("label_weights").noconvert(), py::arg("positives").noconvert(),
      py::arg("custom"), py::arg("custom_weight"), py::arg("k"), py::arg("start"),
      py::arg("start_labels").noconvert(), py::arg("relaxed_rounds"), py::arg("tolerance"),
      py::arg("max_passes"), py::arg("seed"), py::arg("threads"));
  // The optimum of a linear utility, and the utility of the most probable labels.
  m.def(
      "decide_linear",
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         const Terms& terms, const Array<double>& label_weights, const Array<double>& positives, int64_t k,
         int threads) {
        const Probabilities proba = csr_view(positives.size(), indptr, indices, data);
        const Utility u = build_utility(terms, label_weights, positives, proba.rows, k);
        if (!u.terms.empty()) throw std::invalid_argument("the utility is not linear");
        RowChoice choice;
        std::vector<int32_t> labels;
        double utility, topk_utility;
        {
          const py::gil_scoped_release release;
          choice = weighted_topk(proba, u.a.data(), u.b.data(), k, threads);
          labels = labels_at(proba, choice.at, k);
          utility = std::accumulate(choice.gain.begin(), choice.gain.end(), u.constant);
          const std::vector<int32_t> topk = topk_positions(proba, k, threads);
          topk_utility = u.constant + sum_of_gains(proba, topk, u.a.data(), u.b.data(), k);
        }
        return py::make_tuple(to_numpy(std::move(labels)), to_numpy(std::move(choice.gain)), utility,
                              topk_utility);
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("terms"), py::arg("label_weights").noconvert(), py::arg("positives").noconvert(), py::arg("k"),
      py::arg("threads"));
  m.def(
      "decide_frank_wolfe",
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         const Array<int64_t>& y_indptr, const Array<int32_t>& y_indices, const Array<float>& trust,
         const Terms& terms, const Array<double>& label_weights, const Array<double>& positives, int64_t k,
         int max_iterations, double tolerance, double smoothing, int threads) {
        const Probabilities proba = csr_view(positives.size(), indptr, indices, data);
        const Array<float> none;
        const Truth truth{csr_view(positives.size(), y_indptr, y_indices, none), trust.data()};
        if (truth.labels.rows > 0) {
          need_size("Y's rows", truth.labels.rows, proba.rows);
          need_size("trust", trust.size(), positives.size());
        }
        const Utility u = build_utility(terms, label_weights, positives, proba.rows, k);
        FrankWolfeResult r;
        {
          const py::gil_scoped_release release;
          r = frank_wolfe(proba, truth, u, {k, max_iterations, tolerance, smoothing, threads});
        }
        return py::make_tuple(to_numpy(std::move(r.a)), to_numpy(std::move(r.b)),
                              to_numpy(std::move(r.weights)), r.utility, r.steps, r.converged);
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("y_indptr").noconvert(), py::arg("y_indices").noconvert(), py::arg("trust").noconvert(),
      py::arg("terms"), py::arg("label_weights").noconvert(), py::arg("positives").noconvert(), py::arg("k"),
      py::arg("max_iterations"), py::arg("tolerance"), py::arg("smoothing"), py::arg("threads"));
  m.def(
      "decide_predict_mixture",
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         const Array<double>& a, const Array<double>& b, const std::vector<double>& cumulative,
         int64_t labels, int64_t k, uint64_t seed, int threads) {
        const Probabilities proba = csr_view(labels, indptr, indices, data);
        need_size("a", a.size(), labels * static_cast<int64_t>(cumulative.size()));
        need_size("b", b.size(), a.size());
        MixtureChoice choice;
        {
          const py::gil_scoped_release release;
          choice = predict_mixture(proba, a.data(), b.data(), cumulative, k, seed, threads);
        }
        return py::make_tuple(to_numpy(std::move(choice.labels)), to_numpy(std::move(choice.gains)));
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("a").noconvert(), py::arg("b").noconvert(), py::arg("cumulative"), py::arg("labels"),
      py::arg("k"), py::arg("seed"), py::arg("threads"));
  m.def(
      "decide_thresholds",
      [](const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         const Array<float>& truth, const Terms& terms, const Array<double>& label_weights,
         const Array<double>& positives, int threads) {
        const Probabilities proba = csr_view(positives.size(), indptr, indices, data);
        need_size("truth", truth.size(), data.size());
        const Utility u = build_utility(terms, label_weights, positives, proba.rows, 1);
        Thresholds r;
        {
          const py::gil_scoped_release release;
          r = label_thresholds(proba, truth.data(), u, threads);
        }
        return py::make_tuple(to_numpy(std::move(r.theta)), to_numpy(std::move(r.t)),
                              to_numpy(std::move(r.q)), r.utility);
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("data").noconvert(),
      py::arg("truth").noconvert(), py::arg("terms"), py::arg("label_weights").noconvert(),
      py::arg("positives").noconvert(), py::arg("threads"));
  // Dense, on memory of whoever calls (torch): addresses of float32 eta (rows x labels), a and b (or 0), and
  // of the outputs, int32 and float32, rows x k.
  m.def(
      "decide_dense_weighted_topk",
      [](uintptr_t eta, int64_t rows, int64_t labels, int64_t stride, uintptr_t a, uintptr_t b, int64_t k,
         int threads, uintptr_t out_labels, uintptr_t out_gains) {
        const py::gil_scoped_release release;
        dense_weighted_topk(reinterpret_cast<const float*>(eta), rows, labels, stride,
                            reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), k, threads,
                            reinterpret_cast<int32_t*>(out_labels), reinterpret_cast<float*>(out_gains));
      },
      py::arg("eta"), py::arg("rows"), py::arg("labels"), py::arg("stride"), py::arg("a"), py::arg("b"),
      py::arg("k"), py::arg("threads"), py::arg("out_labels"), py::arg("out_gains"));
}

}  // namespace xmc::bind
