// The label vectors of one node, on its own features: those that at least two of its labels have, numbered in
// the order of the parent's. A feature that one label alone has adds to products of that label with itself
// only; `own` keeps the sum of their squares. Deeper nodes so get shorter vectors, smaller sums and rows that
// lie side by side.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/types.h"

namespace xmc::cluster {

struct NodeVectors {
  CsrView<> V;                 // n x features, into the arrays below (the root: into Centroids)
  std::vector<float> own;      // n
  std::vector<int32_t> count;  // features: how many rows have it (not at the root)

  std::vector<int64_t> indptr;
  std::unique_ptr<int32_t[]> indices;
  std::unique_ptr<float[]> values;
};

// The rows `chosen` of `from`.
NodeVectors pick_vectors(const NodeVectors& from, const std::vector<int32_t>& chosen);

}  // namespace xmc::cluster
