#include "spmm/row_adam.h"

#include "core/vec.h"

namespace xmc::spmm::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

void row(const AdamStep& step, const float* g, int64_t k, float* w, float* m, float* v) {
  const vf first = splat(1 - step.beta1), beta2 = splat(step.beta2), second = splat(1 - step.beta2);
  const vf eps = splat(step.eps), rate = splat(-step.rate), scale = splat(1 / step.scale);
  int64_t j = 0;
  for (; j + kWidth <= k; j += kWidth) {
    const vf gj = load(g + j), mj = fma(first, gj - load(m + j), load(m + j));
    const vf vj = fma(second, gj * gj, beta2 * load(v + j));
    store(m + j, mj);
    store(v + j, vj);
    store(w + j, fma(rate, mj / (sqrt(vj * scale) + eps), load(w + j)));
  }
  for (; j < k; ++j) {
    m[j] += (1 - step.beta1) * (g[j] - m[j]);
    v[j] = step.beta2 * v[j] + (1 - step.beta2) * g[j] * g[j];
    w[j] -= step.rate * m[j] / (sqrtf(v[j] / step.scale) + step.eps);
  }
}

}  // namespace

extern const RowAdamKernels row_adam_kernels_table = {&row};

}  // namespace xmc::spmm::XMC_SIMD_NS
