#include "mach/bounds.h"

#include "core/vec.h"

namespace xmc::mach::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

// kLanes bytes: 16 or 64.
#if defined(XMC_SIMD_IS_avx512)
struct bytes64 {
  static constexpr int kLanes = 64;
  __m512i v;
};
XMC_INLINE bytes64 get(const uint8_t* p, bytes64) {
  return {_mm512_loadu_si512(p)};
}
XMC_INLINE void put(uint8_t* p, bytes64 a) {
  _mm512_storeu_si512(p, a.v);
}
XMC_INLINE bytes64 add(bytes64 a, bytes64 b) {
  return {_mm512_adds_epu8(a.v, b.v)};
}
XMC_INLINE bytes64 least(bytes64 a, bytes64 b) {
  return {_mm512_min_epu8(a.v, b.v)};
}
XMC_INLINE uint64_t reach(bytes64 a, bytes64 flip, bytes64 limit) {
  return _mm512_cmpge_epu8_mask(_mm512_xor_si512(a.v, flip.v), limit.v);
}
#endif
#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
struct bytes16 {
  static constexpr int kLanes = 16;
  __m128i v;
};
XMC_INLINE bytes16 get(const uint8_t* p, bytes16) {
  return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))};
}
XMC_INLINE void put(uint8_t* p, bytes16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), a.v);
}
XMC_INLINE bytes16 add(bytes16 a, bytes16 b) {
  return {_mm_adds_epu8(a.v, b.v)};
}
XMC_INLINE bytes16 least(bytes16 a, bytes16 b) {
  return {_mm_min_epu8(a.v, b.v)};
}
XMC_INLINE uint64_t reach(bytes16 a, bytes16 flip, bytes16 limit) {
  const __m128i x = _mm_xor_si128(a.v, flip.v);
  return static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(x, limit.v), x)));
}
#endif
#if defined(XMC_SIMD_IS_avx2)
struct bytes64 {
  static constexpr int kLanes = 64;
  __m256i a, b;
};
XMC_INLINE bytes64 get(const uint8_t* p, bytes64) {
  const auto* v = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
XMC_INLINE void put(uint8_t* p, bytes64 x) {
  auto* v = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(v, x.a);
  _mm256_storeu_si256(v + 1, x.b);
}
XMC_INLINE bytes64 add(bytes64 x, bytes64 y) {
  return {_mm256_adds_epu8(x.a, y.a), _mm256_adds_epu8(x.b, y.b)};
}
XMC_INLINE bytes64 least(bytes64 x, bytes64 y) {
  return {_mm256_min_epu8(x.a, y.a), _mm256_min_epu8(x.b, y.b)};
}
XMC_INLINE uint64_t reach(bytes64 x, bytes64 flip, bytes64 limit) {
  const __m256i a = _mm256_xor_si256(x.a, flip.a), b = _mm256_xor_si256(x.b, flip.b);
  const auto low =
      static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(a, limit.a), a)));
  const auto high =
      static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(b, limit.b), b)));
  return static_cast<uint64_t>(high) << 32 | low;
}
#elif !defined(XMC_SIMD_IS_avx512)
template <int n>
struct plain {
  static constexpr int kLanes = n;
  uint8_t v[n];
};
using bytes16 = plain<16>;
using bytes64 = plain<64>;
template <int n>
XMC_INLINE plain<n> get(const uint8_t* p, plain<n>) {
  plain<n> a;
  for (int i = 0; i < n; ++i) a.v[i] = p[i];
  return a;
}
template <int n>
XMC_INLINE void put(uint8_t* p, const plain<n>& a) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
template <int n>
XMC_INLINE plain<n> add(const plain<n>& a, const plain<n>& b) {
  plain<n> c;
  for (int i = 0; i < n; ++i) {
    const auto s = static_cast<uint8_t>(a.v[i] + b.v[i]);
    c.v[i] = s < a.v[i] ? 255 : s;
  }
  return c;
}
template <int n>
XMC_INLINE plain<n> least(const plain<n>& a, const plain<n>& b) {
  plain<n> c;
  for (int i = 0; i < n; ++i) c.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return c;
}
template <int n>
XMC_INLINE uint64_t reach(const plain<n>& a, const plain<n>& flip, const plain<n>& limit) {
  uint8_t some = 0;  // first whether any does: most labels end here
  for (int i = 0; i < n; ++i) some |= static_cast<uint8_t>((a.v[i] ^ flip.v[i]) >= limit.v[i]);
  uint64_t which = 0;
  if (some) {
    for (int i = 0; i < n; ++i) {
      which |= static_cast<uint64_t>((a.v[i] ^ flip.v[i]) >= limit.v[i]) << i;
    }
  }
  return which;
}
#endif

struct Sum {
  template <class V>
  static XMC_INLINE V of(const V& a, const V& b) {
    return add(a, b);
  }
};
struct Least {
  template <class V>
  static XMC_INLINE V of(const V& a, const V& b) {
    return least(a, b);
  }
};

template <class V, class Op, int G>
void merge_group(const MergeArgs& a) {
  // copies: a store of bytes might change anything that is reached through a pointer
  const uint8_t *q[G], *sums = a.sums;
  const uint16_t* h[G];
  for (int g = 0; g < G; ++g) {
    q[g] = a.q + g * a.q_stride;
    h[g] = a.h + g * a.h_stride;
  }
  uint8_t* out = a.out;
  const int64_t n = a.n;
  for (int64_t l = 0; l < n; ++l) {
    V x = get(q[0] + int64_t{h[0][l]} * V::kLanes, V());
    for (int g = 1; g < G; ++g) x = Op::of(x, get(q[g] + int64_t{h[g][l]} * V::kLanes, V()));
    if (sums) x = Op::of(x, get(sums + l * V::kLanes, V()));
    put(out + l * V::kLanes, x);
  }
}

template <class V, class Op>
void merge_of(const MergeArgs& a) {
  static constexpr void (*kGroups[kMaxGroup])(const MergeArgs&) = {
      merge_group<V, Op, 1>, merge_group<V, Op, 2>, merge_group<V, Op, 3>, merge_group<V, Op, 4>,
      merge_group<V, Op, 5>, merge_group<V, Op, 6>, merge_group<V, Op, 7>, merge_group<V, Op, 8>};
  kGroups[a.group - 1](a);
}

void merge(const MergeArgs& a) {
  if (a.lanes == 64) {
    a.least ? merge_of<bytes64, Least>(a) : merge_of<bytes64, Sum>(a);
  } else {
    a.least ? merge_of<bytes16, Least>(a) : merge_of<bytes16, Sum>(a);
  }
}

template <class V>
int64_t scan_of(const uint8_t* sums, int64_t n, const uint8_t* flip, const uint8_t* limit, int32_t* hits,
                uint64_t* which) {
  const V f = get(flip, V()), t = get(limit, V());
  int64_t count = 0;
  for (int64_t l = 0; l < n; ++l) {
    const uint64_t mask = reach(get(sums + l * V::kLanes, V()), f, t);
    if (!mask) continue;
    hits[count] = static_cast<int32_t>(l);
    which[count++] = mask;
  }
  return count;
}

int64_t scan(const uint8_t* sums, int64_t n, int lanes, const uint8_t* flip, const uint8_t* limit,
             int32_t* hits, uint64_t* which) {
  return lanes == 64 ? scan_of<bytes64>(sums, n, flip, limit, hits, which)
                     : scan_of<bytes16>(sums, n, flip, limit, hits, which);
}

void round_bytes(const float* x, int64_t n, float low, float scale, float add, float most, uint8_t* out) {
  int64_t j = 0;
#if defined(XMC_SIMD_IS_avx512)
  const vf l = splat(low), f = splat(scale), a = splat(add), m = splat(most), zero = splat(0.f);
  for (; j + kWidth <= n; j += kWidth) {
    const vf y = min(max(fma(load(x + j) - l, f, a), zero), m);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + j), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(y.v)));
  }
#endif
  for (; j < n; ++j) {
    float y = (x[j] - low) * scale + add;
    y = y < 0.f ? 0.f : y;
    y = y > most ? most : y;
    out[j] = static_cast<uint8_t>(static_cast<int32_t>(y));
  }
}

#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
// Interleaving the two halves of 256 bytes rotates the bits of an index by one: four times transposes 16
// x 16.
XMC_INLINE void transpose16(const uint8_t* in, int64_t from, uint8_t* out, int64_t to) {
  __m128i x[16], y[16];
  for (int i = 0; i < 16; ++i) x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i * from));
  for (int turn = 0; turn < 2; ++turn) {
    for (int i = 0; i < 8; ++i) {
      y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]);
      y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
    }
    for (int i = 0; i < 8; ++i) {
      x[2 * i] = _mm_unpacklo_epi8(y[i], y[i + 8]);
      x[2 * i + 1] = _mm_unpackhi_epi8(y[i], y[i + 8]);
    }
  }
  for (int i = 0; i < 16; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * to), x[i]);
}
#else
XMC_INLINE void transpose16(const uint8_t* in, int64_t from, uint8_t* out, int64_t to) {
  for (int b = 0; b < 16; ++b) {
    for (int i = 0; i < 16; ++i) out[b * to + i] = in[i * from + b];
  }
}
#endif

void interleave(const uint8_t* rows, int64_t stride, int lanes, int64_t n, uint8_t* out) {
  for (int64_t b = 0; b < n; b += 16) {
    for (int i = 0; i < lanes; i += 16)
      transpose16(rows + i * stride + b, stride, out + b * lanes + i, lanes);
  }
}

void gather(const float* x, const uint16_t* h, int64_t n, float* out) {
  for (int64_t j = 0; j < n; ++j) out[j] = x[h[j]];
}

bool extremes(const float* x, int64_t n, float* low, float* high) {
  constexpr int kUnroll = 4;  // chains of dependent operations
  vf a[kUnroll], b[kUnroll], zero[kUnroll];
  for (int u = 0; u < kUnroll; ++u) {
    a[u] = b[u] = splat(x[0]);
    zero[u] = splat(0.f);
  }
  int64_t j = 0;
  for (; j + kUnroll * kWidth <= n; j += kUnroll * kWidth) {
    for (int u = 0; u < kUnroll; ++u) {
      const vf v = load(x + j + u * kWidth);
      a[u] = min(a[u], v);
      b[u] = max(b[u], v);
      zero[u] = fma(v, splat(0.f), zero[u]);  // NaN or inf turn it into NaN
    }
  }
  float lows[kWidth], highs[kWidth];
  store(lows, min(min(a[0], a[1]), min(a[2], a[3])));
  store(highs, max(max(b[0], b[1]), max(b[2], b[3])));
  float l = lows[0], h = highs[0], z = sum((zero[0] + zero[1]) + (zero[2] + zero[3]));
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

extern const BoundKernels bound_kernels_table = {&merge,      &scan,   &round_bytes,
                                                 &interleave, &gather, &extremes};

}  // namespace xmc::mach::XMC_SIMD_NS
