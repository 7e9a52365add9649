#include "linear/line.h"
#include "linear/newton_kernels.h"

namespace xmc::XMC_SIMD_NS {
namespace {

static_assert(kVecs * kWidth == kLanes);
constexpr int kDenseRows = kWidth == 16 ? 8 : 4;
constexpr int64_t kAhead = 24;      // entries of a row whose line is asked for early: 8 % of all time
constexpr int64_t kFloatRun = 128;  // rows summed in float before going to double

XMC_INLINE Line operator*(const Line& a, const Line& b) {
  Line c;
  for (int k = 0; k < kVecs; ++k) c.v[k] = a.v[k] * b.v[k];
  return c;
}
XMC_INLINE Line operator+(const Line& a, const Line& b) {
  Line c;
  for (int k = 0; k < kVecs; ++k) c.v[k] = a.v[k] + b.v[k];
  return c;
}
XMC_INLINE Line operator-(const Line& a, const Line& b) {
  Line c;
  for (int k = 0; k < kVecs; ++k) c.v[k] = a.v[k] - b.v[k];
  return c;
}
XMC_INLINE Line fma(const Line& a, const Line& b, const Line& c) {
  Line d;
  for (int k = 0; k < kVecs; ++k) d.v[k] = fma(a.v[k], b.v[k], c.v[k]);
  return d;
}
// acc += x * p[0 .. kLanes)
XMC_INLINE void add_scaled(Line& acc, float x, const float* p) {
  const vf s = splat(x);
  for (int k = 0; k < kVecs; ++k) acc.v[k] = fma(s, load(p + k * kWidth), acc.v[k]);
}
// p[0 .. kLanes) += x * c
XMC_INLINE void add_scaled_to(float* p, float x, const Line& c) {
  const vf s = splat(x);
  for (int k = 0; k < kVecs; ++k) store(p + k * kWidth, fma(s, c.v[k], load(p + k * kWidth)));
}
XMC_INLINE void add_to(double* out, const Line& a) {
  float lanes[kLanes];
  store_line(lanes, a);
  for (int l = 0; l < kLanes; ++l) out[l] += static_cast<double>(lanes[l]);
}

XMC_INLINE bool needed(const RowSet& rows, int64_t u, uint32_t live) {
  return !rows.mask || (rows.mask[u] & live) != 0;
}
XMC_INLINE Line scaled(const float* scale, int64_t u, const Line& a) {
  return scale ? load_line(scale + u * kLanes) * a : a;
}

void sparse_product(const RowSet& rows, uint32_t live, const float* M, const float* scale, float* out) {
  for (int64_t u = 0; u < rows.count; ++u) {
    Line a = zero_line();
    if (needed(rows, u, live)) {
      Line b = a, c = a, d = a;
      int64_t t = rows.begin[u];
      const int64_t end = rows.end[u];
      const int32_t* ix = rows.indices;
      const float* x = rows.values;
      for (; t + 4 <= end; t += 4) {
        add_scaled(a, x[t], M + int64_t{ix[t]} * kLanes);
        add_scaled(b, x[t + 1], M + int64_t{ix[t + 1]} * kLanes);
        add_scaled(c, x[t + 2], M + int64_t{ix[t + 2]} * kLanes);
        add_scaled(d, x[t + 3], M + int64_t{ix[t + 3]} * kLanes);
      }
      for (; t < end; ++t) add_scaled(a, x[t], M + int64_t{ix[t]} * kLanes);
      a = scaled(scale, u, (a + b) + (c + d));
    }
    store_line(out + u * kLanes, a);
  }
}

void sparse_add_transposed(const RowSet& rows, uint32_t live, const float* scale, const float* coef,
                           float* M) {
  for (int64_t u = 0; u < rows.count; ++u) {
    if (!needed(rows, u, live)) continue;
    const Line c = scaled(scale, u, load_line(coef + u * kLanes));
    const int32_t* ix = rows.indices;
    const float* x = rows.values;
    int64_t t = rows.begin[u];
    for (; t + kAhead < rows.end[u]; ++t) {
      prefetch(M + int64_t{ix[t + kAhead]} * kLanes);
      add_scaled_to(M + int64_t{ix[t]} * kLanes, x[t], c);
    }
    for (; t < rows.end[u]; ++t) add_scaled_to(M + int64_t{ix[t]} * kLanes, x[t], c);
  }
}

XMC_INLINE const float* dense_row(const RowSet& rows, int64_t u) {
  return rows.dense + (rows.ids ? int64_t{rows.ids[u]} : u) * rows.cols;
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
    for (int64_t u = 0; u < rows.count; ++u) store_line(out + u * kLanes, zero_line());
  }
  int64_t block[kDenseRows];
  for (int64_t u = 0; u < rows.count;) {
    const int size = next_rows(rows, live, u, block);
    if (size == 0) return;
    const float* x[kDenseRows];
    Line acc[kDenseRows];
    for (int r = 0; r < kDenseRows; ++r) {
      x[r] = dense_row(rows, block[r < size ? r : 0]);
      acc[r] = zero_line();
    }
    for (int64_t j = 0; j < rows.cols; ++j) {
      const Line m = load_line(M + j * kLanes);
      for (int r = 0; r < kDenseRows; ++r) {
        const vf s = splat(x[r][j]);
        for (int k = 0; k < kVecs; ++k) acc[r].v[k] = fma(s, m.v[k], acc[r].v[k]);
      }
    }
    for (int r = 0; r < size; ++r) store_line(out + block[r] * kLanes, scaled(scale, block[r], acc[r]));
  }
}

void dense_add_transposed(const RowSet& rows, uint32_t live, const float* scale, const float* coef,
                          float* M) {
  int64_t block[kDenseRows];
  for (int64_t u = 0; u < rows.count;) {
    const int size = next_rows(rows, live, u, block);
    if (size == 0) return;
    const float* x[kDenseRows];
    Line c[kDenseRows];
    for (int r = 0; r < kDenseRows; ++r) {
      x[r] = dense_row(rows, block[r < size ? r : 0]);
      c[r] = r < size ? scaled(scale, block[r], load_line(coef + block[r] * kLanes)) : zero_line();
    }
    for (int64_t j = 0; j < rows.cols; ++j) {
      Line m = load_line(M + j * kLanes);
      for (int r = 0; r < kDenseRows; ++r) {
        const vf s = splat(x[r][j]);
        for (int k = 0; k < kVecs; ++k) m.v[k] = fma(s, c[r].v[k], m.v[k]);
      }
      store_line(M + j * kLanes, m);
    }
  }
}

void product(const RowSet& rows, uint32_t live, const float* M, const float* scale, float* out) {
  rows.dense ? dense_product(rows, live, M, scale, out) : sparse_product(rows, live, M, scale, out);
}

void add_transposed(const RowSet& rows, uint32_t live, const float* scale, const float* coef, float* M) {
  rows.dense ? dense_add_transposed(rows, live, scale, coef, M)
             : sparse_add_transposed(rows, live, scale, coef, M);
}

void dot(const float* a, const float* b, int64_t m, double* out) {
  for (int l = 0; l < kLanes; ++l) out[l] = 0;
  for (int64_t s = 0; s < m; s += kFloatRun) {
    const int64_t e = s + kFloatRun < m ? s + kFloatRun : m;
    Line acc = zero_line();
    for (int64_t i = s; i < e; ++i) acc = fma(load_line(a + i * kLanes), load_line(b + i * kLanes), acc);
    add_to(out, acc);
  }
}

void update(const float* keep, const float* step, const float* B, int64_t m, float* A) {
  const Line k = load_line(keep), s = load_line(step);
  for (int64_t i = 0; i < m * kLanes; i += kLanes) {
    store_line(A + i, fma(k, load_line(A + i), s * load_line(B + i)));
  }
}

void update_outer(const float* keep, const float* step, const float* v, int64_t m, float* A) {
  const Line k = load_line(keep), s = load_line(step);
  for (int64_t i = 0; i < m; ++i) {
    store_line(A + i * kLanes, fma(k, load_line(A + i * kLanes), s * splat_line(v[i])));
  }
}

void scale(const float* factor, const float* B, int64_t m, float* A) {
  const Line s = load_line(factor);
  for (int64_t i = 0; i < m * kLanes; i += kLanes) store_line(A + i, s * load_line(B + i));
}

void cg_direction(const float* beta, const float* ur, const float* cr, int64_t m, float* u, float* c,
                  double* uu) {
  const Line b = load_line(beta);
  for (int l = 0; l < kLanes; ++l) uu[l] = 0;
  for (int64_t s = 0; s < m; s += kFloatRun) {
    const int64_t e = s + kFloatRun < m ? s + kFloatRun : m;
    Line acc = zero_line();
    for (int64_t i = s * kLanes; i < e * kLanes; i += kLanes) {
      const Line v = fma(b, load_line(u + i), load_line(ur + i));
      store_line(u + i, v);
      store_line(c + i, fma(b, load_line(c + i), load_line(cr + i)));
      acc = fma(v, v, acc);
    }
    add_to(uu, acc);
  }
}

void cg_step(const float* alpha, const float* u, const float* c, int64_t m, float* cd, float* cr) {
  const Line a = load_line(alpha);
  for (int64_t i = 0; i < m * kLanes; i += kLanes) {
    const Line p = load_line(c + i);
    store_line(cd + i, fma(a, p, load_line(cd + i)));
    store_line(cr + i, load_line(cr + i) - a * (p + load_line(u + i)));
  }
}

void hinge_mark(const float* Z, const float* above, int64_t m, uint32_t* mask) {
  const Line t = load_line(above);
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
  const Line t = load_line(above);
  Line second, root;
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
  const Line step = load_line(t);
  const vf one = splat(1.f), two = splat(2.f), zero = splat(0.f);
  for (int l = 0; l < kLanes; ++l) first[l] = second[l] = 0;
  for (int64_t s = 0; s < m; s += kFloatRun) {
    const int64_t e = s + kFloatRun < m ? s + kFloatRun : m;
    Line a = zero_line(), b = a;
    for (int64_t i = s * kLanes; i < e * kLanes; i += kLanes) {
      for (int k = 0; k < kVecs; ++k) {
        const vf q = load(Q + i + k * kWidth);
        const vf slack = one + fma(step.v[k], q, load(Z + i + k * kWidth));
        const vf active = where_gt(slack, zero, two * q);
        a.v[k] = fma(slack, active, a.v[k]);
        b.v[k] = fma(q, active, b.v[k]);
      }
    }
    add_to(first, a);
    add_to(second, b);
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
  const Line c = load_line(cost), t = load_line(above);
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
  const Line step = load_line(t);
  const vf one = splat(1.f);
  for (int l = 0; l < kLanes; ++l) first[l] = second[l] = 0;
  for (int64_t s = 0; s < m; s += kFloatRun) {
    const int64_t e = s + kFloatRun < m ? s + kFloatRun : m;
    Line a = zero_line(), b = a;
    for (int64_t i = s * kLanes; i < e * kLanes; i += kLanes) {
      for (int k = 0; k < kVecs; ++k) {
        const vf q = load(Q + i + k * kWidth);
        const vf p = sigmoid(fma(step.v[k], q, load(Z + i + k * kWidth)));
        const vf pq = p * q;
        a.v[k] = a.v[k] + pq;
        b.v[k] = fma(pq, (one - p) * q, b.v[k]);
      }
    }
    add_to(first, a);
    add_to(second, b);
  }
}

}  // namespace

extern const NewtonKernels newton_kernels_table = {&product,      &add_transposed, &dot,          &update,
                                                   &update_outer, &scale,          &cg_direction, &cg_step};
extern const LossKernels hinge_kernels_table = {&hinge_mark, &hinge_terms, &hinge_slope};
extern const LossKernels logistic_kernels_table = {&logistic_mark, &logistic_terms, &logistic_slope};

}  // namespace xmc::XMC_SIMD_NS
