// What the kernels of fixed fan-in share: the rows of a tile, lists of either width. For *.simd.cpp files.
#pragma once

#include <type_traits>

#include "core/vec.h"
#include "fanin/kernels.h"
#include "fanin/tuning.h"

namespace xmc::fanin::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;

#if defined(XMC_SIMD_IS_avx512)
inline constexpr int kTile = 32;
#else
inline constexpr int kTile = 16;
#endif
inline constexpr int kVectors = kTile / kWidth;

// Calls fn with the lists as const uint16_t* or const uint32_t*.
template <class Fn>
XMC_INLINE void with_lists(fanin::Lists lists, const Fn& fn) {
  if (lists.bits == 16) {
    fn(static_cast<const uint16_t*>(lists.data));
  } else {
    fn(static_cast<const uint32_t*>(lists.data));
  }
}

// Four indices of a list. Where loads are the limit, one load and shifts.
struct Four {
  uint64_t at[4];
};
XMC_INLINE Four four(const uint32_t* list) {
  return {{list[0], list[1], list[2], list[3]}};
}
XMC_INLINE Four four(const uint16_t* list) {
#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
  uint64_t all;
  ::memcpy(&all, list, 8);
  return {{all & 0xffff, all >> 16 & 0xffff, all >> 32 & 0xffff, all >> 48}};
#else
  return {{list[0], list[1], list[2], list[3]}};
#endif
}

// Some weights, each broadcast to all lanes: permuted out of a register where loads are the limit.
inline constexpr int kSpread = 8;
#if defined(XMC_SIMD_IS_avx2)
struct Spread {
  __m256 all;
  XMC_INLINE explicit Spread(const float* w) : all(_mm256_loadu_ps(w)) {}
  XMC_INLINE vf operator[](int k) const { return {_mm256_permutevar8x32_ps(all, _mm256_set1_epi32(k))}; }
};
#elif defined(XMC_SIMD_IS_avx512)
struct Spread {
  __m512 all[2];  // four weights, the same in each 128-bit part
  XMC_INLINE explicit Spread(const float* w)
      : all{_mm512_broadcast_f32x4(_mm_loadu_ps(w)), _mm512_broadcast_f32x4(_mm_loadu_ps(w + 4))} {}
  XMC_INLINE vf operator[](int k) const {
    const __m512 from = all[k / 4];
    switch (k % 4) {
      case 0:
        return {_mm512_permute_ps(from, 0x00)};
      case 1:
        return {_mm512_permute_ps(from, 0x55)};
      case 2:
        return {_mm512_permute_ps(from, 0xaa)};
      default:
        return {_mm512_permute_ps(from, 0xff)};
    }
  }
};
#else
struct Spread {
  const float* w;
  XMC_INLINE explicit Spread(const float* weights) : w(weights) {}
  XMC_INLINE vf operator[](int k) const { return splat(w[k]); }
};
#endif

// Prefetches the weights that are needed in some thousand cycles. They come from memory, and the hardware does
// not see their stream between the scattered lines of x.
XMC_INLINE void fetch_weights(const float* w, int64_t n) {
  for (int64_t k = 0; k < n; k += 16) prefetch_far(w + kWeightsAhead + k);
}

// The same for lists.
template <class Index>
XMC_INLINE void fetch_lists(const Index* list, int64_t n) {
  for (int64_t k = 0; k < n; k += 64 / static_cast<int64_t>(sizeof(Index))) {
    prefetch_far(list + kWeightsAhead + k);
  }
}

// Whether all of n indices are below `features`. The lists of a plain layer are checked by the pass that
// reads them first, one at a time: a pass of its own took 4 ms of the second shape's forward
// (bench/speed/bench_fanin.py), eight lists at a time 2 ms, one at a time nothing that can be measured.
template <class Index>
XMC_INLINE bool all_below(const Index* list, int64_t n, int64_t features) {
#if defined(XMC_SIMD_IS_avx512)
  constexpr int kLane = 64 / static_cast<int>(sizeof(Index));
  const auto last = static_cast<int>(features - 1);
  uint64_t above = 0;
  for (int64_t i = 0; i < n; i += kLane) {
    const uint32_t some = n - i >= kLane ? ~0u >> (32 - kLane) : (1u << (n - i)) - 1;
    if constexpr (sizeof(Index) == 2) {
      above |= _mm512_mask_cmpgt_epu16_mask(some, _mm512_maskz_loadu_epi16(some, list + i),
                                            _mm512_set1_epi16(static_cast<int16_t>(last)));
    } else {
      const auto lanes = static_cast<__mmask16>(some);
      above |= _mm512_mask_cmpgt_epu32_mask(lanes, _mm512_maskz_loadu_epi32(lanes, list + i),
                                            _mm512_set1_epi32(last));
    }
  }
  return !above;
#else
  int64_t i = 0;
#if defined(XMC_SIMD_IS_avx2)
  constexpr int kLane = 32 / static_cast<int>(sizeof(Index));
  __m256i most = _mm256_setzero_si256(), last = _mm256_set1_epi32(static_cast<int>(features - 1));
  if constexpr (sizeof(Index) == 2) last = _mm256_set1_epi16(static_cast<int16_t>(features - 1));
  for (; i + kLane <= n; i += kLane) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(list + i));
    most = sizeof(Index) == 2 ? _mm256_max_epu16(most, some) : _mm256_max_epu32(most, some);
  }
  const __m256i both = sizeof(Index) == 2 ? _mm256_max_epu16(most, last) : _mm256_max_epu32(most, last);
  if (_mm256_movemask_epi8(_mm256_cmpeq_epi16(both, last)) != -1) return false;
#endif
  uint32_t largest = 0;
  for (; i < n; ++i) largest = list[i] > largest ? list[i] : largest;
  return largest < features || n == 0;
#endif
}

// Prefetches a line that is about to be written: a store that waits for its line holds up those behind it.
XMC_INLINE void prefetch_write(void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 1);
#else
  prefetch(p);
#endif
}

// A cache line of floats. Not memcpy: GCC 12 takes both places of such a copy in a loop for aligned.
XMC_INLINE void copy_line(const float* from, float* to) {
  for (int v = 0; v < 16; v += kWidth) store(to + v, load(from + v));
}

// Copies the next cache line of a block and prefetches the one `ahead`; does nothing when the block is complete.
XMC_INLINE void copy_next_line(fanin::LaneCopy& copy) {
  if (copy.row == copy.rows) return;
  copy_line(copy.from + copy.line * fanin::kLanes, copy.to + copy.line * copy.rows * fanin::kLanes);
  prefetch(copy.ahead + copy.line * fanin::kLanes);
  if (++copy.line < copy.lines) return;
  // The row is complete: on to the next one. Behind the last rows of this block come the next block's columns.
  copy.line = 0;
  ++copy.row;
  copy.from += copy.stride;
  copy.to += fanin::kLanes;
  copy.ahead = copy.row + copy.warm == copy.rows ? copy.next_block : copy.ahead + copy.stride;
}

// Prefetches the lines of some features in a tile.
template <class Index>
XMC_INLINE void fetch_lines(const float* tile, const Index* list, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    for (int r = 0; r < kTile; r += 16) prefetch(tile + uint64_t{list[i]} * kTile + r);
  }
}

}  // namespace xmc::fanin::XMC_SIMD_NS
