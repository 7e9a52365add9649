// One level of a label tree: for every parent node the linear classifiers of its children, stored together.
//
// The children of parent p are the nodes [child_start[p], child_start[p+1]) of this level, at most 256. Their
// weights form a chunk: the features that any of them uses, by bucket, and for each feature the children with a
// weight, one byte for the child and one for the weight:
//
//   bucket[B + 1]     B = 2^b. Feature j is in bucket j mod B; a bucket holds where its features and entries
//                     begin, relative to the chunk. The last one is the end.
//   tag[], count[]    per feature: j / B, and its number of entries - 1
//   child[], weight[] per entry: w = scale[child] * weight
//
// A query looks up each of its features with one access to `bucket` and a scan of about kLoad tags. All arrays
// are flat and may be mapped from a file.
#pragma once

#include <cstdint>
#include <vector>

namespace xmc::tree {

inline constexpr int64_t kMaxChildren = 256;

struct Bucket {
  uint32_t feature, entry;
};

struct LevelView {
  int64_t parents = 0, buckets = 0, features = 0, entries = 0, nodes = 0;  // lengths of the arrays
  const int64_t* child_start = nullptr;                                    // parents + 1
  const int64_t* bucket_start = nullptr;                                   // parents + 1
  const int64_t* feature_start = nullptr;                                  // parents + 1
  const int64_t* entry_start = nullptr;                                    // parents + 1
  const Bucket* bucket = nullptr;
  const uint16_t* tag = nullptr;
  const uint8_t* count = nullptr;
  const uint8_t* child = nullptr;
  const int8_t* weight = nullptr;
  const float* scale = nullptr;  // per child
  const float* bias = nullptr;   // per child: weight of the bias times its value

  int64_t children() const { return child_start[parents]; }
};

// The arrays of a level, or of some of its chunks.
struct Level {
  std::vector<int64_t> bucket_start{0}, feature_start{0}, entry_start{0};
  std::vector<Bucket> bucket;
  std::vector<uint16_t> tag;
  std::vector<uint8_t> count, child;
  std::vector<int8_t> weight;
  std::vector<float> scale, bias;

  // Appends the chunk of one parent. Weights of the children: CSR on local columns, `column` (ascending) tells
  // their features. The bias is given apart.
  void add(const std::vector<int64_t>& indptr, const std::vector<int32_t>& indices,
           const std::vector<float>& values, const std::vector<int32_t>& column, int64_t features,
           const std::vector<float>& biases);
};

// Throws std::invalid_argument unless every index in the arrays is in range: a level that passes can be searched
// with any row of `features` columns without reading outside of it.
void check(const LevelView& level, int64_t features);

}  // namespace xmc::tree
