#include "decide/weighted_topk.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/topk.h"
#include "decide/weighted_topk_kernels.h"

namespace xmc {

RowChoice weighted_topk(const Probabilities& proba, const double* a, const double* b, int64_t k,
                        int threads) {
  constexpr int64_t kRows = 512;
  RowChoice out;
  out.at.resize(static_cast<size_t>(proba.rows * k));
  out.gain.resize(out.at.size());
  if (k == 0) return out;
  const LineTable weights(a, b, proba.cols);
  const int64_t widest = widest_row(proba);
  parallel_for(chunk_count(proba.rows, kRows), threads, [&](int64_t block, int) {
    RowScratch scratch(widest);
    for (int64_t i = block * kRows; i < std::min(proba.rows, (block + 1) * kRows); ++i) {
      weighted_topk_row(proba, i, weights, k, scratch, out.at.data() + i * k, out.gain.data() + i * k);
    }
  });
  return out;
}

void topk_row(const Probabilities& proba, int64_t i, int64_t k, RowScratch& scratch, int32_t* at) {
  const float* eta = proba.data + proba.begin(i);
  const int64_t m = proba.size(i);
  if (k == 0) return;
  if (k > kRowLanes) {
    std::copy(eta, eta + m, scratch.exact.begin());
    pick_largest(scratch.exact.data(), m, k, scratch.found.data(), at, scratch.best.data());
    return;
  }
  float* gains = scratch.gains.data();
  std::copy(eta, eta + m, gains);
  std::fill(gains + m, gains + padded_row(m), kNever);
  const RowKernels& kernels = row_kernels();
  const float bound = k == 1 ? kernels.largest(gains, m) : kernels.kth_bound(gains, m, k);
  const int64_t count = kernels.at_least(gains, m, bound, scratch.found.data());
  for (int64_t f = 0; f < count; ++f) gains[f] = gains[scratch.found[static_cast<size_t>(f)]];
  std::fill(gains + count, gains + padded_row(count), kNever);
  pick_set(scratch, RowFilter{}, count, k, at, [eta](int32_t c) { return static_cast<double>(eta[c]); });
}

std::vector<int32_t> topk_positions(const Probabilities& proba, int64_t k, int threads) {
  constexpr int64_t kRows = 512;
  std::vector<int32_t> at(static_cast<size_t>(proba.rows * k));
  const int64_t widest = widest_row(proba);
  parallel_for(chunk_count(proba.rows, kRows), threads, [&](int64_t block, int) {
    RowScratch scratch(widest);
    for (int64_t i = block * kRows; i < std::min(proba.rows, (block + 1) * kRows); ++i) {
      topk_row(proba, i, k, scratch, at.data() + i * k);
    }
  });
  return at;
}

double sum_of_gains(const Probabilities& proba, const std::vector<int32_t>& at, const double* a,
                    const double* b, int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < proba.rows; ++i) {
    for (int64_t s = i * k; s < (i + 1) * k; ++s) {
      const int64_t e = proba.begin(i) + at[static_cast<size_t>(s)];
      sum += b[proba.indices[e]] + a[proba.indices[e]] * static_cast<double>(proba.data[e]);
    }
  }
  return sum;
}

std::vector<int32_t> labels_at(const Probabilities& proba, const std::vector<int32_t>& at, int64_t k) {
  std::vector<int32_t> labels(at.size());
  for (int64_t i = 0; i < proba.rows; ++i) {
    for (int64_t s = i * k; s < (i + 1) * k; ++s) {
      labels[static_cast<size_t>(s)] = proba.indices[proba.begin(i) + at[static_cast<size_t>(s)]];
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
      out_labels[i * k + static_cast<int64_t>(s)] = sorted[s].id;
      out_gains[i * k + static_cast<int64_t>(s)] = sorted[s].score;
    }
  });
}

}  // namespace xmc
