#include "linear/dual_kernels.h"
#include "linear/lane_rows.h"

namespace xmc::linear::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

constexpr uint32_t kVecMask = (1u << kWidth) - 1;
XMC_INLINE uint32_t bits(uint32_t mask, int k) {
  return (mask >> (k * kWidth)) & kVecMask;
}

// The bias's weights; anything finite without a bias.
XMC_INLINE LaneVector bias_weight(const LaneGroup& s) {
  return s.x.bias != 0 ? load_lanes(s.w + (s.D - 1) * kLanes) : zero_lanes();
}

template <class Rows>
int64_t epoch(const LaneGroup& s, int32_t* order, int64_t count, uint32_t open, float* violation2) {
  const Rows rows(s.x);
  const LaneVector hp = load_lanes(s.half_inverse_positive);
  const vf hn = splat(s.half_inverse_negative);
  const LaneVector slight = load_lanes(s.slight);
  const vf zero = splat(0.f), one = splat(1.f), damping = splat(1.f / kRelaxation);
  const vf bias = splat(s.x.bias);
  LaneVector total = zero_lanes(), balance = load_lanes(s.balance), b = bias_weight(s), bias_step, hp2, hn2;
  for (int k = 0; k < kVecs; ++k) {
    bias_step.v[k] = bias * load(s.bias_share + k * kWidth);
    hp2.v[k] = fma(bias, bias_step.v[k], hp.v[k]);
    hn2.v[k] = fma(bias, bias_step.v[k], hn);
  }
  int64_t kept = 0;
  const bool look_ahead = s.look_ahead && count >= kMany;
  const vf delayed = splat(look_ahead ? kDelayed : 0.f);
  LaneVector ahead = count > 0 ? rows.dot(order[0], s.w) : zero_lanes();
  for (int64_t q = 0; q < count; ++q) {
    const int64_t i = order[q];
    const int64_t next = order[q + 2 < count ? q + 2 : q];
    rows.fetch(next);
    prefetch(s.alpha + next * kLanes);
    prefetch(s.x.rows + order[q + 5 < count ? q + 5 : q]);  // or `fetch` waits for it three rows later
    const LaneVector z = ahead;
    const int64_t follows = order[q + 1 < count ? q + 1 : q];
    float* alpha = s.alpha + i * kLanes;
    const vf norm2 = splat(s.x.rows[i].norm2);
    const uint32_t positive = s.positive[i];
    uint32_t moving = 0;
    LaneVector step, after;
    for (int k = 0; k < kVecs; ++k) {
      const uint32_t pos = bits(positive, k);
      const vf a = load(alpha + k * kWidth);
      const vf h = select(pos, hp.v[k], hn);
      const vf zb = fma(bias, b.v[k], z.v[k]);
      const vf sz = select(pos, zb, zero - zb);
      const vf G = fma(a, h, sz - one);
      const vf P = select((gt(a, zero) | gt(zero, G)) & bits(s.live, k), G, zero);
      total.v[k] = fma(P, P, total.v[k]);
      const vf Q = max((norm2 + select(pos, hp2.v[k], hn2.v[k])) * damping, norm2 * delayed);
      after.v[k] = max(a - P / Q, zero);
      const vf d = after.v[k] - a;
      step.v[k] = select(pos, d, zero - d);
      moving |= gt(max(P, zero - P), slight.v[k]) << (k * kWidth);
    }
    if (moving) {
      store_lanes(alpha, after);
      for (int k = 0; k < kVecs; ++k) {
        balance.v[k] = balance.v[k] + step.v[k];
        b.v[k] = fma(bias_step.v[k], step.v[k], b.v[k]);
      }
    }
    if (moving && (look_ahead || Rows::kExact)) {
      ahead = rows.axpy_and_dot(i, step, follows, s.w);
    } else {
      if (moving) rows.axpy(i, step, s.w);
      ahead = rows.dot(follows, s.w);
    }
    if (moving & open) order[kept++] = static_cast<int32_t>(i);
  }
  store_lanes(violation2, total);
  store_lanes(s.balance, balance);
  if (s.x.bias != 0) store_lanes(s.w + (s.D - 1) * kLanes, b);
  return kept;
}

template <class Rows>
void pass(const LaneGroup& s, uint8_t* flags, PassResult& out) {
  const Rows rows(s.x);
  const LaneVector hp = load_lanes(s.half_inverse_positive);
  const vf hn = splat(s.half_inverse_negative);
  const vf zero = splat(0.f), one = splat(1.f), damping = splat(1.f / kRelaxation);
  const vf outside = splat(-kNear), margin = splat(-1.f - kNear);
  const LaneVector b = bias_weight(s);
  const vf bias = splat(s.x.bias);
  LaneVector violation = zero_lanes(), balance = zero_lanes();
  int64_t count = 0;
  for (int l = 0; l < kLanes; ++l) out.violation2[l] = out.balance[l] = 0;
  for (int64_t i = 0; i < s.n; ++i) {
    LaneVector z = rows.dot(i, s.w);
    for (int k = 0; k < kVecs; ++k) z.v[k] = fma(bias, b.v[k], z.v[k]);
    uint32_t inside = 0;
    for (int k = 0; k < kVecs; ++k) inside |= gt(z.v[k], margin) << (k * kWidth);
    if (!flags[i] && !(inside & s.live)) continue;
    const uint32_t positive = s.positive[i];
    const vf norm2 = splat(s.x.rows[i].norm2);
    uint32_t needed = 0, moved = 0;
    float* slacks = out.slacks + count * kLanes;
    LaneVector step, after;
    for (int k = 0; k < kVecs; ++k) {
      const uint32_t pos = bits(positive, k), live = bits(s.live, k);
      const vf a = load(s.alpha + i * kLanes + k * kWidth);
      const vf h = select(pos, hp.v[k], hn);
      const vf slack = one - select(pos, z.v[k], zero - z.v[k]);
      const uint32_t on = (gt(slack, outside) | gt(a, zero)) & live;
      const vf G = select(on, a * h - max(slack, zero), zero);
      violation.v[k] = fma(G, G, violation.v[k]);
      const uint32_t eager = on & bits(s.eager, k);
      const vf P = select(eager, fma(a, h, zero - slack), zero);
      after.v[k] = max(a - P / ((norm2 + h) * damping), zero);
      const vf d = after.v[k] - a;
      step.v[k] = select(pos, d, zero - d);
      balance.v[k] = balance.v[k] + select(pos, after.v[k], zero - after.v[k]);
      store(slacks + k * kWidth, select(on, slack, outside));
      needed |= on << (k * kWidth);
      moved |= eager;
    }
    if (moved) {
      store_lanes(s.alpha + i * kLanes, after);
      rows.axpy(i, step, s.w);
    }
    if (needed) {
      out.rows[count] = static_cast<int32_t>(i);
      out.masks[count] = static_cast<uint16_t>(needed);
      if (++count % kFlush == 0) {
        flush(out.violation2, violation);
        flush(out.balance, balance);
      }
    } else if (!positive) {
      flags[i] = 0;
    }
  }
  flush(out.violation2, violation);
  flush(out.balance, balance);
  out.count = count;
}

// -2 C c_i s_i max(0, slack) of found row u when the bias moves all z by `shift`; *slacks gets max(0, slack).
XMC_INLINE LaneVector coefficient(const LaneGroup& s, const PassResult& p, int64_t u, const LaneVector& shift,
                                  LaneVector* slacks) {
  const uint32_t positive = s.positive[p.rows[u]];
  const LaneVector hp = load_lanes(s.half_inverse_positive);
  const vf hn = splat(s.half_inverse_negative);
  const vf zero = splat(0.f);
  LaneVector c;
  for (int k = 0; k < kVecs; ++k) {
    const uint32_t pos = bits(positive, k);
    const vf slack = load(p.slacks + u * kLanes + k * kWidth);
    slacks->v[k] = max(select(pos, slack - shift.v[k], slack + shift.v[k]), zero);
    const vf size = slacks->v[k] / select(pos, hp.v[k], hn);
    c.v[k] = select(pos, zero - size, size);
  }
  return c;
}

// A Newton step of the bias's weight alone: multipliers that lag behind it add up in its gradient. At most as
// far as the pass has seen the rows.
LaneVector center(const LaneGroup& s, const PassResult& p, uint32_t wanted) {
  const vf zero = splat(0.f);
  double slope[kLanes] = {}, curvature[kLanes] = {};
  LaneVector slopes = zero_lanes(), curvatures = zero_lanes();
  for (int64_t u = 0; u < p.count; ++u) {
    if (!(p.masks[u] & wanted)) continue;
    LaneVector slack;
    const LaneVector c = coefficient(s, p, u, zero_lanes(), &slack);
    for (int k = 0; k < kVecs; ++k) {
      slopes.v[k] = slopes.v[k] + c.v[k];
      const vf size = max(c.v[k], zero - c.v[k]);
      curvatures.v[k] = curvatures.v[k] + select(gt(slack.v[k], zero), size / slack.v[k], zero);
    }
    if (u % kFlush == 0) {
      flush(slope, slopes);
      flush(curvature, curvatures);
    }
  }
  flush(slope, slopes);
  flush(curvature, curvatures);
  float* b = s.w + (s.D - 1) * kLanes;
  const double bias = static_cast<double>(s.x.bias);
  float shift[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const double most = static_cast<double>(kNear);
    const double z = -bias * (static_cast<double>(b[l]) + bias * slope[l]) / (1 + bias * bias * curvature[l]);
    shift[l] = wanted >> l & 1u ? static_cast<float>(z > most ? most : z < -most ? -most : z) : 0.f;
    b[l] += shift[l] / s.x.bias;
  }
  return load_lanes(shift);
}

template <class Rows>
void gradient(const LaneGroup& s, PassResult& p, uint32_t wanted, float* g, double* g_norm2,
              double* w_norm2) {
  const Rows rows(s.x);
  const LaneVector shift = s.x.bias != 0 ? center(s, p, wanted) : zero_lanes();
  for (int l = 0; l < kLanes; ++l) g_norm2[l] = w_norm2[l] = p.loss[l] = 0;
  for (int64_t j = 0; j < s.D; j += kFlush) {
    const int64_t end = j + kFlush < s.D ? j + kFlush : s.D;
    LaneVector part = zero_lanes();
    for (int64_t t = j; t < end; ++t) {
      const LaneVector w = load_lanes(s.w + t * kLanes);
      store_lanes(g + t * kLanes, w);
      for (int k = 0; k < kVecs; ++k) part.v[k] = fma(w.v[k], w.v[k], part.v[k]);
    }
    flush(w_norm2, part);
  }
  double slope[kLanes] = {}, rows_inside[kLanes] = {};
  const vf zero = splat(0.f), one = splat(1.f);
  LaneVector slopes = zero_lanes(), loss = zero_lanes(), active = zero_lanes();
  for (int64_t u = 0; u < p.count; ++u) {
    if (!(p.masks[u] & wanted)) continue;
    LaneVector slack;
    const LaneVector c = coefficient(s, p, u, shift, &slack);
    rows.axpy(p.rows[u], c, g);
    for (int k = 0; k < kVecs; ++k) {
      slopes.v[k] = slopes.v[k] + c.v[k];
      loss.v[k] = fma(max(c.v[k], zero - c.v[k]), slack.v[k], loss.v[k]);
      active.v[k] = active.v[k] + select(gt(slack.v[k], zero), one, zero);
    }
    if (u % kFlush == 0) {
      flush(slope, slopes);
      flush(p.loss, loss);
      flush(rows_inside, active);
    }
  }
  flush(slope, slopes);
  flush(p.loss, loss);
  flush(rows_inside, active);
  for (int l = 0; l < kLanes; ++l) {
    p.loss[l] *= 0.5;
    p.active[l] = static_cast<int64_t>(rows_inside[l]);
  }
  if (s.x.bias != 0) {
    float* last = g + (s.D - 1) * kLanes;
    for (int l = 0; l < kLanes; ++l) last[l] += static_cast<float>(s.x.bias * slope[l]);
  }
  for (int64_t j = 0; j < s.D; j += kFlush) {
    const int64_t end = j + kFlush < s.D ? j + kFlush : s.D;
    LaneVector part = zero_lanes();
    for (int64_t t = j; t < end; ++t) {
      const LaneVector v = load_lanes(g + t * kLanes);
      for (int k = 0; k < kVecs; ++k) part.v[k] = fma(v.v[k], v.v[k], part.v[k]);
    }
    flush(g_norm2, part);
  }
}

void gap(const LaneGroup& s, const PassResult& p, uint32_t wanted, double* gap, double* objective) {
  const LaneVector hp = load_lanes(s.half_inverse_positive);
  const vf hn = splat(s.half_inverse_negative), zero = splat(0.f), one = splat(1.f), half = splat(0.5f);
  double norm2[kLanes] = {}, loss[kLanes] = {};
  for (int l = 0; l < kLanes; ++l) gap[l] = 0;
  LaneVector norms = zero_lanes(), losses = zero_lanes(), gaps = zero_lanes();
  for (int64_t u = 0; u < p.count; ++u) {
    if (!(p.masks[u] & wanted)) continue;
    const uint32_t positive = s.positive[p.rows[u]];
    for (int k = 0; k < kVecs; ++k) {
      const vf h = select(bits(positive, k), hp.v[k], hn);
      const vf a = load(s.alpha + int64_t{p.rows[u]} * kLanes + k * kWidth);
      const vf slack = load(p.slacks + u * kLanes + k * kWidth), xi = max(slack, zero);
      const vf apart = xi - a * h, scale = half / h;
      norms.v[k] = fma(a, one - slack, norms.v[k]);
      losses.v[k] = fma(xi * xi, scale, losses.v[k]);
      gaps.v[k] = gaps.v[k] + fma(apart * apart, scale, a * (xi - slack));
    }
    if (u % kFlush == 0) {
      flush(norm2, norms);
      flush(loss, losses);
      flush(gap, gaps);
    }
  }
  flush(norm2, norms);
  flush(loss, losses);
  flush(gap, gaps);
  for (int l = 0; l < kLanes; ++l) {
    if (s.x.bias != 0) {  // norm2 has bias * b * sum_i alpha_i s_i where b^2 belongs
      const double b = static_cast<double>(s.w[(s.D - 1) * kLanes + l]);
      const double apart = b - static_cast<double>(s.x.bias) * p.balance[l];
      norm2[l] += b * apart;
      gap[l] += 0.5 * apart * apart;
    }
    objective[l] = 0.5 * norm2[l] + loss[l];
  }
}

template <class Rows>
void add_row(const LaneGroup& s, int64_t i, int lane, float scale) {
  Rows(s.x).add(i, scale, s.w + lane);
}

template <class Rows>
void add_rows(const LaneGroup& s, const int32_t* list, int64_t count, uint32_t mask) {
  const Rows rows(s.x);
  const vf zero = splat(0.f);
  LaneVector balance = zero_lanes();
  double total[kLanes] = {};
  for (int64_t u = 0; u < count; ++u) {
    const int64_t i = list[u];
    LaneVector step;
    for (int k = 0; k < kVecs; ++k) {
      const vf a = select(bits(mask, k), load(s.alpha + i * kLanes + k * kWidth), zero);
      step.v[k] = select(bits(s.positive[i], k), a, zero - a);
      balance.v[k] = balance.v[k] + step.v[k];
    }
    rows.axpy(i, step, s.w);
    if (u % kFlush == 0) flush(total, balance);
  }
  flush(total, balance);
  for (int l = 0; l < kLanes; ++l) s.balance[l] += static_cast<float>(total[l]);
}

template <class Rows>
void dots(const LaneGroup& s, const int32_t* list, int64_t count, float* out) {
  const Rows rows(s.x);
  const LaneVector b = bias_weight(s);
  const vf bias = splat(s.x.bias);
  for (int64_t u = 0; u < count; ++u) {
    LaneVector z = rows.dot(list[u], s.w);
    for (int k = 0; k < kVecs; ++k) z.v[k] = fma(bias, b.v[k], z.v[k]);
    store_lanes(out + u * kLanes, z);
  }
}

void fill(float* m, const float* start, int64_t count, uint32_t mask) {
  for (int64_t i = 0; i < count; ++i) {
    const vf x = splat(start[i]);
    for (int k = 0; k < kVecs; ++k) {
      float* p = m + i * kLanes + k * kWidth;
      store(p, select(bits(mask, k), x, load(p)));
    }
  }
}

int64_t select_features(const LaneGroup& s, uint32_t mask, float threshold, int32_t* features,
                        uint16_t* masks) {
  const vf high = splat(threshold), zero = splat(0.f);
  int64_t count = 0;
  for (int64_t j = 0; j < s.D; ++j) {
    uint32_t keep = 0;
    for (int k = 0; k < kVecs; ++k) {
      const vf w = load(s.w + j * kLanes + k * kWidth);
      const vf size = max(w, zero - w);
      keep |= (ge(size, high) & gt(size, zero)) << (k * kWidth);
    }
    features[count] = static_cast<int32_t>(j);
    masks[count] = static_cast<uint16_t>(keep & mask);
    count += (keep & mask) != 0;
  }
  return count;
}

int64_t any_epoch(const LaneGroup& s, int32_t* order, int64_t count, uint32_t open, float* violation2) {
  return s.x.dense ? epoch<DenseRows>(s, order, count, open, violation2)
                   : epoch<SparseRows>(s, order, count, open, violation2);
}
void any_pass(const LaneGroup& s, uint8_t* flags, PassResult& out) {
  s.x.dense ? pass<DenseRows>(s, flags, out) : pass<SparseRows>(s, flags, out);
}
void any_gradient(const LaneGroup& s, PassResult& p, uint32_t wanted, float* g, double* g_norm2,
                  double* w_norm2) {
  s.x.dense ? gradient<DenseRows>(s, p, wanted, g, g_norm2, w_norm2)
            : gradient<SparseRows>(s, p, wanted, g, g_norm2, w_norm2);
}
void any_add_row(const LaneGroup& s, int64_t i, int lane, float scale) {
  s.x.dense ? add_row<DenseRows>(s, i, lane, scale) : add_row<SparseRows>(s, i, lane, scale);
}

void any_add_rows(const LaneGroup& s, const int32_t* rows, int64_t count, uint32_t mask) {
  s.x.dense ? add_rows<DenseRows>(s, rows, count, mask) : add_rows<SparseRows>(s, rows, count, mask);
}
void any_dots(const LaneGroup& s, const int32_t* rows, int64_t count, float* z) {
  s.x.dense ? dots<DenseRows>(s, rows, count, z) : dots<SparseRows>(s, rows, count, z);
}

}  // namespace

extern const DualKernels dual_kernels_table;
const DualKernels dual_kernels_table = {&any_epoch,       &any_pass,    &any_gradient, &gap,     &fill,
                                        &select_features, &any_add_row, &any_add_rows, &any_dots};

}  // namespace xmc::linear::XMC_SIMD_NS
