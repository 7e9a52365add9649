#include "mach/hash.h"

#include "core/vec.h"

namespace xmc::mach::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

// Only bits 32 and up of a * l + b matter:
//   (a l + b) >> 32 = a_high l + ((a_low l + b_low) >> 32) + b_high   (mod 2^32)
struct Parts {
  uint32_t a_low, a_high, b_low, b_high, buckets;
  explicit Parts(const MachHash& h)
      : a_low(static_cast<uint32_t>(h.a)),
        a_high(static_cast<uint32_t>(h.a >> 32)),
        b_low(static_cast<uint32_t>(h.b)),
        b_high(static_cast<uint32_t>(h.b >> 32)),
        buckets(h.buckets) {}
};

XMC_INLINE uint16_t one(const Parts& p, uint32_t label) {
  // a_low * label + b_low < 2^64: (2^32 - 1)^2 + 2^32 - 1 fits
  const auto carry = static_cast<uint32_t>((static_cast<uint64_t>(p.a_low) * label + p.b_low) >> 32);
  const uint32_t u = p.a_high * label + p.b_high + carry;
  return static_cast<uint16_t>((static_cast<uint64_t>(u) * p.buckets) >> 32);
}

#if defined(XMC_SIMD_IS_avx512)
XMC_INLINE __m512i set64(uint64_t x) {
  return _mm512_set1_epi64(static_cast<int64_t>(x));
}
XMC_INLINE __m256i sixteen(const Parts& p, __m512i label) {
  const auto all = [](uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); };
  const __m512i low = _mm512_set1_epi64(static_cast<int64_t>(p.b_low));
  // The upper halves of the products of even and of odd lanes, side by side.
  const auto upper = [](__m512i even, __m512i odd) {
    return _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  };
  const __m512i a = all(p.a_low), odd = _mm512_srli_epi64(label, 32);
  const __m512i carry = upper(_mm512_add_epi64(_mm512_mul_epu32(label, a), low),
                              _mm512_add_epi64(_mm512_mul_epu32(odd, a), low));
  const __m512i u =
      _mm512_add_epi32(_mm512_add_epi32(_mm512_mullo_epi32(label, all(p.a_high)), all(p.b_high)), carry);
  const __m512i B = all(p.buckets);
  return _mm512_cvtepi32_epi16(upper(_mm512_mul_epu32(u, B), _mm512_mul_epu32(_mm512_srli_epi64(u, 32), B)));
}
#elif defined(XMC_SIMD_IS_avx2)
XMC_INLINE __m256i set64(uint64_t x) {
  return _mm256_set1_epi64x(static_cast<int64_t>(x));
}
// The upper halves of the products of even and of odd lanes, side by side.
XMC_INLINE __m256i upper(__m256i even, __m256i odd) {
  return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
XMC_INLINE __m256i eight(const Parts& p, __m256i label) {
  const auto all = [](uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); };
  const __m256i a = all(p.a_low), low = set64(p.b_low), odd = _mm256_srli_epi64(label, 32);
  const __m256i carry = upper(_mm256_add_epi64(_mm256_mul_epu32(label, a), low),
                              _mm256_add_epi64(_mm256_mul_epu32(odd, a), low));
  const __m256i u =
      _mm256_add_epi32(_mm256_add_epi32(_mm256_mullo_epi32(label, all(p.a_high)), all(p.b_high)), carry);
  const __m256i B = all(p.buckets);
  return upper(_mm256_mul_epu32(u, B), _mm256_mul_epu32(_mm256_srli_epi64(u, 32), B));
}
XMC_INLINE void put16(uint16_t* out, __m256i a, __m256i b) {
  const __m256i packed = _mm256_packus_epi32(a, b);  // a and b by turns, four numbers each
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(packed, 0xd8));
}
#endif

void range(const MachHash& h, uint32_t first, int64_t n, uint16_t* out) {
  const Parts p(h);
  const auto size = static_cast<uint32_t>(n);
  uint32_t i = 0;
#if defined(XMC_SIMD_IS_avx512)
  // a l + b of the even and of the odd ones of 16 labels: the next 16 need no product
  const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), a = set64(h.a), b = set64(h.b);
  const __m512i start = _mm512_add_epi64(even, set64(first)), step = set64(16 * h.a), B = set64(h.buckets);
  __m512i x = _mm512_add_epi64(_mm512_mullo_epi64(start, a), b), y = _mm512_add_epi64(x, a);
  for (; i + 16 <= size; i += 16) {
    const __m512i u = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), B);
    const __m512i v = _mm512_mul_epu32(_mm512_srli_epi64(y, 32), B);
    const __m512i both = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(u, 32), v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16(both));
    x = _mm512_add_epi64(x, step);
    y = _mm512_add_epi64(y, step);
  }
#elif defined(XMC_SIMD_IS_avx2)
  // a l + b of labels 0, 2, 4, 6; 1, 3, 5, 7; 8, ...; 9, ... of 16: the next 16 need no product
  __m256i x[4];
  for (uint32_t j = 0; j < 4; ++j) {
    const uint64_t l = uint64_t{first} + j / 2 * 8 + j % 2;
    const auto at = [&](uint64_t more) { return static_cast<int64_t>(h.a * (l + more) + h.b); };
    x[j] = _mm256_setr_epi64x(at(0), at(2), at(4), at(6));
  }
  const __m256i step = set64(16 * h.a), B = set64(h.buckets);
  for (; i + 16 <= size; i += 16) {
    __m256i u[4];
    for (int j = 0; j < 4; ++j) {
      u[j] = _mm256_mul_epu32(_mm256_srli_epi64(x[j], 32), B);
      x[j] = _mm256_add_epi64(x[j], step);
    }
    put16(out + i, upper(u[0], u[1]), upper(u[2], u[3]));
  }
#endif
  for (; i < size; ++i) out[i] = one(p, first + i);
}

void list(const MachHash& h, const int32_t* labels, int64_t n, uint16_t* out) {
  const Parts p(h);
  int64_t i = 0;
#if defined(XMC_SIMD_IS_avx512)
  for (; i + 16 <= n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), sixteen(p, _mm512_loadu_si512(labels + i)));
  }
#elif defined(XMC_SIMD_IS_avx2)
  for (; i + 16 <= n; i += 16) {
    const auto* l = reinterpret_cast<const __m256i*>(labels + i);
    put16(out + i, eight(p, _mm256_loadu_si256(l)), eight(p, _mm256_loadu_si256(l + 1)));
  }
#endif
  for (; i < n; ++i) out[i] = one(p, static_cast<uint32_t>(labels[i]));
}

#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
// One layer of a sorting network on eight 16-bit numbers: lane i meets lane `partner`, bit i of kUpper says
// that it takes the larger one.
template <int p0, int p1, int p2, int p3, int p4, int p5, int p6, int p7>
XMC_INLINE __m128i layer(__m128i x) {
  const __m128i other = _mm_shuffle_epi8(
      x, _mm_setr_epi8(2 * p0, 2 * p0 + 1, 2 * p1, 2 * p1 + 1, 2 * p2, 2 * p2 + 1, 2 * p3, 2 * p3 + 1, 2 * p4,
                       2 * p4 + 1, 2 * p5, 2 * p5 + 1, 2 * p6, 2 * p6 + 1, 2 * p7, 2 * p7 + 1));
  constexpr int kUpper = (p0 < 0) | (p1 < 1) << 1 | (p2 < 2) << 2 | (p3 < 3) << 3 | (p4 < 4) << 4 |
                         (p5 < 5) << 5 | (p6 < 6) << 6 | (p7 < 7) << 7;
  return _mm_blend_epi16(_mm_min_epu16(x, other), _mm_max_epu16(x, other), kUpper);
}

// Batcher's odd-even merge sort.
XMC_INLINE __m128i sort8(__m128i x) {
  x = layer<1, 0, 3, 2, 5, 4, 7, 6>(x);
  x = layer<2, 3, 0, 1, 6, 7, 4, 5>(x);
  x = layer<0, 2, 1, 3, 4, 6, 5, 7>(x);
  x = layer<4, 5, 6, 7, 0, 1, 2, 3>(x);
  x = layer<0, 1, 4, 5, 2, 3, 6, 7>(x);
  return layer<0, 2, 1, 4, 3, 6, 5, 7>(x);
}
#endif

// Insertion, for rows of at most eight.
XMC_INLINE int64_t sort_short(uint16_t* x, int64_t n) {
  int64_t size = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t value = x[i];
    int64_t j = size;
    while (j > 0 && x[j - 1] > value) --j;
    if (j > 0 && x[j - 1] == value) continue;
    for (int64_t m = size; m > j; --m) x[m] = x[m - 1];
    x[j] = value;
    ++size;
  }
  return size;
}

int32_t* sort_rows(uint16_t* x, const int64_t* indptr, int64_t rows, int64_t (*longer)(uint16_t*, int64_t),
                   int32_t* out, int64_t* sizes) {
#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
  const int32_t* end = out + (indptr[rows] - indptr[0]);
  // 8 - n words of zeros and then ones, from place 8 - n on: what a row of n is filled up with
  alignas(16) static const uint16_t fill[16] = {
      0, 0, 0, 0, 0, 0, 0, 0, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff};
#endif
  for (int64_t i = 0; i < rows; ++i) {
    uint16_t* row = x + (indptr[i] - indptr[0]);
    int64_t n = indptr[i + 1] - indptr[i];
#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)
    if (n <= 8 && out + 8 <= end) {
      const __m128i ones = _mm_loadu_si128(reinterpret_cast<const __m128i*>(fill + 8 - n));
      const __m128i sorted =
          sort8(_mm_or_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)), ones));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_cvtepu16_epi32(sorted));
      const int equal = _mm_movemask_epi8(_mm_cmpeq_epi16(sorted, _mm_bsrli_si128(sorted, 2)));
      if (!(equal & ((1 << 2 * n) - 1) >> 2)) {  // all different
        sizes[i] = n;
        out += n;
        continue;
      }
    }
#endif
    n = n <= 8 ? sort_short(row, n) : longer(row, n);
    for (int64_t j = 0; j < n; ++j) out[j] = row[j];
    sizes[i] = n;
    out += n;
  }
  return out;
}

}  // namespace

extern const HashKernels hash_kernels_table = {&range, &list, &sort_rows};

}  // namespace xmc::mach::XMC_SIMD_NS
