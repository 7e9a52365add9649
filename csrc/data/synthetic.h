// Synthetic data that can be learnt, of any size: the stand-in for data sets that cannot be shipped.
//
// Labels: a point draws its labels without repetition from N_r ~ r^-beta over the label ranks r = 1..L.
// Features: each label has `prototype` features of its own (shared by chance with others); every word of a
// point is, with probability `signal`, one of the prototype features of one of its labels, else noise from a
// Zipf distribution over all features. Value = (1 + log count) log(1 + feature rank), rows of length 1
// (sublinear tf times an idf, as in text). Ranks are mapped to ids by the given permutations.
//
// Each row has a random stream of its own (seed, row), so rows do not depend on threads or on n.
#pragma once

#include <cstdint>
#include <vector>

namespace xmc::data {

struct SyntheticOptions {
  int64_t rows = 0;
  int64_t n_features = 0;
  int64_t n_labels = 0;
  double features_per_point = 0;  // words drawn, on average; repeated ones become one entry
  double labels_per_point = 0;    // on average; at least 1
  double beta = 0;
  double signal = 0;
  int64_t prototype = 0;
  uint64_t seed = 0;
};

struct Rows {
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
  std::vector<float> values;  // empty for labels
};

struct Synthetic {
  Rows x;
  Rows y;
};

// feature_ids[rank], label_ids[rank]: permutations of the ids.
Synthetic make_synthetic(const SyntheticOptions& options, const int32_t* feature_ids,
                         const int32_t* label_ids, int threads);

}  // namespace xmc::data
