#include "linear/init.h"

#include <cmath>

namespace xmc::linear {
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

Start mean_start(const PositiveMoments& moments, double total_norm2, double P, double n) {
  const double N = n - P;
  // Dot products of p = sum/P and m = T/n with p and with q = (T - sum)/N.
  const double pp = moments.pp / (P * P), mp = moments.pT / (P * n);
  const double pq = (moments.pT - moments.pp) / (N * P), mq = (total_norm2 - moments.pT) / (N * n);
  const double det = pp * mq - mp * pq;
  if (!(std::abs(det) > 1e-12 * (std::abs(pp * mq) + std::abs(mp * pq)))) return {};
  const double u = (kPositiveTarget * mq - mp * kNegativeTarget) / det;
  const double v = (pp * kNegativeTarget - pq * kPositiveTarget) / det;
  return {std::vector<double>(P, u / P), v / n};
}

Start multi_positive_start(const PreparedFeatures& X, Span<const int32_t> rows,
                           const PositiveMoments& moments, std::vector<double>& work) {
  const int64_t P = rows.size(), m = P + 1;
  const auto N = static_cast<double>(X.n - P);
  std::vector<double> gram(m * m, 0.0), b(m, kPositiveTarget);
  for (int64_t k = 0; k < P; ++k) {
    for_features(X, rows[k], [&](int64_t j, float x) { work[j] = x; });
    double row = 0;
    for (int64_t l = 0; l < P; ++l) {
      double s = 0;
      for_features(X, rows[l], [&](int64_t j, float x) { s += x * work[j]; });
      gram[k * m + l] = s;
      row += s;
    }
    gram[k * m + P] = gram[P * m + k] = (X.row_total[rows[k]] - row) / N;
    for_features(X, rows[k], [&](int64_t j, float) { work[j] = 0; });
  }
  gram[P * m + P] = (X.total_norm2 - 2 * moments.pT + moments.pp) / (N * N);
  b[P] = kNegativeTarget;
  double trace = 0;
  for (int64_t k = 0; k < m; ++k) trace += gram[k * m + k];
  for (int64_t k = 0; k < m; ++k) gram[k * m + k] += kRidge * trace / static_cast<double>(m);
  if (!solve_definite(gram, b)) return {};
  Start start{std::vector<double>(b.begin(), b.end() - 1), b[P] / N};
  for (double& a : start.positive) a -= start.all;
  return start;
}

}  // namespace

Start separating_start(const PreparedFeatures& X, InitRule rule, Span<const int32_t> positives,
                       const PositiveMoments& moments, std::vector<double>& work) {
  const int64_t count = positives.size();
  if (count == 0 || count == X.n) return {};
  if (rule == InitRule::multi_positive && count <= kMultiPositive) {
    return multi_positive_start(X, positives, moments, work);
  }
  return mean_start(moments, X.total_norm2, static_cast<double>(count), static_cast<double>(X.n));
}

}  // namespace xmc::linear
