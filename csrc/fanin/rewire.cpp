#include <cstring>
#include <numeric>
#include <string>

#include "core/rng.h"
#include "fanin/block.h"

namespace xmc::fanin {
namespace {

// A set of features with O(1) insert, lookup and clear.
class Marks {
 public:
  explicit Marks(int64_t features) : mark_(features, 0) {}
  void clear() { ++now_; }
  bool insert(int64_t d) {  // false if it was there
    uint32_t& m = mark_[d];
    if (m == now_) return false;
    m = now_;
    return true;
  }

 private:
  std::vector<uint32_t> mark_;
  uint32_t now_ = 0;
};

template <class Index>
void rewire_list(const Layer& layer, int64_t group, Index* list, Tensor weights, const Rewire& how,
                 uint8_t* changed, Marks& marks, std::vector<int32_t>& order) {
  const int64_t s = layer.fan_in;
  const float* strength = how.strength + group * s;
  order.resize(s);
  std::iota(order.begin(), order.end(), 0);
  // weakest first; NaN counts as weakest, ties by position
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float sa = strength[a] != strength[a] ? -1.f : strength[a];
    const float sb = strength[b] != strength[b] ? -1.f : strength[b];
    return sa != sb ? sa < sb : a < b;
  });
  int64_t pruned = std::min(how.count, s);
  while (pruned < s && strength[order[pruned]] <= how.threshold) ++pruned;

  marks.clear();
  for (int64_t i = 0; i < s; ++i) {
    const auto d = static_cast<int64_t>(list[i]);
    if (d < 0 || d >= layer.features)
      throw std::invalid_argument("indices must be below the number of features");
    marks.insert(d);  // a pruned feature is not drawn again either
  }
  pruned = std::min(pruned, layer.features - s);  // only so many other features exist
  Rng rng(how.seed ^ mix64(static_cast<uint64_t>(group)));
  int64_t next = 0;
  for (int64_t p = 0; p < pruned; ++p) {
    const int32_t i = order[p];
    int64_t d = -1;
    while (d < 0 && next < how.n_candidates) {
      const int64_t wanted = how.candidates[group * how.n_candidates + next++];
      if (wanted >= 0 && wanted < layer.features && marks.insert(wanted)) d = wanted;
    }
    while (d < 0) {
      const auto drawn = static_cast<int64_t>(rng.below(static_cast<uint32_t>(layer.features)));
      if (marks.insert(drawn)) d = drawn;
    }
    list[i] = static_cast<Index>(d);
    changed[group * s + i] = 1;
    const int64_t first = group * layer.group, end = std::min(layer.labels, first + layer.group);
    for (int64_t l = first; l < end; ++l) {
      std::memset(at(weights, l * s + i), 0, size_of(weights.type));
    }
  }
}

template <class Index>
void random_list(int64_t features, int64_t fan_in, uint64_t seed, Index* list, Marks& marks) {
  Rng rng(seed);
  marks.clear();
  // Floyd's sampling: fan_in draws, each different
  int64_t n = 0;
  for (int64_t j = features - fan_in; j < features; ++j) {
    const auto drawn = static_cast<int64_t>(rng.below(static_cast<uint32_t>(j + 1)));
    const int64_t taken = marks.insert(drawn) ? drawn : j;
    if (taken == j) marks.insert(j);
    list[n++] = static_cast<Index>(taken);
  }
  std::sort(list, list + fan_in);
}

constexpr int64_t kListsPerBlock = 256;

}  // namespace

void rewire(const Layer& layer, void* indices, Tensor weights, const Rewire& how, uint8_t* changed,
            int threads) {
  check(layer, 0);
  const int64_t groups = layer.groups(), s = layer.fan_in;
  std::memset(changed, 0, groups * s);
  PerThread<std::pair<Marks, std::vector<int32_t>>> scratch(
      threads, [&] { return std::pair(Marks(layer.features), std::vector<int32_t>()); });
  parallel_for(chunk_count(groups, kListsPerBlock), threads, [&](int64_t block, int thread) {
    auto& [marks, order] = scratch[thread];
    for (int64_t g = block * kListsPerBlock; g < std::min(groups, (block + 1) * kListsPerBlock); ++g) {
      if (layer.index_bits == 16) {
        rewire_list(layer, g, static_cast<uint16_t*>(indices) + g * s, weights, how, changed, marks, order);
      } else {
        rewire_list(layer, g, static_cast<int32_t*>(indices) + g * s, weights, how, changed, marks, order);
      }
    }
  });
}

void random_indices(int64_t groups, int64_t features, int64_t fan_in, int index_bits, uint64_t seed,
                    void* indices, int threads) {
  Layer layer;
  layer.labels = groups;
  layer.features = features;
  layer.fan_in = fan_in;
  layer.index_bits = index_bits;
  check(layer, 0);
  PerThread<Marks> scratch(threads, [&] { return Marks(features); });
  parallel_for(chunk_count(groups, kListsPerBlock), threads, [&](int64_t block, int thread) {
    for (int64_t g = block * kListsPerBlock; g < std::min(groups, (block + 1) * kListsPerBlock); ++g) {
      const uint64_t own = seed ^ mix64(static_cast<uint64_t>(g));
      if (index_bits == 16) {
        random_list(features, fan_in, own, static_cast<uint16_t*>(indices) + g * fan_in, scratch[thread]);
      } else {
        random_list(features, fan_in, own, static_cast<int32_t*>(indices) + g * fan_in, scratch[thread]);
      }
    }
  });
}

}  // namespace xmc::fanin
