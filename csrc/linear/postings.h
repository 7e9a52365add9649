// X by features, for finding the rows whose score may exceed a level without visiting all rows.
//
// Values are not negative, and a posting rounds them up to a byte. A row's part on the most frequent features
// is only bounded, by Cauchy-Schwarz: their lists are long, and their values small.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/numa.h"
#include "linear/prepare.h"

namespace xmc::linear {

struct Postings {
  static constexpr int kLevelBits = 8;
  static constexpr int64_t kMaxRows = int64_t{1} << (32 - kLevelBits);

  std::vector<int64_t> begin;  // width + 1; empty: rows cannot be searched, or that would not pay
  Buffer<uint32_t> entries;    // row << kLevelBits | level: x <= level * unit
  float unit = 0;
  int32_t frequent = 0;         // features [0, frequent) are the most frequent ones
  Buffer<float> frequent_norm;  // n: the length of a row's part on them, rounded up
  float longest = 0;            // max |x_i|, without the bias, rounded up
  int32_t most_entries = 0;     // of a row

  int64_t size(int64_t j) const { return begin[j + 1] - begin[j]; }
};

// Only of many short sparse rows with a bias above 0 (tail_tuning.h).
Postings make_postings(const PreparedFeatures& X);
std::vector<MemoryRange> memory_of(const Postings& postings);  // for NumaReplicas

}  // namespace xmc::linear
