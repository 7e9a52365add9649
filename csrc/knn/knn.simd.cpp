#include "knn/knn.h"

#include "core/vec.h"

namespace xmc::knn::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

constexpr int kLanes = static_cast<int>(kKnnLanes), kVectors = kLanes / kWidth;

// Scores of R rows at once, which share the loads of the query.
template <int R>
XMC_INLINE void dots(const float* const* rows, const float* query, int64_t c, float* out) {
  vf acc[R][kVectors];
  for (auto& row : acc)
    for (auto& v : row) v = splat(0.f);
  int64_t j = 0;
  for (; j + kLanes <= c; j += kLanes) {
    for (int v = 0; v < kVectors; ++v) {
      const vf x = load(query + j + v * kWidth);
      for (int r = 0; r < R; ++r) acc[r][v] = fma(x, load(rows[r] + j + v * kWidth), acc[r][v]);
    }
  }
  // What lies beyond a row's end is another row, maybe not finite: zero times it would not do.
  for (int v = 0; v < kVectors && j + v * kWidth < c; ++v) {
    const int64_t left = c - j - v * kWidth;
    const vf x = load(query + j + v * kWidth);
    if (left >= kWidth) {
      for (int r = 0; r < R; ++r) acc[r][v] = fma(x, load(rows[r] + j + v * kWidth), acc[r][v]);
    } else {
      const uint32_t mask = (1u << left) - 1;
      for (int r = 0; r < R; ++r) {
        acc[r][v] = fma(x, select(mask, load(rows[r] + j + v * kWidth), splat(0.f)), acc[r][v]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = kVectors / 2; n > 0; n /= 2)
      for (int v = 0; v < n; ++v) acc[r][v] = acc[r][v] + acc[r][v + n];
    out[r] = sum(acc[r][0]);
  }
}

void score(const float* rows, int64_t c, const float* query, const int32_t* at, int n, float* scores) {
  constexpr int kTogether = 4;
  const float* z[kTogether];
  int i = 0;
  for (; i + kTogether <= n; i += kTogether) {
    for (int r = 0; r < kTogether; ++r) z[r] = rows + at[i + r] * c;
    dots<kTogether>(z, query, c, scores + i);
  }
  for (; i < n; ++i) {
    z[0] = rows + at[i] * c;
    dots<1>(z, query, c, scores + i);
  }
}

}  // namespace

extern const KnnKernels knn_kernels_table = {&score};

}  // namespace xmc::knn::XMC_SIMD_NS
