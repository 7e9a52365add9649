#include "knn/knn.h"

#include "core/vec.h"

namespace xmc::XMC_SIMD_NS {
namespace {

// A register tile of R queries by V vectors of database rows. AVX2 has 16 registers, AVX-512 32.
#if defined(XMC_SIMD_IS_avx512)
constexpr int kQueries = 12, kVectors = 2;
#elif defined(XMC_SIMD_IS_avx2)
constexpr int kQueries = 6, kVectors = 2;
#else
constexpr int kQueries = 4, kVectors = 2;
#endif
constexpr int kPanel = static_cast<int>(kKnnPanel), kTile = static_cast<int>(kKnnTile);

// scores[i][0 .. kVectors*kWidth) for queries q[.][i], i < kQueries.
XMC_INLINE void register_tile(const float* panel, const float* q, int64_t c, float* scores) {
  vf acc[kQueries][kVectors];
  for (auto& row : acc)
    for (auto& v : row) v = splat(0.f);
  for (int64_t j = 0; j < c; ++j) {
    vf z[kVectors];
    for (int v = 0; v < kVectors; ++v) z[v] = load(panel + j * kPanel + v * kWidth);
    for (int i = 0; i < kQueries; ++i) {
      const vf x = splat(q[j * kTile + i]);
      for (int v = 0; v < kVectors; ++v) acc[i][v] = fma(x, z[v], acc[i][v]);
    }
  }
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < kVectors; ++v) store(scores + i * kPanel + v * kWidth, acc[i][v]);
}

void score(const float* panel, const float* queries, int64_t tiles, int64_t c, float* scores) {
  for (int64_t t = 0; t < tiles; ++t) {
    for (int i = 0; i < kTile; i += kQueries) {
      for (int r = 0; r < kPanel; r += kVectors * kWidth) {
        register_tile(panel + r, queries + t * c * kTile + i, c, scores + (t * kTile + i) * kPanel + r);
      }
    }
  }
}

uint32_t above(const float* scores, float threshold) {
  const vf t = splat(threshold);
  uint32_t mask = 0;
  for (int r = 0; r < kPanel; r += kWidth) mask |= gt(load(scores + r), t) << r;
  return mask;
}

}  // namespace

extern const KnnKernels knn_kernels_table = {&score, &above};

}  // namespace xmc::XMC_SIMD_NS
