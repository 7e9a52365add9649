// The k largest gains of a short row (a few hundred candidates), exact.
//
// Gains come in float32 from the kernels (row_kernels.h). A candidate that may be among the k best has a float
// gain of at least lower(bound), bound being some lower bound of the k-th largest gain (RowFilter). Mostly k
// or a few more candidates pass; their gains in double decide. `exact(c)` gives the gain of candidate c in
// double. Ties go to the lower position.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "decide/row_kernels.h"

namespace xmc::decide {

inline constexpr float kNever = -std::numeric_limits<float>::infinity();

// Scratch of one row of at most `widest` candidates.
struct RowScratch {
  explicit RowScratch(int64_t widest = 0)
      : gains(padded_row(widest) + kRowLanes),
        exact(gains.size()),
        best(gains.size()),
        found(gains.size()),
        second(gains.size()) {}
  std::vector<float> gains;         // of the kernels
  std::vector<double> exact, best;  // where all are needed in double; the k largest
  std::vector<int32_t> found, second;
};

// A list of positions and gains, larger first, then in order of arrival: puts a pair at its place among the
// first `size`; what was the last of `room` falls out.
inline void insert_best(int32_t position, double gain, int64_t size, int64_t room, int32_t* at,
                        double* best) {
  int64_t s = std::min(size, room - 1);
  if (size == room && !(gain > best[s])) return;
  for (; s > 0 && gain > best[s - 1]; --s) {
    at[s] = at[s - 1];
    best[s] = best[s - 1];
  }
  at[s] = position;
  best[s] = gain;
}

// The k best of the `count` positions in `found` (ascending), and their gains, larger first.
template <class F>
void insert_all(const int32_t* found, int64_t count, int64_t k, int32_t* at, double* best, F&& exact) {
  for (int64_t f = 0; f < count; ++f) {
    insert_best(found[f], exact(found[f]), std::min(f, k), k, at, best);
  }
}

// The k largest of the m gains in scratch.exact (finite, k <= m): for k > kRowLanes and metrics without float
// gains.
inline void sort_exact(RowScratch& scratch, int64_t m, int64_t k, int32_t* at, double* best) {
  const double* gains = scratch.exact.data();
  int32_t* found = scratch.found.data();
  std::iota(found, found + m, 0);
  std::partial_sort(found, found + k, found + m, [gains](int32_t x, int32_t y) {
    return gains[x] != gains[y] ? gains[x] > gains[y] : x < y;
  });
  for (int64_t s = 0; s < k; ++s) {
    at[s] = found[s];
    best[s] = gains[at[s]];
  }
}
template <class F>
void sort_exact(RowScratch& scratch, int64_t m, int64_t k, int32_t* at, double* best, F&& exact) {
  for (int64_t c = 0; c < m; ++c) scratch.exact[c] = exact(static_cast<int32_t>(c));
  sort_exact(scratch, m, k, at, best);
}

// A lower bound of the k-th largest of m float gains, k <= kRowLanes.
inline float kth_bound(const float* gains, int64_t m, int64_t k) {
  return k == 1 ? row_kernels().largest(gains, m) : row_kernels().kth_bound(gains, m, k);
}

// Of the `count` candidates in scratch.found, with their gains beside them in scratch.gains, only those with
// gains of at least `bound` stay. Returns how many.
inline int64_t keep_at_least(RowScratch& scratch, int64_t count, float bound) {
  float* gains = scratch.gains.data();
  int32_t *found = scratch.found.data(), *second = scratch.second.data();
  const int64_t kept = row_kernels().at_least(gains, count, bound, second);
  for (int64_t f = 0; f < kept; ++f) {
    found[f] = found[second[f]];
    gains[f] = gains[second[f]];
  }
  std::fill(gains + kept, gains + padded_row(kept), kNever);
  return kept;
}

// The k best (k <= kRowLanes) of the `count` candidates in scratch.found, as a set in any order; their float
// gains are beside them in scratch.gains, padded.
template <class F>
void pick_set(RowScratch& scratch, const RowFilter& filter, int64_t count, int64_t k, int32_t* at,
              F&& exact) {
  // Fewer candidates give a higher bound, which leaves fewer: two rounds at most, unless gains are equal.
  for (int64_t before = count + 1; count > k && count < before;) {
    before = count;
    const float bound = kth_bound(scratch.gains.data(), count, k);
    count = keep_at_least(scratch, count, filter.lower(filter.lower(bound)));
  }
  if (count == k) {
    std::copy_n(scratch.found.data(), k, at);
    return;
  }
  double best[kRowLanes];
  insert_all(scratch.found.data(), count, k, at, best, exact);
}

// The k best of the m candidates whose float gains are in scratch.gains: positions and gains, larger first.
template <class F>
void pick_largest(RowScratch& scratch, const RowFilter& filter, int64_t m, int64_t k, int32_t* at,
                  double* best, F&& exact) {
  if (k > kRowLanes) return sort_exact(scratch, m, k, at, best, exact);
  const float* gains = scratch.gains.data();
  const float bound = filter.lower(kth_bound(gains, m, k));
  const int64_t count = row_kernels().at_least(gains, m, bound, scratch.found.data());
  insert_all(scratch.found.data(), count, k, at, best, exact);
}

}  // namespace xmc::decide
