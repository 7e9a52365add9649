#include "mach/aggregate.h"

#include "core/vec.h"

namespace xmc::XMC_SIMD_NS {
namespace {

constexpr int kTile = 16;

// Sixteen 16-bit lanes: 256 bits on both AVX levels.
#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
struct lanes {
  __m256i v;
};
XMC_INLINE lanes widen(const uint8_t* p) {
  return {_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
XMC_INLINE lanes load16(const uint16_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
XMC_INLINE void store16(uint16_t* p, lanes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
XMC_INLINE lanes operator+(lanes a, lanes b) {
  return {_mm256_add_epi16(a.v, b.v)};
}
XMC_INLINE lanes least(lanes a, lanes b) {
  return {_mm256_min_epu16(a.v, b.v)};
}
XMC_INLINE bool any_ge(lanes a, lanes b) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_max_epu16(a.v, b.v), a.v)) != 0;
}
#else
struct lanes {
  uint16_t v[kTile];
};
XMC_INLINE lanes widen(const uint8_t* p) {
  lanes a;
  for (int i = 0; i < kTile; ++i) a.v[i] = p[i];
  return a;
}
XMC_INLINE lanes load16(const uint16_t* p) {
  lanes a;
  for (int i = 0; i < kTile; ++i) a.v[i] = p[i];
  return a;
}
XMC_INLINE void store16(uint16_t* p, lanes a) {
  for (int i = 0; i < kTile; ++i) p[i] = a.v[i];
}
XMC_INLINE lanes operator+(lanes a, lanes b) {
  for (int i = 0; i < kTile; ++i) a.v[i] = static_cast<uint16_t>(a.v[i] + b.v[i]);
  return a;
}
XMC_INLINE lanes least(lanes a, lanes b) {
  for (int i = 0; i < kTile; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
XMC_INLINE bool any_ge(lanes a, lanes b) {
  bool any = false;
  for (int i = 0; i < kTile; ++i) any |= a.v[i] >= b.v[i];
  return any;
}
#endif

struct Sum {
  static XMC_INLINE lanes of(lanes a, lanes b) { return a + b; }
};
struct Least {
  static XMC_INLINE lanes of(lanes a, lanes b) { return least(a, b); }
};

template <class Op>
void merge(const uint8_t* q, int64_t q_stride, const uint16_t* h, int64_t h_stride, int64_t n, bool first,
           uint16_t* sums) {
  const uint8_t *q0 = q, *q1 = q + q_stride, *q2 = q + 2 * q_stride, *q3 = q + 3 * q_stride;
  const uint16_t *h0 = h, *h1 = h + h_stride, *h2 = h + 2 * h_stride, *h3 = h + 3 * h_stride;
  for (int64_t l = 0; l < n; ++l) {
    const lanes a = Op::of(widen(q0 + int64_t{h0[l]} * kTile), widen(q1 + int64_t{h1[l]} * kTile));
    const lanes b = Op::of(widen(q2 + int64_t{h2[l]} * kTile), widen(q3 + int64_t{h3[l]} * kTile));
    const lanes c = Op::of(a, b);
    store16(sums + l * kTile, first ? c : Op::of(load16(sums + l * kTile), c));
  }
}

template <class Op>
void merge_one(const uint8_t* q, const uint16_t* h, int64_t n, bool first, uint16_t* sums) {
  for (int64_t l = 0; l < n; ++l) {
    const lanes a = widen(q + int64_t{h[l]} * kTile);
    store16(sums + l * kTile, first ? a : Op::of(load16(sums + l * kTile), a));
  }
}

int64_t scan(const uint16_t* sums, int64_t n, const uint16_t* threshold, int32_t* hits) {
  const lanes t = load16(threshold);
  int64_t count = 0;
  for (int64_t l = 0; l < n; ++l) {
    hits[count] = static_cast<int32_t>(l);
    count += any_ge(load16(sums + l * kTile), t);
  }
  return count;
}

void round_up(const float* x, int64_t n, float low, float inverse, uint8_t* out) {
  for (int64_t j = 0; j < n; ++j) {
    // 0.999: truncation of y + 0.999 is at least y - 0.001 rounded up; the caller's thresholds allow for it.
    float y = (x[j] - low) * inverse + 0.999f;
    y = y < 0.f ? 0.f : y;
    y = y > 255.f ? 255.f : y;
    out[j] = static_cast<uint8_t>(static_cast<int32_t>(y));
  }
}

bool extremes(const float* x, int64_t n, float* low, float* high) {
  vf a = splat(x[0]), b = a, zero = splat(0.f);
  int64_t j = 0;
  for (; j + kWidth <= n; j += kWidth) {
    const vf v = load(x + j);
    a = min(a, v);
    b = max(b, v);
    zero = fma(v, splat(0.f), zero);  // NaN or inf turn it into NaN
  }
  float lows[kWidth], highs[kWidth];
  store(lows, a);
  store(highs, b);
  float l = lows[0], h = highs[0], z = sum(zero);
  for (int i = 1; i < kWidth; ++i) {
    l = lows[i] < l ? lows[i] : l;
    h = highs[i] > h ? highs[i] : h;
  }
  for (; j < n; ++j) {
    l = x[j] < l ? x[j] : l;
    h = x[j] > h ? x[j] : h;
    z += x[j] * 0.f;
  }
  *low = l;
  *high = h;
  return z == 0.f;
}

}  // namespace

extern const AggregateKernels aggregate_kernels_table = {
    &merge<Sum>, &merge_one<Sum>, &merge<Least>, &merge_one<Least>, &scan, &round_up, &extremes};

}  // namespace xmc::XMC_SIMD_NS
