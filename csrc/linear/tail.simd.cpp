#include "core/vec.h"
#include "linear/tail_kernels.h"

namespace xmc::linear::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

int64_t scan(float* sums, const float* norms, int64_t n, float factor, float level, int32_t first,
             int32_t* rows) {
  const vf f = splat(factor), high = splat(level), zero = splat(0.f);
  int64_t count = 0, i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    uint32_t above = gt(fma(f, load(norms + i), load(sums + i)), high);
    store(sums + i, zero);
    for (; above; above &= above - 1) rows[count++] = first + static_cast<int32_t>(i) + lowest_bit(above);
  }
  for (; i < n; ++i) {
    if (sums[i] + factor * norms[i] > level) {
      rows[count++] = first + static_cast<int32_t>(i);
    }
    sums[i] = 0;
  }
  return count;
}

}  // namespace

extern const TailKernels tail_kernels_table;
const TailKernels tail_kernels_table = {&scan};

}  // namespace xmc::linear::XMC_SIMD_NS
