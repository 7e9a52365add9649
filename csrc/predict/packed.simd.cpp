#include "predict/packed.h"

#include "predict/tile_vec.h"

namespace xmc::predict::XMC_SIMD_NS {
namespace {

void add(const uint8_t* from, const uint8_t* to, uint32_t width, uint32_t place, float x, const float* level,
         float* score, uint32_t last) {
  for_postings(from, to, width, place, [=](uint32_t p, uint8_t code) {
    float& at = score[p < last ? p : last];
    at = fma(x, level[code], at);
  });
}

void start(const float* weight, float x, int64_t n, float* score) {
  if (!weight) {
    ::memset(score, 0, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t p = 0; p < n; ++p) score[p] = weight[p] * x;
}

// n is a multiple of kTile here and below: the scores are padded.
void calibrate(const float* scale, const float* shift, int64_t n, float* score) {
  for (int64_t p = 0; p < n; p += kWidth) {
    store(score + p, fma(load(scale + p), load(score + p), load(shift + p)));
  }
}

int64_t next(const float* score, int64_t from, int64_t n, float threshold) {
  const vf least = splat(threshold);
  for (; from < n; from += kTile) {
    uint32_t below = (1u << kWidth) - 1;
    for (int64_t p = from; p < from + kTile; p += kWidth) below &= gt(least, load(score + p));
    if (below != (1u << kWidth) - 1) break;
  }
  return from;
}

// The floats of 2 kWidth lanes of a cell (cell_place).
struct Pair {
  vf low, high;
};
XMC_INLINE Pair load_pair(const uint16_t* p) {
#if defined(XMC_SIMD_IS_avx512)
  const __m512i both = _mm512_loadu_si512(p);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)))}};
#elif defined(XMC_SIMD_IS_avx2)
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(both, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536)))}};
#else
  float low[kWidth], high[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    const uint32_t bits[2] = {static_cast<uint32_t>(p[2 * i]) << 16, static_cast<uint32_t>(p[2 * i + 1])
                                                                         << 16};
    ::memcpy(&low[i], &bits[0], sizeof(float));
    ::memcpy(&high[i], &bits[1], sizeof(float));
  }
  return {load(low), load(high)};
#endif
}

// The lists of a row that have a weight in the strip; gives their number.
XMC_INLINE int64_t filter(const int32_t* some, const int32_t* list, const float* value, int64_t n,
                          int32_t* to_list, float* to_value) {
  int64_t kept = 0, f = 0;
#if defined(XMC_SIMD_IS_avx512)
  for (; f < n; f += 16) {
    const auto all = static_cast<__mmask16>(n - f < 16 ? (1 << (n - f)) - 1 : 0xffff);
    const __m512i id = _mm512_maskz_loadu_epi32(all, list + f);
    const __m512i has = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), all, id, some, 4);
    const __mmask16 keep = _mm512_test_epi32_mask(has, has);
    _mm512_storeu_si512(to_list + kept, _mm512_maskz_compress_epi32(keep, id));
    _mm512_storeu_ps(to_value + kept, _mm512_maskz_compress_ps(keep, _mm512_maskz_loadu_ps(all, value + f)));
    kept += __builtin_popcount(keep);
  }
#else
  for (; f < n; ++f) {  // cannot be guessed: written in any case
    to_list[kept] = list[f];
    to_value[kept] = value[f];
    kept += some[list[f]] != 0;
  }
#endif
  return kept;
}

constexpr int kPairs = 16 / kWidth;                             // vectors of the pairs of 32 lanes
constexpr int kParts = kWidth == 16 ? 4 : kWidth == 8 ? 2 : 1;  // of 32 lanes: their sums fit the registers
constexpr int64_t kRowsAhead = 4;                               // whose partial scores are prefetched

void strip(const PackedStrip& strip, const PackedRows& rows, int64_t from, int64_t to, const float* partial,
           int64_t stride, const float* thresholds, bool* hits, float* scores) {
  for (int64_t i = from; i < to; ++i, ++hits, scores += kStrip) {
    for (int64_t p = 0; p < kStrip; p += 16) prefetch(partial + (i + kRowsAhead) * stride + p);
    const int32_t* list = rows.list + rows.start[i];
    const float* value = rows.value + rows.start[i];
    int64_t n = rows.start[i + 1] - rows.start[i];
    if (strip.some) {
      n = filter(strip.some, list, value, n, rows.own_list, rows.own_value);
      list = rows.own_list;
      value = rows.own_value;
    }
    const vf threshold = splat(thresholds[i]);
    uint32_t below = (1u << kWidth) - 1;
    for (int64_t first = 0; first < kStrip; first += 32 * kParts) {
      vf acc[kParts][2][kPairs];
      const auto for_all = [&](auto&& fn) {
        repeat<kParts>([&](auto g) {
          repeat<2>([&](auto s) {
            repeat<kPairs>([&](auto h) { fn(acc[g][s][h], first + g * 32 + s * 16 + h * kWidth); });
          });
        });
      };
      for_all([&](vf& a, int64_t lane) { a = load(partial + i * stride + lane); });
      const uint16_t* cells = strip.cell + first;
      for (int64_t f = 0; f < n; ++f) {
        const vf x = splat(value[f]);
        const uint16_t* cell = cells + int64_t{list[f]} * kStrip;
        repeat<kParts>([&](auto g) {
          repeat<kPairs>([&](auto h) {
            const Pair w = load_pair(cell + g * 32 + h * 2 * kWidth);
            acc[g][0][h] = fma(x, w.low, acc[g][0][h]);
            acc[g][1][h] = fma(x, w.high, acc[g][1][h]);
          });
        });
      }
      for_all([&](vf& a, int64_t lane) {
        if (strip.scale) a = fma(load(strip.scale + lane), a, load(strip.shift + lane));
        store(scores + lane, a);
        below &= gt(threshold, a);
      });
    }
    *hits = below != (1u << kWidth) - 1;
  }
}

}  // namespace

const PackedKernels packed_kernels_table = {&add, &start, &calibrate, &next, &strip};

}  // namespace xmc::predict::XMC_SIMD_NS
