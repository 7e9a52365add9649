#include "decide/weighted_topk.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/topk.h"
#include "decide/weighted_topk_kernels.h"

namespace xmc::decide {

namespace {
constexpr int64_t kRows = 512;  // rows that a thread takes at a time
}

RowChoice weighted_topk(const Probabilities& proba, const double* a, const double* b, int64_t k,
                        int threads) {
  RowChoice out;
  out.at.resize(proba.rows * k);
  out.gain.resize(out.at.size());
  if (k == 0) return out;
  const LineTable weights(a, b, proba.cols);
  std::vector<RowScratch> scratch(threads, RowScratch(widest_row(proba)));
  parallel_items(proba.rows, kRows, threads, [&](int64_t i, int thread) {
    weighted_topk_row(proba, i, weights, k, scratch[thread], out.at.data() + i * k, out.gain.data() + i * k);
  });
  return out;
}

std::vector<int32_t> topk_positions(const Probabilities& proba, int64_t k, int threads) {
  std::vector<int32_t> at(proba.rows * k);
  if (k == 0) return at;
  std::vector<RowScratch> scratch(threads, RowScratch(widest_row(proba)));
  parallel_items(proba.rows, kRows, threads, [&](int64_t i, int thread) {
    const float* eta = proba.data + proba.begin(i);
    const int64_t m = proba.size(i);
    RowScratch& row = scratch[thread];
    const auto exact = [eta](int32_t c) { return static_cast<double>(eta[c]); };
    if (k > kRowLanes) return sort_exact(row, m, k, at.data() + i * k, row.best.data(), exact);
    float* gains = row.gains.data();
    std::copy(eta, eta + m, gains);
    std::fill(gains + m, gains + padded_row(m), kNever);
    const int64_t count = row_kernels().at_least(gains, m, kth_bound(gains, m, k), row.found.data());
    for (int64_t f = 0; f < count; ++f) gains[f] = gains[row.found[f]];
    std::fill(gains + count, gains + padded_row(count), kNever);
    pick_set(row, RowFilter{}, count, k, at.data() + i * k, exact);
  });
  return at;
}

double sum_of_gains(const Probabilities& proba, const std::vector<int32_t>& at, const double* a,
                    const double* b, int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < proba.rows; ++i) {
    for (int64_t s = i * k; s < (i + 1) * k; ++s) {
      const int64_t e = proba.begin(i) + at[s];
      sum += b[proba.indices[e]] + a[proba.indices[e]] * static_cast<double>(proba.data[e]);
    }
  }
  return sum;
}

std::vector<int32_t> labels_at(const Probabilities& proba, const std::vector<int32_t>& at, int64_t k) {
  std::vector<int32_t> labels(at.size());
  for (int64_t i = 0; i < proba.rows; ++i) {
    for (int64_t s = i * k; s < (i + 1) * k; ++s) {
      labels[s] = proba.indices[proba.begin(i) + at[s]];
    }
  }
  return labels;
}

void dense_weighted_topk(const float* eta, int64_t rows, int64_t labels, int64_t stride, const float* a,
                         const float* b, int64_t k, int threads, int32_t* out_labels, float* out_gains) {
  constexpr int64_t kRoom = 2 * kDenseTopkLanes;  // small: the threshold rises between the calls
  const DenseTopkKernels& kernels = dense_topk_kernels();
  parallel_for(rows, threads, [&](int64_t i, int) {
    TopK best(k);
    int32_t found[kRoom];
    float gains[kRoom];
    for (int64_t at = 0; at < labels;) {
      const int64_t count =
          kernels.above(eta + i * stride, a, b, at, labels, best.threshold(), kRoom, found, gains, &at);
      for (int64_t f = 0; f < count; ++f) best.push({gains[f], found[f]});
    }
    const std::vector<Scored>& sorted = best.sorted();
    for (size_t s = 0; s < sorted.size(); ++s) {
      out_labels[i * k + s] = sorted[s].id;
      out_gains[i * k + s] = sorted[s].score;
    }
  });
}

}  // namespace xmc::decide
