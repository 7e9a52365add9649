#include "linear/dual.h"

namespace xmc::linear {

Multipliers multipliers_of(const DualStart& start, bool has_bias) {
  Multipliers out{start.rows, {}, has_bias ? start.w.back() : 0.f};
  for (const int32_t i : start.rows) out.alpha.push_back(start.alpha[i]);
  return out;
}

DualStart bias_alone(const PreparedFeatures& X) {
  DualStart out;
  out.w.assign(X.D, 0.f);
  out.alpha.assign(X.n, 0.f);
  out.w.back() = -1 / X.bias;
  return out;
}

}  // namespace xmc::linear
