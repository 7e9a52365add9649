#include "cluster/gram.h"

#include "core/vec.h"

namespace xmc::cluster::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

constexpr int kRows = 4;
constexpr int kVectors = kWidth == 16 ? 4 : 2;  // 4 x 4 or 4 x 2 accumulators: what the registers hold
constexpr int kColumns = kVectors * kWidth;     // divides 64

void syrk(const float* A, int64_t k, int64_t ld, int64_t n, float* G) {
  for (int64_t i = 0; i < n; i += kRows) {
    for (int64_t j = 0; j < i + kRows; j += kColumns) {
      vf sum[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sum[r][v] = splat(0.f);
      }
      for (int64_t h = 0; h < k; ++h) {
        const float* a = A + h * ld;
        vf b[kVectors];
        for (int v = 0; v < kVectors; ++v) b[v] = load(a + j + v * kWidth);
        for (int r = 0; r < kRows; ++r) {
          const vf x = splat(a[i + r]);
          for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(x, b[v], sum[r][v]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) store(G + (i + r) * ld + j + v * kWidth, sum[r][v]);
      }
    }
  }
}

}  // namespace

extern const GramKernels gram_kernels_table = {&syrk};

}  // namespace xmc::cluster::XMC_SIMD_NS
