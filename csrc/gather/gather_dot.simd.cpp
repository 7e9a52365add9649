#include "gather/gather_dot.h"

#include "core/vec.h"

namespace xmc::gather::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

constexpr int kRows = 4;  // read side by side: x is loaded once for all of them

// The ids of the next (at most kRows) rows that are no padding, with their places; returns how many.
XMC_INLINE int take(const int64_t* ids, int64_t n, int64_t* j, int64_t* places) {
  int count = 0;
  for (; *j < n && count < kRows; ++*j) {
    if (ids[*j] >= 0) places[count++] = *j;
  }
  return count;
}

void dots(const float* x, const float* rows, const int64_t* ids, int64_t n, int64_t dims, float* out) {
  for (int64_t j = 0; j < n; ++j) out[j] = 0.f;
  int64_t j = 0, places[kRows];
  while (const int count = take(ids, n, &j, places)) {
    const float* r[kRows];
    for (int k = 0; k < kRows; ++k) r[k] = rows + ids[places[k < count ? k : 0]] * dims;
    vf low[kRows], high[kRows];
    for (int k = 0; k < kRows; ++k) low[k] = high[k] = splat(0.f);
    int64_t i = 0;
    for (; i + 2 * kWidth <= dims; i += 2 * kWidth) {
      const vf a = load(x + i), b = load(x + i + kWidth);
      for (int k = 0; k < kRows; ++k) {
        low[k] = fma(a, load(r[k] + i), low[k]);
        high[k] = fma(b, load(r[k] + i + kWidth), high[k]);
      }
    }
    for (; i + kWidth <= dims; i += kWidth) {
      const vf a = load(x + i);
      for (int k = 0; k < kRows; ++k) low[k] = fma(a, load(r[k] + i), low[k]);
    }
    for (int k = 0; k < count; ++k) {
      float total = sum(low[k] + high[k]);
      for (int64_t t = i; t < dims; ++t) total += x[t] * r[k][t];
      out[places[k]] = total;
    }
  }
}

void combine(const float* a, const float* rows, const int64_t* ids, int64_t n, int64_t dims, float* out) {
  for (int64_t i = 0; i < dims; ++i) out[i] = 0.f;
  int64_t j = 0, places[kRows];
  while (const int count = take(ids, n, &j, places)) {
    const float* r[kRows];
    float factor[kRows];
    for (int k = 0; k < kRows; ++k) {
      r[k] = rows + ids[places[k < count ? k : 0]] * dims;
      factor[k] = k < count ? a[places[k]] : 0.f;
    }
    int64_t i = 0;
    if (count == kRows) {
      vf f[kRows];
      for (int k = 0; k < kRows; ++k) f[k] = splat(factor[k]);
      for (; i + kWidth <= dims; i += kWidth) {
        vf total = load(out + i);
        for (int k = 0; k < kRows; ++k) total = fma(f[k], load(r[k] + i), total);
        store(out + i, total);
      }
    } else {  // a NaN in a row must not reach the sum through a row that is not there
      for (int k = 0; k < count; ++k) {
        const vf f = splat(factor[k]);
        for (i = 0; i + kWidth <= dims; i += kWidth) store(out + i, fma(f, load(r[k] + i), load(out + i)));
      }
    }
    for (; i < dims; ++i) {
      for (int k = 0; k < count; ++k) out[i] += factor[k] * r[k][i];
    }
  }
}

}  // namespace

const GatherDotKernels gather_dot_kernels_table = {&dots, &combine};

}  // namespace xmc::gather::XMC_SIMD_NS
