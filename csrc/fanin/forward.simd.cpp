// Register tiles of the forward pass. kTile batch rows are kVectors vectors; a pass over a group keeps
// kLabels labels in registers at once, so that a line of x is touched once per kLabels labels.
#include "fanin/tile.h"

namespace xmc::fanin::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

using fanin::kNarrow;
using fanin::Lists;

#if defined(XMC_SIMD_IS_avx512)  // 32 registers
constexpr int kLabels = 8;
#else  // 16 registers
constexpr int kLabels = 4;
#endif
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

}  // namespace

extern const FaninForward fanin_forward_table = {kTile, &forward};

}  // namespace xmc::fanin::XMC_SIMD_NS
