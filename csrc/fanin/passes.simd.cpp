// Register tiles. kTile batch rows are kVectors vectors; a pass over a group keeps kLabels labels in
// registers at once, so that a line of x or gx is touched once per kLabels labels.
#include "core/vec.h"
#include "fanin/kernels.h"

namespace xmc::XMC_SIMD_NS {
namespace {

using fanin::kTile;

constexpr int kVectors = kTile / kWidth;
#if defined(XMC_SIMD_IS_avx512)  // 32 registers
constexpr int kLabels = 8, kPart = 2;
#else  // 16 registers
constexpr int kLabels = 4, kPart = 2;
#endif
// kPart: vectors of a tile that a register tile of a group works on at once.

// Asks for the weights that are needed in some thousand cycles. They come from memory, and the hardware does
// not see their stream between the scattered lines of x.
XMC_INLINE void fetch_ahead(const float* w, int64_t n) {
  constexpr int64_t kAhead = 2048;
  for (int64_t k = 0; k < n; k += 16) prefetch_far(w + kAhead + k);
}

// One label with its own index list, kVec vectors. Two sums in turn hide the latency of the addition.
template <int kVec>
XMC_INLINE void forward_one(const float* x, const uint32_t* offsets, const float* w, float bias,
                            int64_t fan_in, float* z) {
  vf even[kVec], odd[kVec];
  for (int v = 0; v < kVec; ++v) {
    even[v] = splat(bias);
    odd[v] = splat(0.f);
  }
  int64_t i = 0;
  for (; i + 2 <= fan_in; i += 2) {
    const vf w0 = splat(w[i]), w1 = splat(w[i + 1]);
    const float *x0 = x + offsets[i], *x1 = x + offsets[i + 1];
    for (int v = 0; v < kVec; ++v) {
      even[v] = fma(w0, load(x0 + v * kWidth), even[v]);
      odd[v] = fma(w1, load(x1 + v * kWidth), odd[v]);
    }
  }
  if (i < fan_in) {
    for (int v = 0; v < kVec; ++v) even[v] = fma(splat(w[i]), load(x + offsets[i] + v * kWidth), even[v]);
  }
  for (int v = 0; v < kVec; ++v) store(z + v * kWidth, even[v] + odd[v]);
}

// kN labels that share an index list, kVec vectors.
template <int kN, int kVec>
XMC_INLINE void forward_shared(const float* x, const uint32_t* offsets, const float* w, const float* bias,
                               int64_t fan_in, float* z) {
  vf a[kN][kVec];
  for (int n = 0; n < kN; ++n) {
    for (int v = 0; v < kVec; ++v) a[n][v] = splat(bias ? bias[n] : 0.f);
  }
  for (int64_t i = 0; i < fan_in; ++i) {
    vf line[kVec];
    for (int v = 0; v < kVec; ++v) line[v] = load(x + offsets[i] + v * kWidth);
    for (int n = 0; n < kN; ++n) {
      const vf wn = splat(w[n * fan_in + i]);
      for (int v = 0; v < kVec; ++v) a[n][v] = fma(wn, line[v], a[n][v]);
    }
  }
  for (int n = 0; n < kN; ++n) {
    for (int v = 0; v < kVec; ++v) store(z + n * kTile + v * kWidth, a[n][v]);
  }
}

template <int kVec>
void forward_plain(const float* x, const uint32_t* offsets, const float* w, const float* bias, int64_t labels,
                   int64_t fan_in, float* z) {
  for (int64_t l = 0; l < labels; ++l) {
    fetch_ahead(w + l * fan_in, fan_in);
    forward_one<kVec>(x, offsets + l * fan_in, w + l * fan_in, bias ? bias[l] : 0.f, fan_in, z + l * kTile);
  }
}

void forward(const float* x, const uint32_t* offsets, const float* w, const float* bias, int64_t labels,
             int64_t fan_in, int64_t group, int64_t rows, float* z) {
  constexpr int kHalf = kVectors > 1 ? kVectors / 2 : 1;
  const bool half = rows <= kHalf * kWidth;
  if (group == 1) {
    return half ? forward_plain<kHalf>(x, offsets, w, bias, labels, fan_in, z)
                : forward_plain<kVectors>(x, offsets, w, bias, labels, fan_in, z);
  }
  const int vectors = half ? kHalf : kVectors;
  for (int64_t first = 0; first < labels; first += group, offsets += fan_in) {
    const int64_t end = first + group < labels ? first + group : labels;
    int64_t l = first;
    for (; l < end;) {
      const int64_t n = end - l >= kLabels ? kLabels : 1;
      const float* b = bias ? bias + l : nullptr;
      fetch_ahead(w + l * fan_in, n * fan_in);
      int v = 0;
      for (; v + kPart <= vectors; v += kPart) {
        const float* xv = x + v * kWidth;
        float* zv = z + l * kTile + v * kWidth;
        if (n == kLabels) {
          forward_shared<kLabels, kPart>(xv, offsets, w + l * fan_in, b, fan_in, zv);
        } else {
          forward_shared<1, kPart>(xv, offsets, w + l * fan_in, b, fan_in, zv);
        }
      }
      for (; v < vectors; ++v) {
        const float* xv = x + v * kWidth;
        float* zv = z + l * kTile + v * kWidth;
        if (n == kLabels) {
          forward_shared<kLabels, 1>(xv, offsets, w + l * fan_in, b, fan_in, zv);
        } else {
          forward_shared<1, 1>(xv, offsets, w + l * fan_in, b, fan_in, zv);
        }
      }
      l += n;
    }
  }
}

// One label with its own index list. kAhead asks for the lines of the next label.
template <bool kAhead>
XMC_INLINE void grad_features_one(float* gx, const uint32_t* offsets, const float* w, const float* g,
                                  int64_t fan_in) {
  vf gn[kVectors];
  for (int v = 0; v < kVectors; ++v) gn[v] = load(g + v * kWidth);
  for (int64_t i = 0; i < fan_in; ++i) {
    float* p = gx + offsets[i];
    const vf wi = splat(w[i]);
    if constexpr (kAhead) {
      for (int k = 0; k < kTile; k += 16) prefetch(gx + offsets[fan_in + i] + k);
    }
    for (int v = 0; v < kVectors; ++v) store(p + v * kWidth, fma(wi, gn[v], load(p + v * kWidth)));
  }
}

// kI connections of n_labels labels that share an index list: their lines of gx stay in registers.
template <int kI>
XMC_INLINE void grad_features_shared(float* gx, const uint32_t* offsets, const float* w, const float* g,
                                     const uint8_t* active, int64_t n_labels, int64_t fan_in) {
  vf a[kI][kPart];
  for (int i = 0; i < kI; ++i) {
    for (int v = 0; v < kPart; ++v) {
      a[i][v] = splat(0.f);
      prefetch(gx + offsets[i] + v * kWidth);
    }
  }
  for (int64_t n = 0; n < n_labels; ++n) {
    if (active && !active[n]) continue;
    vf gn[kPart];
    for (int v = 0; v < kPart; ++v) gn[v] = load(g + n * kTile + v * kWidth);
    for (int i = 0; i < kI; ++i) {
      const vf wi = splat(w[n * fan_in + i]);
      for (int v = 0; v < kPart; ++v) a[i][v] = fma(wi, gn[v], a[i][v]);
    }
  }
  for (int i = 0; i < kI; ++i) {
    float* p = gx + offsets[i];
    for (int v = 0; v < kPart; ++v) store(p + v * kWidth, load(p + v * kWidth) + a[i][v]);
  }
}

void grad_features(float* gx, const uint32_t* offsets, const float* w, const float* g, const uint8_t* active,
                   int64_t labels, int64_t fan_in, int64_t group, bool far) {
  if (group == 1) {
    for (int64_t l = 0; l < labels; ++l) {
      if (active && !active[l]) continue;
      fetch_ahead(w + l * fan_in, fan_in);
      const auto one = far && l + 1 < labels ? grad_features_one<true> : grad_features_one<false>;
      one(gx, offsets + l * fan_in, w + l * fan_in, g + l * kTile, fan_in);
    }
    return;
  }
  for (int64_t l = 0; l < labels; l += group, offsets += fan_in) {
    const int64_t n = labels - l < group ? labels - l : group;
    const uint8_t* some = active ? active + l : nullptr;
    bool any = !active;
    for (int64_t k = 0; active && k < n; ++k) any = any || some[k];
    for (int v = 0; any && v < kTile; v += kPart * kWidth) {
      const float *wl = w + l * fan_in, *gl = g + l * kTile + v;
      if (v == 0) fetch_ahead(wl, n * fan_in);
      int64_t i = 0;
      for (; i + kLabels <= fan_in; i += kLabels) {
        grad_features_shared<kLabels>(gx + v, offsets + i, wl + i, gl, some, n, fan_in);
      }
      for (; i < fan_in; ++i) grad_features_shared<1>(gx + v, offsets + i, wl + i, gl, some, n, fan_in);
    }
  }
}

void grad_features_sorted(float* gx, const fanin::Connection* list, const uint32_t* starts, int64_t features,
                          const float* g) {
  for (int64_t d = 0; d < features; ++d, gx += kTile) {
    const fanin::Connection *c = list + starts[d], *end = list + starts[d + 1];
    vf even[kVectors], odd[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      even[v] = load(gx + v * kWidth);
      odd[v] = splat(0.f);
    }
    for (; c + 2 <= end; c += 2) {
      const vf w0 = splat(c[0].weight), w1 = splat(c[1].weight);
      const float *g0 = g + c[0].line, *g1 = g + c[1].line;
      for (int v = 0; v < kVectors; ++v) {
        even[v] = fma(w0, load(g0 + v * kWidth), even[v]);
        odd[v] = fma(w1, load(g1 + v * kWidth), odd[v]);
      }
    }
    if (c < end) {
      const vf w0 = splat(c->weight);
      for (int v = 0; v < kVectors; ++v) even[v] = fma(w0, load(g + c->line + v * kWidth), even[v]);
    }
    for (int v = 0; v < kVectors; ++v) store(gx + v * kWidth, even[v] + odd[v]);
  }
}

// kN labels x kI connections of one index list, kN * kI = kWidth dot products over the batch at once. Labels
// and connections past the end repeat the last one and are not stored.
template <int kN, int kI>
XMC_INLINE void grad_weights_block(const float* x, int64_t x_stride, const uint32_t* offsets, const float* g,
                                   int64_t g_stride, int64_t tiles, int64_t n_labels, int64_t n_inputs,
                                   int64_t fan_in, float* gw) {
  static_assert(kN * kI == kWidth);
  vf a[kWidth];
  for (int k = 0; k < kWidth; ++k) a[k] = splat(0.f);
  int64_t row[kN], line[kI];
  for (int n = 0; n < kN; ++n) row[n] = (n < n_labels ? n : n_labels - 1) * kTile;
  for (int i = 0; i < kI; ++i) line[i] = offsets[i < n_inputs ? i : n_inputs - 1];
  for (int64_t t = 0; t < tiles; ++t, x += x_stride, g += g_stride) {
    for (int v = 0; v < kVectors; ++v) {
      vf gn[kN];
      for (int n = 0; n < kN; ++n) gn[n] = load(g + row[n] + v * kWidth);
      for (int i = 0; i < kI; ++i) {
        const vf xi = load(x + line[i] + v * kWidth);
        for (int n = 0; n < kN; ++n) a[n * kI + i] = fma(xi, gn[n], a[n * kI + i]);
      }
    }
  }
  if (kN == 1 && n_inputs >= kI) return store(gw, load(gw) + sums(a));
  float total[kWidth];
  store(total, sums(a));
  for (int n = 0; n < kN && n < n_labels; ++n) {
    for (int i = 0; i < kI && i < n_inputs; ++i) gw[n * fan_in + i] += total[n * kI + i];
  }
}

template <int kN>
void grad_weights_list(const float* x, int64_t x_stride, const uint32_t* offsets, const float* g,
                       int64_t g_stride, int64_t tiles, int64_t n_labels, int64_t fan_in, float* gw) {
  constexpr int kI = kWidth / kN;
  for (int64_t i = 0; i < fan_in; i += kI) {
    grad_weights_block<kN, kI>(x, x_stride, offsets + i, g, g_stride, tiles, n_labels, fan_in - i, fan_in,
                               gw + i);
  }
}

// a[i] = sum_r x[offsets[i] + r] g[r], kI connections of kWidth labels that share an index list: the labels
// are the lanes, so that no sum runs across a register. g is [row][kWidth].
template <int kI>
XMC_INLINE void grad_weights_lanes(const float* x, int64_t x_stride, const uint32_t* offsets, const float* g,
                                   int64_t rows, int64_t n_inputs, vf* a) {
  const float* line[kI];
  for (int i = 0; i < kI; ++i) line[i] = x + offsets[i < n_inputs ? i : n_inputs - 1];
  for (int i = 0; i < kI; ++i) a[i] = splat(0.f);
  for (int64_t first = 0; first < rows; first += kTile) {
    const int64_t end = rows - first < kTile ? rows - first : kTile;
    for (int64_t r = 0; r < end; ++r, g += kWidth) {
      const vf gr = load(g);
      for (int i = 0; i < kI; ++i) a[i] = fma(splat(line[i][r]), gr, a[i]);
    }
    for (int i = 0; i < kI; ++i) line[i] += x_stride;
  }
}

// g is [block of kWidth labels][row][kWidth].
void grad_weights_rows(const float* x, int64_t x_stride, const uint32_t* offsets, const float* g,
                       int64_t rows, int64_t labels, int64_t fan_in, int64_t group, float* gw, float* gbias) {
  constexpr int kHalf = kWidth / 2;  // as many lines as there are registers for their addresses
  for (int64_t l = 0; l < labels; l += kWidth, g += rows * kWidth) {
    const uint32_t* list = offsets + l / group * fan_in;
    const int64_t n = labels - l < kWidth ? labels - l : kWidth;
    for (int64_t i = 0; i < fan_in; i += kWidth) {
      const int64_t left = fan_in - i;
      for (int64_t k = kWidth; k < left && k < 2 * kWidth; ++k) {
        for (int64_t r = 0; r < kTile; r += 16) prefetch(x + list[i + k] + r);
      }
      vf a[kWidth];
      grad_weights_lanes<kHalf>(x, x_stride, list + i, g, rows, left, a);
      const int64_t second = left > kHalf ? kHalf : 0;
      grad_weights_lanes<kHalf>(x, x_stride, list + i + second, g, rows, left - second, a + kHalf);
      transpose(a);
      for (int64_t k = 0; k < n; ++k) {
        float* to = gw + (l + k) * fan_in + i;
        if (left >= kWidth) {
          store(to, load(to) + a[k]);
          continue;
        }
        float total[kWidth];
        store(total, a[k]);
        for (int64_t j = 0; j < left; ++j) to[j] += total[j];
      }
    }
    if (!gbias) continue;
    vf a = splat(0.f);
    for (int64_t r = 0; r < rows; ++r) a = a + load(g + r * kWidth);
    float total[kWidth];
    store(total, a);
    for (int64_t k = 0; k < n; ++k) gbias[l + k] += total[k];
  }
}

// to[r][n] = g[n][r] for kWidth labels of a tile.
void labels_to_lanes(const float* g, float* to) {
  for (int r = 0; r < kTile; r += kWidth) {
    vf block[kWidth];
    for (int n = 0; n < kWidth; ++n) block[n] = load(g + n * kTile + r);
    transpose(block);
    for (int k = 0; k < kWidth; ++k) store(to + (r + k) * kWidth, block[k]);
  }
}

void grad_weights(const float* x, int64_t x_stride, const uint32_t* offsets, const float* g, int64_t g_stride,
                  const uint8_t* active, int64_t tiles, int64_t labels, int64_t fan_in, int64_t group,
                  float* gw, float* gbias) {
  constexpr int kN = kWidth >= 8 ? 4 : 2, kLaneTiles = 4;
  const auto any_active = [&](int64_t l, int64_t n) {
    bool any = !active;
    for (int64_t t = 0; active && t < tiles; ++t) {
      for (int64_t k = l; k < l + n; ++k) any = any || active[t * labels + k];
    }
    return any;
  };
  for (int64_t first = 0; first < labels; first += group, offsets += fan_in) {
    const int64_t end = first + group < labels ? first + group : labels;
    for (int64_t l = first; l < end;) {
      const int64_t left = end - l, n = left >= kWidth ? kWidth : left < kN ? left : kN;
      if (any_active(l, n)) {
        if (n == kWidth) {
          // As many tiles as fit here at a time; their number depends on the shapes only.
          float gt[kLaneTiles * kTile * kWidth];
          for (int64_t t = 0; t < tiles; t += kLaneTiles) {
            const int64_t some = tiles - t < kLaneTiles ? tiles - t : kLaneTiles;
            for (int64_t k = 0; k < some; ++k) {
              labels_to_lanes(g + (t + k) * g_stride + l * kTile, gt + k * kTile * kWidth);
            }
            grad_weights_rows(x + t * x_stride, x_stride, offsets, gt, some * kTile, kWidth, fan_in, group,
                              gw + l * fan_in, nullptr);
          }
        } else if (n == 1) {
          grad_weights_list<1>(x, x_stride, offsets, g + l * kTile, g_stride, tiles, n, fan_in,
                               gw + l * fan_in);
        } else {
          grad_weights_list<kN>(x, x_stride, offsets, g + l * kTile, g_stride, tiles, n, fan_in,
                                gw + l * fan_in);
        }
      }
      l += n;
    }
  }
  for (int64_t l = 0; gbias && l < labels; ++l) {
    vf a = splat(0.f);
    for (int64_t t = 0; t < tiles; ++t) {
      for (int v = 0; v < kVectors; ++v) a = a + load(g + t * g_stride + l * kTile + v * kWidth);
    }
    gbias[l] += sum(a);
  }
}

}  // namespace

extern const FaninPasses fanin_passes_table = {&forward, &grad_features, &grad_features_sorted, &grad_weights,
                                               &grad_weights_rows};

}  // namespace xmc::XMC_SIMD_NS
