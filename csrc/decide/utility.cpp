#include "decide/utility.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace xmc::decide {

Utility make_utility(const Metrics& metrics, int64_t n, int64_t k) {
  Utility u;
  u.p = metrics.p;
  u.n = static_cast<double>(n);
  u.custom = metrics.custom;
  u.custom_weight = metrics.custom_weight;
  const size_t labels = u.p.size();
  u.a.assign(labels, 0.0);
  u.b.assign(labels, 0.0);
  for (MetricTerm term : metrics.terms) {
    const bool instance_wise =
        term.kind == MetricKind::precision || term.kind == MetricKind::weighted_precision;
    term.weight *=
        instance_wise ? ratio(1, u.n * static_cast<double>(k)) : ratio(1, static_cast<double>(labels));
    if (!is_linear(term)) {
      u.terms.push_back(term);
      continue;
    }
    const bool weighted = term.kind == MetricKind::weighted_precision;
    if (weighted && !metrics.label_weights)
      throw std::invalid_argument("a weighted metric needs label_weights");
    visit_metric(term, [&](auto metric) {
      for (size_t j = 0; j < labels; ++j) {
        const double w = weighted ? term.weight * metrics.label_weights[j] : term.weight;
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
  if (u.custom) {
    std::vector<double> values(u.p.size());
    u.custom(t, q, u.p.data(), u.labels(), values.data());
    sum += u.custom_weight / std::max<double>(1, u.labels()) *
           std::accumulate(values.begin(), values.end(), 0.0);
  }
  return sum;
}

void utility_gradient(const Utility& u, const double* t, const double* q, double* a, double* b) {
  std::copy(u.a.begin(), u.a.end(), a);
  std::copy(u.b.begin(), u.b.end(), b);
  for (const MetricTerm& term : u.terms) {
    visit_metric(term, [&](auto metric) {
      for (int64_t j = 0; j < u.labels(); ++j) {
        const Gradient g = metric.gradient(t[j], q[j], u.p[j], u.n);
        a[j] += term.weight * g.dt;
        b[j] += term.weight * g.dq;
      }
    });
  }
}

}  // namespace xmc::decide
