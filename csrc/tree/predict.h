// Beam search in a label tree.
//
// A node's score is kept as a logarithm: that of its parent times `decay`, less the loss of its own classifier,
//   log p(node) = decay * log p(parent) - max(0, 1 - s)^power,  s the classifier's score.
// With decay 1 it is the product of exp(-max(0, 1 - s)^power) along the path. At each level but the last the `beam`
// best nodes of a row stay, those with a score more than `slack` below the best one excepted; of the last level the k
// best are the answer (higher score first, then lower id). All nodes of the first level are looked at.
//
// The values of a row are rounded to integers, with 2^23 steps for the sum of their absolute values, so that sums of
// products with weights of 8 bits are exact in 32 bits: a score has about the error of a sum of floats.
//
// Rows are taken in batches; the (parent, row) pairs of a level are sorted by parent, so that a chunk is read
// once per batch.
#pragma once

#include <cstdint>
#include <vector>

#include "core/row_options.h"
#include "core/types.h"
#include "tree/level.h"

namespace xmc::tree {

struct BeamOptions {
  int64_t beam, k;
  int power;
  float decay;      // in (0, 1]
  float slack;      // at least 0, may be infinite
  RowOptions rows;  // the bias is in LevelView::bias already
};

// ids, scores: X.rows x min(k, nodes found), row-major, -1 where there are fewer;
// ids are nodes of the last level. Scores are logarithms.
void beam_search(const CsrView<>& X, const std::vector<LevelView>& levels, const BeamOptions& options,
                 int threads, int32_t* ids, float* scores);

}  // namespace xmc::tree
