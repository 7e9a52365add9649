#include "core/halves.h"
#include "predict/predict.h"

namespace xmc::XMC_SIMD_NS {
namespace {

// A vector of halves widens to a pair of vectors, lanes i.. and i + kTile / 2.. of the tile. Pairs finished
// together: the accumulators must fit the registers and cover the latency of FMA.
constexpr int kPairs = kWidth == 4 ? 4 : kTile / 2 / kWidth;
constexpr int kPart = kPairs * kWidth;

XMC_INLINE vf magnitude(vf a) {
  return max(a, splat(0.f) - a);
}

// Lanes first.. and first + kTile / 2.. of row i: writes the bounds, gives the lanes not above the threshold.
template <bool kExact>
XMC_INLINE uint64_t finish_part(const PredictTile& tile, const DenseRows& rows, int64_t i, int64_t first,
                                const float* partial, vf threshold, float* lower, float* upper) {
  const auto lane = [&](int j) { return first + j % kPairs * kWidth + j / kPairs * (kTile / 2); };
  vf acc[2 * kPairs];
  for (int j = 0; j < 2 * kPairs; ++j) acc[j] = load(partial + lane(j));
  for (int64_t p = rows.start[i]; p < rows.start[i + 1]; ++p) {
    const int64_t at = static_cast<int64_t>(rows.feature[p]) * kTile + 2 * first;
    const int64_t next = static_cast<int64_t>(rows.feature[p + kAhead]) * kTile + 2 * first;
    for (int64_t line = 0; line < 2 * kPart; line += 32) {
      prefetch(tile.high + next + line);
      if (kExact) prefetch(tile.low + next + line);
    }
    const vf x = splat(rows.value[p]);
    for (int j = 0; j < kPairs; ++j) {
      vf even, odd;
      if (kExact) {
        load_halves(tile.high + at + 2 * j * kWidth, tile.low + at + 2 * j * kWidth, even, odd);
      } else {
        load_halves(tile.high + at + 2 * j * kWidth, even, odd);
      }
      acc[j] = fma(x, even, acc[j]);
      acc[kPairs + j] = fma(x, odd, acc[kPairs + j]);
    }
  }
  uint64_t below = 0;
  const vf length = splat(rows.length[i]), rounding = splat(rows.rounding[i]);
  for (int j = 0; j < 2 * kPairs; ++j) {
    vf score = acc[j], margin = splat(0.f);
    if (!kExact) {
      margin = fma(length, load(tile.norm + lane(j)), magnitude(score)) * rounding;
      margin = fma(length, load(tile.error + lane(j)), margin);
    }
    if (tile.scale) {
      const vf scale = load(tile.scale + lane(j));
      score = fma(scale, score, load(tile.shift + lane(j)));
      if (!kExact) margin = fma(magnitude(scale), margin, rounding * magnitude(score));
    }
    const vf most = score + margin;
    store(lower + lane(j), score - margin);
    store(upper + lane(j), most);
    below |= static_cast<uint64_t>(ge(threshold, most)) << lane(j);
  }
  return below;
}

template <bool kExact>
void bounds(const PredictTile& tile, const DenseRows& rows, int64_t from, int64_t to, const float* partial,
            int64_t stride, const float* thresholds, uint64_t* hits, float* lower, float* upper) {
  for (int64_t i = from; i < to; ++i) {
    const vf threshold = splat(thresholds[i]);
    uint64_t below = 0;
    for (int64_t first = 0; first < kTile / 2; first += kPart) {
      below |= finish_part<kExact>(tile, rows, i, first, partial + i * stride, threshold, lower, upper);
    }
    *hits++ = ~below;
    lower += kTile;
    upper += kTile;
  }
}

float score(const PredictTile& tile, const DenseRows& rows, int64_t i, int64_t lane, float partial) {
  const int64_t place = tile_place(lane);
  float sum = partial;
  for (int64_t p = rows.start[i]; p < rows.start[i + 1]; ++p) {
    const int64_t at = static_cast<int64_t>(rows.feature[p]) * kTile + place;
    sum = fma(rows.value[p], join_halves(tile.high[at], tile.low[at]), sum);
  }
  return tile.scale ? fma(tile.scale[lane], sum, tile.shift[lane]) : sum;
}

}  // namespace

const PredictKernels predict_kernels_table = {&bounds<false>, &bounds<true>, &score};

}  // namespace xmc::XMC_SIMD_NS
