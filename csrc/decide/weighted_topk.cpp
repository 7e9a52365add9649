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
  const std::vector<Line> weights = lines(a, b, proba.cols);
  parallel_for(chunk_count(proba.rows, kRows), threads, [&](int64_t block, int) {
    std::vector<double> gains;
    for (int64_t i = block * kRows; i < std::min(proba.rows, (block + 1) * kRows); ++i) {
      gains.resize(static_cast<size_t>(proba.size(i)));
      weighted_topk_row(proba, i, weights.data(), k, gains.data(), out.at.data() + i * k,
                        out.gain.data() + i * k);
    }
  });
  return out;
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
