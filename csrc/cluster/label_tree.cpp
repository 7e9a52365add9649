#include "cluster/label_tree.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "cluster/centroids.h"
#include "core/parallel.h"
#include "core/rng.h"

namespace xmc {
namespace {

constexpr int64_t kCompact = int64_t{1}
                             << 22;  // node entries up to which rows are copied and columns renumbered
constexpr int64_t kScatter = int64_t{1} << 22;  // entries per partial sum of a large node,
constexpr int64_t kMaxPartial = 8;              // and how many such sums at most
constexpr int64_t kRows = 2048;                 // rows per block of dot products
constexpr size_t kManyNodes = 16;               // from so many nodes on, threads take nodes instead of rows

size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

struct Node {
  int64_t first;
  int64_t size;
};

// How many labels go to side 1. Halves, but never a child of C + 1 labels for even C (it would leave a leaf
// of C/2) where another cut avoids it.
int64_t side_one(int64_t n, int64_t C) {
  const int64_t half = n / 2;
  if (C % 2 == 0 && C > 2 && n > C + 1 && (half == C + 1 || n - half == C + 1)) return std::min(C, n - C - 2);
  return half;
}

float dot(const int32_t* indices, const float* values, int64_t n, const float* w) {
  float a = 0, b = 0, c = 0, d = 0;
  int64_t e = 0;
  for (; e + 4 <= n; e += 4) {
    a += values[e] * w[indices[e]];
    b += values[e + 1] * w[indices[e + 1]];
    c += values[e + 2] * w[indices[e + 2]];
    d += values[e + 3] * w[indices[e + 3]];
  }
  for (; e < n; ++e) a += values[e] * w[indices[e]];
  return (a + b) + (c + d);
}

float norm_of(const std::vector<float>& x) {
  double total = 0;
  for (const float v : x) total += static_cast<double>(v) * v;
  return static_cast<float>(std::sqrt(total));
}

// Splits one node; kept per thread for its buffers.
class Splitter {
 public:
  Splitter(const CsrView<>& X, const CsrView<>& positives, const std::vector<float>& norms,
           const LabelTreeOptions& options)
      : X_(X), positives_(positives), norms_(norms), options_(options) {}

  // Reorders labels[0 .. n) so that side 1 comes first, both sides ascending; returns the size of side 1.
  int64_t split(int32_t* labels, int64_t n, uint64_t seed, int threads) {
    labels_ = labels;
    n_ = n;
    threads_ = threads;
    load_node();
    const int64_t ones = side_one(n, options_.max_leaf);
    side_.assign(at(n), 0);
    start(seed);
    std::vector<float> one(at(features_)), all(at(features_));
    std::fill(weight_.begin(), weight_.end(), 0.f);
    for (int64_t l = 0; l < n; ++l) add_label(l, 1.f);
    scatter(all);
    double objective = 0;
    for (int iteration = 0;; ++iteration) {
      const int64_t changed = assign(ones);
      if (changed == 0 && iteration > 0) break;
      scatter(one);
      two_.resize(one.size());
      for (size_t j = 0; j < one.size(); ++j) two_[j] = all[j] - one[j];
      const float norm_one = norm_of(one), norm_two = norm_of(two_);
      const double now = static_cast<double>(norm_one) + norm_two;
      if (iteration + 1 >= options_.max_iterations || now - objective <= options_.tolerance * objective)
        break;
      objective = now;
      const float a = norm_one > 0 ? 1 / norm_one : 0, b = norm_two > 0 ? 1 / norm_two : 0;
      for (size_t j = 0; j < one.size(); ++j) w_[j] = a * one[j] - b * two_[j];
    }
    std::vector<int32_t> second;
    second.reserve(at(n - ones));
    int64_t out = 0;
    for (int64_t l = 0; l < n; ++l) {
      if (side_[at(l)]) {
        labels[out++] = labels[l];
      } else {
        second.push_back(labels[l]);
      }
    }
    std::copy(second.begin(), second.end(), labels + out);
    return out;
  }

 private:
  // The distinct rows of the node's labels, renumbered, and each label's rows in those numbers.
  void load_node() {
    if (row_number_.empty()) row_number_.assign(at(X_.rows), -1);
    rows_.clear();
    label_begin_.assign(1, 0);
    label_rows_.clear();
    inverse_.clear();
    int64_t entries = 0;
    for (int64_t l = 0; l < n_; ++l) {
      const int64_t label = labels_[l];
      for (int64_t p = positives_.begin(label); p < positives_.end(label); ++p) {
        int32_t& number = row_number_[at(positives_.indices[p])];
        if (number < 0) {
          number = static_cast<int32_t>(rows_.size());
          rows_.push_back(positives_.indices[p]);
          entries += X_.size(positives_.indices[p]);
        }
        label_rows_.push_back(number);
      }
      label_begin_.push_back(static_cast<int64_t>(label_rows_.size()));
      inverse_.push_back(1 / norms_[at(label)]);
    }
    for (const int32_t row : rows_) row_number_[at(row)] = -1;
    entries_ = entries;
    if (entries <= kCompact) {
      compact(entries);
    } else {
      row_begin_.clear();
      row_size_.clear();
      for (const int32_t row : rows_) {
        row_begin_.push_back(X_.begin(row));
        row_size_.push_back(static_cast<int32_t>(X_.size(row)));
      }
      indices_ = X_.indices;
      values_ = X_.data;
      features_ = X_.cols;
    }
    weight_.assign(rows_.size(), 0.f);
    score_.resize(rows_.size());
  }

  // Copies the rows with columns renumbered by first use: w and the sums then stay in a near cache.
  void compact(int64_t entries) {
    if (column_number_.empty()) column_number_.assign(at(X_.cols), -1);
    own_indices_.resize(at(entries));
    own_values_.resize(at(entries));
    row_begin_.clear();
    row_size_.clear();
    columns_.clear();
    int64_t out = 0;
    for (const int32_t row : rows_) {
      row_begin_.push_back(out);
      row_size_.push_back(static_cast<int32_t>(X_.size(row)));
      for (int64_t e = X_.begin(row); e < X_.end(row); ++e) {
        int32_t& number = column_number_[at(X_.indices[e])];
        if (number < 0) {
          number = static_cast<int32_t>(columns_.size());
          columns_.push_back(X_.indices[e]);
        }
        own_indices_[at(out)] = number;
        own_values_[at(out++)] = X_.data[e];
      }
    }
    for (const int32_t column : columns_) column_number_[at(column)] = -1;
    indices_ = own_indices_.data();
    values_ = own_values_.data();
    features_ = static_cast<int64_t>(columns_.size());
  }

  void add_label(int64_t l, float sign) {
    for (int64_t p = label_begin_[at(l)]; p < label_begin_[at(l + 1)]; ++p) {
      weight_[at(label_rows_[at(p)])] += sign * inverse_[at(l)];
    }
  }

  void start(uint64_t seed) {
    Rng rng(seed);
    const int64_t p = rng.below(static_cast<uint32_t>(n_));
    const int64_t q = (p + 1 + rng.below(static_cast<uint32_t>(n_ - 1))) % n_;
    w_.assign(at(features_), 0.f);
    add_label(p, 1.f);
    add_label(q, -1.f);
    scatter(w_);
  }

  // out += sum over rows of weight_ * row; weight_ becomes zero. The partial sums depend on the node alone.
  void scatter(std::vector<float>& out) {
    const auto n_rows = static_cast<int64_t>(rows_.size());
    const int64_t parts = std::clamp<int64_t>(entries_ / kScatter, 1, kMaxPartial);
    const auto add_rows = [&](int64_t from, int64_t to, float* sum) {
      for (int64_t r = from; r < to; ++r) {
        const float a = weight_[at(r)];
        if (a == 0) continue;
        weight_[at(r)] = 0;
        const int32_t* index = indices_ + row_begin_[at(r)];
        const float* value = values_ + row_begin_[at(r)];
        for (int32_t e = 0; e < row_size_[at(r)]; ++e) sum[index[e]] += a * value[e];
      }
    };
    if (parts == 1) {
      add_rows(0, n_rows, out.data());
      return;
    }
    partial_.assign(at(parts * features_), 0.f);
    parallel_for(parts, threads_, [&](int64_t part, int) {
      add_rows(n_rows * part / parts, n_rows * (part + 1) / parts, partial_.data() + part * features_);
    });
    for (int64_t part = 0; part < parts; ++part) {
      const float* sum = partial_.data() + part * features_;
      for (int64_t j = 0; j < features_; ++j) out[at(j)] += sum[j];
    }
  }

  // Scores the labels with w_, takes the best `ones` for side 1 and leaves the changes in weight_.
  int64_t assign(int64_t ones) {
    const auto n_rows = static_cast<int64_t>(rows_.size());
    const int threads = entries_ > kCompact ? threads_ : 1;
    parallel_for(chunk_count(n_rows, kRows), threads, [&](int64_t block, int) {
      const int64_t end = std::min(n_rows, (block + 1) * kRows);
      for (int64_t r = block * kRows; r < end; ++r) {
        score_[at(r)] =
            dot(indices_ + row_begin_[at(r)], values_ + row_begin_[at(r)], row_size_[at(r)], w_.data());
      }
    });
    ranked_.resize(at(n_));
    for (int64_t l = 0; l < n_; ++l) {
      float d = 0;
      for (int64_t p = label_begin_[at(l)]; p < label_begin_[at(l + 1)]; ++p)
        d += score_[at(label_rows_[at(p)])];
      ranked_[at(l)] = {d * inverse_[at(l)], static_cast<int32_t>(l)};
    }
    const auto before = [](const Ranked& a, const Ranked& b) {
      return a.d != b.d ? a.d > b.d : a.label < b.label;
    };
    std::nth_element(ranked_.begin(), ranked_.begin() + ones, ranked_.end(), before);
    int64_t changed = 0;
    for (int64_t k = 0; k < n_; ++k) {
      const int32_t l = ranked_[at(k)].label;
      const bool to_one = k < ones;
      if (to_one == static_cast<bool>(side_[at(l)])) continue;
      side_[at(l)] = to_one;
      move_.push_back(l);
      ++changed;
    }
    // Ascending, so that the sums do not depend on how nth_element happens to arrange its halves.
    std::sort(move_.begin(), move_.end());
    for (const int32_t l : move_) add_label(l, side_[at(l)] ? 1.f : -1.f);
    move_.clear();
    return changed;
  }

  struct Ranked {
    float d;
    int32_t label;
  };

  const CsrView<>& X_;
  const CsrView<>& positives_;
  const std::vector<float>& norms_;
  const LabelTreeOptions& options_;

  // the node
  int32_t* labels_ = nullptr;
  int64_t n_ = 0;
  int threads_ = 1;
  std::vector<int64_t> label_begin_;
  std::vector<int32_t> label_rows_;
  std::vector<float> inverse_;  // 1 / |u_l|
  std::vector<int32_t> rows_;
  std::vector<int64_t> row_begin_;
  std::vector<int32_t> row_size_;
  const int32_t* indices_ = nullptr;
  const float* values_ = nullptr;
  int64_t features_ = 0;
  int64_t entries_ = 0;

  std::vector<uint8_t> side_;
  std::vector<float> w_, two_;
  std::vector<float> weight_, score_;  // per row
  std::vector<Ranked> ranked_;
  std::vector<int32_t> move_;
  std::vector<float> partial_;
  std::vector<int32_t> row_number_, column_number_, columns_, own_indices_;
  std::vector<float> own_values_;
};

}  // namespace

LabelTree label_tree(const CsrView<>& X, const CsrView<>& positives, const LabelTreeOptions& options,
                     int threads) {
  if (options.max_leaf < 1) throw std::invalid_argument("max_leaf must be at least 1");
  if (positives.cols != X.rows) throw std::invalid_argument("positives must have one column per row of X");
  if (!X.data && X.nnz() > 0) throw std::invalid_argument("X must have values");
  threads = std::max(threads, 1);
  const std::vector<float> norms = centroid_norms(X, positives, threads);
  LabelTree tree;
  tree.order.reserve(norms.size());
  for (size_t l = 0; l < norms.size(); ++l) {
    if (norms[l] > 0) tree.order.push_back(static_cast<int32_t>(l));
  }
  const auto clustered = static_cast<int64_t>(tree.order.size());
  for (size_t l = 0; l < norms.size(); ++l) {
    if (!(norms[l] > 0)) tree.order.push_back(static_cast<int32_t>(l));
  }

  std::vector<Splitter> splitters;
  for (int t = 0; t < threads; ++t) splitters.emplace_back(X, positives, norms, options);
  std::vector<Node> level{{0, clustered}, {clustered, static_cast<int64_t>(norms.size()) - clustered}};
  for (uint64_t depth = 0; !level.empty(); ++depth) {
    std::vector<Node> open;
    for (const Node& node : level) {
      if (node.size > options.max_leaf) {
        open.push_back(node);
      } else if (node.size > 0) {
        tree.offsets.push_back(node.first);
      }
    }
    std::vector<int64_t> ones(open.size());
    const auto split = [&](size_t i, int slot, int inner) {
      const Node& node = open[i];
      const uint64_t seed = mix64(options.seed ^ mix64(static_cast<uint64_t>(node.first) << 8 | depth));
      ones[i] = node.first < clustered
                    ? splitters[at(slot)].split(&tree.order[at(node.first)], node.size, seed, inner)
                    : side_one(node.size, options.max_leaf);
    };
    if (open.size() >= kManyNodes) {
      parallel_for(static_cast<int64_t>(open.size()), threads,
                   [&](int64_t i, int thread) { split(at(i), thread, 1); });
    } else {
      for (size_t i = 0; i < open.size(); ++i) {
        check_interrupt();
        split(i, 0, threads);
      }
    }
    level.clear();
    for (size_t i = 0; i < open.size(); ++i) {
      level.push_back({open[i].first, ones[i]});
      level.push_back({open[i].first + ones[i], open[i].size - ones[i]});
    }
  }
  std::sort(tree.offsets.begin(), tree.offsets.end());
  tree.offsets.push_back(static_cast<int64_t>(norms.size()));
  tree.cluster.resize(norms.size());
  for (size_t c = 0; c + 1 < tree.offsets.size(); ++c) {
    for (int64_t j = tree.offsets[c]; j < tree.offsets[c + 1]; ++j) {
      tree.cluster[at(tree.order[at(j)])] = static_cast<int32_t>(c);
    }
  }
  return tree;
}

}  // namespace xmc
