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

XMC_INLINE const float* dense_row(const RowSet& rows, int64_t u) {
  return rows.x.dense + row_of(rows, u) * rows.x.width;
}

// The next rows from u that are needed, at most kDenseRows; returns how many, u moves past them.
XMC_INLINE int next_rows(const RowSet& rows, uint32_t live, int64_t& u, int64_t* block) {
  int size = 0;
  for (; u < rows.count && size < kDenseRows; ++u) {
    if (needed(rows, u, live)) block[size++] = u;
  }
  return size;
}

void dense_product(const RowSet& rows, uint32_t live, const float* M, const float* scale, float* out) {
  if (rows.mask) {
    for (int64_t u = 0; u < rows.count; ++u) store_lanes(out + u * kLanes, zero_lanes());
  }
  const LaneVector bias = bias_part(rows, M);
  int64_t block[kDenseRows];
  for (int64_t u = 0; u < rows.count;) {
    const int size = next_rows(rows, live, u, block);
    if (size == 0) return;
    const float* x[kDenseRows];
    LaneVector acc[kDenseRows];
    for (int r = 0; r < kDenseRows; ++r) {
      x[r] = dense_row(rows, block[r < size ? r : 0]);
      acc[r] = bias;
    }
    for (int64_t j = 0; j < rows.x.width; ++j) {
      const LaneVector m = load_lanes(M + j * kLanes);
      for (int r = 0; r < kDenseRows; ++r) {
        const vf s = splat(x[r][j]);
        for (int k = 0; k < kVecs; ++k) acc[r].v[k] = fma(s, m.v[k], acc[r].v[k]);
      }
    }
    for (int r = 0; r < size; ++r) store_lanes(out + block[r] * kLanes, scaled(scale, block[r], acc[r]));
  }
}

void dense_add_transposed(const RowSet& rows, uint32_t live, const float* scale, const float* coef,
                          float* M) {
  BiasSum bias;
  int64_t block[kDenseRows];
  for (int64_t u = 0; u < rows.count;) {
    const int size = next_rows(rows, live, u, block);
    if (size == 0) break;
    const float* x[kDenseRows];
    LaneVector c[kDenseRows];
    for (int r = 0; r < kDenseRows; ++r) {
      x[r] = dense_row(rows, block[r < size ? r : 0]);
      c[r] = r < size ? scaled(scale, block[r], load_lanes(coef + block[r] * kLanes)) : zero_lanes();
      if (r < size) bias.add(c[r]);
    }
    for (int64_t j = 0; j < rows.x.width; ++j) {
      LaneVector m = load_lanes(M + j * kLanes);
      for (int r = 0; r < kDenseRows; ++r) {
        const vf s = splat(x[r][j]);
        for (int k = 0; k < kVecs; ++k) m.v[k] = fma(s, c[r].v[k], m.v[k]);
      }
      store_lanes(M + j * kLanes, m);
    }
  }
  bias.finish(rows, M);
}

void product(const RowSet& rows, uint32_t live, const float* M, const float* scale, float* out) {
  rows.x.dense ? dense_product(rows, live, M, scale, out) : sparse_product(rows, live, M, scale, out);
}

void add_transposed(const RowSet& rows, uint32_t live, const float* scale, const float* coef, float* M) {
  rows.x.dense ? dense_add_transposed(rows, live, scale, coef, M)
               : sparse_add_transposed(rows, live, scale, coef, M);
}

void dot(const float* a, const float* b, int64_t m, double* out) {
  for (int l = 0; l < kLanes; ++l) out[l] = 0;
  for (int64_t s = 0; s < m; s += kFlush) {
    const int64_t e = s + kFlush < m ? s + kFlush : m;
    LaneVector acc = zero_lanes();
    for (int64_t i = s; i < e; ++i) acc = fma(load_lanes(a + i * kLanes), load_lanes(b + i * kLanes), acc);
    flush(out, acc);
  }
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
  for (int l = 0; l < kLanes; ++l) uu[l] = 0;
  for (int64_t s = 0; s < m; s += kFlush) {
    const int64_t e = s + kFlush < m ? s + kFlush : m;
    LaneVector acc = zero_lanes();
    for (int64_t i = s * kLanes; i < e * kLanes; i += kLanes) {
      const LaneVector v = fma(b, load_lanes(u + i), load_lanes(ur + i));
      store_lanes(u + i, v);
      store_lanes(c + i, fma(b, load_lanes(c + i), load_lanes(cr + i)));
      acc = fma(v, v, acc);
    }
    flush(uu, acc);
  }
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

void hinge_terms(const float* Z, const int32_t* ids, int64_t m, const float* above, const float* cost,
                 float* S, float* H) {
  const LaneVector t = load_lanes(above);
  LaneVector second, root;
  for (int k = 0; k < kVecs; ++k) {
    second.v[k] = splat(2.f) * load(cost + k * kWidth);
    root.v[k] = sqrt(second.v[k]);
  }
  const vf one = splat(1.f);
  for (int64_t u = 0; u < m; ++u) {
    const float* z = Z + (ids ? int64_t{ids[u]} : u) * kLanes;
    for (int k = 0; k < kVecs; ++k) {
      const vf v = load(z + k * kWidth);
      store(S + u * kLanes + k * kWidth, where_gt(v, t.v[k], root.v[k]));
      store(H + u * kLanes + k * kWidth, where_gt(v, t.v[k], second.v[k] * (one + v)));
    }
  }
}

void hinge_slope(const float* Z, const float* Q, const float* t, int64_t m, double* first, double* second) {
  const LaneVector step = load_lanes(t);
  const vf one = splat(1.f), two = splat(2.f), zero = splat(0.f);
  for (int l = 0; l < kLanes; ++l) first[l] = second[l] = 0;
  for (int64_t s = 0; s < m; s += kFlush) {
    const int64_t e = s + kFlush < m ? s + kFlush : m;
    LaneVector a = zero_lanes(), b = a;
    for (int64_t i = s * kLanes; i < e * kLanes; i += kLanes) {
      for (int k = 0; k < kVecs; ++k) {
        const vf q = load(Q + i + k * kWidth);
        const vf slack = one + fma(step.v[k], q, load(Z + i + k * kWidth));
        const vf active = where_gt(slack, zero, two * q);
        a.v[k] = fma(slack, active, a.v[k]);
        b.v[k] = fma(q, active, b.v[k]);
      }
    }
    flush(first, a);
    flush(second, b);
  }
}

XMC_INLINE vf sigmoid(vf z) {
  return splat(1.f) / (splat(1.f) + exp(splat(0.f) - z));
}

void logistic_mark(const float*, const float*, int64_t m, uint32_t* mask) {
  for (int64_t i = 0; i < m; ++i) mask[i] = (uint32_t{1} << kLanes) - 1;
}

void logistic_terms(const float* Z, const int32_t* ids, int64_t m, const float* above, const float* cost,
                    float* S, float* H) {
  const LaneVector c = load_lanes(cost), t = load_lanes(above);
  const vf one = splat(1.f);
  for (int64_t u = 0; u < m; ++u) {
    const float* z = Z + (ids ? int64_t{ids[u]} : u) * kLanes;
    for (int k = 0; k < kVecs; ++k) {
      const vf v = load(z + k * kWidth);
      const vf p = sigmoid(v), first = c.v[k] * p;
      store(H + u * kLanes + k * kWidth, where_gt(v, t.v[k], first));
      store(S + u * kLanes + k * kWidth, where_gt(v, t.v[k], sqrt(first * (one - p))));
    }
  }
}

void logistic_slope(const float* Z, const float* Q, const float* t, int64_t m, double* first,
                    double* second) {
  const LaneVector step = load_lanes(t);
  const vf one = splat(1.f);
  for (int l = 0; l < kLanes; ++l) first[l] = second[l] = 0;
  for (int64_t s = 0; s < m; s += kFlush) {
    const int64_t e = s + kFlush < m ? s + kFlush : m;
    LaneVector a = zero_lanes(), b = a;
    for (int64_t i = s * kLanes; i < e * kLanes; i += kLanes) {
      for (int k = 0; k < kVecs; ++k) {
        const vf q = load(Q + i + k * kWidth);
        const vf p = sigmoid(fma(step.v[k], q, load(Z + i + k * kWidth)));
        const vf pq = p * q;
        a.v[k] = a.v[k] + pq;
        b.v[k] = fma(pq, (one - p) * q, b.v[k]);
      }
    }
    flush(first, a);
    flush(second, b);
  }
}

}  // namespace

extern const NewtonKernels newton_kernels_table = {&product,      &add_transposed, &dot,          &update,
                                                   &update_outer, &scale,          &cg_direction, &cg_step};
extern const LossKernels hinge_kernels_table = {&hinge_mark, &hinge_terms, &hinge_slope};
extern const LossKernels logistic_kernels_table = {&logistic_mark, &logistic_terms, &logistic_slope};

}  // namespace xmc::linear::XMC_SIMD_NS
