// Rows of X (prepare.h) against a lane group: dot products and updates, without the bias. For *.simd.cpp only.
#pragma once

#include "linear/lanes.h"

namespace xmc::linear::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

static_assert(kVecs * kWidth == kLanes);
constexpr int kUnroll = kVecs == 1 ? 8 : kVecs == 2 ? 4 : 1;

XMC_INLINE int64_t wide_id(const uint16_t* id) {
  return int64_t{id[0]} | int64_t{id[1]} << 16;
}

static_assert(kPad % kUnroll == 0);

using Sums = vf[kUnroll][kVecs];
XMC_INLINE void clear(Sums& acc) {
  for (int u = 0; u < kUnroll; ++u)
    for (int k = 0; k < kVecs; ++k) acc[u][k] = splat(0.f);
}

// As a tree: a chain of additions would be most of a short row's time.
template <int First, int Count>
XMC_INLINE vf sum(const Sums& acc, int k) {
  if constexpr (Count == 1) {
    return acc[First][k];
  } else {
    return sum<First, Count / 2>(acc, k) + sum<First + Count / 2, Count / 2>(acc, k);
  }
}

XMC_INLINE LaneVector sum(const Sums& acc) {
  LaneVector z;
  for (int k = 0; k < kVecs; ++k) z.v[k] = sum<0, kUnroll>(acc, k);
  return z;
}

struct SparseRows {
  const RowRef* rows;
  const uint16_t* ids;
  const float* values;
  explicit SparseRows(const RowsView& x) : rows(x.rows), ids(x.ids), values(x.values) {}

  struct Segment {  // the stored entries of one row
    const uint16_t* id;
    const float* value;
    int32_t stored, tail;
  };
  XMC_INLINE Segment segment(int64_t i) const {
    const RowRef row = rows[i];
    return {ids + row.id, values + row.value, row.stored, row.tail};
  }
  // Entries [t, t + kUnroll) of the head: acc += x m.
  XMC_INLINE static void read(const Segment& row, int32_t t, const float* m, Sums& acc) {
    for (int u = 0; u < kUnroll; ++u) {
      const float* p = m + int64_t{row.id[t + u]} * kLanes;
      const vf x = splat(row.value[t + u]);
      for (int k = 0; k < kVecs; ++k) acc[u][k] = fma(x, load(p + k * kWidth), acc[u][k]);
    }
  }
  // The same entries: m += c x, one after the other, for a padding id may be one of the row's as well.
  XMC_INLINE static void write(const Segment& row, int32_t t, const LaneVector& c, float* m) {
    for (int u = 0; u < kUnroll; ++u) add_entry(row.id[t + u], row.value[t + u], c, m);
  }
  XMC_INLINE static void add_entry(int64_t j, float value, const LaneVector& c, float* m) {
    float* p = m + j * kLanes;
    const vf x = splat(value);
    for (int k = 0; k < kVecs; ++k) store(p + k * kWidth, fma(x, c.v[k], load(p + k * kWidth)));
  }
  XMC_INLINE static LaneVector finish_dot(const Segment& row, const float* m, Sums& acc) {
    for (int32_t t = 0; t < row.tail; ++t) {
      const float* p = m + wide_id(row.id + row.stored + 2 * t) * kLanes;
      const vf x = splat(row.value[row.stored + t]);
      for (int k = 0; k < kVecs; ++k) acc[0][k] = fma(x, load(p + k * kWidth), acc[0][k]);
    }
    return sum(acc);
  }
  XMC_INLINE static void finish_axpy(const Segment& row, const LaneVector& c, float* m) {
    for (int32_t t = 0; t < row.tail; ++t) {
      add_entry(wide_id(row.id + row.stored + 2 * t), row.value[row.stored + t], c, m);
    }
  }

  XMC_INLINE LaneVector dot(int64_t i, const float* m) const {
    const Segment row = segment(i);
    Sums acc;
    clear(acc);
    for (int32_t t = 0; t < row.stored; t += kUnroll) read(row, t, m, acc);
    return finish_dot(row, m, acc);
  }

  XMC_INLINE void axpy(int64_t i, const LaneVector& c, float* m) const {
    const Segment row = segment(i);
    for (int32_t t = 0; t < row.stored; t += kUnroll) write(row, t, c, m);
    finish_axpy(row, c, m);
  }

  static constexpr bool kExact = false;
  // axpy of row i and, between its stores, which alone would hold up what comes after them, the dot product
  // of row `next`: of the features they share it sees some before the step and some after it.
  XMC_INLINE LaneVector axpy_and_dot(int64_t i, const LaneVector& c, int64_t next, float* m) const {
    const Segment from = segment(i), to = segment(next);
    Sums acc;
    clear(acc);
    int32_t t = 0;
    for (; t < from.stored && t < to.stored; t += kUnroll) {
      read(to, t, m, acc);
      write(from, t, c, m);
    }
    for (int32_t r = t; r < to.stored; r += kUnroll) read(to, r, m, acc);
    for (; t < from.stored; t += kUnroll) write(from, t, c, m);
    finish_axpy(from, c, m);
    return finish_dot(to, m, acc);
  }

  XMC_INLINE void add(int64_t i, float c, float* lane) const {
    const RowRef row = rows[i];
    const uint16_t* id = ids + row.id;
    const float* value = values + row.value;
    for (int32_t t = 0; t < row.head; ++t) lane[int64_t{id[t]} * kLanes] += c * value[t];
    for (int32_t t = 0; t < row.tail; ++t) {
      lane[wide_id(id + row.stored + 2 * t) * kLanes] += c * value[row.stored + t];
    }
  }

  XMC_INLINE void fetch(int64_t i) const {
    const RowRef row = rows[i];
    const int32_t entries = row.head + row.tail < 512 ? row.head + row.tail : 512;
    for (int32_t t = 0; t < entries; t += 32) prefetch(ids + row.id + t);
    for (int32_t t = 0; t < entries; t += 16) prefetch(values + row.value + t);
  }
};

struct DenseRows {
  const float* x;
  int64_t D;  // without the bias
  explicit DenseRows(const RowsView& rows) : x(rows.dense), D(rows.width) {}

  XMC_INLINE LaneVector dot(int64_t i, const float* m) const {
    const float* value = x + i * D;
    Sums acc;
    clear(acc);
    int64_t j = 0;
    for (; j + kUnroll <= D; j += kUnroll) {
      for (int u = 0; u < kUnroll; ++u) {
        const vf v = splat(value[j + u]);
        for (int k = 0; k < kVecs; ++k) {
          acc[u][k] = fma(v, load(m + (j + u) * kLanes + k * kWidth), acc[u][k]);
        }
      }
    }
    for (; j < D; ++j) {
      const vf v = splat(value[j]);
      for (int k = 0; k < kVecs; ++k) acc[0][k] = fma(v, load(m + j * kLanes + k * kWidth), acc[0][k]);
    }
    return sum(acc);
  }

  XMC_INLINE void axpy(int64_t i, const LaneVector& c, float* m) const {
    const float* value = x + i * D;
    for (int64_t j = 0; j < D; ++j) {
      float* p = m + j * kLanes;
      const vf v = splat(value[j]);
      for (int k = 0; k < kVecs; ++k) store(p + k * kWidth, fma(v, c.v[k], load(p + k * kWidth)));
    }
  }

  // All features are shared: the dot product is that after the step.
  static constexpr bool kExact = true;
  XMC_INLINE LaneVector axpy_and_dot(int64_t i, const LaneVector& c, int64_t next, float* m) const {
    const float *from = x + i * D, *to = x + next * D;
    Sums acc;
    clear(acc);
    const auto entry = [&](int64_t j, int u) {
      const vf v = splat(from[j]), y = splat(to[j]);
      for (int k = 0; k < kVecs; ++k) {
        float* p = m + j * kLanes + k * kWidth;
        const vf after = fma(v, c.v[k], load(p));
        store(p, after);
        acc[u][k] = fma(y, after, acc[u][k]);
      }
    };
    int64_t j = 0;
    for (; j + kUnroll <= D; j += kUnroll) {
      for (int u = 0; u < kUnroll; ++u) entry(j + u, u);
    }
    for (; j < D; ++j) entry(j, 0);
    return sum(acc);
  }

  XMC_INLINE void add(int64_t i, float c, float* lane) const {
    for (int64_t j = 0; j < D; ++j) lane[j * kLanes] += c * x[i * D + j];
  }

  XMC_INLINE void fetch(int64_t i) const {
    const int64_t entries = D < 512 ? D : 512;
    for (int64_t j = 0; j < entries; j += 16) prefetch(x + i * D + j);
  }
};

}  // namespace
}  // namespace xmc::linear::XMC_SIMD_NS
