// Dense weighted top-k on CUDA: what weighted_topk.h's dense_weighted_topk does, as a C ABI over device
// pointers; labels come back as int64. Higher gain first, then lower label, NaN last: the result is exact and
// does not depend on how the labels are cut.
//
// A gain and its label are one 64-bit key, ordered like the result, so that all keys differ. A thread block
// walks a segment of a row in tiles, keeping the kTopkKept largest keys in shared memory; a tile without any
// key above the least of them costs its loads and one barrier. eta is read once per kTopkKept labels of
// k and never copied. Segments of a row (there to fill the device when rows are few) are merged by a second
// launch.
#pragma once

#include <cstdint>

namespace xmc::decide {

inline constexpr int kTopkKept = 512;  // labels found by one pass over eta

struct CudaTopk {
  const float* eta;  // rows x labels, row-major with the stride
  const float* a;    // labels, or null: 1
  const float* b;    // labels, or null: 0
  int64_t rows, labels, stride;
  int64_t k;        // at most labels
  int64_t segment;  // labels of one thread block, at least 1; at most 65,535 segments
  uint64_t* keys;   // scratch: rows x k
  uint64_t* parts;  // scratch: rows x segments x min(k, kTopkKept); unused with one segment
  float* gains;     // rows x k
  int64_t* ids;     // rows x k
};

}  // namespace xmc::decide
