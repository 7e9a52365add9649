#include "predict/near.h"

#include "predict/tile_vec.h"

namespace xmc::predict::XMC_SIMD_NS {
namespace {

// The sums of a tile from place t on go to `sums`, unless none is at least `least`; gives the lanes of those
// that are.
#if defined(XMC_SIMD_IS_avx512)
XMC_INLINE uint64_t add_tile(const NearBlock& block, int64_t t, int16_t least, int16_t* list_sum,
                             int16_t* sums) {
  const __m128i by = _mm_cvtsi32_si128(block.shift), finer = _mm_cvtsi32_si128(block.finer);
  const auto start = [&](int64_t at) {
    auto* lists = reinterpret_cast<__m512i*>(list_sum + at);
    const __m512i own = _mm512_sra_epi16(_mm512_loadu_si512(block.bias + at), by);
    const __m512i sum = _mm512_add_epi16(own, _mm512_loadu_si512(lists));
    _mm512_storeu_si512(lists, _mm512_setzero_si512());
    return sum;
  };
  const auto add = [&](const NearPair* pair, const NearPair* end, __m512i& low, __m512i& high) {
    for (; pair < end; ++pair) {
      const __m512i a = _mm512_loadu_si512(pair->byte[0] + t), b = _mm512_loadu_si512(pair->byte[1] + t);
      const __m512i m = _mm512_set1_epi16(static_cast<int16_t>(pair->m));
      const __m512i to_low = _mm512_maddubs_epi16(m, _mm512_unpacklo_epi8(a, b));
      const __m512i to_high = _mm512_maddubs_epi16(m, _mm512_unpackhi_epi8(a, b));
      low = _mm512_add_epi16(low, _mm512_sra_epi16(to_low, finer));
      high = _mm512_add_epi16(high, _mm512_sra_epi16(to_high, finer));
    }
  };
  __m512i low = start(t), high = start(t + 32);
  add(block.pairs, block.negative, low, high);
  if (block.negative < block.end) {
    __m512i less_low = _mm512_setzero_si512(), less_high = _mm512_setzero_si512();
    add(block.negative, block.end, less_low, less_high);
    low = _mm512_sub_epi16(low, less_low);
    high = _mm512_sub_epi16(high, less_high);
  }
  const __m512i limit = _mm512_set1_epi16(least);
  const uint64_t hits = _mm512_cmpge_epi16_mask(low, limit) | uint64_t{_mm512_cmpge_epi16_mask(high, limit)}
                                                                  << 32;
  if (hits) {
    _mm512_storeu_si512(sums, low);
    _mm512_storeu_si512(sums + 32, high);
  }
  return hits;
}
#elif defined(XMC_SIMD_IS_avx2)
XMC_INLINE uint64_t add_tile(const NearBlock& block, int64_t t, int16_t least, int16_t* list_sum,
                             int16_t* sums) {
  const __m128i by = _mm_cvtsi32_si128(block.shift), finer = _mm_cvtsi32_si128(block.finer);
  const auto at = [](auto* p) { return reinterpret_cast<__m256i*>(const_cast<int16_t*>(p)); };
  __m256i sum[4], less[4];
  repeat<4>([&](auto g) {
    __m256i* lists = at(list_sum + t + 16 * g);
    const __m256i own = _mm256_sra_epi16(_mm256_loadu_si256(at(block.bias + t + 16 * g)), by);
    sum[g] = _mm256_add_epi16(own, _mm256_loadu_si256(lists));
    less[g] = _mm256_setzero_si256();
    _mm256_storeu_si256(lists, less[g]);
  });
  const auto add = [&](const NearPair* pair, const NearPair* end, __m256i* to) {
    for (; pair < end; ++pair) {
      const __m256i m = _mm256_set1_epi16(static_cast<int16_t>(pair->m));
      repeat<2>([&](auto half) {
        const auto load = [&](int of) {
          return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair->byte[of] + t + 32 * half));
        };
        const __m256i a = load(0), b = load(1);
        const __m256i low = _mm256_maddubs_epi16(m, _mm256_unpacklo_epi8(a, b));
        const __m256i high = _mm256_maddubs_epi16(m, _mm256_unpackhi_epi8(a, b));
        to[half] = _mm256_add_epi16(to[half], _mm256_sra_epi16(low, finer));
        to[half + 2] = _mm256_add_epi16(to[half + 2], _mm256_sra_epi16(high, finer));
      });
    }
  };
  add(block.pairs, block.negative, sum);
  if (block.negative < block.end) {
    add(block.negative, block.end, less);
    repeat<4>([&](auto g) { sum[g] = _mm256_sub_epi16(sum[g], less[g]); });
  }
  uint64_t below = 0;
  const __m256i limit = _mm256_set1_epi16(least);
  repeat<2>([&](auto half) {  // 32 lanes; packs interleaves the halves of its operands
    const __m256i a = _mm256_cmpgt_epi16(limit, sum[2 * half]),
                  b = _mm256_cmpgt_epi16(limit, sum[2 * half + 1]);
    const __m256i lanes = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
    below |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(lanes))} << 32 * half;
  });
  if (~below) repeat<4>([&](auto g) { _mm256_storeu_si256(at(sums + 16 * g), sum[g]); });
  return ~below;
}
#else
XMC_INLINE uint64_t add_tile(const NearBlock& block, int64_t t, int16_t least, int16_t* list_sum,
                             int16_t* sums) {
  for (int64_t lane = 0; lane < kTile; ++lane) {
    sums[lane] = static_cast<int16_t>((block.bias[t + lane] >> block.shift) + list_sum[t + lane]);
    list_sum[t + lane] = 0;
  }
  for (const NearPair* pair = block.pairs; pair < block.end; ++pair) {
    const int sign = pair < block.negative ? 1 : -1, m0 = pair->m & 255, m1 = pair->m >> 8;
    for (int64_t part = 0; part < kTile; part += 8) {
      const int8_t *a = pair->byte[0] + t + near_byte(part), *b = pair->byte[1] + t + near_byte(part);
      for (int64_t i = 0; i < 8; ++i) {
        sums[part + i] =
            static_cast<int16_t>(sums[part + i] + sign * ((a[i] * m0 + b[i] * m1) >> block.finer));
      }
    }
  }
  uint64_t hits = 0;
  for (int64_t lane = 0; lane < kTile; ++lane) hits |= static_cast<uint64_t>(sums[lane] >= least) << lane;
  return hits;
}
#endif

int64_t next(const NearBlock& block, int64_t from, int64_t n, int16_t least, int16_t* list_sum,
             uint64_t* hits, int16_t* sums) {
  for (; from < n; from += kTile) {
    *hits = add_tile(block, from, least, list_sum, sums);
    if (*hits) return from;
  }
  return n;
}

}  // namespace

const NearKernels near_kernels_table = {&next};

}  // namespace xmc::predict::XMC_SIMD_NS
