#include "knn/filter.h"

#include "core/vec.h"

namespace xmc::knn::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

// Integer vectors of kWidth rows by four bytes: sums of pairs of products in 16 bits, of all four in 32.
#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
#if defined(XMC_SIMD_IS_avx512)
#define XMC_MM(name) _mm512_##name
using vi = __m512i;
XMC_INLINE vi bytes(const uint8_t* p) {
  return _mm512_loadu_si512(p);
}
#else
#define XMC_MM(name) _mm256_##name
using vi = __m256i;
XMC_INLINE vi bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
#endif
XMC_INLINE vi splat32(int32_t x) {
  return XMC_MM(set1_epi32)(x);
}
XMC_INLINE vi splat4(const int8_t* p) {
  int32_t four;
  ::memcpy(&four, p, 4);
  return splat32(four);
}
XMC_INLINE vi products(vi b, vi a) {
  return XMC_MM(maddubs_epi16)(b, a);
}
XMC_INLINE vi add16(vi x, vi y) {
  return XMC_MM(add_epi16)(x, y);
}
XMC_INLINE vi add_pairs(vi sum32, vi sum16) {
  return XMC_MM(add_epi32)(sum32, XMC_MM(madd_epi16)(sum16, XMC_MM(set1_epi16)(1)));
}
XMC_INLINE vf to_float(vi x) {
  return {XMC_MM(cvtepi32_ps)(x)};
}
#undef XMC_MM

constexpr int kVectors = 2;  // of rows per register tile
constexpr int kTile = static_cast<int>(kKnnTile), kPanel = static_cast<int>(kKnnPanel);
constexpr int kSteps = static_cast<int>(kKnnSegment) / 4;

// sums[i][v] += the products of `steps` groups of four features.
XMC_INLINE void segment(const uint8_t* b, const int8_t* a, int64_t steps, vi (*sums)[kVectors]) {
  vi acc[kTile][kVectors];
  for (auto& row : acc)
    for (auto& v : row) v = splat32(0);
  for (int64_t g = 0; g < steps; ++g) {
    vi z[kVectors];
    for (int v = 0; v < kVectors; ++v) z[v] = bytes(b + (g * kPanel + v * kWidth) * 4);
    for (int i = 0; i < kTile; ++i) {
      const vi x = splat4(a + (g * kTile + i) * 4);
      for (int v = 0; v < kVectors; ++v) acc[i][v] = add16(acc[i][v], products(z[v], x));
    }
  }
  for (int i = 0; i < kTile; ++i)
    for (int v = 0; v < kVectors; ++v) sums[i][v] = add_pairs(sums[i][v], acc[i][v]);
}

void filter(const KnnPanel& panel, const int8_t* a, const KnnFactors* factors, int64_t tiles, int64_t groups,
            uint32_t* masks) {
  for (int64_t t = 0; t < tiles; ++t, a += groups * kTile * 4, factors += kTile, masks += kTile) {
    for (int i = 0; i < kTile; ++i) masks[i] = 0;
    for (int r = 0; r < kPanel; r += kVectors * kWidth) {
      vi sums[kTile][kVectors];
      for (int i = 0; i < kTile; ++i)
        for (auto& v : sums[i]) v = splat32(factors[i].offset);
      const uint8_t* b = panel.bytes + r * 4;
      for (int64_t g = 0; g < groups; g += kSteps) {
        const int64_t steps = groups - g < kSteps ? groups - g : kSteps;
        segment(b + g * kPanel * 4, a + g * kTile * 4, steps, sums);
      }
      for (int v = 0; v < kVectors; ++v) {
        const int at = r + v * kWidth;
        const vf s = load(panel.scale + at), norm = load(panel.norm + at), error = load(panel.error + at);
        for (int i = 0; i < kTile; ++i) {
          const KnnFactors& f = factors[i];
          const vf rest = fma(splat(f.of_norm), norm, splat(f.of_error) * error);
          const uint32_t dropped = ge(splat(f.limit), fma(s, to_float(sums[i][v]), rest));
          masks[i] |= (~dropped & ((1u << kWidth) - 1)) << at;
        }
      }
    }
  }
}

#else
// Without products of bytes a first pass takes four times as long as scoring every row.
void filter(const KnnPanel&, const int8_t*, const KnnFactors*, int64_t tiles, int64_t, uint32_t* masks) {
  for (int64_t i = 0; i < tiles * kKnnTile; ++i) masks[i] = ~uint32_t{0};
}
#endif

float quantise(const float* z, int64_t c, float* work, uint8_t* b, float* norm2, float* error2) {
  const vf zero = splat(0.f);
  vf most = zero;
  int64_t j = 0;
  for (; j + kWidth <= c; j += kWidth) most = max(max(load(z + j), zero - load(z + j)), most);
  float peak = largest_lane(most);
  for (; j < c; ++j) {
    const float x = z[j] < 0 ? -z[j] : z[j];
    peak = x > peak ? x : peak;
  }
  constexpr float kSmallest = 1.17549435e-38f;  // a scale below would lose its digits
  const float s = peak / 63 > kSmallest ? peak / 63 : kSmallest;

  // The last vector is filled up with zeros. NaN becomes 1: max gives its second operand then.
  vf n2 = zero, e2 = zero;
  for (j = 0; j < c; j += kWidth) {
    float part[kWidth] = {};
    const int64_t left = c - j < kWidth ? c - j : kWidth;
    for (int64_t k = 0; k < left; ++k) part[k] = z[j + k];
    const vf x = load(part) / splat(s);
    const vf y = min(max(round(x), splat(-63.f)), splat(63.f));
    n2 = fma(x, x, n2);
    e2 = fma(x - y, x - y, e2);
    store(part, y + splat(64.f));
    for (int64_t k = 0; k < left; ++k) work[j + k] = part[k];
  }
  for (j = 0; j < c; ++j) b[j] = static_cast<uint8_t>(static_cast<int32_t>(work[j]));
  *norm2 = sum(n2);
  *error2 = sum(e2);
  return s;
}

}  // namespace

extern const KnnFilterKernels knn_filter_kernels_table = {&filter, &quantise};

}  // namespace xmc::knn::XMC_SIMD_NS
