// Register tiles of the forward pass. kTile batch rows are kVectors vectors; a pass over a group keeps
// kLabels labels in registers at once, so that a line of x is touched once per kLabels labels.
#include "fanin/tile.h"

namespace xmc::fanin::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

using fanin::kLanes;
using fanin::kNarrow;
using fanin::Lists;

#if defined(XMC_SIMD_IS_avx512)  // 32 registers
constexpr int kLabels = 8;
#else  // 16 registers
constexpr int kLabels = 4;
#endif
constexpr int kLaneVectors = kLanes / kWidth;
// Rows in registers where the labels are the lanes.
constexpr int kRows = kLaneVectors == 1 ? 16 : 8 / kLaneVectors;
constexpr int kPart = 2;  // vectors of a tile that a register tile of a group works on at once

// One label with its own index list, kVec vectors. Two alternating sums hide the latency of the addition.
template <int kVec, int kLine, class Index>
XMC_INLINE void forward_one(const float* x, const Index* list, const float* w, float bias, int64_t fan_in,
                            float* z) {
  vf a[2][kVec];
  for (int v = 0; v < kVec; ++v) {
    a[0][v] = splat(bias);
    a[1][v] = splat(0.f);
  }
  int64_t i = 0;
  for (; i + kSpread <= fan_in; i += kSpread) {
    const Spread weights(w + i);
    for (int k = 0; k < kSpread; k += 4) {
      const Four line = four(list + i + k);
      for (int j = 0; j < 4; ++j) {
        const vf wj = weights[k + j];
        const float* p = x + line.at[j] * kLine;
        for (int v = 0; v < kVec; ++v) a[j % 2][v] = fma(wj, load(p + v * kWidth), a[j % 2][v]);
      }
    }
  }
  for (; i < fan_in; ++i) {
    const float* p = x + uint64_t{list[i]} * kLine;
    for (int v = 0; v < kVec; ++v) a[i % 2][v] = fma(splat(w[i]), load(p + v * kWidth), a[i % 2][v]);
  }
  for (int v = 0; v < kVec; ++v) store(z + v * kWidth, a[0][v] + a[1][v]);
}

// kN labels that share an index list, kVec vectors.
template <int kN, int kVec, class Index>
XMC_INLINE void forward_shared(const float* x, const Index* list, const float* w, const float* bias,
                               int64_t fan_in, float* z) {
  vf a[kN][kVec];
  for (int n = 0; n < kN; ++n) {
    for (int v = 0; v < kVec; ++v) a[n][v] = splat(bias ? bias[n] : 0.f);
  }
  for (int64_t i = 0; i < fan_in; ++i) {
    const float* p = x + uint64_t{list[i]} * kTile;
    vf line[kVec];
    for (int v = 0; v < kVec; ++v) line[v] = load(p + v * kWidth);
    for (int n = 0; n < kN; ++n) {
      const vf wn = splat(w[n * fan_in + i]);
      for (int v = 0; v < kVec; ++v) a[n][v] = fma(wn, line[v], a[n][v]);
    }
  }
  for (int n = 0; n < kN; ++n) {
    for (int v = 0; v < kVec; ++v) store(z + n * kTile + v * kWidth, a[n][v]);
  }
}

template <int kVec, int kLine, class Index>
bool forward_plain(const float* x, const Index* list, const float* w, const float* bias, int64_t labels,
                   int64_t fan_in, bool fresh, int64_t features, float* z) {
  for (int64_t l = 0; l < labels; ++l, list += fan_in, w += fan_in, z += kLine) {
    if (fresh) {
      fetch_weights(w, fan_in);
      fetch_lists(list, fan_in);
    }
    if (features && !all_below(list, fan_in, features)) return false;
    for (int r = 0; r < kVec * kWidth; r += 16) prefetch_write(z + 2 * kLine + r);
    forward_one<kVec, kLine>(x, list, w, bias ? bias[l] : 0.f, fan_in, z);
  }
  return true;
}

// kVec of the tile's vectors, for all labels of a group. `ahead` prefetches the lines of the next group, little
// by little: few can be on their way at a time.
template <int kVec, class Index>
void forward_group(const float* x, const Index* list, const float* w, const float* bias, int64_t labels,
                   int64_t fan_in, bool ahead, float* z) {
  const int64_t some = ahead ? (fan_in * kLabels + labels - 1) / labels : 0;
  int64_t l = 0, fetched = 0;
  for (; l + kLabels <= labels; l += kLabels) {
    const int64_t end = fetched + some < fan_in ? fetched + some : fan_in;
    if (ahead) fetch_lines(x, list + fan_in + fetched, end - fetched);
    fetched = end;
    forward_shared<kLabels, kVec>(x, list, w + l * fan_in, bias ? bias + l : nullptr, fan_in, z + l * kTile);
  }
  for (; l < labels; ++l) {
    forward_shared<1, kVec>(x, list, w + l * fan_in, bias ? bias + l : nullptr, fan_in, z + l * kTile);
  }
}

bool forward(const float* x, int64_t line, Lists lists, const float* w, const float* bias, int64_t labels,
             int64_t fan_in, int64_t group, int64_t rows, bool far, bool fresh, int64_t features, float* z) {
  constexpr int kHalf = kVectors / 2;
  const bool half = rows <= kHalf * kWidth;
  bool below = true;
  with_lists(lists, [&](const auto* list) {
    if (group == 1) {
      const auto plain = line < kTile
                             ? &forward_plain<kNarrow / kWidth, kNarrow, std::decay_t<decltype(*list)>>
                         : half ? &forward_plain<kHalf, kTile, std::decay_t<decltype(*list)>>
                                : &forward_plain<kVectors, kTile, std::decay_t<decltype(*list)>>;
      below = plain(x, list, w, bias, labels, fan_in, fresh, features, z);
      return;
    }
    for (int64_t l = 0; l < labels; l += group, list += fan_in) {
      const int64_t n = labels - l < group ? labels - l : group;
      const float *wl = w + l * fan_in, *bl = bias ? bias + l : nullptr;
      float* zl = z + l * kTile;
      if (fresh) fetch_weights(wl, n * fan_in);
      const bool ahead = far && l + group < labels;
      if (half && kHalf < kPart) {
        forward_group<kHalf>(x, list, wl, bl, n, fan_in, ahead, zl);
        continue;
      }
      for (int v = 0; v < (half ? kHalf : kVectors); v += kPart) {
        forward_group<kPart>(x + v * kWidth, list, wl, bl, n, fan_in, ahead && v == 0, zl + v * kWidth);
      }
    }
  });
  return below;
}

void turn(const float* w, int64_t labels, int64_t fan_in, float* turned) {
  for (int64_t l = 0; l < labels; l += kLanes, w += kLanes * fan_in, turned += kLanes * fan_in) {
    fetch_weights(w, kLanes * fan_in);
    int64_t i = 0;
    for (; l + kLanes <= labels && i + kWidth <= fan_in; i += kWidth) {
      for (int c = 0; c < kLanes; c += kWidth) {
        vf block[kWidth];
        for (int k = 0; k < kWidth; ++k) block[k] = load(w + (c + k) * fan_in + i);
        transpose(block);
        for (int k = 0; k < kWidth; ++k) store(turned + (i + k) * kLanes + c, block[k]);
      }
    }
    for (; i < fan_in; ++i) {
      for (int c = 0; c < kLanes; ++c) turned[i * kLanes + c] = l + c < labels ? w[c * fan_in + i] : 0.f;
    }
  }
}

// kLanes labels that share an index list as the lanes, kRows batch rows.
template <class Index>
XMC_INLINE void forward_lanes(const float* x, const Index* list, const float* turned, const vf* bias,
                              int64_t fan_in, float* z, int64_t z_stride) {
  vf a[kRows][kLaneVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kLaneVectors; ++v) a[r][v] = bias[v];
  }
  for (int64_t i = 0; i < fan_in; ++i, turned += kLanes) {
    const float* p = x + uint64_t{list[i]} * kTile;
#if defined(__GNUC__)
    __asm__("" : "+r"(p));  // or there is a pointer for each row
#endif
    vf w[kLaneVectors];
    for (int v = 0; v < kLaneVectors; ++v) w[v] = load(turned + v * kWidth);
    for (int r = 0; r < kRows; ++r) {
      const vf xr = splat(p[r]);
      for (int v = 0; v < kLaneVectors; ++v) a[r][v] = fma(xr, w[v], a[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kLaneVectors; ++v) store(z + r * z_stride + v * kWidth, a[r][v]);
  }
}

void forward_rows(const float* x, Lists lists, const float* turned, const float* bias, int64_t labels,
                  int64_t fan_in, int64_t group, int64_t rows, bool far, float* z, int64_t z_stride) {
  with_lists(lists, [&](const auto* all) {
    for (int64_t l = 0; l < labels; l += kLanes, turned += kLanes * fan_in) {
      const auto* list = all + l / group * fan_in;
      float some[kLanes];
      for (int c = 0; c < kLanes; ++c) some[c] = bias && l + c < labels ? bias[l + c] : 0.f;
      vf start[kLaneVectors];
      for (int v = 0; v < kLaneVectors; ++v) start[v] = load(some + v * kWidth);
      // lines of the next group are prefetched little by little
      const bool ahead = far && l % group == 0 && l + group < labels;
      const int64_t part = ahead ? (fan_in * kRows + rows - 1) / rows : 0;
      for (int64_t r = 0, fetched = 0; r < rows; r += kRows, fetched += part) {
        const int64_t left = fan_in - fetched;
        if (ahead) fetch_lines(x, list + fan_in + fetched, left < part ? left : part);
        forward_lanes(x + r, list, turned, start, fan_in, z + r * z_stride + l, z_stride);
      }
    }
  });
}

}  // namespace

extern const FaninForward fanin_forward_table = {kTile, &forward, &turn, &forward_rows};

}  // namespace xmc::fanin::XMC_SIMD_NS
