#include "linear/stopping.h"

#include <algorithm>
#include <cmath>

namespace xmc::linear {

PositiveMoments positive_moments(const LinearProblem& problem, const PreparedFeatures& X, int64_t label,
                                 std::vector<double>& work) {
  PositiveMoments m;
  const Span<const int32_t> rows = problem.positive_rows(label);
  int64_t entries = 0;
  for (const int32_t i : rows) {
    for_entries(X, i, [&](int64_t j, float v) {
      work[j] += v;
      ++entries;
    });
    m.pT += X.row_total[i];
  }
  const auto take = [&](int64_t j) {
    m.pp += work[j] * work[j];
    work[j] = 0;
  };
  if (entries > X.D) {
    for (int64_t j = 0; j < X.D; ++j) take(j);
  } else {
    for (const int32_t i : rows) for_entries(X, i, [&](int64_t j, float) { take(j); });
  }
  const double bias = X.bias * static_cast<double>(rows.size());
  m.pp += bias * bias;
  return m;
}

double stopping_norm(const LinearProblem& problem, const PreparedFeatures& X, int64_t label,
                     const PositiveMoments& moments, double slope) {
  const auto n = static_cast<double>(std::max<int64_t>(X.n, 1));
  const auto positives = static_cast<double>(problem.positive_rows(label).size());
  const double c = problem.positive_cost(label) + 1;
  const double squares = c * c * moments.pp - 2 * c * moments.pT + X.total_norm2;
  const double at_zero = slope * problem.C * std::sqrt(std::max(0.0, squares));
  return problem.tol * std::max(std::min(positives, n - positives), 1.0) / n * at_zero;
}

double distance_limit(double tol) {
  return std::min(20 * tol, 200 * tol * std::sqrt(tol));
}

double certified_share(double tol) {
  return 0.08 * tol;
}

}  // namespace xmc::linear
