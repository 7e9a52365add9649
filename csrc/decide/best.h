// The k largest gains of a short row (a few hundred candidates), exact: the kernels' float gains say which
// candidates can be among them, their gains in double decide.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "decide/row_kernels.h"

namespace xmc {

inline constexpr float kNever = -std::numeric_limits<float>::infinity();

// Scratch of one row of at most `widest` candidates.
struct RowScratch {
  explicit RowScratch(int64_t widest = 0)
      : gains(static_cast<size_t>(padded_row(widest) + kRowLanes)),
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

// Positions of the k largest gains and the gains themselves, larger first, then lower position. All gains
// (m, in double) are finite and k <= m. `found` is scratch for m.
inline void pick_largest(const double* gains, int64_t m, int64_t k, int32_t* found, int32_t* at,
                         double* best) {
  std::iota(found, found + m, 0);
  std::partial_sort(found, found + k, found + m, [gains](int32_t x, int32_t y) {
    return gains[x] != gains[y] ? gains[x] > gains[y] : x < y;
  });
  for (int64_t s = 0; s < k; ++s) {
    at[s] = found[s];
    best[s] = gains[at[s]];
  }
}

// The k best (k <= kRowLanes) of the `count` candidates in scratch.found, as a set in any order; their float
// gains are in scratch.gains, padded. exact(c) gives a gain in double: it is asked for only where float
// cannot tell. Ties go to the lower position.
template <class F>
void pick_set(RowScratch& scratch, const RowFilter& filter, int64_t count, int64_t k, int32_t* at,
              F&& exact) {
  const RowKernels& kernels = row_kernels();
  float* gains = scratch.gains.data();
  int32_t *found = scratch.found.data(), *second = scratch.second.data();
  for (int64_t before = count + 1; count > k && count < before;) {  // twice at most, but for ties
    const float kth = k == 1 ? kernels.largest(gains, count) : kernels.kth_bound(gains, count, k);
    before = count;
    count = kernels.at_least(gains, count, filter.lower(filter.lower(kth)), second);
    for (int64_t f = 0; f < count; ++f) {
      found[f] = found[second[f]];
      gains[f] = gains[second[f]];
    }
    std::fill(gains + count, gains + padded_row(count), kNever);
  }
  if (count == k) {
    std::copy(found, found + k, at);
    return;
  }
  double best[kRowLanes];
  for (int64_t f = 0; f < count; ++f) {
    insert_best(found[f], exact(found[f]), std::min(f, k), k, at, best);
  }
}

// pick_largest from the float gains in scratch.gains; exact(c) gives a gain in double.
template <class F>
void pick_largest(RowScratch& scratch, const RowFilter& filter, int64_t m, int64_t k, int32_t* at,
                  double* best, F&& exact) {
  if (k > kRowLanes) {
    for (int64_t c = 0; c < m; ++c) scratch.exact[static_cast<size_t>(c)] = exact(static_cast<int32_t>(c));
    pick_largest(scratch.exact.data(), m, k, scratch.found.data(), at, best);
    return;
  }
  const RowKernels& kernels = row_kernels();
  const float* gains = scratch.gains.data();
  const float bound = k == 1 ? kernels.largest(gains, m) : kernels.kth_bound(gains, m, k);
  const int64_t count = kernels.at_least(gains, m, filter.lower(bound), scratch.found.data());
  for (int64_t f = 0; f < count; ++f) {
    const int32_t c = scratch.found[static_cast<size_t>(f)];
    insert_best(c, exact(c), std::min(f, k), k, at, best);
  }
}

}  // namespace xmc
