#include "cluster/label_tree.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "cluster/centroids.h"
#include "cluster/gram.h"
#include "cluster/node_vectors.h"
#include "core/parallel.h"
#include "core/rng.h"

namespace xmc::cluster {
namespace {

constexpr int64_t kSample = 64;                 // labels that a large node's start is made from,
constexpr int kLargeRounds = 6;                 // and the most rounds from there
constexpr int64_t kScatter = int64_t{1} << 21;  // entries per partial sum of a large node,
constexpr int64_t kMaxPartial = 8;              // and how many such sums at most
constexpr int64_t kLabels = 512;                // labels per block of dot products
constexpr size_t kManyNodes = 16;               // from so many nodes on, threads take nodes instead of labels

struct Node {
  int64_t first;
  int64_t size;
  uint64_t depth;
};

struct OpenNode : Node {
  NodeVectors rows;
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
  explicit Splitter(const LabelTreeOptions& options) : options_(&options) {}

  // The sides of a node of more than kGramLabels labels; `ones` of them on side 1.
  const std::vector<uint8_t>& split_large(const NodeVectors& rows, int64_t ones, uint64_t seed, int threads) {
    V_ = &rows.V;
    threads_ = threads;
    const int64_t n = rows.V.rows;
    side_.assign(n, 0);
    for (auto& sum : sum_) sum.assign(V_->cols, 0.f);
    w_.resize(V_->cols);
    all_.resize(n);
    std::iota(all_.begin(), all_.end(), 0);
    start_from_sample(rows, ones, seed);
    double objective = 0;
    for (int iteration = 0;; ++iteration) {
      assign_sides(ranked_, ones, side_.data(), changed_);
      if (changed_.empty() || iteration + 1 >= std::min(kLargeRounds, options_->max_iterations)) break;
      if (iteration == 0) {
        move(all_, false);
      } else {
        move(changed_, true);
      }
      double norm[2] = {norm2(sum_[0]), norm2(sum_[1])};
      for (int64_t l = 0; l < n; ++l) norm[side_[l]] += rows.own[l];
      for (double& x : norm) x = std::sqrt(x);
      if (norm[0] + norm[1] - objective <= options_->tolerance * objective) break;
      objective = norm[0] + norm[1];
      direction(norm[1], norm[0]);
      rank([&](int64_t l) { return rows.own[l] * (side_[l] ? scale_[1] : -scale_[0]); });
    }
    return side_;
  }

  // The whole subtree of a node of at most kGramLabels labels; leaf starts are appended to `leaves`.
  void split_small(int32_t* order, const OpenNode& node, uint64_t (*seed_of)(uint64_t, const Node&),
                   std::vector<int64_t>& leaves) {
    int32_t* labels = order + node.first;
    gram_.load(node.rows);
    const std::vector<int32_t> own(labels, labels + node.size);
    std::vector<int32_t> members(own.size());
    for (size_t k = 0; k < members.size(); ++k) members[k] = static_cast<int32_t>(k);
    std::vector<Node> open{node};
    side_.resize(own.size());
    while (!open.empty()) {
      const Node next = open.back();
      open.pop_back();
      if (next.size <= options_->max_leaf) {
        leaves.push_back(next.first);
        continue;
      }
      int32_t* part = &members[next.first - node.first];
      const int64_t ones = side_one(next.size, options_->max_leaf);
      two_means(gram_, part, next.size, ones,
                {options_->max_iterations, options_->tolerance, seed_of(options_->seed, next)}, side_.data());
      partition(part, next.size, side_.data());
      open.push_back({next.first + ones, next.size - ones, next.depth + 1});
      open.push_back({next.first, ones, next.depth + 1});
    }
    for (size_t k = 0; k < own.size(); ++k) labels[k] = own[members[k]];
  }

 private:
  // ranked_ by the w from 2-means on a sample of kSample of the node's labels.
  void start_from_sample(const NodeVectors& rows, int64_t ones, uint64_t seed) {
    Rng rng(seed);
    const int64_t n = V_->rows;
    std::vector<int32_t> sample = all_;
    for (int64_t k = 0; k < kSample; ++k) {
      std::swap(sample[k], sample[k + rng.below(static_cast<uint32_t>(n - k))]);
    }
    sample.resize(kSample);
    std::sort(sample.begin(), sample.end());
    gram_.load(pick_vectors(rows, sample));
    std::vector<int32_t> members(all_.begin(), all_.begin() + kSample);
    std::vector<uint8_t> side(kSample);
    const TwoNorms norms =
        two_means(gram_, members.data(), kSample, kSample * ones / n,
                  {options_->max_iterations, options_->tolerance, rng.next()}, side.data());
    for (size_t k = 0; k < side.size(); ++k) side_[sample[k]] = side[k];
    move(sample, false);
    direction(norms.one, norms.two);
    std::vector<float> own(n, 0.f);
    for (size_t k = 0; k < side.size(); ++k) {
      const size_t l = sample[k];
      own[l] = rows.own[l] * (side[k] ? scale_[1] : -scale_[0]);
    }
    rank([&](int64_t l) { return own[l]; });
    std::fill(side_.begin(), side_.end(), uint8_t{0});
    for (auto& sum : sum_) std::fill(sum.begin(), sum.end(), 0.f);
  }

  // w = S_1/|S_1| - S_2/|S_2|
  void direction(double norm_one, double norm_two) {
    scale_[1] = static_cast<float>(norm_one > 0 ? 1 / norm_one : 0);
    scale_[0] = static_cast<float>(norm_two > 0 ? 1 / norm_two : 0);
    for (size_t j = 0; j < w_.size(); ++j) w_[j] = scale_[1] * sum_[1][j] - scale_[0] * sum_[0][j];
  }

  // ranked_ = v_l . w; own(l) is what the features of label l alone add.
  template <class Own>
  void rank(const Own& own) {
    const int64_t n = V_->rows;
    ranked_.resize(n);
    parallel_for(chunk_count(n, kLabels), V_->nnz() > kScatter ? threads_ : 1, [&](int64_t block, int) {
      const int64_t end = std::min(n, (block + 1) * kLabels);
      for (int64_t l = block * kLabels; l < end; ++l) {
        const int64_t e = V_->begin(l);
        const float d = dot(V_->indices + e, V_->data + e, V_->size(l), w_.data());
        ranked_[l] = {d + own(l), static_cast<int32_t>(l)};
      }
    });
  }

  // Adds labels to the sum of their side, and takes them from the other one if they were there. Parts depend
  // on the labels alone.
  void move(const std::vector<int32_t>& labels, bool from_other) {
    const auto n = static_cast<int64_t>(labels.size()), D = V_->cols;
    const auto add = [&](int64_t from, int64_t to, float* sum0, float* sum1) {
      for (int64_t k = from; k < to; ++k) {
        const int64_t l = labels[k], end = V_->end(l);
        float* plus = side_[l] ? sum1 : sum0;
        float* minus = side_[l] ? sum0 : sum1;
        for (int64_t e = V_->begin(l); e < end; ++e) plus[V_->indices[e]] += V_->data[e];
        if (!from_other) continue;
        for (int64_t e = V_->begin(l); e < end; ++e) minus[V_->indices[e]] -= V_->data[e];
      }
    };
    const int64_t parts = std::clamp<int64_t>(V_->nnz() / V_->rows * n / kScatter, 1, kMaxPartial);
    if (parts == 1) {
      add(0, n, sum_[0].data(), sum_[1].data());
      return;
    }
    partial_.assign(2 * parts * D, 0.f);
    parallel_for(parts, threads_, [&](int64_t part, int) {
      float* sum = partial_.data() + 2 * part * D;
      add(n * part / parts, n * (part + 1) / parts, sum, sum + D);
    });
    for (int64_t part = 0; part < 2 * parts; ++part) {
      const float* sum = partial_.data() + part * D;
      float* out = sum_[part % 2].data();
      for (int64_t j = 0; j < D; ++j) out[j] += sum[j];
    }
  }

  // Side 1 first, else in the old order.
  void partition(int32_t* items, int64_t n, const uint8_t* side) {
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
  }

  const LabelTreeOptions* options_;
  Gram gram_;

  // the current large node
  const CsrView<>* V_ = nullptr;
  int threads_ = 1;
  std::vector<uint8_t> side_;                // per label
  std::vector<float> sum_[2], w_, partial_;  // per feature: S_2 and S_1, w; parts of the sums
  float scale_[2] = {0, 0};                  // 1/|S_2|, 1/|S_1|
  std::vector<int32_t> all_, changed_, second_;
  std::vector<Ranked> ranked_;
};

// The columns of X numbered from the most frequent on: what is used most lies side by side in the caches.
struct Renumbered {
  std::vector<int32_t> indices;   // of X's entries
  std::vector<int32_t> original;  // D: new number -> column
};

Renumbered by_frequency(const CsrView<>& X, int threads) {
  std::vector<int64_t> count(X.cols, 0);
  for (int64_t e = 0; e < X.nnz(); ++e) ++count[X.indices[e]];
  Renumbered result;
  result.original.resize(X.cols);
  for (int64_t j = 0; j < X.cols; ++j) result.original[j] = static_cast<int32_t>(j);
  std::stable_sort(result.original.begin(), result.original.end(),
                   [&](int32_t a, int32_t b) { return count[a] > count[b]; });
  std::vector<int32_t> number(X.cols);
  for (int64_t j = 0; j < X.cols; ++j) number[result.original[j]] = static_cast<int32_t>(j);
  result.indices.resize(X.nnz());
  constexpr int64_t kBlock = 1 << 18;
  parallel_for(chunk_count(X.nnz(), kBlock), threads, [&](int64_t block, int) {
    const int64_t end = std::min(X.nnz(), (block + 1) * kBlock);
    for (int64_t e = block * kBlock; e < end; ++e) result.indices[e] = number[X.indices[e]];
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
                     int threads, const float* row_scale) {
  if (options.max_leaf < 1) throw std::invalid_argument("max_leaf must be at least 1");
  if (positives.cols != X.rows) throw std::invalid_argument("positives must have one column per row of X");
  if (!X.data && X.nnz() > 0) throw std::invalid_argument("X must have values");
  threads = std::max(threads, 1);
  const Renumbered features = by_frequency(X, threads);
  const CsrView<> R{X.rows, X.cols, X.indptr, features.indices.data(), X.data};
  Centroids centroids =
      label_centroids(R, positives, options.max_features, threads, features.original.data(), row_scale);
  const CsrView<> V = centroids.view(X.cols);
  const int64_t n_labels = V.rows;
  LabelTree tree;
  tree.order.resize(n_labels);
  for (int64_t l = 0; l < n_labels; ++l) tree.order[l] = static_cast<int32_t>(l);
  const auto middle =
      std::stable_partition(tree.order.begin(), tree.order.end(), [&](int32_t l) { return V.size(l) > 0; });
  const int64_t clustered = middle - tree.order.begin();

  // Labels with a vector come first: leaving out the empty rows is leaving out their offsets.
  NodeVectors root;
  root.own.assign(clustered, 0.f);
  for (int64_t k = 0; k < clustered; ++k) root.indptr.push_back(V.begin(tree.order[k]));
  root.indptr.push_back(V.nnz());
  root.V = {clustered, V.cols, root.indptr.data(), V.indices, V.data};

  std::vector<Splitter> splitters;
  splitters.reserve(threads);
  for (int t = 0; t < threads; ++t) splitters.emplace_back(options);
  const auto split = [&](OpenNode& node, int thread, int inner, OpenNode* children) {
    const int64_t ones = side_one(node.size, options.max_leaf);
    const auto& side = splitters[thread].split_large(node.rows, ones, seed_of(options.seed, node), inner);
    std::vector<int32_t> rows[2], labels;
    for (int64_t k = 0; k < node.size; ++k) rows[side[k] ? 0 : 1].push_back(static_cast<int32_t>(k));
    for (const auto& own : rows) {
      for (const int32_t k : own) labels.push_back(tree.order[node.first + k]);
    }
    std::copy(labels.begin(), labels.end(), tree.order.begin() + node.first);
    children[0] = {{node.first, ones, node.depth + 1}, {}};
    children[1] = {{node.first + ones, node.size - ones, node.depth + 1}, {}};
    parallel_for(2, inner, [&](int64_t c, int) {
      if (children[c].size > options.max_leaf) children[c].rows = pick_vectors(node.rows, rows[c]);
    });
    node.rows = {};
  };
  const int64_t small = std::max(kGramLabels, options.max_leaf);
  std::vector<OpenNode> level, rest;
  if (clustered > small) {
    level.push_back({{0, clustered, 0}, std::move(root)});
  } else if (clustered > 0) {
    std::vector<int32_t> all(clustered);
    std::iota(all.begin(), all.end(), 0);
    rest.push_back({{0, clustered, 0}, pick_vectors(root, all)});
  }
  while (!level.empty()) {
    std::vector<OpenNode> children(2 * level.size());
    if (level.size() >= kManyNodes) {
      parallel_for(static_cast<int64_t>(level.size()), threads,
                   [&](int64_t i, int thread) { split(level[i], thread, 1, &children[2 * i]); });
    } else {
      for (size_t i = 0; i < level.size(); ++i) {
        check_interrupt();
        split(level[i], 0, threads, &children[2 * i]);
      }
    }
    centroids = {};  // the root's
    level.clear();
    for (OpenNode& node : children) (node.size > small ? level : rest).push_back(std::move(node));
  }
  std::vector<std::vector<int64_t>> leaves(rest.size() + 1);
  parallel_for(static_cast<int64_t>(rest.size()), threads, [&](int64_t i, int thread) {
    OpenNode& node = rest[i];
    if (node.size > options.max_leaf) {
      splitters[thread].split_small(tree.order.data(), node, &seed_of, leaves[i]);
    } else {
      leaves[i].push_back(node.first);
    }
    node.rows = {};
  });
  split_empty({clustered, n_labels - clustered, 0}, options.max_leaf, leaves.back());

  for (const auto& own : leaves) tree.offsets.insert(tree.offsets.end(), own.begin(), own.end());
  std::sort(tree.offsets.begin(), tree.offsets.end());
  tree.offsets.push_back(n_labels);
  tree.cluster.resize(n_labels);
  for (size_t c = 0; c + 1 < tree.offsets.size(); ++c) {
    for (int64_t j = tree.offsets[c]; j < tree.offsets[c + 1]; ++j) {
      tree.cluster[tree.order[j]] = static_cast<int32_t>(c);
    }
  }
  return tree;
}

}  // namespace xmc::cluster
