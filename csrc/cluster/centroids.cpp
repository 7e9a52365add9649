#include "cluster/centroids.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/parallel.h"

namespace xmc {
namespace {

constexpr int64_t kLabels = 32;  // per block

size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

// u_l in a dense row of D cells that need no clearing between labels.
class LabelSum {
 public:
  void gather(const CsrView<>& X, const CsrView<>& positives, int64_t label) {
    if (cells_.empty()) cells_.resize(at(X.cols), {0.f, 0});
    stamp_ = static_cast<int32_t>(label + 1);
    size_ = 0;
    for (int64_t p = positives.begin(label); p < positives.end(label); ++p) {
      const int64_t row = positives.indices[p];
      used_.resize(std::max(used_.size(), at(size_ + X.size(row))));
      int32_t* used = used_.data();
      // Without a branch: whether a column is new cannot be predicted.
      for (int64_t e = X.begin(row); e < X.end(row); ++e) {
        const int32_t column = X.indices[e];
        Cell& cell = cells_[at(column)];
        const bool fresh = cell.stamp != stamp_;
        used[size_] = column;
        size_ += fresh;
        cell.sum = (fresh ? 0.f : cell.sum) + X.data[e];
        cell.stamp = stamp_;
      }
    }
  }

  int64_t size() const { return size_; }

  // The (at most max_features largest) entries, scaled to norm 1, by column; false if their norm is 0.
  bool write(int64_t max_features, int32_t* indices, float* values) {
    int64_t n = size_;
    if (n > max_features) {
      n = max_features;
      std::nth_element(used_.begin(), used_.begin() + n, used_.begin() + size_, [&](int32_t a, int32_t b) {
        const float x = std::abs(cells_[at(a)].sum), y = std::abs(cells_[at(b)].sum);
        return x != y ? x > y : a < b;
      });
    }
    sort(n);
    double total = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double value = cells_[at(used_[at(k)])].sum;
      total += value * value;
    }
    const auto norm = static_cast<float>(std::sqrt(total));
    if (!(norm > 0)) return false;
    for (int64_t k = 0; k < n; ++k) {
      indices[k] = used_[at(k)];
      values[k] = cells_[at(used_[at(k)])].sum / norm;
    }
    return true;
  }

 private:
  // Ascending; a row that uses many columns is found by scanning rather than by sorting.
  void sort(int64_t n) {
    if (n < size_ || n * 16 < static_cast<int64_t>(cells_.size())) {
      std::sort(used_.begin(), used_.begin() + n);
      return;
    }
    size_t out = 0;
    for (size_t column = 0; column < cells_.size(); ++column) {
      if (cells_[column].stamp == stamp_) used_[out++] = static_cast<int32_t>(column);
    }
  }

  struct Cell {
    float sum;
    int32_t stamp;  // the label whose sum this is, plus 1
  };
  std::vector<Cell> cells_;
  std::vector<int32_t> used_;
  int64_t size_ = 0;
  int32_t stamp_ = 0;
};

}  // namespace

Centroids label_centroids(const CsrView<>& X, const CsrView<>& positives, int64_t max_features, int threads) {
  const int64_t n_labels = positives.rows;
  const int64_t most = max_features > 0 ? max_features : X.cols;
  const int64_t blocks = chunk_count(n_labels, kLabels);
  std::vector<LabelSum> scratch(at(std::max(threads, 1)));
  std::vector<std::vector<int32_t>> indices(at(blocks));
  std::vector<std::vector<float>> values(at(blocks));
  Centroids v;
  v.indptr.assign(at(n_labels) + 1, 0);
  parallel_for(blocks, threads, [&](int64_t block, int thread) {
    LabelSum& u = scratch[at(thread)];
    auto& own_indices = indices[at(block)];
    auto& own_values = values[at(block)];
    const int64_t end = std::min(n_labels, (block + 1) * kLabels);
    for (int64_t label = block * kLabels; label < end; ++label) {
      u.gather(X, positives, label);
      const size_t old = own_indices.size(), n = at(std::min(u.size(), most));
      own_indices.resize(old + n);
      own_values.resize(old + n);
      if (u.write(most, own_indices.data() + old, own_values.data() + old)) {
        v.indptr[at(label) + 1] = static_cast<int64_t>(n);
      } else {
        own_indices.resize(old);
        own_values.resize(old);
      }
    }
    own_indices.shrink_to_fit();
    own_values.shrink_to_fit();
  });
  for (int64_t l = 0; l < n_labels; ++l) v.indptr[at(l) + 1] += v.indptr[at(l)];
  v.indices.resize(at(v.indptr.back()));
  v.values.resize(v.indices.size());
  parallel_for(blocks, threads, [&](int64_t block, int) {
    const auto start = static_cast<std::ptrdiff_t>(v.indptr[at(block * kLabels)]);
    std::copy(indices[at(block)].begin(), indices[at(block)].end(), v.indices.begin() + start);
    std::copy(values[at(block)].begin(), values[at(block)].end(), v.values.begin() + start);
    indices[at(block)] = {};  // so that the peak stays near one copy
    values[at(block)] = {};
  });
  return v;
}

}  // namespace xmc
