#include "linear/init.h"

#include <cmath>

namespace xmc {
namespace {

constexpr int64_t kMultiPositive = 20;
constexpr double kPositiveTarget = 1.0, kNegativeTarget = -2.0;
constexpr double kRidge = 1e-3;  // of the mean diagonal of the Gram system

// Solves the symmetric positive definite system A x = b in place (Cholesky); false if A is not definite.
bool solve_definite(std::vector<double>& A, std::vector<double>& b) {
  const size_t m = b.size();
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double s = A[i * m + j];
      for (size_t k = 0; k < j; ++k) s -= A[i * m + k] * A[j * m + k];
      if (i != j) {
        A[i * m + j] = s / A[j * m + j];
      } else if (s > 0) {
        A[i * m + i] = std::sqrt(s);
      } else {
        return false;
      }
    }
  }
  for (size_t i = 0; i < m; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= A[i * m + k] * b[k];
    b[i] /= A[i * m + i];
  }
  for (size_t i = m; i-- > 0;) {
    for (size_t k = i + 1; k < m; ++k) b[i] -= A[k * m + i] * b[k];
    b[i] /= A[i * m + i];
  }
  return true;
}

Start mean_start(const PositiveMoments& moments, double norm2, double P, double n) {
  const double N = n - P;
  // Dot products of p = sum/P and m = T/n with p and with q = (T - sum)/N.
  const double pp = moments.pp / (P * P), mp = moments.pT / (P * n);
  const double pq = (moments.pT - moments.pp) / (N * P), mq = (norm2 - moments.pT) / (N * n);
  const double det = pp * mq - mp * pq;
  if (!(std::abs(det) > 1e-12 * (std::abs(pp * mq) + std::abs(mp * pq)))) return {};
  const double u = (kPositiveTarget * mq - mp * kNegativeTarget) / det;
  const double v = (pp * kNegativeTarget - pq * kPositiveTarget) / det;
  return {std::vector<double>(static_cast<size_t>(P), u / P), v / n};
}

Start multi_positive_start(const LinearProblem& problem, const RowTotals& totals, const int32_t* rows,
                           int64_t count, const PositiveMoments& moments, std::vector<double>& work) {
  const auto P = static_cast<size_t>(count), m = P + 1;
  const double N = static_cast<double>(problem.rows() - count);
  std::vector<double> gram(m * m, 0.0), b(m, kPositiveTarget);
  for (size_t k = 0; k < P; ++k) {
    for_each_entry(problem, rows[k], [&](int64_t j, float x) { work[static_cast<size_t>(j)] = x; });
    double row = 0;
    for (size_t l = 0; l < P; ++l) {
      double s = 0;
      for_each_entry(problem, rows[l], [&](int64_t j, float x) { s += x * work[static_cast<size_t>(j)]; });
      gram[k * m + l] = s;
      row += s;
    }
    gram[k * m + P] = gram[P * m + k] = (totals.along[static_cast<size_t>(rows[k])] - row) / N;
    for_each_entry(problem, rows[k], [&](int64_t j, float) { work[static_cast<size_t>(j)] = 0; });
  }
  gram[P * m + P] = (totals.norm2 - 2 * moments.pT + moments.pp) / (N * N);
  b[P] = kNegativeTarget;
  double trace = 0;
  for (size_t k = 0; k < m; ++k) trace += gram[k * m + k];
  for (size_t k = 0; k < m; ++k) gram[k * m + k] += kRidge * trace / static_cast<double>(m);
  if (!solve_definite(gram, b)) return {};
  Start start{std::vector<double>(b.begin(), b.end() - 1), b[P] / N};
  for (double& a : start.positive) a -= start.all;
  return start;
}

}  // namespace

RowTotals row_totals(const LinearProblem& problem) {
  RowTotals t;
  t.total.assign(static_cast<size_t>(problem.features()), 0.0);
  for (int64_t i = 0; i < problem.rows(); ++i) {
    for_each_entry(problem, i, [&](int64_t j, float x) { t.total[static_cast<size_t>(j)] += x; });
  }
  t.along.assign(static_cast<size_t>(problem.rows()), 0.0);
  for (int64_t i = 0; i < problem.rows(); ++i) {
    double s = 0;
    for_each_entry(problem, i, [&](int64_t j, float x) { s += x * t.total[static_cast<size_t>(j)]; });
    t.along[static_cast<size_t>(i)] = s;
  }
  for (const double v : t.total) t.norm2 += v * v;
  t.total_float.assign(t.total.begin(), t.total.end());
  return t;
}

PositiveMoments positive_moments(const LinearProblem& problem, const RowTotals& totals, const int32_t* rows,
                                 int64_t count, std::vector<double>& work) {
  PositiveMoments m;
  for (int64_t k = 0; k < count; ++k) {
    m.pT += totals.along[static_cast<size_t>(rows[k])];
    for_each_entry(problem, rows[k], [&](int64_t j, float x) { work[static_cast<size_t>(j)] += x; });
  }
  // Each row again: p.p = sum_k x_k . p, then clear what was touched.
  for (int64_t k = 0; k < count; ++k) {
    for_each_entry(problem, rows[k], [&](int64_t j, float x) { m.pp += x * work[static_cast<size_t>(j)]; });
  }
  for (int64_t k = 0; k < count; ++k) {
    for_each_entry(problem, rows[k], [&](int64_t j, float) { work[static_cast<size_t>(j)] = 0; });
  }
  return m;
}

Start separating_start(const LinearProblem& problem, const RowTotals& totals, InitRule rule,
                       const int32_t* rows, int64_t count, const PositiveMoments& moments,
                       std::vector<double>& work) {
  if (count == 0 || count == problem.rows()) return {};
  if (rule == InitRule::multi_positive && count <= kMultiPositive) {
    return multi_positive_start(problem, totals, rows, count, moments, work);
  }
  return mean_start(moments, totals.norm2, static_cast<double>(count), static_cast<double>(problem.rows()));
}

}  // namespace xmc
