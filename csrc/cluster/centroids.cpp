#include "cluster/centroids.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "core/parallel.h"
#include "core/prefetch.h"

namespace xmc::cluster {
namespace {

constexpr int64_t kLabels = 32;  // per block

// u_l in a dense row of D sums, which are all zero between labels.
class LabelSum {
 public:
  void gather(const CsrView<>& X, const float* row_scale, const CsrView<>& positives, int64_t label) {
    if (sums_.empty()) sums_.resize(X.cols, 0.f);
    size_ = 0;
    for (int64_t p = positives.begin(label); p < positives.end(label); ++p) {
      const int64_t row = positives.indices[p], n = X.size(row);
      if (p + 2 < positives.nnz()) prefetch_row(X, positives.indices[p + 2]);  // maybe the next label's
      if (static_cast<int64_t>(used_.size()) < size_ + n) used_.resize(2 * (size_ + n));
      size_ = add(X.indices + X.begin(row), X.data + X.begin(row), n, row_scale ? row_scale[row] : 1.f,
                  sums_.data(), used_.data(), size_);
    }
  }

  // The (at most max_features largest) entries, scaled to norm 1, at most as many as gathered; returns how
  // many. By column, but see label_centroids for `original`.
  int64_t write(int64_t max_features, const int32_t* original, int32_t* indices, float* values) {
    take(original != nullptr);
    if (static_cast<int64_t>(entries_.size()) > max_features) keep_largest(max_features, original);
    if (!original && !std::is_sorted(entries_.begin(), entries_.end(), by_column)) {
      std::sort(entries_.begin(), entries_.end(), by_column);
    }
    double total = 0;
    for (const Entry& entry : entries_) total += static_cast<double>(entry.sum) * entry.sum;
    const auto norm = static_cast<float>(std::sqrt(total));
    if (!(norm > 0)) return 0;
    for (size_t k = 0; k < entries_.size(); ++k) {
      indices[k] = entries_[k].column;
      values[k] = entries_[k].sum / norm;
    }
    return static_cast<int64_t>(entries_.size());
  }

  int64_t most() const { return size_; }

 private:
  struct Entry {
    int32_t column;
    float sum;
  };
  static bool by_column(const Entry& a, const Entry& b) { return a.column < b.column; }

  // Adds scale times a row; a column whose sum is still zero is noted in `used`, of which it returns the new size.
  // Without a branch: whether a column is new cannot be predicted. A sum that is zero again notes its column
  // again.
  static int64_t add(const int32_t* columns, const float* values, int64_t n, float scale, float* sums,
                     int32_t* used, int64_t size) {
    for (int64_t e = 0; e < n; ++e) {
      const int32_t column = columns[e];
      const float sum = sums[column];
      used[size] = column;
      size += sum == 0;
      sums[column] = sum + scale * values[e];
    }
    return size;
  }

  // Moves the sums other than zero to entries_, each once; by column where many columns are used.
  void take(bool any_order) {
    entries_.resize(size_);
    Entry* to = entries_.data();
    const auto D = static_cast<int64_t>(sums_.size());
    const bool scan = !any_order && size_ * 16 >= D;
    for (int64_t k = 0; k < (scan ? D : size_); ++k) {
      const int32_t column = scan ? static_cast<int32_t>(k) : used_[k];
      float& sum = sums_[column];
      if (sum == 0) continue;
      *to++ = {column, sum};
      sum = 0;
    }
    entries_.resize(to - entries_.data());
  }

  // Leaves the n entries of the largest |sum| (ties: lower column). Magnitudes compare like their bits; a
  // histogram of the leading ones finds the bin that the n-th is in.
  void keep_largest(int64_t n, const int32_t* original) {
    constexpr int kShift = 20;
    const auto key = [](const Entry& entry) { return std::bit_cast<uint32_t>(entry.sum) & 0x7fffffffu; };
    bins_.assign(size_t{1} << (31 - kShift), 0);
    for (const Entry& entry : entries_) ++bins_[key(entry) >> kShift];
    size_t bin = bins_.size();
    int64_t above = 0;  // entries in higher bins
    while (above + bins_[bin - 1] < n) above += bins_[--bin];
    --bin;
    fence_.resize(bins_[bin]);
    Entry *fence = fence_.data(), *kept = entries_.data();
    for (const Entry entry : entries_) {
      const size_t own = key(entry) >> kShift;
      if (own == bin) *fence++ = entry;
      *kept = entry;
      kept += own > bin;
    }
    const auto need = static_cast<std::ptrdiff_t>(n - above);
    std::nth_element(fence_.begin(), fence_.begin() + need, fence_.end(),
                     [&](const Entry& a, const Entry& b) {
                       if (key(a) != key(b)) return key(a) > key(b);
                       return original ? original[a.column] < original[b.column] : a.column < b.column;
                     });
    std::copy_n(fence_.begin(), need, kept);
    entries_.resize(n);
  }

  std::vector<float> sums_;    // per column
  std::vector<int32_t> used_;  // columns, the first size_
  int64_t size_ = 0;
  std::vector<Entry> entries_, fence_;
  std::vector<int64_t> bins_;
};

}  // namespace

Centroids label_centroids(const CsrView<>& X, const CsrView<>& positives, int64_t max_features, int threads,
                          const int32_t* original, const float* row_scale) {
  const int64_t n_labels = positives.rows;
  const int64_t most = max_features > 0 ? max_features : X.cols;
  const int64_t blocks = chunk_count(n_labels, kLabels);
  std::vector<LabelSum> scratch(std::max(threads, 1));
  std::vector<std::vector<int32_t>> indices(blocks);
  std::vector<std::vector<float>> values(blocks);
  Centroids v;
  v.indptr.assign(n_labels + 1, 0);
  parallel_for(blocks, threads, [&](int64_t block, int thread) {
    LabelSum& u = scratch[thread];
    auto& own_indices = indices[block];
    auto& own_values = values[block];
    const int64_t end = std::min(n_labels, (block + 1) * kLabels);
    for (int64_t label = block * kLabels; label < end; ++label) {
      u.gather(X, row_scale, positives, label);
      const size_t old = own_indices.size(), room = std::min(u.most(), most);
      own_indices.resize(old + room);
      own_values.resize(old + room);
      const int64_t n = u.write(most, original, own_indices.data() + old, own_values.data() + old);
      v.indptr[label + 1] = n;
      own_indices.resize(old + n);
      own_values.resize(old + n);
    }
    own_indices.shrink_to_fit();
    own_values.shrink_to_fit();
  });
  for (int64_t l = 0; l < n_labels; ++l) v.indptr[l + 1] += v.indptr[l];
  v.indices.resize(v.indptr.back());
  v.values.resize(v.indices.size());
  parallel_for(blocks, threads, [&](int64_t block, int) {
    const auto start = static_cast<std::ptrdiff_t>(v.indptr[block * kLabels]);
    std::copy(indices[block].begin(), indices[block].end(), v.indices.begin() + start);
    std::copy(values[block].begin(), values[block].end(), v.values.begin() + start);
    indices[block] = {};  // so that the peak stays near one copy
    values[block] = {};
  });
  return v;
}

}  // namespace xmc::cluster
