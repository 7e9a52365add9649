// The small form of a sparse linear model W (labels x columns), which is stored, mapped and predicts as it is.
//
// Labels are sorted by falling number of weights: place p holds label[p]. A block is kPlaces consecutive
// places, the last one may have fewer; a tile is kTile of them. A weight is w = step[p] * q with an integer
// -127 <= q <= 127, q != 0. The weights of a constant last column are bias[p], in full.
//
// Each block has a list per column, of postings (place, q) by ascending place. A list may start with tiles,
// where there are many postings:
//
//   tiles     how many (16 bits), then for each of the block's first tiles
//             mask (64 bits: bit byte_place(lane) for each place that has a posting), the q's of these bits
//   postings  the gap from each place to the one before (the first: to the last place of the tiles, or to -1),
//             then the q's; gaps of 4 bits (the first of two in the low bits), 8 or 16 bits
//
// whichever width takes the fewest bytes for the list. Where a gap is larger than the width allows, postings
// with the largest gap and q = 0, which add nothing, come before. How many postings there are follows from
// their bytes. All numbers have the low byte first.
//
// List c of block b is list[first[b] + (ptr[b * (columns + 1) + c] >> 3) ..) up to the same of c + 1; the
// three lowest bits of its ptr are the width (0: 4, 1: 8, 2: 16 bits) and 4 if it starts with tiles. kAfter
// zeros follow the last list, so that whole tiles can be read.
//
// Whatever bytes the lists hold, a reader stays inside its buffers. So open() looks at the other arrays only,
// and is quick.
//
// Prediction. The values x of a row (without the constant) are rounded to integers, |x| ~ unit * a where the
// largest a is kMostValue, or less such that sums of a * q fit 32 bits. So a score
//   bias x_bias + (unit * step) * sum a q
// has the same bits in whatever order it is summed: tiles are added eight lists at a time.
#pragma once

#include <string.h>

#include <cstdint>
#include <vector>

#include "core/row_options.h"
#include "core/simd.h"
#include "core/types.h"
#include "core/vec_inline.h"
#include "predict/layout.h"
#include "predict/predict.h"

namespace xmc::predict {

inline constexpr int64_t kPlaces = 65536;     // of a block
inline constexpr int32_t kMostValue = 32767;  // a
inline constexpr int64_t kMostSum = 1 << 24;  // of a row's a's; times 128: less than 2^31
inline constexpr int64_t kAfter = 8 + kTile;  // bytes

// Memory of somebody else.
struct PackedView {
  int64_t labels = 0;
  int64_t columns = 0;
  Span<const int32_t> label;  // labels
  Span<const float> bias;     // labels, or none
  Span<const float> step;     // labels
  Span<const int64_t> first;  // blocks + 1
  Span<const uint32_t> ptr;   // blocks * (columns + 1)
  Span<const uint8_t> list;   // first[blocks] + kAfter

  int64_t blocks() const { return (labels + kPlaces - 1) / kPlaces; }
  int64_t places(int64_t b) const { return labels - b * kPlaces < kPlaces ? labels - b * kPlaces : kPlaces; }
};

struct Packed {
  std::vector<int32_t> label;
  std::vector<float> bias;
  std::vector<float> step;
  std::vector<int64_t> first;
  std::vector<uint32_t> ptr;
  std::vector<uint8_t> list;
  int64_t weights = 0;  // not zero, with those of the constant column
};

// The small form of blocks of labels in label order: the weights of at least `delta` in absolute value, each
// rounded to the nearest multiple of its label's step, which is 1/127 of the largest of them. With `has_bias`
// the last column is constant and stays as it is. Weights must be finite.
Packed pack(int64_t labels, int64_t columns, const std::vector<LabelBlock>& blocks, bool has_bias,
            float delta, int threads);

// Throws std::invalid_argument, naming the array, unless all but the lists' bytes is as described above.
void check_packed(const PackedView& packed);

// The weights as CSR with ascending columns. Throws std::invalid_argument for a list that leaves its block.
UnpackedRows unpack(const PackedView& packed);

// As predict_topk (predict.h), with scores as said above.
void predict_packed(const PackedView& packed, const CsrView<>& x, const RowOptions& options,
                    const Calibration& calibration, int64_t k, int threads, int32_t* ids, float* scores);

// A list on its way through a reader.
struct PackedList {
  const uint8_t *at, *end;  // what is left
  uint32_t width;
  int32_t tiles;  // how many it starts with, 0: none
  int32_t a;      // of the row's value, signed

  // The list of a column in block b, which has so many tiles.
  void open(const PackedView& p, int64_t b, int64_t column, int64_t of_block) {
    const uint32_t* ptr = p.ptr.data() + b * (p.columns + 1) + column;
    const uint8_t* lists = p.list.data() + p.first[b];
    at = lists + (ptr[0] >> 3);
    end = lists + (ptr[1] >> 3);
    width = ptr[0] & 3;
    tiles = 0;
    if (ptr[0] & 4 && end - at >= 2) {
      const int32_t n = at[0] | at[1] << 8;
      tiles = n < of_block ? n : static_cast<int32_t>(of_block);
      at += 2;
    }
  }
  bool empty() const { return at == end; }
};

// The mask of the next tile; `at` goes to its q's. Behind the list's end there is something to read.
XMC_INLINE uint64_t read_mask(const uint8_t*& at) {
  uint64_t mask;
  memcpy(&mask, at, sizeof mask);
  at += sizeof mask;
  return mask;
}

// The lane of each bit of a mask: byte_place the other way round.
XMC_INLINE constexpr int64_t lane_of(int64_t bit) {
  return bit % 16 / 4 * 16 + bit / 16 * 4 + bit % 4;
}

// Of the bytes [at, end): how many postings, and where their q's begin.
struct Postings {
  int64_t n;
  const uint8_t *gap, *q;
};
XMC_INLINE Postings postings_of(const uint8_t* at, const uint8_t* end, uint32_t width) {
  const int64_t bytes = end - at;
  if (width == 0) return {bytes * 2 / 3, at, at + (bytes * 2 / 3 + 1) / 2};
  return width == 1 ? Postings{bytes / 2, at, at + bytes / 2} : Postings{bytes / 3, at, at + bytes / 3 * 2};
}
XMC_INLINE uint32_t gap_at(const uint8_t* gap, uint32_t width, int64_t i) {
  if (width == 0) return gap[i / 2] >> i % 2 * 4 & 15u;
  return width == 1 ? gap[i] : gap[2 * i] | uint32_t{gap[2 * i + 1]} << 8;
}

inline constexpr int kListsAtOnce = 8;
// Postings with 8-bit gaps that are added before a place is looked at: so far may they lead past the last.
inline constexpr int64_t kPostingsAtOnce = 8, kMostLead = kPostingsAtOnce * 255;

// The scores of a tile of places.
struct PackedTile {
  const float *step, *bias;    // bias: or null
  const float *scale, *shift;  // or null
  float unit, x_bias;
};

struct PackedKernels {
  // sum[place] += a * q for the tiles [from, to) of n <= kListsAtOnce lists, the values of which have the same
  // sign. Their `at` moves on.
  void (*tiles)(PackedList* lists, int n, int64_t from, int64_t to, int32_t* sum);
  // The same for the postings that are left of a list after `place`; sum[-1] and those from `last` on to
  // last + kMostLead take what leaves it.
  void (*postings)(const PackedList& list, uint32_t after, int32_t* sum, uint32_t last);
  // From place `from` on the first tile one of whose scores is not below the threshold: they are at `scores`.
  // Sums on the way become zero. Gives n, or more, if there is none. `from` and n are multiples of kTile, but the
  // arrays may end before.
  int64_t (*next)(const PackedTile& tile, int64_t from, int64_t n, float threshold, int32_t* sum,
                  float* scores);
};
XMC_SIMD_TABLE(PackedKernels, packed_kernels)

}  // namespace xmc::predict
