// The cosines of up to kGramLabels labels with each other, and balanced 2-means that needs nothing else.
//
// G = V V^T, V the label vectors (cluster/centroids.h). With s the 0/1 vector of side 1, p = G s and t = G 1:
//
//   v_l . S_1 = p_l,  v_l . S_2 = t_l - p_l,  |S_1|^2 = s . p,  |S_2|^2 = (1 - s) . (t - p)
//
// so that a round costs n times the labels that changed sides, and the children of a node read the same G.
//
// G is built from features by how many of the labels have them: those of more than a sixth as a dense
// product, the rest by walking the labels that share a feature.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/node_vectors.h"
#include "core/buffer.h"
#include "core/simd.h"

namespace xmc::cluster {

inline constexpr int64_t kGramLabels = 512;

struct GramKernels {
  // G[i][j] = sum_h A[h][i] A[h][j] for j <= i (more may be written), i, j < n; A is k x ld with zeros from n
  // on, G is ld x ld, ld a multiple of 64.
  void (*syrk)(const float* A, int64_t k, int64_t ld, int64_t n, float* G);
};
XMC_SIMD_TABLE(GramKernels, gram_kernels)

class Gram {
 public:
  void load(const NodeVectors& labels);  // at most kGramLabels of them
  const float* row(int64_t i) const { return G_.data() + i * ld_; }

 private:
  int64_t ld_ = 0;
  Buffer<float> G_, dense_;
  std::vector<int64_t> post_begin_, post_end_;  // per feature
  std::vector<int32_t> post_label_;
  std::vector<float> post_value_;
};

struct TwoMeansOptions {
  int max_iterations;
  double tolerance;
  uint64_t seed;
};

// side[k] = 1 for the `ones` of the members[0 .. n) (rows of G) that form side 1; see label_tree.h.
// Returns |S_1| and |S_2|.
struct TwoNorms {
  double one, two;
};
TwoNorms two_means(const Gram& G, const int32_t* members, int64_t n, int64_t ones,
                   const TwoMeansOptions& options, uint8_t* side);

struct Ranked {
  float d;
  int32_t index;
};
// Sets side to 1 for the `ones` largest d (ties: lower index); `changed` gets the indices that changed,
// ascending.
void assign_sides(std::vector<Ranked>& ranked, int64_t ones, uint8_t* side, std::vector<int32_t>& changed);

}  // namespace xmc::cluster
