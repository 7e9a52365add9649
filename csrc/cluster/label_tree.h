// Balanced label tree: labels with similar positives end up side by side. Used by the linear solver's label
// blocks, LightXML's clusters and the shared fan-in groups (spec: label clusters; Parabel's balanced
// spherical 2-means).
//
// Label vectors v_l as in cluster/centroids.h. A node with more than `max_leaf` labels is cut in two halves:
//   start    w = v_p - v_q for two random labels p, q of the node
//   repeat   d_l = v_l . w;  side 1 = the labels with the largest d (ties: lower id), a fixed number of them
//            S_k = sum of v_l over side k;  w = S_1/|S_1| - S_2/|S_2|
//   until the sides do not change, the objective |S_1| + |S_2| (the summed cosine of the labels to their
//   centre) grows by less than `tolerance` of itself, or `max_iterations` is reached.
// A node has its vectors on features of its own (cluster/node_vectors.h); the root's are read where they are, so that
// the peak is two copies of all vectors. Nodes of at most kGramLabels labels, and their whole subtrees, are
// done on their cosines (cluster/gram.h).
// Larger ones start from the w that a random sample of 64 of their labels ends with, and take at most 6
// rounds more. Leaves have at most max_leaf labels and more than max_leaf/2; exactly max_leaf/2 only where
// arithmetic leaves no choice (max_leaf + 1 labels with max_leaf even, or max_leaf = 2). Labels with a zero
// vector are not clustered: they follow after the others, ascending, in leaves of their own (of the same
// sizes, but for a remainder of max_leaf/2 labels or fewer).
//
// The result depends on the seed and the SIMD level (rounding) only, not on the threads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace xmc::cluster {

struct LabelTreeOptions {
  int64_t max_leaf;
  int64_t max_features;  // the largest entries of a label vector that count; 0: all
  int max_iterations;
  double tolerance;
  uint64_t seed;
};

struct LabelTree {
  std::vector<int32_t>
      order;  // L: a permutation; cluster c holds order[offsets[c] .. offsets[c+1]), ascending
  std::vector<int32_t> cluster;  // L: the cluster of each label
  std::vector<int64_t> offsets;  // K + 1
};

// X: n x D, rows times row_scale (n, null: 1); positives: L x n, binary. Throws std::invalid_argument if
// max_leaf < 1 or the shapes differ.
LabelTree label_tree(const CsrView<>& X, const CsrView<>& positives, const LabelTreeOptions& options,
                     int threads, const float* row_scale = nullptr);

}  // namespace xmc::cluster
