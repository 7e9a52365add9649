// Nearly exact top-k of a linear model with very many labels: candidates from integers, then exact scores.
//
// A score is close to that of a few terms: the weights of frequent features, of either sign, and the positive
// ones of rare features. They are kept rounded, beside the layout (layout.h). Its places come here in the
// opposite order: labels with few weights have the higher biases, and early good candidates rule others out.
//
//   byte      in blocks of kNearPlaces places a column of bytes for each frequent feature: w ~ step q,
//             |q| <= 127
//   posting   a list for each other feature: place * 256 + q of its positive weights by ascending place,
//             w ~ step q, 0 <= q <= 255; then kNearEnd
//
// and `bias`, all weights of the constant feature times its value, in multiples of `unit`.
//
// First pass. The values x of a row (scaled as RowOptions say) become integers such that its sums have 16
// bits, in multiples of unit 2^s with the smallest s >= 0 for which none can overflow (NearRows::take):
//
//   sum(p) = (bias(p) >> s) + sum_lists (q m + 128 >> 8) + sum_pairs (q m + q' m' >> d)
//   m = round(c x step / (unit 2^s)), c = 256 of lists, 2^d of bytes, the largest d <= 7 with |m| <= 127
//
// so that unit 2^s sum(p) is a rough score. The features with bytes are paired in ascending order, those of
// positive values and those of negative ones; these have |m|, and their sums are subtracted. The last of an
// odd number has no other one: m' = 0.
//
// The `candidates` best places by (sum, lower place) get exact scores, the best first, until a rough score
// plus `margin` is below the k-th best exact one. Exact scores have the bits that predict_topk gives, and the
// k best by (score, lower label) are the result. What share of the exact k best it has depends on the model
// and the rows: the caller measures it (xmc_fast/model/_near.py).
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/row_options.h"
#include "core/simd.h"
#include "core/types.h"
#include "predict/layout.h"

namespace xmc::predict {

inline constexpr int64_t kNearPlaces = 4096;
inline constexpr uint32_t kNearEnd = 0xffffffff;
inline constexpr int64_t kMostNear = (1 << 24) - 1;  // labels

// Where a lane's byte is in its tile: the processor's unpack instructions, which interleave the bytes of two
// columns within each 16, then give 8 consecutive lanes from either half.
inline constexpr int64_t near_byte(int64_t lane) {
  return lane % 32 / 8 * 16 + lane / 32 * 8 + lane % 8;
}

// The arrays of an index: Buffer where it is built, ArrayView where it is read.
template <template <class> class Array>
struct NearArrays {
  int64_t labels = 0;
  int64_t features = 0;  // columns without that of the constant
  Array<float> unit;     // 1
  Array<int16_t> bias;   // labels, rounded up to a multiple of kTile, zeros behind the last
  Array<float> step;     // features
  Array<int32_t> dense;  // n_dense features, ascending
  Array<int8_t> byte;    // blocks * n_dense * kNearPlaces, in a tile by near_byte
  Array<int64_t> ptr;    // features + 1: where a list begins in posting; that of a dense one is empty
  Array<uint32_t> posting;

  // Calls fn(name, array) for each: the only list of the arrays, their names are those in Python.
  template <class Fn>
  void for_each(Fn&& fn) {
    fn("unit", unit), fn("bias", bias), fn("step", step), fn("dense", dense), fn("byte", byte);
    fn("ptr", ptr), fn("posting", posting);
  }

  int64_t tiles() const { return (labels + kTile - 1) / kTile; }
  int64_t blocks() const { return (labels + kNearPlaces - 1) / kNearPlaces; }
  int64_t places(int64_t b) const {
    return labels - b * kNearPlaces < kNearPlaces ? labels - b * kNearPlaces : kNearPlaces;
  }
};
using NearView = NearArrays<ArrayView>;

// The index of a layout of at most kMostNear labels, whose last column is the constant `options.bias` if there
// is one. A feature is dense with positive weights of at least `density` of all labels, those with most
// first, while their bytes take at most `budget`. Throws std::invalid_argument unless all weights are finite.
NearArrays<Buffer> build_near(const LayoutView& layout, const RowOptions& options, double density,
                              int64_t budget, int threads);

// Throws std::invalid_argument unless the arrays are what build_near could have made of some layout, but for
// numbers that are only added and multiplied. `known`: their lists were seen before.
void check_near(const NearView& near, bool known, int threads);

// As predict_topk (predict.h), without calibration, of at most `candidates` labels a row, and at least k.
// rough: the rough score of each label given.
void predict_near(const NearView& near, const LayoutView& layout, const CsrView<>& x,
                  const RowOptions& options, int64_t k, int64_t candidates, float margin, int threads,
                  int32_t* ids, float* scores, float* rough);

// Two frequent features of a row whose values have the same sign: their bytes, and |m| of both, a byte each.
struct NearPair {
  const int8_t* byte[2];
  uint16_t m;
};

struct NearBlock {
  const int16_t* bias;
  int shift, finer;                  // s, d
  const NearPair *pairs, *negative;  // [pairs, negative) of positive values, [negative, end) of negative ones
  const NearPair* end;
};

struct NearKernels {
  // From place `from` on the first tile of a block with a sum of at least `least`: hits has its lanes, sums
  // all of them. `list_sum`, the sums of the lists, become zero on the way. Gives n if there is none. from
  // and n are multiples of kTile.
  int64_t (*next)(const NearBlock& block, int64_t from, int64_t n, int16_t least, int16_t* list_sum,
                  uint64_t* hits, int16_t* sums);
};
XMC_SIMD_TABLE(NearKernels, near_kernels)

}  // namespace xmc::predict
