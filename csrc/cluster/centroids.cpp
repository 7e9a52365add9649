#include "cluster/centroids.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/parallel.h"

namespace xmc {
namespace {

constexpr int64_t kLabels = 32;  // per block

// A dense row to add sparse ones into, with the list of the columns in use.
struct Accumulator {
  std::vector<float> sum;
  std::vector<int32_t> stamp;  // the last label that used the column, plus 1
  std::vector<int32_t> used;

  void gather(const CsrView<>& X, const CsrView<>& positives, int64_t label) {
    if (sum.empty()) {
      sum.resize(static_cast<size_t>(X.cols));
      stamp.resize(static_cast<size_t>(X.cols));
    }
    used.clear();
    const auto tag = static_cast<int32_t>(label + 1);
    for (int64_t p = positives.begin(label); p < positives.end(label); ++p) {
      const int64_t row = positives.indices[p];
      for (int64_t e = X.begin(row); e < X.end(row); ++e) {
        const auto column = static_cast<size_t>(X.indices[e]);
        const float value = X.data[e];
        if (stamp[column] == tag) {
          sum[column] += value;
        } else {
          stamp[column] = tag;
          sum[column] = value;
          used.push_back(static_cast<int32_t>(column));
        }
      }
    }
  }

  float norm() const {
    double total = 0;
    for (const int32_t column : used) {
      const double value = sum[static_cast<size_t>(column)];
      total += value * value;
    }
    return static_cast<float>(std::sqrt(total));
  }

  // Ascending; a row that uses many columns is found by scanning rather than by sorting.
  void sort_used(int64_t label) {
    if (used.size() * 16 < stamp.size()) {
      std::sort(used.begin(), used.end());
      return;
    }
    const auto tag = static_cast<int32_t>(label + 1);
    size_t out = 0;
    for (size_t column = 0; column < stamp.size(); ++column) {
      if (stamp[column] == tag) used[out++] = static_cast<int32_t>(column);
    }
  }
};

void for_each_label(const CsrView<>& X, const CsrView<>& positives, int threads,
                    const std::function<void(int64_t, Accumulator&)>& fn) {
  std::vector<Accumulator> scratch(static_cast<size_t>(std::max(threads, 1)));
  parallel_for(chunk_count(positives.rows, kLabels), threads, [&](int64_t block, int thread) {
    Accumulator& u = scratch[static_cast<size_t>(thread)];
    const int64_t end = std::min(positives.rows, (block + 1) * kLabels);
    for (int64_t label = block * kLabels; label < end; ++label) {
      u.gather(X, positives, label);
      fn(label, u);
    }
  });
}

}  // namespace

Centroids label_centroids(const CsrView<>& X, const CsrView<>& positives, int threads) {
  // Twice over the data, once to count, so that the peak is the result and not two of it.
  Centroids v;
  v.indptr.assign(static_cast<size_t>(positives.rows) + 1, 0);
  for_each_label(X, positives, threads, [&](int64_t label, Accumulator& u) {
    v.indptr[static_cast<size_t>(label) + 1] = u.norm() > 0 ? static_cast<int64_t>(u.used.size()) : 0;
  });
  for (size_t l = 1; l < v.indptr.size(); ++l) v.indptr[l] += v.indptr[l - 1];
  v.indices.resize(static_cast<size_t>(v.indptr.back()));
  v.values.resize(v.indices.size());
  for_each_label(X, positives, threads, [&](int64_t label, Accumulator& u) {
    const float norm = u.norm();
    if (!(norm > 0)) return;
    u.sort_used(label);
    auto out = static_cast<size_t>(v.indptr[static_cast<size_t>(label)]);
    for (const int32_t column : u.used) {
      v.indices[out] = column;
      v.values[out++] = u.sum[static_cast<size_t>(column)] / norm;
    }
  });
  return v;
}

std::vector<float> centroid_norms(const CsrView<>& X, const CsrView<>& positives, int threads) {
  std::vector<float> norms(static_cast<size_t>(positives.rows));
  for_each_label(X, positives, threads,
                 [&](int64_t label, Accumulator& u) { norms[static_cast<size_t>(label)] = u.norm(); });
  return norms;
}

}  // namespace xmc
