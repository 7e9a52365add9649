#include "decide/utility.h"

#include <utility>

namespace xmc {

Utility make_utility(const std::vector<MetricTerm>& terms, const double* label_weights, std::vector<double> p,
                     int64_t n, int64_t k) {
  Utility u;
  u.p = std::move(p);
  u.n = static_cast<double>(n);
  const size_t labels = u.p.size();
  u.a.assign(labels, 0.0);
  u.b.assign(labels, 0.0);
  for (MetricTerm term : terms) {
    const bool instance_wise =
        term.kind == MetricKind::precision || term.kind == MetricKind::weighted_precision;
    term.weight *=
        instance_wise ? ratio(1, u.n * static_cast<double>(k)) : ratio(1, static_cast<double>(labels));
    if (!is_linear(term)) {
      u.terms.push_back(term);
      continue;
    }
    const bool weighted = term.kind == MetricKind::weighted_precision;
    if (weighted && !label_weights) throw std::invalid_argument("a weighted metric needs label_weights");
    visit_metric(term, [&](auto metric) {
      for (size_t j = 0; j < labels; ++j) {
        const double w = weighted ? term.weight * label_weights[j] : term.weight;
        const Gradient g = metric.gradient(0, 0, u.p[j], u.n);
        u.a[j] += w * g.dt;
        u.b[j] += w * g.dq;
        u.constant += w * metric.value(0, 0, u.p[j], u.n);
      }
    });
  }
  return u;
}

double utility_value(const Utility& u, const double* t, const double* q) {
  double sum = u.constant;
  for (int64_t j = 0; j < u.labels(); ++j) sum += u.a[j] * t[j] + u.b[j] * q[j];
  for (const MetricTerm& term : u.terms) {
    sum += visit_metric(term, [&](auto metric) {
      double values = 0;
      for (int64_t j = 0; j < u.labels(); ++j) values += metric.value(t[j], q[j], u.p[j], u.n);
      return term.weight * values;
    });
  }
  return sum;
}

}  // namespace xmc
