// Training of one level of a label tree: each parent's children are told apart on the parent's own rows.
//
// For parent p with the rows R_p (those with a label below p, and any further negatives) the squared-hinge
// one-vs-all problem of linear/problem.h is solved for its children, on R_p alone and on the features that occur
// there. A row of R_p that has no label below a child is a negative of it. Parents are solved in threads, each
// by one; the result does not depend on their number.
#pragma once

#include <cstdint>

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

Level train_level(const NodeProblem& problem, int threads);

}  // namespace xmc::tree
