// Register tiles of the backward passes. kTile batch rows are kVectors vectors; a pass over a group keeps
// kInputs of its connections in registers at once, so that a line of x or gx is touched once per label block.
#include "fanin/tile.h"

namespace xmc::fanin::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

using fanin::kLanes;
using fanin::kNarrow;
using fanin::Lists;
using fanin::Put;

#if defined(XMC_SIMD_IS_avx512)  // 32 registers
constexpr int kInputs = 8;
#else  // 16 registers
constexpr int kInputs = 4;
#endif
constexpr int kPart = 2;  // vectors of a tile that a register tile works on at once
constexpr int kPace =
    512;  // multiply-adds between the pieces of g that are moved: done in time for lists of 32
constexpr int kLaneVectors = kLanes / kWidth;

// One label with its own index list. kAhead prefetches the lines of the next label.
template <int kLine, bool kAhead, class Index>
XMC_INLINE void grad_features_one(float* gx, const Index* list, const float* w, const float* g,
                                  int64_t fan_in) {
  constexpr int kVec = kLine / kWidth;
  vf gn[kVec];
  for (int v = 0; v < kVec; ++v) gn[v] = load(g + v * kWidth);
  const auto one = [&](uint64_t d, vf wi) {
    float* p = gx + d * kLine;
    for (int v = 0; v < kVec; ++v) store(p + v * kWidth, fma(wi, gn[v], load(p + v * kWidth)));
  };
  int64_t i = 0;
  for (; i + kSpread <= fan_in; i += kSpread) {
    const Spread weights(w + i);
    for (int k = 0; k < kSpread; k += 4) {
      if constexpr (kAhead) {
        const Four next = four(list + fan_in + i + k);
        for (int j = 0; j < 4; ++j) {
          for (int r = 0; r < kLine; r += 16) prefetch(gx + next.at[j] * kLine + r);
        }
      }
      const Four line = four(list + i + k);
      for (int j = 0; j < 4; ++j) one(line.at[j], weights[k + j]);
    }
  }
  for (; i < fan_in; ++i) one(list[i], splat(w[i]));
}

// kI connections of n_labels labels that share an index list: their lines of gx stay in registers.
template <int kI, class Index>
XMC_INLINE void grad_features_shared(float* gx, const Index* list, const float* w, const float* g,
                                     int64_t g_stride, const uint8_t* active, int64_t n_labels,
                                     int64_t fan_in, fanin::LaneCopy* copy = nullptr) {
  vf a[kI][kPart];
  float* line[kI];
  for (int i = 0; i < kI; ++i) {
    line[i] = gx + uint64_t{list[i]} * kTile;
    for (int v = 0; v < kPart; ++v) a[i][v] = splat(0.f);
    for (int r = 0; r < kPart * kWidth; r += 16) prefetch(line[i] + r);
  }
  for (int64_t n = 0; n < n_labels; ++n) {
    if (active && !active[n]) continue;
    if (copy && n % (kPace / (kInputs * kPart * kWidth)) == 0) copy_next_line(*copy);
    vf gn[kPart];
    for (int v = 0; v < kPart; ++v) gn[v] = load(g + n * g_stride + v * kWidth);
    for (int i = 0; i < kI; ++i) {
      const vf wi = splat(w[n * fan_in + i]);
      for (int v = 0; v < kPart; ++v) a[i][v] = fma(wi, gn[v], a[i][v]);
    }
  }
  for (int i = 0; i < kI; ++i) {
    for (int v = 0; v < kPart; ++v) store(line[i] + v * kWidth, load(line[i] + v * kWidth) + a[i][v]);
  }
}

template <int kLine, class Index>
bool grad_features_plain(float* gx, const Index* list, const float* w, const float* g, int64_t g_stride,
                         const uint8_t* active, int64_t labels, int64_t fan_in, bool far, bool fresh,
                         int64_t features) {
  for (int64_t l = 0; l < labels; ++l, list += fan_in, w += fan_in, g += g_stride) {
    if (features && !all_below(list, fan_in, features)) return false;
    if (active && !active[l]) continue;
    if (fresh) {
      fetch_weights(w, fan_in);
      fetch_lists(list, fan_in);
      for (int r = 0; r < kLine; r += 16) prefetch_far(g + 64 * g_stride + r);
      prefetch_far(g + 64 * g_stride + kLine - 1);  // g may start inside a cache line
    }
    if (far && l + 1 < labels) {
      grad_features_one<kLine, true>(gx, list, w, g, fan_in);
    } else {
      grad_features_one<kLine, false>(gx, list, w, g, fan_in);
    }
  }
  return true;
}

bool grad_features(float* gx, int64_t line, Lists lists, const float* w, const float* g, int64_t g_stride,
                   const uint8_t* active, int64_t labels, int64_t fan_in, int64_t group, bool far, bool fresh,
                   int64_t features) {
  bool below = true;
  with_lists(lists, [&](const auto* list) {
    if (group == 1) {
      using Index = std::decay_t<decltype(*list)>;
      const auto plain =
          line < kTile ? &grad_features_plain<kNarrow, Index> : &grad_features_plain<kTile, Index>;
      below = plain(gx, list, w, g, g_stride, active, labels, fan_in, far, fresh, features);
      return;
    }
    for (int64_t l = 0; l < labels; l += group, list += fan_in) {
      const int64_t n = labels - l < group ? labels - l : group;
      const uint8_t* some = active ? active + l : nullptr;
      bool any = !active;
      for (int64_t k = 0; active && k < n; ++k) any = any || some[k];
      for (int v = 0; any && v < kTile; v += kPart * kWidth) {
        const float *wl = w + l * fan_in, *gl = g + l * g_stride + v;
        if (v == 0 && fresh) fetch_weights(wl, n * fan_in);
        const bool ahead = v == 0 && far && l + group < labels;
        int64_t i = 0;
        for (; i + kInputs <= fan_in; i += kInputs) {
          if (ahead) fetch_lines(gx, list + fan_in + i, kInputs);
          grad_features_shared<kInputs>(gx + v, list + i, wl + i, gl, g_stride, some, n, fan_in);
        }
        for (; i < fan_in; ++i)
          grad_features_shared<1>(gx + v, list + i, wl + i, gl, g_stride, some, n, fan_in);
      }
    }
  });
  return below;
}

// to[n][r] = g[r][n] for kLanes labels and a tile of rows, zeros for rows past the last.
XMC_INLINE void lanes_to_labels(const float* g, int64_t rows, float* to) {
  for (int r = 0; r < kTile; r += kWidth) {
    for (int c = 0; c < kLanes; c += kWidth) {
      vf block[kWidth];
      for (int k = 0; k < kWidth; ++k) block[k] = r + k < rows ? load(g + (r + k) * kLanes + c) : splat(0.f);
      transpose(block);
      for (int k = 0; k < kWidth; ++k) store(to + (c + k) * kTile + r, block[k]);
    }
  }
}

void grad_features_rows(float* gx, int64_t x_stride, Lists lists, const float* w, const float* g,
                        int64_t rows, int64_t labels, int64_t fan_in, int64_t group, bool far,
                        fanin::LaneCopy* copy) {
  constexpr int64_t kMost = 4 * kLanes;  // labels whose gradient is turned at once
  with_lists(lists, [&](const auto* all) {
    for (int64_t l = 0, n; l < labels; l += n, g += (n + kLanes - 1) / kLanes * rows * kLanes) {
      const int64_t of_group = group - l % group, left = labels - l < of_group ? labels - l : of_group;
      n = left < kMost ? left : kMost;
      const auto* list = all + l / group * fan_in;
      const float* wl = w + l * fan_in;
      const bool ahead = far && l % group == 0 && l + group < labels;
      float* tile = gx;
      for (int64_t row = 0; row < rows; row += kTile, tile += x_stride) {
        alignas(64) float gt[kMost * kTile];
        for (int64_t c = 0; c < n; c += kLanes) {
          lanes_to_labels(g + (c / kLanes * rows + row) * kLanes, rows - row, gt + c * kTile);
        }
        for (int v = 0; v < kTile; v += kPart * kWidth) {
          int64_t i = 0;
          for (; i + kInputs <= fan_in; i += kInputs) {
            if (row == 0 && v == 0) fetch_weights(wl + i * n, kInputs * n);
            if (ahead && v == 0) fetch_lines(tile, list + fan_in + i, kInputs);
            grad_features_shared<kInputs>(tile + v, list + i, wl + i, gt + v, kTile, nullptr, n, fan_in,
                                          copy);
          }
          for (; i < fan_in; ++i) {
            grad_features_shared<1>(tile + v, list + i, wl + i, gt + v, kTile, nullptr, n, fan_in, copy);
          }
        }
      }
    }
  });
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
template <int kN, int kI, class Index>
XMC_INLINE void grad_weights_block(const float* x, int64_t x_stride, const Index* list, const float* g,
                                   int64_t g_stride, int64_t tiles, int64_t n_labels, int64_t n_inputs,
                                   int64_t fan_in, float* gw) {
  static_assert(kN * kI == kWidth);
  vf a[kWidth];
  for (int k = 0; k < kWidth; ++k) a[k] = splat(0.f);
  int64_t row[kN], line[kI];
  for (int n = 0; n < kN; ++n) row[n] = (n < n_labels ? n : n_labels - 1) * kTile;
  for (int i = 0; i < kI; ++i) line[i] = int64_t{list[i < n_inputs ? i : n_inputs - 1]} * kTile;
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

template <int kN, class Index>
void grad_weights_list(const float* x, int64_t x_stride, const Index* list, const float* g, int64_t g_stride,
                       int64_t tiles, int64_t n_labels, int64_t fan_in, float* gw) {
  constexpr int kI = kWidth / kN;
  for (int64_t i = 0; i < fan_in; i += kI) {
    grad_weights_block<kN, kI>(x, x_stride, list + i, g, g_stride, tiles, n_labels, fan_in - i, fan_in,
                               gw + i);
  }
}

// a[v][i] = sum_r x[list[i]][r] g[r][v], kI connections of kLanes labels that share an index list: the labels
// are the lanes, so that no sum runs across a register. g is [row][kLanes]. Connections past the end repeat
// the last one.
template <int kI, class Index>
XMC_INLINE void grad_weights_lanes(const float* x, int64_t x_stride, const Index* list, const float* g,
                                   int64_t rows, int64_t n_inputs, fanin::LaneCopy* copy, vf (*a)[kWidth]) {
  const float* line[kI];
  for (int i = 0; i < kI; ++i) line[i] = x + uint64_t{list[i < n_inputs ? i : n_inputs - 1]} * kTile;
  vf sum[kI][kLaneVectors];
  for (int i = 0; i < kI; ++i) {
    for (int v = 0; v < kLaneVectors; ++v) sum[i][v] = splat(0.f);
  }
  for (int64_t first = 0; first < rows; first += kTile) {
    const int64_t end = rows - first < kTile ? rows - first : kTile;
    for (int64_t r = 0; r < end; ++r, g += kLanes) {
      if (copy && r % (kPace / (kI * kLanes)) == 0) copy_next_line(*copy);
      vf gr[kLaneVectors];
      for (int v = 0; v < kLaneVectors; ++v) gr[v] = load(g + v * kWidth);
      for (int i = 0; i < kI; ++i) {
        const vf xi = splat(line[i][r]);
        for (int v = 0; v < kLaneVectors; ++v) sum[i][v] = fma(xi, gr[v], sum[i][v]);
      }
    }
    for (int i = 0; i < kI; ++i) line[i] += x_stride;
  }
  for (int i = 0; i < kI; ++i) {
    for (int v = 0; v < kLaneVectors; ++v) a[v][i] = sum[i][v];
  }
}

// kLanes labels of a group, g [row][kLanes]. `ahead` prefetches the lines of the next group.
template <class Index>
void grad_weights_16(const float* x, int64_t x_stride, const Index* list, const float* g, int64_t rows,
                     int64_t n_labels, int64_t fan_in, bool ahead, fanin::Put put, fanin::LaneCopy* copy,
                     float* gw, float* gbias) {
  constexpr int kI = kWidth < 8 ? kWidth : kInputs;  // at a time; kWidth of them are transposed together
  for (int64_t i = 0; i < fan_in; i += kWidth) {
    const int64_t left = fan_in - i;
    for (int64_t r = 0; ahead && r < rows; r += kTile) {
      fetch_lines(x + r / kTile * x_stride, list + fan_in + i, left < kWidth ? left : kWidth);
    }
    vf a[kLaneVectors][kWidth];
    for (int k = 0; k < kWidth; k += kI) {
      const int64_t start = k < left ? k : 0;
      vf part[kLaneVectors][kWidth];
      grad_weights_lanes<kI>(x, x_stride, list + i + start, g, rows, left - start, copy, part);
      for (int v = 0; v < kLaneVectors; ++v) {
        for (int j = 0; j < kI; ++j) a[v][k + j] = part[v][j];
      }
    }
    for (int64_t v = 0; v < kLaneVectors && v * kWidth < n_labels; ++v) {
      transpose(a[v]);
      const int64_t some = n_labels - v * kWidth;
      for (int64_t k = 0; k < kWidth && k < some; ++k) {
        float* to = gw + (v * kWidth + k) * fan_in + i;
        if (left >= kWidth) {
          if (put == Put::stream) {
            stream(to, a[v][k]);
          } else {
            store(to, put == Put::add ? load(to) + a[v][k] : a[v][k]);
          }
          continue;
        }
        float total[kWidth];
        store(total, a[v][k]);
        for (int64_t j = 0; j < left; ++j) to[j] = put == Put::add ? to[j] + total[j] : total[j];
      }
    }
  }
  if (!gbias) return;
  float total[kLanes];
  for (int v = 0; v < kLanes; v += kWidth) {
    vf a[4] = {splat(0.f), splat(0.f), splat(0.f), splat(0.f)};  // to hide the latency of the addition
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      for (int k = 0; k < 4; ++k) a[k] = a[k] + load(g + (r + k) * kLanes + v);
    }
    for (; r < rows; ++r) a[0] = a[0] + load(g + r * kLanes + v);
    store(total + v, (a[0] + a[1]) + (a[2] + a[3]));
  }
  for (int64_t k = 0; k < n_labels; ++k) gbias[k] = put == Put::add ? gbias[k] + total[k] : total[k];
}

void grad_weights_rows(const float* x, int64_t x_stride, Lists lists, const float* g, int64_t rows,
                       int64_t labels, int64_t fan_in, int64_t group, bool far, Put put,
                       fanin::LaneCopy* copy, float* gw, float* gbias) {
  with_lists(lists, [&](const auto* list) {
    for (int64_t l = 0; l < labels; l += kLanes, g += rows * kLanes) {
      const bool ahead = far && l % group == 0 && l + group < labels;
      grad_weights_16(x, x_stride, list + l / group * fan_in, g, rows,
                      labels - l < kLanes ? labels - l : kLanes, fan_in, ahead, put, copy, gw + l * fan_in,
                      gbias ? gbias + l : nullptr);
    }
  });
}

// to[r][n] = g[n][r] for kLanes labels of a tile.
void labels_to_lanes(const float* g, float* to) {
  for (int r = 0; r < kTile; r += kWidth) {
    for (int c = 0; c < kLanes; c += kWidth) {
      vf block[kWidth];
      for (int n = 0; n < kWidth; ++n) block[n] = load(g + (c + n) * kTile + r);
      transpose(block);
      for (int k = 0; k < kWidth; ++k) store(to + (r + k) * kLanes + c, block[k]);
    }
  }
}

template <class Index>
bool grad_weights_of(const float* x, int64_t x_stride, const Index* list, const float* g, int64_t g_stride,
                     const uint8_t* active, int64_t tiles, int64_t labels, int64_t fan_in, int64_t group,
                     int64_t features, float* gw) {
  constexpr int kN = kWidth >= 8 ? 4 : 2, kLaneTiles = 4;
  const auto any_active = [&](int64_t l, int64_t n) {
    bool any = !active;
    for (int64_t t = 0; active && t < tiles; ++t) {
      for (int64_t k = l; k < l + n; ++k) any = any || active[t * labels + k];
    }
    return any;
  };
  for (int64_t first = 0; first < labels; first += group, list += fan_in) {
    const int64_t end = first + group < labels ? first + group : labels;
    if (group == 1 && features && !all_below(list, fan_in, features)) return false;
    for (int64_t l = first, n; l < end; l += n) {
      const int64_t left = end - l;
      n = left >= kLanes ? kLanes : left < kN ? left : kN;
      if (!any_active(l, n)) continue;
      if (n == kLanes) {
        // As many tiles as fit here at a time; their number depends on the shapes only.
        alignas(64) float gt[kLaneTiles * kTile * kLanes];
        for (int64_t t = 0; t < tiles; t += kLaneTiles) {
          const int64_t some = tiles - t < kLaneTiles ? tiles - t : kLaneTiles;
          for (int64_t k = 0; k < some; ++k) {
            labels_to_lanes(g + (t + k) * g_stride + l * kTile, gt + k * kTile * kLanes);
          }
          grad_weights_16(x + t * x_stride, x_stride, list, gt, some * kTile, kLanes, fan_in, false, Put::add,
                          nullptr, gw + l * fan_in, nullptr);
        }
      } else if (n == 1) {
        fetch_lists(list, fan_in);
        grad_weights_list<1>(x, x_stride, list, g + l * kTile, g_stride, tiles, n, fan_in, gw + l * fan_in);
      } else {
        grad_weights_list<kN>(x, x_stride, list, g + l * kTile, g_stride, tiles, n, fan_in, gw + l * fan_in);
      }
    }
  }
  return true;
}

bool grad_weights(const float* x, int64_t x_stride, Lists lists, const float* g, int64_t g_stride,
                  const uint8_t* active, int64_t tiles, int64_t labels, int64_t fan_in, int64_t group,
                  int64_t features, float* gw, float* gbias) {
  bool below = true;
  with_lists(lists, [&](const auto* list) {
    below =
        grad_weights_of(x, x_stride, list, g, g_stride, active, tiles, labels, fan_in, group, features, gw);
  });
  for (int64_t l = 0; gbias && l < labels; ++l) {
    vf a = splat(0.f);
    for (int64_t t = 0; t < tiles; ++t) {
      for (int v = 0; v < kVectors; ++v) a = a + load(g + t * g_stride + l * kTile + v * kWidth);
    }
    gbias[l] += sum(a);
  }
  return below;
}

}  // namespace

extern const FaninBackward fanin_backward_table = {&grad_features,     &grad_features_sorted,
                                                   &grad_weights,      &grad_features_rows,
                                                   &grad_weights_rows, kWidth >= kLanes};

}  // namespace xmc::fanin::XMC_SIMD_NS
