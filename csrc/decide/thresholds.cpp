#include "decide/thresholds.h"

#include <algorithm>
#include <numeric>

#include "core/parallel.h"

namespace xmc::decide {
namespace {

struct Entry {
  float eta, truth;
};

double label_value(const Utility& u, int64_t j, double t, double q) {
  double value = u.a[j] * t + u.b[j] * q;
  for (const MetricTerm& term : u.terms) {
    value += term.weight * visit_metric(term, [&](auto metric) { return metric.value(t, q, u.p[j], u.n); });
  }
  return value;
}

}  // namespace

Thresholds label_thresholds(const Probabilities& proba, const float* truth, const Utility& u, int threads) {
  const int64_t labels = proba.cols;
  std::vector<int64_t> start(labels + 1, 0);
  for (int64_t e = 0; e < proba.nnz(); ++e) ++start[proba.indices[e] + 1];
  std::partial_sum(start.begin(), start.end(), start.begin());
  std::vector<Entry> column(proba.nnz());
  std::vector<int64_t> next(start.begin(), start.end() - 1);
  for (int64_t e = 0; e < proba.nnz(); ++e) column[next[proba.indices[e]]++] = {proba.data[e], truth[e]};

  Thresholds out;
  out.theta.assign(labels, 2.0);
  out.t.assign(labels, 0.0);
  out.q.assign(labels, 0.0);
  constexpr int64_t kLabels = 256;  // labels that a thread takes at a time
  parallel_items(labels, kLabels, threads, [&](int64_t j, int) {
    const auto first = column.begin() + start[j], last = column.begin() + start[j + 1];
    std::stable_sort(first, last, [](const Entry& x, const Entry& y) { return x.eta > y.eta; });
    double t = 0, q = 0, best = label_value(u, j, 0, 0);
    for (auto entry = first; entry != last; ++entry) {
      t += static_cast<double>(entry->truth);
      q += 1;
      const bool end = entry + 1 == last;
      if (!end && (entry + 1)->eta == entry->eta) continue;
      const double value = label_value(u, j, t, q);
      if (value > best) {
        best = value;
        out.theta[j] =
            0.5 * (static_cast<double>(entry->eta) + (end ? 0.0 : static_cast<double>((entry + 1)->eta)));
        out.t[j] = t;
        out.q[j] = q;
      }
    }
  });
  out.utility = utility_value(u, out.t.data(), out.q.data());
  return out;
}

}  // namespace xmc::decide
