#include "core/probe.h"

#include "core/vec.h"

namespace xmc::XMC_SIMD_NS {
namespace {

double probe_fma(int64_t rounds, float* sink) {
  const float s = *sink;  // twelve different starts, or the compiler would merge the chains
  vf a0 = splat(s), a1 = splat(s + 1), a2 = splat(s + 2), a3 = splat(s + 3);
  vf a4 = splat(s + 4), a5 = splat(s + 5), a6 = splat(s + 6), a7 = splat(s + 7);
  vf a8 = splat(s + 8), a9 = splat(s + 9), a10 = splat(s + 10), a11 = splat(s + 11);
  const vf m = splat(0.999f), c = splat(1e-3f);
  for (int64_t r = 0; r < rounds; ++r) {
    a0 = fma(a0, m, c);
    a1 = fma(a1, m, c);
    a2 = fma(a2, m, c);
    a3 = fma(a3, m, c);
    a4 = fma(a4, m, c);
    a5 = fma(a5, m, c);
    a6 = fma(a6, m, c);
    a7 = fma(a7, m, c);
    a8 = fma(a8, m, c);
    a9 = fma(a9, m, c);
    a10 = fma(a10, m, c);
    a11 = fma(a11, m, c);
  }
  *sink = sum(((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)) + ((a8 + a9) + (a10 + a11)));
  return static_cast<double>(rounds) * 12 * 2 * kWidth;
}

float probe_read(const float* x, int64_t n) {
  vf a = splat(0.f), b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    a = a + load(x + i);
    b = b + load(x + i + kWidth);
    c = c + load(x + i + 2 * kWidth);
    d = d + load(x + i + 3 * kWidth);
  }
  float total = sum((a + b) + (c + d));
  for (; i < n; ++i) total += x[i];
  return total;
}

void probe_triad(float* a, const float* b, const float* c, float s, int64_t n) {
  const vf vs = splat(s);
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(a + i, fma(vs, load(c + i), load(b + i)));
  for (; i < n; ++i) a[i] = b[i] + s * c[i];
}

float probe_lines(const float* x, const uint32_t* line, int64_t n) {
  constexpr int kVectors = 16 / kWidth;  // a sum for each vector of two lines hides the latency of addition
  vf a[2 * kVectors];
  for (int j = 0; j < 2 * kVectors; ++j) a[j] = splat(0.f);
  int64_t i = 0;
  for (; i + 2 <= n; i += 2) {
    const float *p = x + int64_t{line[i]} * 16, *q = x + int64_t{line[i + 1]} * 16;
    for (int j = 0; j < kVectors; ++j) {
      a[2 * j] = a[2 * j] + load(p + j * kWidth);
      a[2 * j + 1] = a[2 * j + 1] + load(q + j * kWidth);
    }
  }
  vf total = a[0];
  for (int j = 1; j < 2 * kVectors; ++j) total = total + a[j];
  return sum(total);
}

}  // namespace

extern const ProbeKernels probe_kernels_table = {&probe_fma, &probe_read, &probe_triad, &probe_lines};

}  // namespace xmc::XMC_SIMD_NS
