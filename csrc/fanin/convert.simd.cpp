#include <cstring>

#include "fanin/tile.h"

namespace xmc::fanin::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

using fanin::DType;
using fanin::kLanes;
using fanin::kNarrow;

uint32_t bits_of(float f) {
  uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  return u;
}

float float_of(uint32_t u) {
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

uint16_t to_bf16(float f) {
  const uint32_t u = bits_of(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(f != f ? (u >> 16) | 0x40u : rounded);
}

#if defined(XMC_SIMD_IS_avx2) || defined(XMC_SIMD_IS_avx512)

void widen_f16(const uint16_t* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  for (; i < n; ++i) to[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(from[i])));
}

void narrow_f16(const float* from, int64_t n, uint16_t* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
  }
  for (; i < n; ++i) to[i] = static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(from[i]), 0)));
}

#else

float from_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);  // inf, NaN
  const float f = float_of(rest << 13) * 0x1.0p112f;                                 // also denormals
  return float_of(sign | bits_of(f));
}

uint16_t to_f16(float f) {
  const uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (rest < 0x38800000u) {  // denormal: let the float adder round to multiples of 2^-24
    return static_cast<uint16_t>(sign | (bits_of(float_of(rest) + 0.5f) - bits_of(0.5f)));
  }
  return static_cast<uint16_t>(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
}

void widen_f16(const uint16_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from_f16(from[i]);
}

void narrow_f16(const float* from, int64_t n, uint16_t* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_f16(from[i]);
}

#endif

void widen(const void* from, DType type, int64_t n, float* to) {
  const auto* h = static_cast<const uint16_t*>(from);
  if (type == DType::f32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  } else if (type == DType::bf16) {
    for (int64_t i = 0; i < n; ++i) to[i] = float_of(static_cast<uint32_t>(h[i]) << 16);
  } else {
    widen_f16(h, n, to);
  }
}

void stream_row(const float* from, int64_t n, float* to) {
  int64_t i = 0;
  const auto misaligned = reinterpret_cast<uintptr_t>(to) % (kWidth * sizeof(float)) / sizeof(float);
  const int64_t head = misaligned ? kWidth - static_cast<int64_t>(misaligned) : 0;
  for (; i < head && i < n; ++i) to[i] = from[i];
  for (; i + kWidth <= n; i += kWidth) stream(to + i, load(from + i));
  for (; i < n; ++i) to[i] = from[i];
}

void narrow(const float* from, DType type, int64_t n, void* to, bool streamed) {
  if (type == DType::f32) {
    if (streamed) return stream_row(from, n, static_cast<float*>(to));
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  } else if (type == DType::bf16) {
    auto* h = static_cast<uint16_t*>(to);
    for (int64_t i = 0; i < n; ++i) h[i] = to_bf16(from[i]);
  } else {
    narrow_f16(from, n, static_cast<uint16_t*>(to));
  }
}

void fence_streams() {
  fence();
}

bool below(fanin::Lists indices, int64_t n, int64_t features) {
  bool all = true;
  with_lists(indices, [&](const auto* list) { all = all_below(list, n, features); });
  return all;
}

// Floats of a row to prefetch: too few follow each other for the hardware to see a stream, and the
// caller comes back for the next columns.
constexpr int64_t kAhead = 128;

void lanes(const float* from, int64_t stride, int64_t rows, int64_t cols, float* to) {
  for (int64_t r = 0; r < rows; r += 8) {
    const int64_t end = r + 8 < rows ? r + 8 : rows;
    int64_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      for (int64_t k = r; k < end; ++k) {
        const float* row = from + k * stride + c;
        for (int v = 0; v < kLanes; v += kWidth) store(to + c * rows + k * kLanes + v, load(row + v));
        prefetch_far(row + kAhead);
      }
    }
    for (int64_t k = r; k < end && c < cols; ++k) {
      for (int64_t i = 0; i < kLanes; ++i) {
        to[c * rows + k * kLanes + i] = c + i < cols ? from[k * stride + c + i] : 0.f;
      }
    }
  }
}

void finish(fanin::LaneCopy* copy) {
  while (copy->row < copy->rows) copy_next_line(*copy);
}

// kWidth x kWidth blocks; what does not fill a block goes one by one.
void pack(const float* from, int64_t stride, int64_t rows, int64_t cols, int64_t line, float* to) {
  int64_t r = 0;
  for (; r + kWidth <= rows; r += kWidth) {
    int64_t c = 0;
    for (; c + kWidth <= cols; c += kWidth) {
      vf block[kWidth];
      for (int k = 0; k < kWidth; ++k) {
        const float* row = from + (r + k) * stride + c;
        block[k] = load(row);
        prefetch_far(row + kAhead);
      }
      transpose(block);
      for (int k = 0; k < kWidth; ++k) store(to + (c + k) * line + r, block[k]);
    }
    for (; c < cols; ++c) {
      for (int k = 0; k < kWidth; ++k) to[c * line + r + k] = from[(r + k) * stride + c];
    }
  }
  for (; r < line; ++r) {
    for (int64_t c = 0; c < cols; ++c) to[c * line + r] = r < rows ? from[r * stride + c] : 0.f;
  }
}

void unpack(const float* from, int64_t line, int64_t rows, int64_t cols, float* to, int64_t stride) {
  int64_t r = 0;
  for (; r + kWidth <= rows; r += kWidth) {
    int64_t c = 0;
    for (; c + kWidth <= cols; c += kWidth) {
      vf block[kWidth];
      for (int k = 0; k < kWidth; ++k) block[k] = load(from + (c + k) * line + r);
      transpose(block);
      for (int k = 0; k < kWidth; ++k) store(to + (r + k) * stride + c, block[k]);
    }
    for (; c < cols; ++c) {
      for (int k = 0; k < kWidth; ++k) to[(r + k) * stride + c] = from[c * line + r + k];
    }
  }
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) to[r * stride + c] = from[c * line + r];
  }
}

void pack_columns(const float* from, int64_t stride, int64_t rows, int64_t cols, int64_t line, int64_t step,
                  float* to) {
  for (int64_t c = 0; c < cols; ++c, from += stride, to += line) {
    float* tile = to;
    for (int64_t first = 0; first < rows; first += line, tile += step) {
      const int64_t n = rows - first < line ? rows - first : line;
      int64_t r = 0;
      for (; r + kNarrow <= n; r += kNarrow) {
        prefetch_far(from + 16 * stride + first + r);
        copy_line(from + first + r, tile + r);
      }
      for (; r < line; ++r) tile[r] = r < n ? from[first + r] : 0.f;
    }
  }
}

void unpack_columns(const float* from, int64_t line, int64_t rows, int64_t cols, float* to, int64_t stride,
                    bool streamed) {
  const bool whole = streamed && rows % kNarrow == 0 && stride % kNarrow == 0 &&
                     reinterpret_cast<uintptr_t>(to) % (kNarrow * sizeof(float)) == 0;
  for (int64_t c = 0; c < cols; ++c, from += line, to += stride) {
    int64_t r = 0;
    for (; whole && r < rows; r += kWidth) stream(to + r, load(from + r));
    for (; r + kNarrow <= rows; r += kNarrow) copy_line(from + r, to + r);
    for (; r < rows; ++r) to[r] = from[r];
  }
}

constexpr int64_t kLine = 16;

// Row by row: interleaved pieces of 8 rows took 7 ms instead of 3 where rows are a large power of two apart.
void stream_rows(float* from, int64_t width, int64_t rows, int64_t cols, float* to, int64_t stride,
                 float* carry, bool first, bool last) {
  for (int64_t r = 0; r < rows; ++r, to += stride, carry += kLine) {
    float* row = from + r * width + kLine;
    const auto phase = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) / sizeof(float) % kLine);
    int64_t i = 0;
    if (first) {
      for (; (phase + i) % kLine && i < cols; ++i) to[i] = row[i];
    } else {
      copy_line(carry, row - kLine);
      i = -phase;
    }
    for (; i + kLine <= cols; i += kLine) {
      for (int64_t v = 0; v < kLine; v += kWidth) stream(to + i + v, load(row + i + v));
    }
    if (last) {
      for (; i < cols; ++i) to[i] = row[i];
    } else {
      copy_line(row + cols - kLine, carry);
    }
  }
}

}  // namespace

extern const FaninConvert fanin_convert_table = {&widen,        &narrow,         &fence_streams, &below,
                                                 &lanes,        &finish,         &pack,          &unpack,
                                                 &pack_columns, &unpack_columns, &stream_rows};

}  // namespace xmc::fanin::XMC_SIMD_NS
