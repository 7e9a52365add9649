// The rows whose score w.x may exceed a level, a superset of those that do, from the postings of the features
// with w > 0 alone: negative weights only lower a score.
//
//   w.x <= sum over listed features (rounded up) + |w on bounded frequent features| |x there|
//          + |other small weights| |x|
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "linear/postings.h"
#include "linear/tail_kernels.h"
#include "linear/tail_tuning.h"

namespace xmc::linear {

class RowSearch {
 public:
  RowSearch(const Postings& postings, int64_t n) : postings_(postings), n_(n), sums_(kRowBlock), rows_(n) {}

  // All rows with w.x > level and perhaps others, ascending. `features`: where w may be above 0. With a
  // stride only every stride-th block of rows is searched.
  Span<const int32_t> above(const float* w, const std::vector<int32_t>& features, float level,
                            int64_t stride) {
    double positive2 = 0;
    listed_.clear();
    bounded_.clear();
    for (const int32_t j : features) {
      if (!(w[j] > 0)) continue;
      positive2 += static_cast<double>(w[j]) * w[j];
      (j < postings_.frequent ? bounded_ : listed_).push_back(j);
    }
    const double small2 = drop_small(w, level);
    const double bounded2 = bound_frequent(w, level);
    // a sum of k products in float is off by less than (k + 1) 2^-24 of the sum of their sizes
    const double rounding = (postings_.most_entries + 8) * 0x1p-23 * std::sqrt(positive2) * postings_.longest;
    const double least = level - std::sqrt(small2) * postings_.longest - rounding;
    return collect(w, static_cast<float>(kUp * std::sqrt(bounded2)), static_cast<float>(least), stride);
  }

  // Some of them: what the rarer features tell.
  Span<const int32_t> glance(const float* w, const std::vector<int32_t>& features, float level) {
    listed_.clear();
    for (const int32_t j : features) {
      if (w[j] > 0 && postings_.size(j) * kRareShare <= n_) listed_.push_back(j);
    }
    return collect(w, 0.f, level, 1);
  }

 private:
  static constexpr double kUp = 1.0001;

  struct List {
    const uint32_t *next, *end;
    float unit;
  };

  // Rows by the sums of the listed features and `factor` times the length of the frequent part.
  Span<const int32_t> collect(const float* w, float factor, float level, int64_t stride) {
    lists_.clear();
    for (const int32_t j : listed_) {
      const uint32_t* entries = postings_.entries.data();
      lists_.push_back(
          {entries + postings_.begin[j], entries + postings_.begin[j + 1], w[j] * postings_.unit});
    }
    int64_t count = 0;
    for (int64_t first = 0; first < n_; first += kRowBlock * stride) {
      const int64_t end = std::min(n_, first + kRowBlock);
      float* sums = sums_.data() - first;
      for (List& list : lists_) {
        const uint32_t limit = static_cast<uint32_t>(end << Postings::kLevelBits) - 1;
        const uint32_t* p = list.next;
        if (stride > 1)
          p = std::lower_bound(p, list.end, static_cast<uint32_t>(first << Postings::kLevelBits));
        for (; p != list.end && *p <= limit; ++p) {
          sums[*p >> Postings::kLevelBits] += list.unit * static_cast<float>(static_cast<int32_t>(*p & 255u));
        }
        list.next = p;
      }
      count += tail_kernels().scan(sums_.data(), postings_.frequent_norm.data() + first, end - first, factor,
                                   level, static_cast<int32_t>(first), rows_.data() + count);
    }
    return {rows_.data(), count};
  }

  // Takes features off the list whose weights together are kSmall of the level; returns their squares.
  double drop_small(const float* w, float level) {
    const double least =
        kSmall * level / (std::sqrt(static_cast<double>(listed_.size() + 1)) * postings_.longest);
    double squares = 0;
    std::erase_if(listed_, [&](int32_t j) {
      if (w[j] > least) return false;
      squares += static_cast<double>(w[j]) * w[j];
      return true;
    });
    return squares;
  }

  // Moves frequent features to the list until the others' weights are kMostBounded of the level; returns
  // their squares.
  double bound_frequent(const float* w, float level) {
    double squares = 0;
    const auto gain = [&](int32_t j) {
      return static_cast<double>(w[j]) * w[j] / static_cast<double>(postings_.size(j));
    };
    std::sort(bounded_.begin(), bounded_.end(), [&](int32_t a, int32_t b) { return gain(a) < gain(b); });
    for (const int32_t j : bounded_) squares += static_cast<double>(w[j]) * w[j];
    const double most = static_cast<double>(kMostBounded) * level;
    while (!bounded_.empty() && squares > most * most) {
      const int32_t j = bounded_.back();
      bounded_.pop_back();
      listed_.push_back(j);
      squares -= static_cast<double>(w[j]) * w[j];
    }
    return std::max(squares, 0.0);
  }

  const Postings& postings_;
  int64_t n_;
  Buffer<float> sums_;  // of a block of rows, zeros between searches
  Buffer<int32_t> rows_;
  std::vector<int32_t> listed_, bounded_;
  std::vector<List> lists_;
};

}  // namespace xmc::linear
