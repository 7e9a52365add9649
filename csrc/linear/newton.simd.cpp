#include "linear/lane_rows.h"
#include "linear/newton_kernels.h"

namespace xmc::linear::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

constexpr int kDenseRows = kWidth == 16 ? 8 : 4;

XMC_INLINE LaneVector operator*(const LaneVector& a, const LaneVector& b) {
  LaneVector c;
  for (int k = 0; k < kVecs; ++k) c.v[k] = a.v[k] * b.v[k];
  return c;
}
XMC_INLINE LaneVector operator+(const LaneVector& a, const LaneVector& b) {
  LaneVector c;
  for (int k = 0; k < kVecs; ++k) c.v[k] = a.v[k] + b.v[k];
  return c;
}
XMC_INLINE LaneVector operator-(const LaneVector& a, const LaneVector& b) {
  LaneVector c;
  for (int k = 0; k < kVecs; ++k) c.v[k] = a.v[k] - b.v[k];
  return c;
}
XMC_INLINE LaneVector fma(const LaneVector& a, const LaneVector& b, const LaneVector& c) {
  LaneVector d;
  for (int k = 0; k < kVecs; ++k) d.v[k] = fma(a.v[k], b.v[k], c.v[k]);
  return d;
}
XMC_INLINE bool needed(const RowSet& rows, int64_t u, uint32_t live) {
  return !rows.mask || (rows.mask[u] & live) != 0;
}
XMC_INLINE LaneVector scaled(const float* scale, int64_t u, const LaneVector& a) {
  return scale ? load_lanes(scale + u * kLanes) * a : a;
}

XMC_INLINE int64_t row_of(const RowSet& rows, int64_t u) {
  return rows.ids ? int64_t{rows.ids[u]} : u;
}

// What the bias adds to every row's product.
XMC_INLINE LaneVector bias_part(const RowSet& rows, const float* M) {
  return rows.x.bias != 0 ? splat_lanes(rows.x.bias) * load_lanes(M + (rows.lines - 1) * kLanes)
                          : zero_lanes();
}

// The sum of coefficients over rows, for the bias's line.
class BiasSum {
 public:
  XMC_INLINE void add(const LaneVector& c) {
    part_ = part_ + c;
    if (++count_ % kFlush == 0) flush(total_, part_);
  }
  void finish(const RowSet& rows, float* M) {
    if (rows.x.bias == 0) return;
    flush(total_, part_);
    float* last = M + (rows.lines - 1) * kLanes;
    for (int l = 0; l < kLanes; ++l) last[l] += static_cast<float>(rows.x.bias * total_[l]);
  }

 private:
  double total_[kLanes] = {};
  LaneVector part_ = zero_lanes();
  int64_t count_ = 0;
};

void sparse_product(const RowSet& rows, uint32_t live, const float* M, const float* scale, float* out) {
  const SparseRows x(rows.x);
  const LaneVector bias = bias_part(rows, M);
  for (int64_t u = 0; u < rows.count; ++u) {
    LaneVector a = zero_lanes();
    if (needed(rows, u, live)) a = scaled(scale, u, x.dot(row_of(rows, u), M) + bias);
    store_lanes(out + u * kLanes, a);
  }
}

void sparse_add_transposed(const RowSet& rows, uint32_t live, const float* scale, const float* coef,
                           float* M) {
  const SparseRows x(rows.x);
  BiasSum bias;
  for (int64_t u = 0; u < rows.count; ++u) {
    if (!needed(rows, u, live)) continue;
    const LaneVector c = scaled(scale, u, load_lanes(coef + u * kLanes));
    x.axpy(row_of(rows, u), c, M);
    bias.add(c);
  }
  bias.finish(rows, M);
}

// Calls fn(block, size, x) for the needed rows of a dense X, kDenseRows at a time (the last ones may be fewer: x
// then repeats the first). block[r] is a row of the set, x[r] its features.
template <class Fn>
XMC_INLINE void for_dense_blocks(const RowSet& rows, uint32_t live, const Fn& fn) {
  for (int64_t u = 0; u < rows.count;) {
    int64_t block[kDenseRows];
    int size = 0;
    for (; u < rows.count && size < kDenseRows; ++u) {
      if (needed(rows, u, live)) block[size++] = u;
    }
    if (size == 0) return;
    const float* x[kDenseRows];
    for (int r = 0; r < kDenseRows; ++r) {
      x[r] = rows.x.dense + row_of(rows, block[r < size ? r : 0]) * rows.x.width;
    }
    fn(block, size, x);
  }
}

void dense_product(const RowSet& rows, uint32_t live, const float* M, const float* scale, float* out) {
  if (rows.mask) {
    for (int64_t u = 0; u < rows.count; ++u) store_lanes(out + u * kLanes, zero_lanes());
  }
  const LaneVector bias = bias_part(rows, M);
  for_dense_blocks(rows, live, [&](const int64_t* block, int size, const float* const* x) {
    LaneVector acc[kDenseRows];
    for (int r = 0; r < kDenseRows; ++r) acc[r] = bias;
    for (int64_t j = 0; j < rows.x.width; ++j) {
      const LaneVector m = load_lanes(M + j * kLanes);
      for (int r = 0; r < kDenseRows; ++r) acc[r] = fma(splat_lanes(x[r][j]), m, acc[r]);
    }
    for (int r = 0; r < size; ++r) store_lanes(out + block[r] * kLanes, scaled(scale, block[r], acc[r]));
  });
}

void dense_add_transposed(const RowSet& rows, uint32_t live, const float* scale, const float* coef,
                          float* M) {
  BiasSum bias;
  for_dense_blocks(rows, live, [&](const int64_t* block, int size, const float* const* x) {
    LaneVector c[kDenseRows];
    for (int r = 0; r < kDenseRows; ++r) {
      c[r] = r < size ? scaled(scale, block[r], load_lanes(coef + block[r] * kLanes)) : zero_lanes();
      if (r < size) bias.add(c[r]);
    }
    for (int64_t j = 0; j < rows.x.width; ++j) {
      LaneVector m = load_lanes(M + j * kLanes);
      for (int r = 0; r < kDenseRows; ++r) m = fma(splat_lanes(x[r][j]), c[r], m);
      store_lanes(M + j * kLanes, m);
    }
  });
  bias.finish(rows, M);
}

void product(const RowSet& rows, uint32_t live, const float* M, const float* scale, float* out) {
  rows.x.dense ? dense_product(rows, live, M, scale, out) : sparse_product(rows, live, M, scale, out);
}

void add_transposed(const RowSet& rows, uint32_t live, const float* scale, const float* coef, float* M) {
  rows.x.dense ? dense_add_transposed(rows, live, scale, coef, M)
               : sparse_add_transposed(rows, live, scale, coef, M);
}

// totals[n] = sum over the m lines of what fn(i, sums) adds to sums[n] for the line at i, per lane.
template <int kSums, class Fn>
XMC_INLINE void sum_lines(int64_t m, double* const (&totals)[kSums], const Fn& fn) {
  for (double* total : totals) {
    for (int l = 0; l < kLanes; ++l) total[l] = 0;
  }
  for (int64_t s = 0; s < m; s += kFlush) {
    const int64_t e = s + kFlush < m ? s + kFlush : m;
    LaneVector sums[kSums];
    for (LaneVector& part : sums) part = zero_lanes();
    for (int64_t i = s * kLanes; i < e * kLanes; i += kLanes) fn(i, sums);
    for (int n = 0; n < kSums; ++n) flush(totals[n], sums[n]);
  }
}

void dot(const float* a, const float* b, int64_t m, double* out) {
  sum_lines<1>(m, {out}, [&](int64_t i, LaneVector* sums) {
    sums[0] = fma(load_lanes(a + i), load_lanes(b + i), sums[0]);
  });
}

void update(const float* keep, const float* step, const float* B, int64_t m, float* A) {
  const LaneVector k = load_lanes(keep), s = load_lanes(step);
  for (int64_t i = 0; i < m * kLanes; i += kLanes) {
    store_lanes(A + i, fma(k, load_lanes(A + i), s * load_lanes(B + i)));
  }
}

void update_outer(const float* keep, const float* step, const float* v, int64_t m, float* A) {
  const LaneVector k = load_lanes(keep), s = load_lanes(step);
  for (int64_t i = 0; i < m; ++i) {
    store_lanes(A + i * kLanes, fma(k, load_lanes(A + i * kLanes), s * splat_lanes(v[i])));
  }
}

void scale(const float* factor, const float* B, int64_t m, float* A) {
  const LaneVector s = load_lanes(factor);
  for (int64_t i = 0; i < m * kLanes; i += kLanes) store_lanes(A + i, s * load_lanes(B + i));
}

void cg_direction(const float* beta, const float* ur, const float* cr, int64_t m, float* u, float* c,
                  double* uu) {
  const LaneVector b = load_lanes(beta);
  sum_lines<1>(m, {uu}, [&](int64_t i, LaneVector* sums) {
    const LaneVector v = fma(b, load_lanes(u + i), load_lanes(ur + i));
    store_lanes(u + i, v);
    store_lanes(c + i, fma(b, load_lanes(c + i), load_lanes(cr + i)));
    sums[0] = fma(v, v, sums[0]);
  });
}

void cg_step(const float* alpha, const float* u, const float* c, int64_t m, float* cd, float* cr) {
  const LaneVector a = load_lanes(alpha);
  for (int64_t i = 0; i < m * kLanes; i += kLanes) {
    const LaneVector p = load_lanes(c + i);
    store_lanes(cd + i, fma(a, p, load_lanes(cd + i)));
    store_lanes(cr + i, load_lanes(cr + i) - a * (p + load_lanes(u + i)));
  }
}

void hinge_mark(const float* Z, const float* above, int64_t m, uint32_t* mask) {
  const LaneVector t = load_lanes(above);
  for (int64_t i = 0; i < m; ++i) {
    uint32_t bits = 0;
    for (int k = 0; k < kVecs; ++k) {
      bits |= gt(load(Z + i * kLanes + k * kWidth), t.v[k]) << (k * kWidth);
    }
    mask[i] = bits;
  }
}

void logistic_mark(const float*, const float*, int64_t m, uint32_t* mask) {
  for (int64_t i = 0; i < m; ++i) mask[i] = (uint32_t{1} << kLanes) - 1;
}

// The losses of negatives. `terms`: curvature = sqrt(cost loss''(z)), slope = cost loss'(z) of an active row.
// `slopes`: first += loss'(z) q, second += loss''(z) q^2.
struct Hinge {
  vf twice, root;
  XMC_INLINE explicit Hinge(vf cost) : twice(splat(2.f) * cost), root(sqrt(twice)) {}
  XMC_INLINE void terms(vf z, vf& curvature, vf& slope) const {
    curvature = root;
    slope = twice * (splat(1.f) + z);
  }
  static XMC_INLINE void slopes(vf z, vf q, vf& first, vf& second) {
    const vf slack = splat(1.f) + z, active = where_gt(slack, splat(0.f), splat(2.f) * q);
    first = fma(slack, active, first);
    second = fma(q, active, second);
  }
};

struct Logistic {
  vf cost;
  XMC_INLINE explicit Logistic(vf c) : cost(c) {}
  static XMC_INLINE vf sigmoid(vf z) { return splat(1.f) / (splat(1.f) + exp(splat(0.f) - z)); }
  XMC_INLINE void terms(vf z, vf& curvature, vf& slope) const {
    const vf p = sigmoid(z);
    slope = cost * p;
    curvature = sqrt(slope * (splat(1.f) - p));
  }
  static XMC_INLINE void slopes(vf z, vf q, vf& first, vf& second) {
    const vf p = sigmoid(z), pq = p * q;
    first = first + pq;
    second = fma(pq, (splat(1.f) - p) * q, second);
  }
};

template <class Loss>
void terms(const float* Z, const int32_t* ids, int64_t m, const float* above, const float* cost, float* S,
           float* H) {
  for (int k = 0; k < kLanes; k += kWidth) {
    const Loss loss(load(cost + k));
    const vf t = load(above + k);
    for (int64_t u = 0; u < m; ++u) {
      const vf z = load(Z + (ids ? int64_t{ids[u]} : u) * kLanes + k);
      vf curvature, slope;
      loss.terms(z, curvature, slope);
      store(S + u * kLanes + k, where_gt(z, t, curvature));
      store(H + u * kLanes + k, where_gt(z, t, slope));
    }
  }
}

template <class Loss>
void slope(const float* Z, const float* Q, const float* t, int64_t m, double* first, double* second) {
  const LaneVector step = load_lanes(t);
  sum_lines<2>(m, {first, second}, [&](int64_t i, LaneVector* sums) {
    for (int k = 0; k < kVecs; ++k) {
      const vf q = load(Q + i + k * kWidth), z = fma(step.v[k], q, load(Z + i + k * kWidth));
      Loss::slopes(z, q, sums[0].v[k], sums[1].v[k]);
    }
  });
}

}  // namespace

extern const NewtonKernels newton_kernels_table = {&product,      &add_transposed, &dot,          &update,
                                                   &update_outer, &scale,          &cg_direction, &cg_step};
extern const LossKernels hinge_kernels_table = {&hinge_mark, &terms<Hinge>, &slope<Hinge>};
extern const LossKernels logistic_kernels_table = {&logistic_mark, &terms<Logistic>, &slope<Logistic>};

}  // namespace xmc::linear::XMC_SIMD_NS
