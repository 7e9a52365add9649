#include "core/vec.h"
#include "decide/row_kernels.h"

namespace xmc::decide::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

static_assert(kRowLanes % kWidth == 0);
constexpr int kParts = static_cast<int>(kRowLanes) / kWidth;  // vectors of a group
constexpr float kNone = -HUGE_VALF;

#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
// Loads put together: on Zen 4 faster than the gather instructions.
XMC_INLINE __m256 eight(const float* base, const int32_t* at) {
  return _mm256_setr_ps(base[at[0]], base[at[1]], base[at[2]], base[at[3]], base[at[4]], base[at[5]],
                        base[at[6]], base[at[7]]);
}
XMC_INLINE __m128d two(const FloatLine* line, int32_t a, int32_t b) {
  const auto* pairs = reinterpret_cast<const double*>(line);  // eight bytes at a time, never used as a double
  return _mm_loadh_pd(_mm_load_sd(pairs + a), pairs + b);
}
XMC_INLINE __m256 four(const FloatLine* line, const int32_t* at) {  // labels 0, 1 and 4, 5 of at
  return _mm256_castpd_ps(
      _mm256_insertf128_pd(_mm256_castpd128_pd256(two(line, at[0], at[1])), two(line, at[4], at[5]), 1));
}
XMC_INLINE __m256 eight_gains(const FloatLine* line, const int32_t* at, const float* eta) {
  const __m256 a = four(line, at), b = four(line, at + 2);
  const __m256 offset = _mm256_shuffle_ps(a, b, 0x88), slope = _mm256_shuffle_ps(a, b, 0xdd);
  return _mm256_fmadd_ps(slope, _mm256_loadu_ps(eta), offset);
}
XMC_INLINE __m256 eight_gains(const float* slope, const int32_t* at, const float* eta) {
  return _mm256_mul_ps(eight(slope, at), _mm256_loadu_ps(eta));
}
template <class Table>
XMC_INLINE void eight_gains(const Table* table, const int32_t* at, const float* eta, float* gains) {
  _mm256_storeu_ps(gains, eight_gains(table, at, eta));
}
#else
XMC_INLINE void eight_gains(const FloatLine* line, const int32_t* at, const float* eta, float* gains) {
  for (int i = 0; i < 8; ++i) gains[i] = line[at[i]].offset + line[at[i]].slope * eta[i];
}
XMC_INLINE void eight_gains(const float* slope, const int32_t* at, const float* eta, float* gains) {
  for (int i = 0; i < 8; ++i) gains[i] = slope[at[i]] * eta[i];
}
#endif

template <class Table>
XMC_INLINE void fill(const Table* table, const int32_t* labels, const float* eta, int64_t m, float* gains) {
  int64_t c = 0;
  for (; c + 8 <= m; c += 8) eight_gains(table, labels + c, eta + c, gains + c);
  if (c < m) {
    int32_t rest[8] = {};
    float eta_rest[8] = {};
    for (int64_t l = 0; l < m - c; ++l) {
      rest[l] = labels[c + l];
      eta_rest[l] = eta[c + l];
    }
    eight_gains(table, rest, eta_rest, gains + c);
  }
  for (int64_t l = m; l < padded_row(m); ++l) gains[l] = kNone;
}

void line_gains(const FloatLine* line, const int32_t* labels, const float* eta, int64_t m, float* gains) {
  fill(line, labels, eta, m, gains);
}

void slope_gains(const float* slope, const int32_t* labels, const float* eta, int64_t m, float* gains) {
  fill(slope, labels, eta, m, gains);
}

// The largest of each lane of the groups.
XMC_INLINE void lane_maxima(const float* gains, int64_t m, vf* best) {
  for (int p = 0; p < kParts; ++p) best[p] = splat(kNone);
  for (int64_t c = 0; c < m; c += kRowLanes) {
    for (int p = 0; p < kParts; ++p) best[p] = max(load(gains + c + p * kWidth), best[p]);
  }
}

float largest(const float* gains, int64_t m) {
  vf best[kParts];
  lane_maxima(gains, m, best);
  for (int p = 1; p < kParts; ++p) best[0] = max(best[0], best[p]);
  return largest_lane(best[0]);
}

float kth_bound(const float* gains, int64_t m, int64_t k) {
  vf best[kParts], larger[kParts];  // larger: how many of the maxima are
  lane_maxima(gains, m, best);
  float lanes[kRowLanes];
  for (int p = 0; p < kParts; ++p) {
    store(lanes + p * kWidth, best[p]);
    larger[p] = splat(0.f);
  }
  for (int64_t l = 0; l < kRowLanes; ++l) {
    const vf lane = splat(lanes[l]);
    for (int p = 0; p < kParts; ++p) larger[p] = larger[p] + where_gt(lane, best[p], splat(1.f));
  }
  vf least = splat(HUGE_VALF);
  for (int p = 0; p < kParts; ++p) {
    const uint32_t among = gt(splat(static_cast<float>(k)), larger[p]);
    least = min(least, select(among, best[p], splat(HUGE_VALF)));
  }
  return smallest_lane(least);
}

#if defined(XMC_SIMD_IS_avx512)
// first + i for every bit i of `mask`; writes whole vectors.
XMC_INLINE void append_bits(uint32_t mask, int64_t first, int32_t* at) {
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i ids = _mm512_add_epi32(iota, _mm512_set1_epi32(static_cast<int32_t>(first)));
  _mm512_storeu_si512(at, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), ids));
}
#endif

int64_t at_least(const float* gains, int64_t m, float bound, int32_t* at) {
  const vf limit = splat(bound);
  int64_t count = 0;
  for (int64_t c = 0; c < m; c += kRowLanes) {
    uint32_t mask = 0;
    for (int p = 0; p < kParts; ++p) mask |= ge(load(gains + c + p * kWidth), limit) << (p * kWidth);
#if defined(XMC_SIMD_IS_avx512)
    append_bits(mask, c, at + count);
    count += _mm_popcnt_u32(mask);
#else
    for (; mask; mask &= mask - 1) at[count++] = static_cast<int32_t>(c) + lowest_bit(mask);
#endif
  }
  return count;
}

// Those of 16 candidates from `first` on whose gains reach the bound, of the lanes in `valid`.
XMC_INLINE int64_t append_reaching(const FloatLine* line, const int32_t* labels, const float* eta,
                                   float bound, uint32_t valid, int64_t first, int32_t* at, float* gains) {
#if defined(XMC_SIMD_IS_avx512)
  const __m512 low = _mm512_castps256_ps512(eight_gains(line, labels, eta));
  const __m512 all = _mm512_insertf32x8(low, eight_gains(line, labels + 8, eta + 8), 1);
  const uint32_t mask = valid & _mm512_cmp_ps_mask(all, _mm512_set1_ps(bound), _CMP_GE_OQ);
  append_bits(mask, first, at);
  _mm512_storeu_ps(gains, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), all));
  return _mm_popcnt_u32(mask);
#else
  float all[kRowLanes];
  eight_gains(line, labels, eta, all);
  eight_gains(line, labels + 8, eta + 8, all + 8);
  uint32_t mask = 0;
  for (int p = 0; p < kParts; ++p) mask |= ge(load(all + p * kWidth), splat(bound)) << (p * kWidth);
  int64_t count = 0;
  for (mask &= valid; mask; mask &= mask - 1) {
    const int lane = lowest_bit(mask);
    at[count] = static_cast<int32_t>(first) + lane;
    gains[count++] = all[lane];
  }
  return count;
#endif
}

int64_t lines_at_least(const FloatLine* line, const int32_t* labels, const float* eta, int64_t m, float bound,
                       int32_t* at, float* gains) {
  static_assert(kRowLanes == 16);
  int64_t c = 0, count = 0;
  for (; c + kRowLanes <= m; c += kRowLanes) {
    count += append_reaching(line, labels + c, eta + c, bound, 0xffffu, c, at + count, gains + count);
  }
  if (c < m) {
    int32_t rest[kRowLanes] = {};
    float eta_rest[kRowLanes] = {};
    for (int64_t l = 0; l < m - c; ++l) {
      rest[l] = labels[c + l];
      eta_rest[l] = eta[c + l];
    }
    const uint32_t valid = (1u << (m - c)) - 1u;
    count += append_reaching(line, rest, eta_rest, bound, valid, c, at + count, gains + count);
  }
  for (int p = 0; p < kParts; ++p) store(gains + count + p * kWidth, splat(kNone));
  return count;
}

bool usual(const int32_t* labels, const float* eta, int64_t m) {
  int32_t bad = 0;
  for (int64_t c = 0; c < m; ++c) bad |= static_cast<int32_t>(!(eta[c] > 0.f)) | (eta[c] > 1.f);
  for (int64_t c = 1; c < m; ++c) bad |= static_cast<int32_t>(labels[c - 1] >= labels[c]);
  return bad == 0;
}

}  // namespace

extern const RowKernels row_kernels_table = {&line_gains, &slope_gains,    &largest, &kth_bound,
                                             &at_least,   &lines_at_least, &usual};

}  // namespace xmc::decide::XMC_SIMD_NS
