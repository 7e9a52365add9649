#include "cluster/centroids.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "cluster/prefetch.h"
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
    const auto stamp = static_cast<int32_t>(label + 1);
    Cell* cells = cells_.data();
    int64_t size = 0;
    for (int64_t p = positives.begin(label); p < positives.end(label); ++p) {
      const int64_t row = positives.indices[p], end = X.end(row);
      if (p + 1 < positives.end(label)) prefetch_row(X, positives.indices[p + 1]);
      if (used_.size() < at(size + X.size(row))) used_.resize(at(size + X.size(row)) * 2);
      int32_t* used = used_.data();
      // Without a branch: whether a column is new cannot be predicted.
      for (int64_t e = X.begin(row); e < end; ++e) {
        const int32_t column = X.indices[e];
        const Cell cell = cells[column];
        const bool known = cell.stamp == stamp;
        used[size] = column;
        size += !known;
        const uint32_t old = std::bit_cast<uint32_t>(cell.sum) & (0u - uint32_t{known});
        cells[column] = {std::bit_cast<float>(old) + X.data[e], stamp};
      }
    }
    size_ = size;
    stamp_ = stamp;
  }

  int64_t size() const { return size_; }

  // The (at most max_features largest) entries, scaled to norm 1; false if their norm is 0. By column, but
  // see label_centroids for `original`.
  bool write(int64_t max_features, const int32_t* original, int32_t* indices, float* values) {
    int64_t n = size_;
    if (n > max_features) {
      n = max_features;
      keep_largest(n, original);
    }
    if (!original) sort(n);
    double total = 0;
    for (int64_t k = 0; k < n; ++k) {
      indices[k] = used_[at(k)];
      values[k] = cells_[at(used_[at(k)])].sum;
      total += static_cast<double>(values[k]) * values[k];
    }
    const auto norm = static_cast<float>(std::sqrt(total));
    if (!(norm > 0)) return false;
    for (int64_t k = 0; k < n; ++k) values[k] /= norm;
    return true;
  }

 private:
  // Moves the n columns of the largest |sum| (ties: lower column) to the front of used_. Magnitudes compare
  // like their bits; a histogram of the leading ones finds the bin that the n-th is in.
  void keep_largest(int64_t n, const int32_t* original) {
    constexpr int kShift = 20;
    keys_.resize(at(size_));
    bins_.assign(size_t{1} << (31 - kShift), 0);
    uint32_t* keys = keys_.data();
    int32_t* used = used_.data();
    for (int64_t k = 0; k < size_; ++k) {
      const uint32_t key = std::bit_cast<uint32_t>(cells_[at(used[k])].sum) & 0x7fffffffu;
      keys[k] = key;
      ++bins_[key >> kShift];
    }
    size_t bin = bins_.size();
    int64_t above = 0;  // columns in higher bins
    while (above + bins_[bin - 1] < n) above += bins_[--bin];
    --bin;
    fence_.resize(at(bins_[bin]));
    Keyed* fence = fence_.data();
    int64_t kept = 0;
    for (int64_t k = 0; k < size_; ++k) {
      const size_t own = keys[k] >> kShift;
      const int32_t column = used[k];
      if (own == bin) *fence++ = {keys[k], column};
      used[kept] = column;
      kept += own > bin;
    }
    const auto need = static_cast<std::ptrdiff_t>(n - above);
    std::nth_element(fence_.begin(), fence_.begin() + need, fence_.end(),
                     [&](const Keyed& a, const Keyed& b) {
                       if (a.key != b.key) return a.key > b.key;
                       return original ? original[a.column] < original[b.column] : a.column < b.column;
                     });
    for (std::ptrdiff_t k = 0; k < need; ++k) used_[at(kept++)] = fence_[at(k)].column;
  }

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
  struct Keyed {
    uint32_t key;
    int32_t column;
  };
  std::vector<Cell> cells_;
  std::vector<uint32_t> keys_;
  std::vector<int64_t> bins_;
  std::vector<Keyed> fence_;
  std::vector<int32_t> used_;
  int64_t size_ = 0;
  int32_t stamp_ = 0;
};

}  // namespace

Centroids label_centroids(const CsrView<>& X, const CsrView<>& positives, int64_t max_features, int threads,
                          const int32_t* original) {
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
      if (u.write(most, original, own_indices.data() + old, own_values.data() + old)) {
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
