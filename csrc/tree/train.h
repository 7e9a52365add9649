// Training of one level of a label tree: each parent's children are told apart on the parent's own rows.
//
// For parent p with the rows R_p (those with a label below p, and any further negatives) the squared-hinge
// one-vs-all problem of linear/problem.h is solved for its children, on R_p alone and on the features that occur
// there. A row of R_p that has no label below a child is a negative of it. Blocks of parents are solved in
// threads, each by one; the result does not depend on their number.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/row_options.h"
#include "core/types.h"
#include "tree/level.h"

namespace xmc::tree {

struct NodeProblem {
  CsrView<> X;                 // n x D, as given
  RowOptions options;          // how rows are prepared
  CsrView<> rows;              // parents x n: R_p, ascending
  CsrView<> positives;         // children x n: the rows of each child, ascending, within its parent's rows
  const int64_t* child_start;  // parents + 1
  double C, tol;
  float prune;
  int max_iter;
  uint64_t seed;
};

struct ParentBlock {
  int64_t first, last;  // parents [first, last)
};

// Called once per block, from any thread but never from two at once, in any order, with the block's chunks.
using LevelSink = std::function<void(int64_t block, Level&& solved)>;

void train_level(const NodeProblem& problem, const std::vector<ParentBlock>& blocks, int threads,
                 const LevelSink& sink);

}  // namespace xmc::tree
