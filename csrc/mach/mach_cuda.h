// MACH on CUDA, as a C ABI over device pointers: the hash table of mach/hash.h and the aggregated scores of
// mach/aggregate.h, to the bit. The k best of a slice of labels come from decide/weighted_topk_cuda.h's
// kernel, slices are merged by the adapter (python/xmc_fast/nn/_mach.py): memory is rows x slice, never rows x
// labels.
#pragma once

#include <cstdint>

namespace xmc::mach {

struct CudaMach {
  const float* p;         // repeats x rows x buckets
  const uint16_t* table;  // repeats x labels
  int64_t repeats, rows, buckets, labels;
  int64_t first, count;  // the slice of labels
  int aggregate;         // 0 mean, 1 min, 2 median
  float* scores;         // rows x count
};

}  // namespace xmc::mach
