#include "predict/predict.h"
#include "predict/tile_vec.h"

namespace xmc::predict::XMC_SIMD_NS {
namespace {

void split(const int32_t* entry, const int32_t* column, const float* value, int64_t n, FeatureList& dense,
           FeatureList& sparse) {
  int64_t f = 0;
#if defined(XMC_SIMD_IS_avx512)
  const auto keep = [](FeatureList& to, __mmask16 some, __m512i id, __m512 x) {
    _mm512_storeu_si512(to.id, _mm512_maskz_compress_epi32(some, id));
    _mm512_storeu_ps(to.value, _mm512_maskz_compress_ps(some, x));
    const int kept = count_bits(some);
    to.id += kept;
    to.value += kept;
  };
  for (; f < n; f += 16) {
    const auto all = static_cast<__mmask16>(n - f < 16 ? (1 << (n - f)) - 1 : 0xffff);
    const __m512i e = _mm512_mask_i32gather_epi32(_mm512_set1_epi32(kEmpty), all,
                                                  _mm512_maskz_loadu_epi32(all, column + f), entry, 4);
    const __m512 x = _mm512_maskz_loadu_ps(all, value + f);
    keep(dense, _mm512_cmpge_epi32_mask(e, _mm512_setzero_si512()), e, x);
    keep(sparse, _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(kEmpty)), e, x);
  }
#else
  // Which kind a column is cannot be guessed: written as both, kept as one.
  for (; f < n; ++f) {
    const int32_t e = entry[column[f]];
    const auto keep = [&](FeatureList& to, bool some) {
      *to.id = e;
      *to.value = value[f];
      to.id += some;
      to.value += some;
    };
    keep(dense, e >= 0);
    keep(sparse, e < kEmpty);
  }
#endif
}

// Lanes finished together: the accumulators must fit the registers and cover the latency of FMA.
constexpr int kPart = kWidth == 4 ? 32 : static_cast<int>(kTile);
constexpr int kVectors = kPart / kWidth;

constexpr int64_t kRowsAhead = 4;  // whose partial scores are prefetched

XMC_INLINE vf magnitude(vf a) {
  return max(a, splat(0.f) - a);
}

// Integers of kWidth lanes; kTile bytes of a column are read in parts of 4 * kWidth, part h of them having
// lanes 16 g + kWidth h.. of groups g < 4 (byte_place).
constexpr int kBytes = 4 * kWidth;
// Tiles that a row visits at once: their sums must fit the registers.
constexpr int kMostTiles = kWidth == 16 ? 2 : 1;

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
XMC_INLINE vf to_float(vi a) {
  return {_mm512_cvtepi32_ps(a)};
}
XMC_INLINE vi zero_vi() {
  return _mm512_setzero_si512();
}
#else
using vi = __m256i;
#define XMC_VI(op) _mm256_##op
XMC_INLINE vi load_vi(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
XMC_INLINE vf to_float(vi a) {
  return {_mm256_cvtepi32_ps(a)};
}
XMC_INLINE vi zero_vi() {
  return _mm256_setzero_si256();
}
#endif

// Sums of four products each. Without the instruction for it products are summed by two in 16 bits, so that
// integers of at most 127 are allowed, then all four in 32.
template <bool kVnni>
XMC_INLINE void add_products(vi& acc, vi a, vi w) {
#if defined(XMC_VNNI)
  if (kVnni) {     // not an intrinsic: this file is compiled for processors without it as well
    vi sum = acc;  // of its own, so that acc can stay in a register
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(w));
    acc = sum;
    return;
  }
#endif
  const vi pairs = XMC_VI(maddubs_epi16)(a, w);
  acc = XMC_VI(add_epi32)(acc, XMC_VI(madd_epi16)(pairs, XMC_VI(set1_epi16)(1)));
}
XMC_INLINE vi negative(vi a) {
  return XMC_VI(sub_epi32)(zero_vi(), a);
}

// Adds a * q of a four to the sums acc[g] of a part. A vector of bytes of each of four columns is interleaved
// to four vectors with the four bytes of a lane side by side.
template <bool kVnni>
XMC_INLINE void add_four(const int8_t* byte, const Four& f, vi* acc) {
  vi w0 = load_vi(byte + f.slot[0] * kTile), w1 = load_vi(byte + f.slot[1] * kTile);
  vi w2 = load_vi(byte + f.slot[2] * kTile), w3 = load_vi(byte + f.slot[3] * kTile);
#if defined(XMC_VNNI)
  __asm__("" : "+v"(w0), "+v"(w1), "+v"(w2), "+v"(w3));  // or w1 and w3 are loaded twice
#endif
  int32_t four;
  ::memcpy(&four, f.a, 4);
  const vi a = XMC_VI(set1_epi32)(four);
  const vi low01 = XMC_VI(unpacklo_epi8)(w0, w1), high01 = XMC_VI(unpackhi_epi8)(w0, w1);
  const vi low23 = XMC_VI(unpacklo_epi8)(w2, w3), high23 = XMC_VI(unpackhi_epi8)(w2, w3);
  add_products<kVnni>(acc[0], a, XMC_VI(unpacklo_epi16)(low01, low23));
  add_products<kVnni>(acc[1], a, XMC_VI(unpackhi_epi16)(low01, low23));
  add_products<kVnni>(acc[2], a, XMC_VI(unpacklo_epi16)(high01, high23));
  add_products<kVnni>(acc[3], a, XMC_VI(unpackhi_epi16)(high01, high23));
}
#undef XMC_VI

#elif defined(XMC_SIMD_IS_neon)

using vi = int32x4_t;
XMC_INLINE vi zero_vi() {
  return vdupq_n_s32(0);
}
XMC_INLINE vf to_float(vi a) {
  return {vcvtq_f32_s32(a)};
}
XMC_INLINE vi negative(vi a) {
  return vnegq_s32(a);
}
// Products of integers of at most 127: two of them fit 16 bits.
template <bool>
XMC_INLINE void add_four(const int8_t* byte, const Four& f, vi* acc) {
  for (int j = 0; j < 4; j += 2) {
    const int8x16_t w = vld1q_s8(byte + f.slot[j] * kTile), v = vld1q_s8(byte + f.slot[j + 1] * kTile);
    const int8x16_t a = vdupq_n_s8(static_cast<int8_t>(f.a[j]));
    const int8x16_t b = vdupq_n_s8(static_cast<int8_t>(f.a[j + 1]));
    const int16x8_t low = vmlal_s8(vmull_s8(vget_low_s8(w), vget_low_s8(a)), vget_low_s8(v), vget_low_s8(b));
    const int16x8_t high = vmlal_high_s8(vmull_high_s8(w, a), v, b);
    acc[0] = vaddw_s16(acc[0], vget_low_s16(low));
    acc[1] = vaddw_high_s16(acc[1], low);
    acc[2] = vaddw_s16(acc[2], vget_low_s16(high));
    acc[3] = vaddw_high_s16(acc[3], high);
  }
}

#else

struct vi {
  int32_t x[kWidth];
};
XMC_INLINE vi zero_vi() {
  return {};
}
XMC_INLINE vf to_float(vi a) {
  float x[kWidth];
  for (int i = 0; i < kWidth; ++i) x[i] = static_cast<float>(a.x[i]);
  return load(x);
}
XMC_INLINE vi negative(vi a) {
  for (int32_t& x : a.x) x = -x;
  return a;
}
template <bool>
XMC_INLINE void add_four(const int8_t* byte, const Four& f, vi* acc) {
  for (int j = 0; j < 4; ++j) {
    const int8_t* w = byte + f.slot[j] * kTile;
    const int32_t a = f.a[j];
    for (int g = 0; g < 4; ++g) {
      for (int i = 0; i < kWidth; ++i) acc[g].x[i] += a * w[g * kWidth + i];
    }
  }
}

#endif

// The sums of a part of kTiles tiles over the fours [from, to), added to acc.
template <bool kVnni, int kTiles>
XMC_INLINE void add_fours(const PredictTile* tiles, int64_t part, const Four* from, const Four* to,
                          vi (&acc)[kTiles][4]) {
  for (const Four* f = from; f < to; ++f) {
    for (int t = 0; t < kTiles; ++t) {
      for (int j = 0; j < 4; ++j) prefetch(tiles[t].byte + part + f[kAhead].slot[j] * kTile);
    }
    repeat<kTiles>([&](auto t) { add_four<kVnni>(tiles[t].byte + part, *f, acc[t]); });
  }
}

// How many of a cell's weights are before that of a lane.
XMC_INLINE int before(uint64_t mask, int64_t lane) {
  return count_bits(mask & ((uint64_t{1} << lane) - 1));
}

// The weights of kPart lanes from `first` on, zeros where there is none.
XMC_INLINE void expand(const Cell& cell, const float* weight, int64_t first, float* to) {
  const uint64_t lanes = cell.mask >> first;
  const float* from = weight + cell.first + before(cell.mask, first);
#if defined(XMC_SIMD_IS_avx512)
  for (int j = 0; j < kPart; j += kWidth) {
    const auto some = static_cast<__mmask16>(lanes >> j);
    _mm512_storeu_ps(to + j, _mm512_maskz_expandloadu_ps(some, from));
    from += before(some, 16);
  }
#else
  for (int j = 0; j < kPart; ++j) {
    const bool has = lanes >> j & 1;
    to[j] = has ? *from : 0.f;
    from += has;
  }
#endif
}

void exact(const PredictTile& tile, const PredictRows& rows, int64_t from, int64_t to, const float* partial,
           int64_t stride, const float* thresholds, uint64_t* hits, float* scores) {
  for (int64_t i = from; i < to; ++i, scores += kTile) {
    const vf threshold = splat(thresholds[i]);
    uint64_t below = 0;
    for (int64_t first = 0; first < kTile; first += kPart) {
      vf acc[kVectors];
      for (int j = 0; j < kVectors; ++j) acc[j] = load(partial + i * stride + first + j * kWidth);
      for (int64_t p = rows.start[i]; p < rows.start[i + 1]; ++p) {
        float w[kPart];
        expand(tile.cell[rows.dense[p]], tile.weight, first, w);
        const vf x = splat(rows.value[p]);
        for (int j = 0; j < kVectors; ++j) acc[j] = fma(x, load(w + j * kWidth), acc[j]);
      }
      for (int j = 0; j < kVectors; ++j) {
        const int64_t lane = first + j * kWidth;
        if (tile.scale) acc[j] = fma(load(tile.scale + lane), acc[j], load(tile.shift + lane));
        store(scores + lane, acc[j]);
        below |= static_cast<uint64_t>(gt(threshold, acc[j])) << lane;
      }
    }
    *hits++ = ~below;
  }
}

// A label of the tile whose score, with its share of the rounding of weights and values, is below this is
// out: its upper bound is below the threshold. The rest of the bound (predict.h) is for the rounding of
// sums, and small: here for all labels alike, and three times as large for what is calculated here.
XMC_INLINE float cut(const PredictTile& tile, const PredictRow& row, float threshold) {
  const float size = row.length * tile.most.norm + (threshold < 0 ? -threshold : threshold);
  return threshold - 3 * row.rounding * (size + row.sum * tile.most.error + row.off * tile.most.spread);
}

// The share of rounding weights and values, for all labels of the tile.
XMC_INLINE float margin(const PredictTile& tile, const PredictRow& row) {
  return row.sum * tile.most.error + row.off * tile.most.spread;
}

XMC_INLINE bool all_below(float threshold, const vf (&score)[4]) {
  const vf most = max(max(score[0], score[1]), max(score[2], score[3]));
  return gt(splat(threshold), most) == (1u << kWidth) - 1;
}

// The upper bound of calibrated scores, by label (predict.h).
XMC_INLINE vf calibrated_upper(const PredictTile& tile, const PredictRow& row, int64_t lane, vf score) {
  const vf rounding = splat(row.rounding), scale = load(tile.scale + lane);
  vf margin = fma(splat(row.length), load(tile.norm + lane), magnitude(score)) * rounding;
  margin = fma(splat(row.sum), load(tile.error + lane), margin);
  margin = fma(splat(row.off), load(tile.spread + lane), margin);
  score = fma(scale, score, load(tile.shift + lane));
  return score + fma(magnitude(scale), margin, rounding * magnitude(score));
}

template <bool kVnni, int kTiles>
XMC_INLINE void bounds_of(const PredictTile* tiles, const PredictRows& rows, int64_t from, int64_t to,
                          const float* partial, int64_t stride, const float* thresholds, uint64_t* hits,
                          float* scores) {
  for (int64_t i = from; i < to; ++i, hits += kTiles, scores += kTiles * kTile) {
    const PredictRow& row = rows.row[i];
    for (int64_t line = 0; line < kTiles * kTile; line += 16) {
      prefetch(partial + (i + kRowsAhead) * stride + line);
    }
    for (int t = 0; t < kTiles; ++t) hits[t] = 0;
    for (int64_t part = 0; part < kTile; part += kBytes) {
      vi acc[kTiles][4];
      repeat<kTiles>([&](auto t) { repeat<4>([&](auto g) { acc[t][g] = zero_vi(); }); });
      if (row.negative < row.to) {
        add_fours<kVnni>(tiles, part, rows.four + row.negative, rows.four + row.to, acc);
        repeat<kTiles>([&](auto t) { repeat<4>([&](auto g) { acc[t][g] = negative(acc[t][g]); }); });
      }
      add_fours<kVnni>(tiles, part, rows.four + row.from, rows.four + row.negative, acc);

      const vf unit = splat(row.unit);
      repeat<kTiles>([&](auto t) {
        const PredictTile& tile = tiles[t];
        const float* own = partial + i * stride + t * kTile + part / 4;
        vf score[4];
        repeat<4>([&](auto g) { score[g] = load(own + 16 * g); });
        for (int64_t h = 0; h < rows.n_heavy; ++h) {
          const vf x = splat(rows.heavy[i * rows.n_heavy + h]);
          const float* w = tile.heavy + h * kTile + part / 4;
          repeat<4>([&](auto g) { score[g] = fma(x, load(w + 16 * g), score[g]); });
        }
        if (row.from < row.to) {
          repeat<4>([&](auto g) {
            score[g] = fma(to_float(acc[t][g]), unit * load(tile.step + 16 * g + part / 4), score[g]);
          });
        }
        if (!tile.scale && all_below(cut(tile, row, thresholds[i]) - margin(tile, row), score)) return;
        uint64_t below = 0;
        const vf at = splat(tile.scale ? thresholds[i] : cut(tile, row, thresholds[i]));
        repeat<4>([&](auto g) {
          const int64_t lane = 16 * g + part / 4;
          const vf upper = tile.scale ? calibrated_upper(tile, row, lane, score[g])
                                      : fma(splat(row.sum), load(tile.error + lane),
                                            fma(splat(row.off), load(tile.spread + lane), score[g]));
          below |= static_cast<uint64_t>(gt(at, upper)) << lane;
        });
        const uint64_t in_part = (~uint64_t{0} / 0xffff) * ((1u << kWidth) - 1) << (part / 4);
        if (const uint64_t some = ~below & in_part) {
          hits[t] |= some;
          repeat<4>([&](auto g) { store(scores + t * kTile + 16 * g + part / 4, score[g]); });
        }
      });
    }
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

template <bool kVnni>
void bounds_with(const PredictTile* tiles, int n_tiles, const PredictRows& rows, int64_t from, int64_t to,
                 const float* partial, int64_t stride, const float* thresholds, uint64_t* hits,
                 float* scores) {
  if (n_tiles == 1) {
    bounds_of<kVnni, 1>(tiles, rows, from, to, partial, stride, thresholds, hits, scores);
  } else {
    bounds_of<kVnni, kMostTiles>(tiles, rows, from, to, partial, stride, thresholds, hits, scores);
  }
}

void bounds(const PredictTile* tiles, int n_tiles, const PredictRows& rows, int64_t from, int64_t to,
            const float* partial, int64_t stride, const float* thresholds, uint64_t* hits, float* scores) {
  const auto with = vnni() ? &bounds_with<true> : &bounds_with<false>;
  with(tiles, n_tiles, rows, from, to, partial, stride, thresholds, hits, scores);
}

// Weights come from memory, and whether there is one cannot be guessed: where they are is found out first,
// so that many are on their way at a time.
float score(const PredictTile& tile, const PredictRows& rows, int64_t i, int64_t lane, float partial) {
  constexpr int64_t kSome = 64;
  float x[kSome];
  const float* w[kSome];
  float sum = partial;
  for (int64_t p = rows.start[i], end; p < rows.start[i + 1]; p = end) {
    end = p + kSome < rows.start[i + 1] ? p + kSome : rows.start[i + 1];
    int64_t n = 0;
    for (int64_t f = p; f < end; ++f) {
      const Cell& cell = tile.cell[rows.dense[f]];
      x[n] = rows.value[f];
      w[n] = tile.weight + cell.first + before(cell.mask, lane);
      n += cell.mask >> lane & 1;
    }
    for (int64_t f = 0; f < n; ++f) prefetch(w[f]);
    for (int64_t f = 0; f < n; ++f) sum = fma(x[f], *w[f], sum);
  }
  return tile.scale ? fma(tile.scale[lane], sum, tile.shift[lane]) : sum;
}

}  // namespace

const PredictKernels predict_kernels_table = {&split, kMostTiles, &levels, &bounds, &exact, &score};

}  // namespace xmc::predict::XMC_SIMD_NS
