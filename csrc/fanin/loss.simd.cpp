#include "fanin/tile.h"

namespace xmc::fanin::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

// max and min give their second operand if one is NaN: the value that may be NaN stands there.

// log(1 + u) for u in [0, 1]: 2 atanh(t) with t = u / (2 + u) <= 1/3.
XMC_INLINE vf log1p_unit(vf u) {
  const vf t = u / (u + splat(2.f)), q = t * t;
  vf p = splat(1.f / 15);
  p = fma(p, q, splat(1.f / 13));
  p = fma(p, q, splat(1.f / 11));
  p = fma(p, q, splat(1.f / 9));
  p = fma(p, q, splat(1.f / 7));
  p = fma(p, q, splat(1.f / 5));
  p = fma(p, q, splat(1.f / 3));
  p = fma(p, q, splat(1.f));
  return splat(2.f) * t * p;
}

struct SquaredHinge {
  // m = max(0, 1 - y z): value m^2, derivative -2 y m
  static XMC_INLINE void apply(vf z, vf y, vf& value, vf& slope) {
    const vf m = max(splat(0.f), splat(1.f) - y * z);
    value = m * m;
    slope = splat(-2.f) * y * m;
  }
};

struct Bce {
  // m = y z: value log(1 + exp(-m)), derivative -y / (1 + exp(m)); both through u = exp(-|m|)
  static XMC_INLINE void apply(vf z, vf y, vf& value, vf& slope) {
    const vf zero = splat(0.f), one = splat(1.f), m = y * z;
    const vf u = exp(min(m, zero - m));
    value = log1p_unit(u) + max(zero, zero - m);
    const vf top = where_gt(m, zero, u - one) + one;  // u for m > 0, else 1
    slope = (zero - y) * top / (one + u);
  }
};

template <class Function>
double run(float* z, const float* sign, const float* valid, int64_t labels, float scale, uint8_t* active) {
  vf total = splat(0.f);
  for (int64_t l = 0; l < labels; ++l) {
    int zeros = 0;
    for (int v = 0; v < kTile; v += kWidth) {
      const vf used = load(valid + v);
      vf value, slope;
      Function::apply(load(z + l * kTile + v), load(sign + l * kTile + v), value, slope);
      total = fma(value, used, total);
      slope = slope * used * splat(scale);
      store(z + l * kTile + v, slope);
      zeros += (ge(slope, splat(0.f)) & ge(splat(0.f), slope)) == (1u << kWidth) - 1u;
    }
    active[l] = zeros != kTile / kWidth;
  }
  return static_cast<double>(sum(total)) * static_cast<double>(scale);
}

double loss(fanin::Loss kind, float* z, const float* sign, const float* valid, int64_t labels, float scale,
            uint8_t* active) {
  return kind == fanin::Loss::squared_hinge ? run<SquaredHinge>(z, sign, valid, labels, scale, active)
                                            : run<Bce>(z, sign, valid, labels, scale, active);
}

uint32_t above(const float* z, const float* threshold) {
  uint32_t mask = 0;
  for (int v = 0; v < kTile; v += kWidth) mask |= gt(load(z + v), load(threshold + v)) << v;
  return mask;
}

}  // namespace

extern const FaninLoss fanin_loss_table = {&loss, &above};

}  // namespace xmc::fanin::XMC_SIMD_NS
