// The small form of a sparse linear model W (labels x columns), which is stored, mapped and predicts as it is.
//
// Labels are sorted by falling number of weights: place p holds label[p]. A block is kPlaces consecutive
// places, the last one may have fewer. A weight is a code of one byte, w = level[code] with 256 levels for
// the whole model; level[0] = 0. The weights of a constant last column are bias[p], in full.
//
// Each block has a list per column: its places in ascending order, coded as gaps to the one before (the first
// one to -1), and their codes. A list is a sequence of records of two postings:
//
//   narrow  3 bytes   gap | gap << 4, code, code     gaps of  4 bits: 0 to 15
//   byte    4 bytes   gap, gap, code, code           gaps of  8 bits: 0 to 255
//   wide    6 bytes   gap, gap, code, code           gaps of 16 bits, low byte first
//
// whichever width takes the fewest bytes for the list. Where a gap is larger than the width allows, postings
// with the largest gap and code 0, which add nothing, come before; an odd list ends with a posting of zeros.
//
// List c of block b is list[first[b] + (ptr[b * (columns + 1) + c] >> 2) ..) up to the same of c + 1; the two
// lowest bits of its ptr are its width (0 narrow, 1 byte, 2 wide).
//
// Whatever bytes the lists hold, a reader stays inside its buffers: a code has a level, and a place is kept
// below the accumulator's size. So open() looks at the other arrays only, and is quick.
//
// Prediction. A list of at least kLongList bytes is long, the others are short: a score is the weight of the
// constant column, then the row's short lists from left to right, then its long ones, each product added by
// fma. Short lists are added posting by posting. Of the long ones the first strips (kStrip places), where the
// labels with many weights are, are decoded once for a batch of rows: a cell of 16-bit floats per list, which
// a row adds as a whole. A strip has cells as long as that is less work than its postings; where the cells end
// changes no bit. Levels must be 16-bit floats for it (bfloat16, as pack's are): else all lists go by posting.
#pragma once

#include <cstdint>
#include <vector>

#include "core/row_options.h"
#include "core/simd.h"
#include "core/types.h"
#include "predict/layout.h"
#include "predict/predict.h"

namespace xmc::predict {

inline constexpr int64_t kPlaces = 65536;  // of a block
inline constexpr int64_t kLevels = 256;
inline constexpr uint32_t kLongList = 320;  // bytes
inline constexpr int64_t kStrip = 128;      // a multiple of kTile

// Memory of somebody else.
struct PackedView {
  int64_t labels = 0;
  int64_t columns = 0;
  Span<const int32_t> label;  // labels
  Span<const float> bias;     // labels, or none
  Span<const float> level;    // kLevels, ascending from the second on
  Span<const int64_t> first;  // blocks + 1
  Span<const uint32_t> ptr;   // blocks * (columns + 1)
  Span<const uint8_t> list;   // first[blocks]

  int64_t blocks() const { return (labels + kPlaces - 1) / kPlaces; }
  int64_t places(int64_t b) const { return labels - b * kPlaces < kPlaces ? labels - b * kPlaces : kPlaces; }
};

struct Packed {
  std::vector<int32_t> label;
  std::vector<float> bias;
  std::vector<int64_t> first;
  std::vector<uint32_t> ptr;
  std::vector<uint8_t> list;
  int64_t weights = 0;  // not zero, with those of the constant column
};

// The small form of blocks of labels in label order: the weights of at least `delta` in absolute value, each
// rounded to the nearest level. With `has_bias` the last column is constant and stays as it is. Weights must
// be finite.
Packed pack(int64_t labels, int64_t columns, const std::vector<LabelBlock>& blocks, bool has_bias,
            float delta, const float* level, int threads);

// Throws std::invalid_argument, naming the array, unless all but the lists' bytes is as described above.
void check_packed(const PackedView& packed);

// The weights as CSR with ascending columns. Throws std::invalid_argument for a list that leaves its block.
UnpackedRows unpack(const PackedView& packed);

// As predict_topk (predict.h), with scores as said above.
void predict_packed(const PackedView& packed, const CsrView<>& x, const RowOptions& options,
                    const Calibration& calibration, int64_t k, int threads, int32_t* ids, float* scores);

// Calls fn(place, code) for each posting of a list of some width (0 to 2) after `place`; whole records.
template <class Fn>
inline void for_postings(const uint8_t* p, const uint8_t* end, uint32_t width, uint32_t place, Fn&& fn) {
  if (width == 0) {
    for (; p < end; p += 3) {
      fn(place += p[0] & 15u, p[1]);
      fn(place += p[0] >> 4u, p[2]);
    }
  } else if (width == 1) {
    for (; p < end; p += 4) {
      fn(place += p[0], p[2]);
      fn(place += p[1], p[3]);
    }
  } else {
    for (; p < end; p += 6) {
      fn(place += p[0] | uint32_t{p[1]} << 8, p[4]);
      fn(place += p[2] | uint32_t{p[3]} << 8, p[5]);
    }
  }
}
inline constexpr uint32_t kBefore = ~uint32_t{0};  // the place before a list

// Where the 16-bit float of a lane is in its cell: lanes 16 apart share 32 bits, so that a shift and a mask
// make two vectors of floats.
inline constexpr uint32_t cell_place(uint32_t lane) {
  return lane / 32 * 32 + lane % 16 * 2 + lane % 32 / 16;
}

// One strip with cells, and the rows' long lists by their number.
struct PackedStrip {
  const uint16_t* cell;        // lists * kStrip, zeros where there is no weight
  const int32_t* some;         // lists: whether it has a weight in the strip; null: most of them have
  const float *scale, *shift;  // kStrip, or null
};
struct PackedRows {
  const int64_t* start;  // rows + 1
  const int32_t* list;
  const float* value;
  int32_t* own_list;  // scratch, kPast more than the largest row has
  float* own_value;
};

struct PackedKernels {
  // score[min(place, last)] += x * level[code] for each posting of a list after `place`.
  void (*add)(const uint8_t* from, const uint8_t* to, uint32_t width, uint32_t place, float x,
              const float* level, float* score, uint32_t last);
  // score = weight * x, or 0 if weight is null, for n places.
  void (*start)(const float* weight, float x, int64_t n, float* score);
  // score = scale * score + shift for n places.
  void (*calibrate)(const float* scale, const float* shift, int64_t n, float* score);
  // The first of the places from, from + kTile, .. below n, all scores of which up to the next one are below
  // the threshold, are skipped: the first that is not, or one past n.
  int64_t (*next)(const float* score, int64_t from, int64_t n, float threshold);
  // Rows [from, to), partial is that of row 0: scores[(i - from) * kStrip + j],
  // calibrated, and whether one of them is not below thresholds[i].
  void (*strip)(const PackedStrip& strip, const PackedRows& rows, int64_t from, int64_t to,
                const float* partial, int64_t stride, const float* thresholds, bool* hits, float* scores);
};
XMC_SIMD_TABLE(PackedKernels, packed_kernels)

}  // namespace xmc::predict
