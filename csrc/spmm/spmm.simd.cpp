#include "spmm/spmm.h"

#include "core/vec.h"

namespace xmc::spmm::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

// The columns [0, V * kWidth) of the result row, held in V registers over the whole sum.
template <int V, bool binary>
XMC_INLINE void columns_of(const int32_t* columns, const float* values, int64_t count, const float* B,
                           int64_t k, float* out) {
  vf acc[V];
  for (int v = 0; v < V; ++v) acc[v] = splat(0.f);
  for (int64_t e = 0; e < count; ++e) {
    const float* b = B + columns[e] * k;
    const vf a = splat(binary ? 1.f : values[e]);
    for (int v = 0; v < V; ++v) {
      const vf x = load(b + v * kWidth);
      acc[v] = binary ? acc[v] + x : fma(a, x, acc[v]);
    }
  }
  for (int v = 0; v < V; ++v) store(out + v * kWidth, acc[v]);
}

template <bool binary>
XMC_INLINE void row_of(const int32_t* columns, const float* values, int64_t count, const float* B, int64_t k,
                       float* out) {
  int64_t c = 0;
  for (; c + 8 * kWidth <= k; c += 8 * kWidth)
    columns_of<8, binary>(columns, values, count, B + c, k, out + c);
  for (; c + 2 * kWidth <= k; c += 2 * kWidth)
    columns_of<2, binary>(columns, values, count, B + c, k, out + c);
  for (; c + kWidth <= k; c += kWidth) columns_of<1, binary>(columns, values, count, B + c, k, out + c);
  for (; c < k; ++c) {
    float sum = 0;
    for (int64_t e = 0; e < count; ++e) sum += (binary ? 1.f : values[e]) * B[columns[e] * k + c];
    out[c] = sum;
  }
}

void row(const int32_t* columns, const float* values, int64_t count, const float* B, int64_t k, float* out) {
  if (values) {
    row_of<false>(columns, values, count, B, k, out);
  } else {
    row_of<true>(columns, values, count, B, k, out);
  }
}

}  // namespace

extern const SpmmKernels spmm_kernels_table = {&row};

}  // namespace xmc::spmm::XMC_SIMD_NS
