#include "tree/level.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace xmc::tree {
namespace {

constexpr int64_t kLoad = 4;  // features of a bucket

// The number of buckets: about kLoad features each, and tags of 16 bits.
int64_t buckets_for(int64_t used, int64_t features) {
  auto n = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(used / kLoad, 1))));
  while ((features - 1) / n >= int64_t{1} << 16) n *= 2;
  return n;
}

void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(std::string("damaged label tree: ") + what);
}

void check_starts(const int64_t* start, int64_t parents, int64_t end, const char* what) {
  require(start[0] == 0 && start[parents] == end, what);
  for (int64_t p = 0; p < parents; ++p) require(start[p] <= start[p + 1], what);
}

}  // namespace

void check(const LevelView& level, int64_t features) {
  check_starts(level.child_start, level.parents, level.nodes, "child_start");
  check_starts(level.bucket_start, level.parents, level.buckets, "bucket_start");
  check_starts(level.feature_start, level.parents, level.features, "feature_start");
  check_starts(level.entry_start, level.parents, level.entries, "entry_start");
  for (int64_t p = 0; p < level.parents; ++p) {
    const int64_t children = level.child_start[p + 1] - level.child_start[p];
    const int64_t buckets = level.bucket_start[p + 1] - level.bucket_start[p] - 1;
    const int64_t used = level.feature_start[p + 1] - level.feature_start[p];
    const int64_t entries = level.entry_start[p + 1] - level.entry_start[p];
    require(children <= kMaxChildren, "child_start");
    require(buckets > 0 && std::has_single_bit(static_cast<uint64_t>(buckets)), "bucket_start");
    require((features - 1) / buckets < int64_t{1} << 16, "bucket_start");
    const Bucket* bucket = level.bucket + level.bucket_start[p];
    const uint8_t* count = level.count + level.feature_start[p];
    require(bucket[0].feature == 0 && bucket[0].entry == 0 && bucket[buckets].feature == used &&
                bucket[buckets].entry == entries,
            "bucket");
    for (int64_t b = 0; b < buckets; ++b) {
      require(bucket[b].feature <= bucket[b + 1].feature && bucket[b + 1].feature <= used, "bucket");
      int64_t size = bucket[b].entry;
      for (uint32_t f = bucket[b].feature; f < bucket[b + 1].feature; ++f) size += count[f] + 1;
      require(size == bucket[b + 1].entry, "count");
    }
    const uint8_t* child = level.child + level.entry_start[p];
    for (int64_t t = 0; t < entries; ++t) require(child[t] < children, "child");
  }
}

void Level::add(const std::vector<int64_t>& indptr, const std::vector<int32_t>& indices,
                const std::vector<float>& values, const std::vector<int32_t>& column, int64_t features,
                const std::vector<float>& biases) {
  const auto children = static_cast<int64_t>(biases.size());
  if (children > kMaxChildren) throw std::invalid_argument("a node has more than 256 children");
  std::vector<uint32_t> size(column.size());
  for (const int32_t j : indices) ++size[static_cast<size_t>(j)];
  std::vector<int32_t> used;
  for (size_t j = 0; j < size.size(); ++j) {
    if (size[j]) used.push_back(static_cast<int32_t>(j));
  }
  const int64_t buckets = buckets_for(static_cast<int64_t>(used.size()), features);
  const auto mask = static_cast<uint32_t>(buckets - 1);
  const int shift = std::countr_zero(static_cast<uint64_t>(buckets));
  const auto bucket_of = [&](int32_t j) {
    return static_cast<uint32_t>(column[static_cast<size_t>(j)]) & mask;
  };
  std::stable_sort(used.begin(), used.end(),
                   [&](int32_t a, int32_t b) { return bucket_of(a) < bucket_of(b); });

  std::vector<uint32_t> place(column.size());  // where the entries of a column go
  uint32_t entries = 0;
  int64_t next = 0;
  for (size_t f = 0; f < used.size(); ++f) {
    const int32_t j = used[f];
    for (; next <= bucket_of(j); ++next) bucket.push_back({static_cast<uint32_t>(f), entries});
    tag.push_back(static_cast<uint16_t>(static_cast<uint32_t>(column[static_cast<size_t>(j)]) >> shift));
    count.push_back(static_cast<uint8_t>(size[static_cast<size_t>(j)] - 1));
    place[static_cast<size_t>(j)] = entries;
    entries += size[static_cast<size_t>(j)];
  }
  for (; next <= buckets; ++next) bucket.push_back({static_cast<uint32_t>(used.size()), entries});

  const size_t base = child.size();
  child.resize(base + entries);
  weight.resize(base + entries);
  for (int64_t c = 0; c < children; ++c) {
    const auto from = static_cast<size_t>(indptr[static_cast<size_t>(c)]);
    const auto to = static_cast<size_t>(indptr[static_cast<size_t>(c) + 1]);
    float most = 0;
    for (size_t t = from; t < to; ++t) most = std::max(most, std::abs(values[t]));
    const float step = most / 127;
    for (size_t t = from; t < to; ++t) {
      const size_t at = base + place[static_cast<size_t>(indices[t])]++;
      child[at] = static_cast<uint8_t>(c);
      weight[at] = static_cast<int8_t>(std::lround(values[t] / step));
    }
    scale.push_back(step);
    bias.push_back(biases[static_cast<size_t>(c)]);
  }
  bucket_start.push_back(static_cast<int64_t>(bucket.size()));
  feature_start.push_back(static_cast<int64_t>(tag.size()));
  entry_start.push_back(static_cast<int64_t>(child.size()));
}

}  // namespace xmc::tree
