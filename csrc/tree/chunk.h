// A chunk of a level (level.h) as a row of a query meets it, and fetching one ahead of its use.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/prefetch.h"
#include "core/types.h"
#include "tree/level.h"

namespace xmc::tree {

// An entry of a row, its value as an integer number of steps (predict.cpp).
struct Item {
  uint32_t feature;
  int32_t x;
};

// The entries of one of a row's features in a chunk.
struct Found {
  uint32_t entry, size;
  int32_t x;
};

class Chunk {
 public:
  Chunk(const LevelView& level, int64_t p)
      : first_(level.child_start[p]),
        children_(level.child_start[p + 1] - first_),
        bucket_(level.bucket + level.bucket_start[p]),
        mask_(static_cast<uint32_t>(level.bucket_start[p + 1] - level.bucket_start[p] - 2)),
        shift_(std::popcount(mask_)),
        tag_(level.tag + level.feature_start[p]),
        count_(level.count + level.feature_start[p]),
        child_(level.child + level.entry_start[p]),
        weight_(level.weight + level.entry_start[p]),
        scale_(level.scale + first_),
        bias_(level.bias + first_) {}

  int64_t first() const { return first_; }
  int64_t children() const { return children_; }

  // Asks for the buckets of a row's features.
  void prefetch_buckets(Span<const Item> row) const {
    for (const Item& item : row) prefetch(bucket_ + (item.feature & mask_));
  }

  // Sums of products of a row's values with the children's weights, both integers. `found` has room for the row's
  // features, `sum` for the children.
  void sums(Span<const Item> row, Found* found, int32_t* sum) const {
    const Found* const end = find(row, found);
    std::fill_n(sum, children_, 0);
    for (const Found* f = found; f < end; ++f) {
      for (uint32_t t = f->entry; t < f->entry + f->size; ++t) sum[child_[t]] += f->x * weight_[t];
    }
  }

  // What max(0, 1 - s)^power leaves of `above`, s the score of each child: its sum in steps of `unit`.
  template <int power>
  void values(const int32_t* sum, float unit, float above, float* value) const {
    for (int64_t c = 0; c < children_; ++c) {
      const float missing = std::max(0.f, 1 - (static_cast<float>(sum[c]) * (scale_[c] * unit) + bias_[c]));
      value[c] = above - (power == 2   ? missing * missing
                          : power == 3 ? missing * missing * missing
                                       : missing);
    }
  }

 private:
  int64_t first_, children_;
  const Bucket* bucket_;
  uint32_t mask_;
  int shift_;
  const uint16_t* tag_;
  const uint8_t* count_;
  const uint8_t* child_;
  const int8_t* weight_;
  const float* scale_;
  const float* bias_;

  // Which of the row's features have entries; returns the end of `found`.
  Found* find(Span<const Item> row, Found* found) const {
    for (const Item& item : row) {
      const uint32_t wanted = item.feature >> shift_;
      const Bucket from = bucket_[item.feature & mask_];
      const uint32_t end = bucket_[(item.feature & mask_) + 1].feature;
      uint32_t entry = from.entry;
      for (uint32_t f = from.feature; f < end; ++f) {
        const uint32_t size = count_[f] + 1u;
        if (tag_[f] == wanted) {
          prefetch(child_ + entry);
          prefetch(weight_ + entry);
          *found++ = {entry, size, item.x};
          break;
        }
        entry += size;
      }
    }
    return found;
  }
};

// The lines of a chunk, fetched part by part while another chunk is at work: read in order from memory they cost
// bandwidth, where a miss at a time costs latency.
class ChunkLines {
 public:
  ChunkLines() = default;
  ChunkLines(const LevelView& level, int64_t p) {
    const auto part = [&](size_t i, const auto* array, const int64_t* start) {
      array_[i] = reinterpret_cast<const char*>(array + start[p]);
      bytes_[i] = (start[p + 1] - start[p]) * static_cast<int64_t>(sizeof *array);
    };
    part(0, level.bucket, level.bucket_start);
    part(1, level.tag, level.feature_start);
    part(2, level.count, level.feature_start);
    part(3, level.child, level.entry_start);
    part(4, level.weight, level.entry_start);
    part(5, level.scale, level.child_start);
    part(6, level.bias, level.child_start);
  }

  int64_t size() const {
    int64_t lines = 0;
    for (const int64_t bytes : bytes_) lines += bytes / kLine + 1;
    return lines;
  }

  // Asks for the next so many lines.
  void fetch(int64_t lines) {
    while (part_ < kParts) {
      for (; at_ < bytes_[part_]; at_ += kLine) {
        if (lines-- <= 0) return;
        prefetch(array_[part_] + at_);
      }
      ++part_;
      at_ = 0;
    }
  }

 private:
  static constexpr size_t kParts = 7;
  static constexpr int64_t kLine = 64;
  std::array<const char*, kParts> array_{};
  std::array<int64_t, kParts> bytes_{};
  size_t part_ = 0;
  int64_t at_ = 0;
};

}  // namespace xmc::tree
