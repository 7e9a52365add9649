#include "cluster/label_tree.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "cluster/centroids.h"
#include "cluster/gram.h"
#include "cluster/prefetch.h"
#include "core/parallel.h"
#include "core/rng.h"

namespace xmc {
namespace {

constexpr int64_t kSample = 256;                // labels that a large node's start is made from,
constexpr int kLargeRounds = 6;                 // and the most rounds from there
constexpr int64_t kScatter = int64_t{1} << 21;  // entries per partial sum of a large node,
constexpr int64_t kMaxPartial = 8;              // and how many such sums at most
constexpr int64_t kLabels = 512;                // labels per block of dot products
constexpr size_t kManyNodes = 16;               // from so many nodes on, threads take nodes instead of labels

size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

struct Node {
  int64_t first;
  int64_t size;
  uint64_t depth;
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

// |x|^2 in double sums of short float ones.
double norm2(const std::vector<float>& x) {
  constexpr size_t kLanes = 16, kRun = 64 * kLanes;
  double total = 0;
  for (size_t start = 0; start < x.size(); start += kRun) {
    const size_t end = std::min(x.size(), start + kRun);
    float lane[kLanes] = {};
    size_t j = start;
    for (; j + kLanes <= end; j += kLanes) {
      for (size_t k = 0; k < kLanes; ++k) lane[k] += x[j + k] * x[j + k];
    }
    for (; j < end; ++j) lane[0] += x[j] * x[j];
    for (const float part : lane) total += part;
  }
  return total;
}

// Splits nodes; one per thread, for its buffers.
class Splitter {
 public:
  Splitter(const CsrView<>& V, const LabelTreeOptions& options) : V_(V), options_(options), gram_(V) {}

  // Reorders labels[0 .. n), n > kGramLabels, so that side 1 comes first, both sides ascending; returns the
  // size of side 1. With T = S_1 + S_2, t_l = v_l . T and p_l = v_l . S_1, all that a round needs is S_1:
  //   v_l . w = (a + b) p_l - b t_l,  a = 1/|S_1|, b = 1/|S_2|,  |S_2|^2 = |T|^2 - 2 S_1 . T + |S_1|^2
  int64_t split_large(int32_t* labels, int64_t n, uint64_t seed, int threads) {
    labels_ = labels;
    threads_ = threads;
    entries_ = 0;
    for (int64_t l = 0; l < n; ++l) entries_ += V_.size(labels[l]);
    weight_.assign(at(n), 0.f);
    side_.assign(at(n), 0);
    t_.resize(at(n));
    ranked_.resize(at(n));
    const int64_t ones = side_one(n, options_.max_leaf);
    start_from_sample(ones, seed);
    each_label([&](int64_t l, const int32_t* indices, const float* values, int64_t size) {
      ranked_[at(l)] = {dot(indices, values, size, sum_.data()), static_cast<int32_t>(l)};
    });
    double objective = 0, total_norm2 = 0;
    for (int iteration = 0;; ++iteration) {
      assign_sides(ranked_, ones, side_.data(), changed_);
      if (changed_.empty() || iteration + 1 >= std::min(kLargeRounds, options_.max_iterations)) break;
      if (iteration == 0) {
        total_.assign(at(V_.cols), 0.f);
        sum_.assign(at(V_.cols), 0.f);
        std::fill(weight_.begin(), weight_.end(), 1.f);
        scatter(total_);
        total_norm2 = norm2(total_);
        each_label([&](int64_t l, const int32_t* indices, const float* values, int64_t size) {
          t_[at(l)] = dot(indices, values, size, total_.data());
        });
      }
      for (const int32_t l : changed_) weight_[at(l)] = side_[at(l)] ? 1.f : -1.f;
      scatter(sum_);
      double one_total = 0;
      for (int64_t l = 0; l < n; ++l) one_total += side_[at(l)] ? t_[at(l)] : 0.f;
      const double one_norm2 = norm2(sum_), two_norm2 = total_norm2 - 2 * one_total + one_norm2;
      const double norm_one = std::sqrt(one_norm2), norm_two = std::sqrt(std::max(two_norm2, 0.));
      const double now = norm_one + norm_two;
      if (now - objective <= options_.tolerance * objective) break;
      objective = now;
      const auto a = static_cast<float>(norm_one > 0 ? 1 / norm_one : 0);
      const auto b = static_cast<float>(norm_two > 0 ? 1 / norm_two : 0);
      each_label([&](int64_t l, const int32_t* indices, const float* values, int64_t size) {
        const float p = dot(indices, values, size, sum_.data());
        ranked_[at(l)] = {(a + b) * p - b * t_[at(l)], static_cast<int32_t>(l)};
      });
    }
    return partition(labels, n, side_.data());
  }

  // The whole subtree of a node of at most kGramLabels labels; leaf starts are appended to `leaves`.
  void split_small(int32_t* order, const Node& node, uint64_t (*seed_of)(uint64_t, const Node&),
                   std::vector<int64_t>& leaves) {
    int32_t* labels = order + node.first;
    gram_.load(labels, node.size);
    const std::vector<int32_t> own(labels, labels + node.size);
    std::vector<int32_t> members(own.size());
    for (size_t k = 0; k < members.size(); ++k) members[k] = static_cast<int32_t>(k);
    std::vector<Node> open{node};
    side_.resize(own.size());
    while (!open.empty()) {
      const Node next = open.back();
      open.pop_back();
      if (next.size <= options_.max_leaf) {
        leaves.push_back(next.first);
        continue;
      }
      int32_t* part = &members[at(next.first - node.first)];
      const int64_t ones = side_one(next.size, options_.max_leaf);
      two_means(gram_, part, next.size, ones,
                {options_.max_iterations, options_.tolerance, seed_of(options_.seed, next)}, side_.data());
      partition(part, next.size, side_.data());
      open.push_back({next.first + ones, next.size - ones, next.depth + 1});
      open.push_back({next.first, ones, next.depth + 1});
    }
    for (size_t k = 0; k < own.size(); ++k) labels[k] = own[at(members[k])];
  }

 private:
  int64_t size() const { return static_cast<int64_t>(weight_.size()); }

  // sum_ = w from 2-means on a sample of kSample of the node's labels.
  void start_from_sample(int64_t ones, uint64_t seed) {
    Rng rng(seed);
    sample_.resize(at(size()));
    for (int64_t l = 0; l < size(); ++l) sample_[at(l)] = static_cast<int32_t>(l);
    for (int64_t k = 0; k < kSample; ++k) {
      std::swap(sample_[at(k)], sample_[at(k + rng.below(static_cast<uint32_t>(size() - k)))]);
    }
    sample_.resize(at(kSample));
    std::sort(sample_.begin(), sample_.end());
    std::vector<int32_t> ids(sample_.size()), members(sample_.size());
    for (size_t k = 0; k < ids.size(); ++k) {
      ids[k] = labels_[sample_[k]];
      members[k] = static_cast<int32_t>(k);
    }
    gram_.load(ids.data(), kSample);
    std::vector<uint8_t> side(ids.size());
    const TwoNorms norms = two_means(gram_, members.data(), kSample, kSample * ones / size(),
                                     {options_.max_iterations, options_.tolerance, rng.next()}, side.data());
    const auto a = static_cast<float>(norms.one > 0 ? 1 / norms.one : 0);
    const auto b = static_cast<float>(norms.two > 0 ? 1 / norms.two : 0);
    for (size_t k = 0; k < ids.size(); ++k) weight_[at(sample_[k])] = side[k] ? a : -b;
    sum_.assign(at(V_.cols), 0.f);
    scatter(sum_);
  }

  // out += sum over labels of weight_ * v; weight_ becomes zero. The partial sums depend on the node alone.
  void scatter(std::vector<float>& out) {
    const int64_t parts = std::clamp<int64_t>(entries_ / kScatter, 1, kMaxPartial);
    const auto add_labels = [&](int64_t from, int64_t to, float* sum) {
      for (int64_t l = from; l < to; ++l) {
        const float a = weight_[at(l)];
        if (a == 0) continue;
        weight_[at(l)] = 0;
        const int64_t end = V_.end(labels_[l]);
        for (int64_t e = V_.begin(labels_[l]); e < end; ++e) sum[V_.indices[e]] += a * V_.data[e];
      }
    };
    if (parts == 1) {
      add_labels(0, size(), out.data());
      return;
    }
    partial_.assign(at(parts * V_.cols), 0.f);
    parallel_for(parts, threads_, [&](int64_t part, int) {
      add_labels(size() * part / parts, size() * (part + 1) / parts, partial_.data() + part * V_.cols);
    });
    for (int64_t part = 0; part < parts; ++part) {
      const float* sum = partial_.data() + part * V_.cols;
      for (int64_t j = 0; j < V_.cols; ++j) out[at(j)] += sum[j];
    }
  }

  // What(l, indices, values, size) for the node's labels.
  template <class What>
  void each_label(const What& what) {
    parallel_for(chunk_count(size(), kLabels), entries_ > kScatter ? threads_ : 1, [&](int64_t block, int) {
      const int64_t end = std::min(size(), (block + 1) * kLabels);
      for (int64_t l = block * kLabels; l < end; ++l) {
        if (l + 1 < end) prefetch_row(V_, labels_[l + 1]);
        const int64_t label = labels_[l], e = V_.begin(label);
        what(l, V_.indices + e, V_.data + e, V_.size(label));
      }
    });
  }

  // Side 1 first, else in the old order.
  int64_t partition(int32_t* items, int64_t n, const uint8_t* side) {
    second_.clear();
    int64_t out = 0;
    for (int64_t k = 0; k < n; ++k) {
      if (side[k]) {
        items[out++] = items[k];
      } else {
        second_.push_back(items[k]);
      }
    }
    std::copy(second_.begin(), second_.end(), items + out);
    return out;
  }

  const CsrView<>& V_;
  const LabelTreeOptions& options_;
  Gram gram_;

  // the large node at hand
  const int32_t* labels_ = nullptr;
  int threads_ = 1;
  int64_t entries_ = 0;
  std::vector<uint8_t> side_;
  std::vector<float> sum_, total_, partial_;  // D each: S_1 (first w), T, parts of a sum
  std::vector<float> weight_, t_;             // per label
  std::vector<Ranked> ranked_;
  std::vector<int32_t> changed_, second_, sample_;
};

// The columns of X numbered from the most frequent on: what is used most lies side by side in the caches.
struct Renumbered {
  std::vector<int32_t> indices;   // of X's entries
  std::vector<int32_t> original;  // D: new number -> column
};

Renumbered by_frequency(const CsrView<>& X, int threads) {
  std::vector<int64_t> count(at(X.cols), 0);
  for (int64_t e = 0; e < X.nnz(); ++e) ++count[at(X.indices[e])];
  Renumbered result;
  result.original.resize(at(X.cols));
  for (int64_t j = 0; j < X.cols; ++j) result.original[at(j)] = static_cast<int32_t>(j);
  std::stable_sort(result.original.begin(), result.original.end(),
                   [&](int32_t a, int32_t b) { return count[at(a)] > count[at(b)]; });
  std::vector<int32_t> number(at(X.cols));
  for (int64_t j = 0; j < X.cols; ++j) number[at(result.original[at(j)])] = static_cast<int32_t>(j);
  result.indices.resize(at(X.nnz()));
  constexpr int64_t kBlock = 1 << 18;
  parallel_for(chunk_count(X.nnz(), kBlock), threads, [&](int64_t block, int) {
    const int64_t end = std::min(X.nnz(), (block + 1) * kBlock);
    for (int64_t e = block * kBlock; e < end; ++e) result.indices[at(e)] = number[at(X.indices[e])];
  });
  return result;
}

uint64_t seed_of(uint64_t seed, const Node& node) {
  return mix64(seed ^ mix64(static_cast<uint64_t>(node.first) << 8 | node.depth));
}

// Cuts of labels without a vector: by id, in the same sizes.
void split_empty(Node node, int64_t max_leaf, std::vector<int64_t>& leaves) {
  while (node.size > max_leaf) {
    const int64_t ones = side_one(node.size, max_leaf);
    split_empty({node.first, ones, node.depth + 1}, max_leaf, leaves);
    node = {node.first + ones, node.size - ones, node.depth + 1};
  }
  if (node.size > 0) leaves.push_back(node.first);
}

}  // namespace

LabelTree label_tree(const CsrView<>& X, const CsrView<>& positives, const LabelTreeOptions& options,
                     int threads) {
  if (options.max_leaf < 1) throw std::invalid_argument("max_leaf must be at least 1");
  if (positives.cols != X.rows) throw std::invalid_argument("positives must have one column per row of X");
  if (!X.data && X.nnz() > 0) throw std::invalid_argument("X must have values");
  threads = std::max(threads, 1);
  const Renumbered features = by_frequency(X, threads);
  const CsrView<> R{X.rows, X.cols, X.indptr, features.indices.data(), X.data};
  const Centroids centroids =
      label_centroids(R, positives, options.max_features, threads, features.original.data());
  const CsrView<> V = centroids.view(X.cols);
  const int64_t n_labels = V.rows;
  LabelTree tree;
  tree.order.resize(at(n_labels));
  for (int64_t l = 0; l < n_labels; ++l) tree.order[at(l)] = static_cast<int32_t>(l);
  const auto middle =
      std::stable_partition(tree.order.begin(), tree.order.end(), [&](int32_t l) { return V.size(l) > 0; });
  const int64_t clustered = middle - tree.order.begin();

  std::vector<Splitter> splitters;
  splitters.reserve(at(threads));
  for (int t = 0; t < threads; ++t) splitters.emplace_back(V, options);
  const int64_t small = std::max(kGramLabels, options.max_leaf);
  std::vector<Node> level{{0, clustered, 0}}, rest;
  while (!level.empty()) {
    std::vector<Node> open;
    for (const Node& node : level) (node.size > small ? open : rest).push_back(node);
    std::vector<int64_t> ones(open.size());
    const auto split = [&](size_t i, int thread, int inner) {
      ones[i] = splitters[at(thread)].split_large(&tree.order[at(open[i].first)], open[i].size,
                                                  seed_of(options.seed, open[i]), inner);
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
      level.push_back({open[i].first, ones[i], open[i].depth + 1});
      level.push_back({open[i].first + ones[i], open[i].size - ones[i], open[i].depth + 1});
    }
  }
  std::vector<std::vector<int64_t>> leaves(rest.size() + 1);
  parallel_for(static_cast<int64_t>(rest.size()), threads, [&](int64_t i, int thread) {
    const Node& node = rest[at(i)];
    if (node.size > options.max_leaf) {
      splitters[at(thread)].split_small(tree.order.data(), node, &seed_of, leaves[at(i)]);
    } else if (node.size > 0) {
      leaves[at(i)].push_back(node.first);
    }
  });
  split_empty({clustered, n_labels - clustered, 0}, options.max_leaf, leaves.back());

  for (const auto& own : leaves) tree.offsets.insert(tree.offsets.end(), own.begin(), own.end());
  std::sort(tree.offsets.begin(), tree.offsets.end());
  tree.offsets.push_back(n_labels);
  tree.cluster.resize(at(n_labels));
  for (size_t c = 0; c + 1 < tree.offsets.size(); ++c) {
    for (int64_t j = tree.offsets[c]; j < tree.offsets[c + 1]; ++j) {
      tree.cluster[at(tree.order[at(j)])] = static_cast<int32_t>(c);
    }
  }
  return tree;
}

}  // namespace xmc
