#include "core/vec.h"
#include "predict/predict.h"

namespace xmc::XMC_SIMD_NS {
namespace {

// Lanes finished together: the accumulators must fit the registers and cover the latency of FMA.
constexpr int kPart = kWidth == 4 ? 32 : static_cast<int>(kTile);
constexpr int kVectors = kPart / kWidth;

constexpr int64_t kRowsAhead = 4;  // whose partial scores are asked for

XMC_INLINE vf magnitude(vf a) {
  return max(a, splat(0.f) - a);
}
// a * b + c, rounded as the vectors' fma.
XMC_INLINE float fma(float a, float b, float c) {
#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
#else
  return c + a * b;
#endif
}

// byte_sums: sums[lane] of a * q over the fours [from, to), added to what is there.

#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
#if defined(XMC_SIMD_IS_avx512)
using vi = __m512i;
#define XMC_VI(op) _mm512_##op
#if defined(__GNUC__)
#define XMC_VNNI 1
#endif
XMC_INLINE vi load_vi(const void* p) {
  return _mm512_loadu_si512(p);
}
XMC_INLINE void store_vi(void* p, vi a) {
  _mm512_storeu_si512(p, a);
}
XMC_INLINE vf load_int(const int32_t* p) {
  return {_mm512_cvtepi32_ps(load_vi(p))};
}
#else
using vi = __m256i;
#define XMC_VI(op) _mm256_##op
XMC_INLINE vi load_vi(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
XMC_INLINE void store_vi(void* p, vi a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), a);
}
XMC_INLINE vf load_int(const int32_t* p) {
  return {_mm256_cvtepi32_ps(load_vi(p))};
}
#endif

// Sums of four products each. Without the instruction for it products are summed by two in 16 bits, so that
// integers of at most 127 are allowed, then all four in 32.
template <bool kVnni>
XMC_INLINE void add_products(vi& acc, vi a, vi w) {
#if defined(XMC_VNNI)
  if (kVnni) {  // not an intrinsic: this file is compiled for processors without it as well
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(w));
    return;
  }
#endif
  const vi pairs = XMC_VI(maddubs_epi16)(a, w);
  acc = XMC_VI(add_epi32)(acc, XMC_VI(madd_epi16)(pairs, XMC_VI(set1_epi16)(1)));
}

// A vector of bytes of each of four columns is interleaved to four vectors with the four bytes of a lane side
// by side.
template <bool kVnni>
XMC_INLINE void byte_sums(const int8_t* byte, const Four* from, const Four* to, int32_t* sums) {
  constexpr int kBytes = 4 * kWidth;
  for (int part = 0; part < kTile; part += kBytes) {
    // Part h of the bytes has lanes 16 g + h * kWidth.. for g < 4 (byte_place).
    int32_t* out = sums + part / 4;
    vi acc0 = load_vi(out), acc1 = load_vi(out + 16), acc2 = load_vi(out + 32), acc3 = load_vi(out + 48);
    for (const Four* f = from; f < to; ++f) {
      const int8_t* at = byte + part;
      for (int j = 0; j < 4; ++j) prefetch(at + f[kAhead].slot[j] * kTile);
      const vi w0 = load_vi(at + f->slot[0] * kTile), w1 = load_vi(at + f->slot[1] * kTile);
      const vi w2 = load_vi(at + f->slot[2] * kTile), w3 = load_vi(at + f->slot[3] * kTile);
      int32_t four;
      ::memcpy(&four, f->a, 4);
      const vi a = XMC_VI(set1_epi32)(four);
      const vi low01 = XMC_VI(unpacklo_epi8)(w0, w1), high01 = XMC_VI(unpackhi_epi8)(w0, w1);
      const vi low23 = XMC_VI(unpacklo_epi8)(w2, w3), high23 = XMC_VI(unpackhi_epi8)(w2, w3);
      add_products<kVnni>(acc0, a, XMC_VI(unpacklo_epi16)(low01, low23));
      add_products<kVnni>(acc1, a, XMC_VI(unpackhi_epi16)(low01, low23));
      add_products<kVnni>(acc2, a, XMC_VI(unpacklo_epi16)(high01, high23));
      add_products<kVnni>(acc3, a, XMC_VI(unpackhi_epi16)(high01, high23));
    }
    store_vi(out, acc0);
    store_vi(out + 16, acc1);
    store_vi(out + 32, acc2);
    store_vi(out + 48, acc3);
  }
}
XMC_INLINE void negate(int32_t* sums) {
  for (int i = 0; i < kTile; i += kWidth) {
    store_vi(sums + i, XMC_VI(sub_epi32)(XMC_VI(set1_epi32)(0), load_vi(sums + i)));
  }
}
#undef XMC_VI

#else

XMC_INLINE vf load_int(const int32_t* p) {
  float x[kWidth];
  for (int i = 0; i < kWidth; ++i) x[i] = static_cast<float>(p[i]);
  return load(x);
}
template <bool>
XMC_INLINE void byte_sums(const int8_t* byte, const Four* from, const Four* to, int32_t* sums) {
  int32_t by_place[kTile] = {};
  for (const Four* f = from; f < to; ++f) {
    for (int j = 0; j < 4; ++j) {
      const int8_t* w = byte + f->slot[j] * kTile;
      const int32_t a = f->a[j];
      for (int i = 0; i < kTile; ++i) by_place[i] += a * w[i];
    }
  }
  for (int lane = 0; lane < kTile; ++lane) sums[lane] += by_place[byte_place(lane)];
}
XMC_INLINE void negate(int32_t* sums) {
  for (int i = 0; i < kTile; ++i) sums[i] = -sums[i];
}

#endif

void exact(const PredictTile& tile, const PredictRows& rows, int64_t from, int64_t to, const float* partial,
           int64_t stride, const float* thresholds, uint64_t* hits, float* lower, float* upper) {
  for (int64_t i = from; i < to; ++i, lower += kTile, upper += kTile) {
    const vf threshold = splat(thresholds[i]);
    uint64_t below = 0;
    for (int64_t first = 0; first < kTile; first += kPart) {
      vf acc[kVectors];
      for (int j = 0; j < kVectors; ++j) acc[j] = load(partial + i * stride + first + j * kWidth);
      for (int64_t p = rows.start[i]; p < rows.start[i + 1]; ++p) {
        const float* w = tile.value + static_cast<int64_t>(rows.dense[p]) * kTile + first;
        const vf x = splat(rows.value[p]);
        for (int j = 0; j < kVectors; ++j) acc[j] = fma(x, load(w + j * kWidth), acc[j]);
      }
      for (int j = 0; j < kVectors; ++j) {
        const int64_t lane = first + j * kWidth;
        if (tile.scale) acc[j] = fma(load(tile.scale + lane), acc[j], load(tile.shift + lane));
        store(lower + lane, acc[j]);
        store(upper + lane, acc[j]);
        below |= static_cast<uint64_t>(ge(threshold, acc[j])) << lane;
      }
    }
    *hits++ = ~below;
  }
}

template <bool kVnni>
XMC_INLINE void bounds_of(const PredictTile& tile, const PredictRows& rows, int64_t from, int64_t to,
                          const float* partial, int64_t stride, const float* thresholds, uint64_t* hits,
                          float* lower, float* upper) {
  for (int64_t i = from; i < to; ++i, lower += kTile, upper += kTile) {
    const PredictRow& row = rows.row[i];
    for (int64_t line = 0; line < kTile; line += 16) prefetch(partial + (i + kRowsAhead) * stride + line);
    alignas(64) int32_t sums[kTile] = {};
    if (row.negative < row.to) {
      byte_sums<kVnni>(tile.byte, rows.four + row.negative, rows.four + row.to, sums);
      negate(sums);
    }
    byte_sums<kVnni>(tile.byte, rows.four + row.from, rows.four + row.negative, sums);

    const vf threshold = splat(thresholds[i]), unit = splat(row.unit), sum = splat(row.sum),
             off = splat(row.off), length = splat(row.length), rounding = splat(row.rounding);
    uint64_t below = 0;
    for (int64_t first = 0; first < kTile; first += kPart) {
      vf acc[kVectors];
      for (int j = 0; j < kVectors; ++j) acc[j] = load(partial + i * stride + first + j * kWidth);
      for (int64_t h = 0; h < rows.n_heavy; ++h) {
        const vf x = splat(rows.heavy[i * rows.n_heavy + h]);
        const float* w = tile.value + h * kTile + first;
        for (int j = 0; j < kVectors; ++j) acc[j] = fma(x, load(w + j * kWidth), acc[j]);
      }
      for (int j = 0; j < kVectors; ++j) {
        const int64_t lane = first + j * kWidth;
        vf score = fma(load_int(sums + lane), unit * load(tile.step + lane), acc[j]);
        vf margin = fma(length, load(tile.norm + lane), magnitude(score)) * rounding;
        margin = fma(sum, load(tile.error + lane), margin);
        margin = fma(off, load(tile.spread + lane), margin);
        if (tile.scale) {
          const vf scale = load(tile.scale + lane);
          score = fma(scale, score, load(tile.shift + lane));
          margin = fma(magnitude(scale), margin, rounding * magnitude(score));
        }
        const vf most = score + margin;
        store(lower + lane, score - margin);
        store(upper + lane, most);
        below |= static_cast<uint64_t>(ge(threshold, most)) << lane;
      }
    }
    *hits++ = ~below;
  }
}

bool vnni() {
#if defined(XMC_VNNI)
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
#else
  return false;
#endif
}

int levels() {
  return vnni() ? 255 : 127;
}

void bounds(const PredictTile& tile, const PredictRows& rows, int64_t from, int64_t to, const float* partial,
            int64_t stride, const float* thresholds, uint64_t* hits, float* lower, float* upper) {
  if (vnni()) {
    bounds_of<true>(tile, rows, from, to, partial, stride, thresholds, hits, lower, upper);
  } else {
    bounds_of<false>(tile, rows, from, to, partial, stride, thresholds, hits, lower, upper);
  }
}

float score(const PredictTile& tile, const PredictRows& rows, int64_t i, int64_t lane, float partial) {
  float sum = partial;
  for (int64_t p = rows.start[i]; p < rows.start[i + 1]; ++p) {
    sum = fma(rows.value[p], tile.value[static_cast<int64_t>(rows.dense[p]) * kTile + lane], sum);
  }
  return tile.scale ? fma(tile.scale[lane], sum, tile.shift[lane]) : sum;
}

}  // namespace

const PredictKernels predict_kernels_table = {&levels, &bounds, &exact, &score};

}  // namespace xmc::XMC_SIMD_NS
