#include "predict/packed.h"

#include "predict/tile_vec.h"

namespace xmc::predict::XMC_SIMD_NS {
namespace {

// Where a list goes on; bad masks do not lead out of it.
XMC_INLINE void go_on(PackedList& list, const uint8_t* at) {
  list.at = at < list.end ? at : list.end;
}

#if defined(XMC_SIMD_IS_baseline)
// Bit by bit. Sums are unsigned: in a damaged file they may run over.
void tiles_in_parts(PackedList* lists, int n, int64_t from, int64_t to, int32_t* sum) {
  for (PackedList* list = lists; list < lists + n; ++list) {
    const auto a = static_cast<uint32_t>(list->a);
    for (int64_t t = from; t < to; ++t) {
      const uint8_t* q = list->at;
      uint32_t own[kTile];
      ::memcpy(own, sum + t * kTile, sizeof own);
      for (uint64_t mask = read_mask(q); mask; mask &= mask - 1) {
        own[lane_of(lowest_bit(mask))] += a * static_cast<uint32_t>(int32_t{static_cast<int8_t>(*q++)});
      }
      ::memcpy(sum + t * kTile, own, sizeof own);
      go_on(*list, q);
    }
  }
}
#else
// For each byte of a mask: which q belongs to each of its bits, and how many it has.
struct Spreads {
  uint8_t of[256][8] = {};
  uint8_t count[256] = {};
  constexpr Spreads() {
    for (int byte = 0; byte < 256; ++byte) {
      for (int bit = 0; bit < 8; ++bit) of[byte][bit] = byte >> bit & 1 ? count[byte]++ : 0x80;
    }
  }
};
constexpr Spreads kSpreads;

#if defined(XMC_SIMD_IS_neon)
using Part = int32x4_t;
constexpr int kParts = 16;  // of the sums of a tile
XMC_INLINE void add_byte(Part* sums, int32_t a, const uint8_t* spread, const uint8_t* q) {
  const int16x8_t w = vmovl_s8(vreinterpret_s8_u8(vtbl1_u8(vld1_u8(q), vld1_u8(spread))));
  sums[0] = vmlal_n_s16(sums[0], vget_low_s16(w), static_cast<int16_t>(a));
  sums[1] = vmlal_high_n_s16(sums[1], w, static_cast<int16_t>(a));
}
XMC_INLINE void add_part(int32_t* to, Part a) {
  vst1q_s32(to, vaddq_s32(vld1q_s32(to), a));
}
// The sums of the bits 8 k ..: four places, and the four 16 later (lane_of).
XMC_INLINE void add_parts(int32_t* to, const Part* sums) {
  for (int k = 0; k < 8; ++k) {
    add_part(to + k % 2 * 32 + k / 2 * 4, sums[2 * k]);
    add_part(to + k % 2 * 32 + k / 2 * 4 + 16, sums[2 * k + 1]);
  }
}
#else
using Part = __m256i;
constexpr int kParts = 8;
XMC_INLINE void add_byte(Part* sums, int32_t a, const uint8_t* spread, const uint8_t* q) {
  const __m128i w = _mm_shuffle_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q)),
                                     _mm_loadl_epi64(reinterpret_cast<const __m128i*>(spread)));
  *sums = _mm256_add_epi32(*sums, _mm256_mullo_epi32(_mm256_cvtepi8_epi32(w), _mm256_set1_epi32(a)));
}
XMC_INLINE void add_part(int32_t* to, Part a) {
  auto* at = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(at, _mm256_add_epi32(_mm256_loadu_si256(at), a));
}
XMC_INLINE void add_parts(int32_t* to, const Part* sums) {
  repeat<4>([&](auto j) {
    constexpr int k = j / 2 * 4 + j % 2;  // with k + 2: eight places, and the eight 16 later
    int32_t* at = to + j % 2 * 32 + j / 2 * 8;
    add_part(at, _mm256_permute2x128_si256(sums[k], sums[k + 2], 0x20));
    add_part(at + 16, _mm256_permute2x128_si256(sums[k], sums[k + 2], 0x31));
  });
}
#endif

// A mask byte by byte.
void tiles_in_parts(PackedList* lists, int n, int64_t from, int64_t to, int32_t* sum) {
  for (int64_t t = from; t < to; ++t) {
    Part sums[kParts] = {};
    for (PackedList* list = lists; list < lists + n; ++list) {
      const uint8_t* q = list->at;
      const uint64_t mask = read_mask(q);
      const int32_t a = list->a;
      repeat<8>([&](auto k) {
        const auto byte = static_cast<uint8_t>(mask >> 8 * k);
        add_byte(sums + k * (kParts / 8), a, kSpreads.of[byte], q);
        q += kSpreads.count[byte];
      });
      go_on(*list, q);
    }
    add_parts(sum + t * kTile, sums);
  }
}
#endif

#if defined(XMC_SIMD_IS_avx512) && defined(__GNUC__)
// Instructions that not every processor of this level has: written out, since the file is compiled for all.
bool can_expand() {
  static const bool can = __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vnni");
  return can;
}
XMC_INLINE __m512i expand(uint64_t mask, const uint8_t* q) {
  __m512i spread;
  __asm__("vpexpandb %1, %0 %{%2%}%{z%}"
          : "=v"(spread)
          : "v"(_mm512_loadu_si512(q)), "Yk"(static_cast<__mmask64>(mask)));
  return spread;
}
XMC_INLINE __m512i plus_products(__m512i sum, __m512i a, __m512i w) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(w));
  return sum;
}

constexpr int64_t kBytesAhead = 256;  // of a list, prefetched

// The q's of a list's next tile, 0 for places without one.
XMC_INLINE __m512i next_tile(PackedList& list) {
  const uint8_t* q = list.at;
  prefetch(q + kBytesAhead);
  const uint64_t mask = read_mask(q);
  const __m512i w = expand(mask, q);
  go_on(list, q + count_bits(mask));
  return w;
}

// Four lists side by side in each 32 bits: the eight high and the eight low bits of their a's.
struct FourValues {
  __m512i high, low;
};
FourValues four_values(const PackedList* lists) {
  uint8_t high[4], low[4];
  for (int j = 0; j < 4; ++j) {
    const auto value = static_cast<uint32_t>(lists[j].a < 0 ? -lists[j].a : lists[j].a);
    high[j] = static_cast<uint8_t>(value >> 8);
    low[j] = static_cast<uint8_t>(value);
  }
  int32_t bits[2];
  ::memcpy(bits, high, 4);
  ::memcpy(bits + 1, low, 4);
  return {_mm512_set1_epi32(bits[0]), _mm512_set1_epi32(bits[1])};
}

// Sums of 16 places.
struct Sums {
  __m512i high, low;
};
XMC_INLINE void add_products(Sums& sums, const FourValues& a, __m512i w) {
  sums = {plus_products(sums.high, a.high, w), plus_products(sums.low, a.low, w)};
}

// The next tile of four lists.
XMC_INLINE void add_four(PackedList* lists, const FourValues& a, Sums& s0, Sums& s1, Sums& s2, Sums& s3) {
  const __m512i w0 = next_tile(lists[0]), w1 = next_tile(lists[1]);
  const __m512i w2 = next_tile(lists[2]), w3 = next_tile(lists[3]);
  const __m512i low01 = _mm512_unpacklo_epi8(w0, w1), high01 = _mm512_unpackhi_epi8(w0, w1);
  const __m512i low23 = _mm512_unpacklo_epi8(w2, w3), high23 = _mm512_unpackhi_epi8(w2, w3);
  add_products(s0, a, _mm512_unpacklo_epi16(low01, low23));
  add_products(s1, a, _mm512_unpackhi_epi16(low01, low23));
  add_products(s2, a, _mm512_unpacklo_epi16(high01, high23));
  add_products(s3, a, _mm512_unpackhi_epi16(high01, high23));
}

template <bool kNegative>
XMC_INLINE void add_sums(int32_t* to, const Sums& sums) {
  const __m512i own = _mm512_loadu_si512(to);
  const __m512i all = _mm512_add_epi32(sums.low, _mm512_slli_epi32(sums.high, 8));
  _mm512_storeu_si512(to, kNegative ? _mm512_sub_epi32(own, all) : _mm512_add_epi32(own, all));
}

template <int kFours, bool kNegative>
void tiles_at_once(PackedList* lists, int64_t from, int64_t to, int32_t* sum) {
  const FourValues a = four_values(lists), b = kFours == 2 ? four_values(lists + 4) : a;
  const __m512i zero = _mm512_setzero_si512();
  for (int32_t* of_tile = sum + from * kTile; of_tile < sum + to * kTile; of_tile += kTile) {
    Sums s0{zero, zero}, s1 = s0, s2 = s0, s3 = s0;
    add_four(lists, a, s0, s1, s2, s3);
    if (kFours == 2) add_four(lists + 4, b, s0, s1, s2, s3);
    add_sums<kNegative>(of_tile, s0);
    add_sums<kNegative>(of_tile + 16, s1);
    add_sums<kNegative>(of_tile + 32, s2);
    add_sums<kNegative>(of_tile + 48, s3);
  }
}

void tiles(PackedList* lists, int n, int64_t from, int64_t to, int32_t* sum) {
  static constexpr uint8_t kNone[kAfter] = {};
  if (!can_expand()) {
    tiles_in_parts(lists, n, from, to, sum);
    return;
  }
  PackedList own[kListsAtOnce];
  for (int j = 0; j < kListsAtOnce; ++j) own[j] = j < n ? lists[j] : PackedList{kNone, kNone, 0, 0, 0};
  const bool negative = own[0].a < 0;
  const auto add = n > 4      ? negative ? &tiles_at_once<2, true> : &tiles_at_once<2, false>
                   : negative ? &tiles_at_once<1, true>
                              : &tiles_at_once<1, false>;
  add(own, from, to, sum);
  for (int j = 0; j < n; ++j) lists[j].at = own[j].at;
}
#else
void tiles(PackedList* lists, int n, int64_t from, int64_t to, int32_t* sum) {
  tiles_in_parts(lists, n, from, to, sum);
}
#endif

// `at` is the place behind a posting's.
template <uint32_t kPostingWidth>
XMC_INLINE void add_postings(const PackedList& list, uint32_t at, int32_t* sum, uint32_t last) {
  const Postings p = postings_of(list.at, list.end, kPostingWidth);
  const auto a = static_cast<uint32_t>(list.a);
  const auto add = [&](int64_t i, uint32_t behind) {
    uint32_t own;
    int32_t* to = sum - 1 + behind;
    ::memcpy(&own, to, sizeof own);
    own += a * static_cast<uint32_t>(int32_t{static_cast<int8_t>(p.q[i])});
    ::memcpy(to, &own, sizeof own);
  };
  int64_t i = 0;
  for (; kPostingWidth < 2 && i + kPostingsAtOnce <= p.n; i += kPostingsAtOnce) {
    at = at < last ? at : last;
    if (kPostingWidth == 1) {
      for (int j = 0; j < kPostingsAtOnce; ++j) add(i + j, at += p.gap[i + j]);
      continue;
    }
    uint32_t four_bits;
    ::memcpy(&four_bits, p.gap + i / 2, sizeof four_bits);
    uint64_t gaps = four_bits;  // each to a byte of its own
    gaps = (gaps | gaps << 16) & 0x0000ffff0000ffff;
    gaps = (gaps | gaps << 8) & 0x00ff00ff00ff00ff;
    gaps = (gaps | gaps << 4) & 0x0f0f0f0f0f0f0f0f;
    const uint64_t sums = gaps * 0x0101010101010101;  // at most 120 each
    for (int j = 0; j < kPostingsAtOnce; ++j) add(i + j, at + static_cast<uint8_t>(sums >> 8 * j));
    at += static_cast<uint32_t>(sums >> 56);
  }
  for (; i < p.n; ++i) {
    at += gap_at(p.gap, kPostingWidth, i);
    at = at < last ? at : last;
    add(i, at);
  }
}

void postings(const PackedList& list, uint32_t after, int32_t* sum, uint32_t last) {
  if (list.width == 0) {
    add_postings<0>(list, after, sum, last);
  } else if (list.width == 1) {
    add_postings<1>(list, after, sum, last);
  } else {
    add_postings<2>(list, after, sum, last);
  }
}

XMC_INLINE vf load_integers(const int32_t* p) {
#if defined(XMC_SIMD_IS_avx512)
  return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))};
#elif defined(XMC_SIMD_IS_avx2)
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
#elif defined(XMC_SIMD_IS_neon)
  return {vcvtq_f32_s32(vld1q_s32(p))};
#else
  float x[kWidth];
  for (int i = 0; i < kWidth; ++i) x[i] = static_cast<float>(p[i]);
  return load(x);
#endif
}

int64_t next(const PackedTile& tile, int64_t from, int64_t n, float threshold, int32_t* sum, float* scores) {
  const vf least = splat(threshold), unit = splat(tile.unit), x_bias = splat(tile.x_bias);
  for (; from < n; from += kTile) {
    uint32_t below = (1u << kWidth) - 1;
    for (int64_t j = 0; j < kTile; j += kWidth) {
      const int64_t p = from + j;
      const vf start = tile.bias ? load(tile.bias + p) * x_bias : splat(0.f);
      vf score = fma(load_integers(sum + p), unit * load(tile.step + p), start);
      if (tile.scale) score = fma(load(tile.scale + p), score, load(tile.shift + p));
      store(scores + j, score);
      below &= gt(least, score);
    }
    ::memset(sum + from, 0, kTile * sizeof(int32_t));
    if (below != (1u << kWidth) - 1) break;
  }
  return from;
}

}  // namespace

const PackedKernels packed_kernels_table = {&tiles, &postings, &next};

}  // namespace xmc::predict::XMC_SIMD_NS
