// The prediction layout of a sparse linear model W (labels x columns): by column, in blocks of labels.
//
// In trained one-vs-all models a few labels, the frequent ones, have most of the weights. So labels are put
// in the order of falling numbers of weights: place p holds label[p], blocks are `block` places (a multiple
// of kTile), and a column is nearly full in one block and nearly empty in another. In each block it is stored
// in one of two ways, decided by its density there alone; entry[b * columns + c] tells which:
//
//   dense   r >= 0.  Tiles of kTile places, the last one of all padded. A tile t, counted from the block's
//           first, has a cell for each dense column, cell[first_cell + t * n_dense + r]: the places with a
//           weight are the bits of its mask, their weights follow each other in the tile's part of `weight`.
//   sparse  -2 - o.  A list of postings, posting[first_posting + o] being a head that counts those behind it:
//           the label's place in the block and its weight, side by side, because lists are short and far
//           apart.
//   empty   kEmpty.
//
// Dense columns are numbered by falling numbers of weights, so that those of frequent features lie together,
// but the first n_heavy are those that have a good part of all squares (a bias); their weights are also in
// heavy[first_heavy + (t * n_heavy + r) * kTile + lane].
//
// Most labels are ruled out with the other dense weights in bytes (predict.h): w ~ step[p] * q with integers
// |q| <= 127, q = byte[(first_cell + t * n_dense + r) * kTile + byte_place(lane)]. The largest kOutliers of a
// label's dense weights would need a larger step: they are not in `cell` and `byte` but are postings as well,
// those of dense column r are outlier[out_ptr[first_slot + r] .. out_ptr[.. + 1)). An entry of zeros follows
// the last list.
// error[p] is a label's largest |w - step q|, spread[p] the norm of step q, norm[p] that of all its weights;
// rounded up, padded to whole tiles, infinite for labels with a weight that is not finite.
//
// The order in which a score is summed, sparse columns from left to right, then outliers and then the other
// dense weights likewise, thus depends on the model only: never on the batch or the threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/buffer.h"
#include "core/types.h"

namespace xmc {

inline constexpr int64_t kTile = 64;
inline constexpr int32_t kEmpty = -1;
inline constexpr int64_t kMostDense = 65536;  // of a block: numbers of 16 bits, sums of products of 32
inline constexpr double kOutliers = 0.003;    // share of a label's dense weights

// Where a lane's byte is in its tile: interleaving the 16-byte parts of four columns twice by the processor's
// unpack instructions then gives the four bytes of 16 consecutive lanes.
inline constexpr int64_t byte_place(int64_t lane) {
  return lane % 16 / 4 * 16 + lane / 16 * 4 + lane % 4;
}

// Six bytes; in arrays of the layout three numbers of 16 bits.
struct Posting {
  uint16_t place;
  uint16_t bits[2];

  Posting(uint16_t p, float w) : place(p) { std::memcpy(bits, &w, sizeof w); }
  Posting() : place(0), bits{0, 0} {}
  static Posting head(uint32_t count) {
    Posting p;
    std::memcpy(p.bits, &count, sizeof count);
    return p;
  }
  float weight() const {
    float w;
    std::memcpy(&w, bits, sizeof w);
    return w;
  }
  uint32_t count() const {
    uint32_t n;
    std::memcpy(&n, bits, sizeof n);
    return n;
  }
};

// The weights of a tile in a dense column; in arrays of the layout two numbers of 64 bits.
struct Cell {
  uint64_t mask = 0;   // bit `lane`: there is one
  uint64_t first = 0;  // of them in `weight`
};

// Where a block's parts are; in arrays of the layout six numbers of 64 bits.
struct LayoutBlock {
  int64_t n_dense = 0;
  int64_t n_heavy = 0;
  int64_t first_cell = 0;
  int64_t first_heavy = 0;
  int64_t first_slot = 0;
  int64_t first_posting = 0;
};

// The largest of a tile's bounds.
struct TileBounds {
  float error, spread, norm;
};

struct LayoutView {
  int64_t labels = 0;
  int64_t columns = 0;
  int64_t block = kTile;
  const int32_t* label = nullptr;      // labels
  const LayoutBlock* parts = nullptr;  // blocks
  const int32_t* entry = nullptr;      // blocks * columns
  const Cell* cell = nullptr;
  const float* weight = nullptr;
  const float* heavy = nullptr;
  const int8_t* byte = nullptr;  // cells * kTile
  const float* step = nullptr;   // tiles * kTile, as the next three
  const float* error = nullptr;
  const float* spread = nullptr;
  const float* norm = nullptr;
  const TileBounds* most = nullptr;  // tiles; not stored
  const Posting* posting = nullptr;
  const int32_t* out_ptr = nullptr;  // slots of all blocks + 1
  const Posting* outlier = nullptr;

  int64_t tiles() const { return (labels + kTile - 1) / kTile; }
  int64_t blocks() const { return (labels + block - 1) / block; }
  int64_t tiles_of(int64_t b) const {
    const int64_t left = tiles() - b * block / kTile;
    return left < block / kTile ? left : block / kTile;
  }
};

// The bounds of the tiles of a layout.
std::vector<TileBounds> tile_bounds(const LayoutView& layout);

// Makes the arrays of a layout from label blocks in CSR, given in label order, all of them three times:
// count() first, then plan() and fill(), then plan_cells() and fill_cells(). Rows have sorted unique columns,
// Index is int32_t or uint16_t.
class LayoutBuilder {
 public:
  // sizes: the number of weights of each label.
  LayoutBuilder(int64_t columns, const std::vector<int64_t>& sizes);

  template <class Index>
  void count(int64_t first_label, const CsrView<Index>& rows);
  // A column is dense in a block from `min_density` on, while the dense part stays within `budget` bytes, the
  // fullest first, and at most kMostDense of a block; from somewhat less on while they are few there.
  void plan(double min_density, int64_t budget);
  template <class Index>
  void fill(int64_t first_label, const CsrView<Index>& rows, int threads);
  void plan_cells();
  template <class Index>
  void fill_cells(int64_t first_label, const CsrView<Index>& rows, int threads);

  const int64_t labels;
  const int64_t columns;
  int64_t block;
  Buffer<int32_t> label;
  Buffer<LayoutBlock> parts;
  Buffer<int32_t> entry;
  Buffer<Cell> cell;
  Buffer<float> weight, heavy;
  Buffer<int8_t> byte;
  Buffer<float> step, error, spread, norm;
  Buffer<int32_t> out_ptr;
  Buffer<Posting> posting, outlier;

 private:
  struct Outlier {
    int32_t slot;
    Posting posting;
  };
  std::vector<int32_t> place_;                  // of each label
  std::vector<uint32_t> counts_;                // of each entry; from plan() on where its next posting goes
  std::vector<float> squares_;                  // of each entry
  std::vector<std::vector<Outlier>> outliers_;  // by block

  void choose_dense(double min_density, int64_t budget);
  void number_columns(int64_t b);
  void sort_outliers();

  // Calls fn(place, columns, weights, n) for each label of the rows, in threads by block.
  template <class Index, class Fn>
  void for_labels(int64_t first_label, const CsrView<Index>& rows, int threads, const Fn& fn);
  // Dense weights, outliers and bounds of the label at place p, from its n weights; `sizes` is scratch.
  template <class Index>
  void fill_dense(int64_t p, const Index* columns, const float* weights, int64_t n,
                  std::vector<float>& sizes);
  // The integer for a weight of the label at place p; an outlier's is larger than a byte.
  double rounded(int64_t p, bool is_heavy, float w) const {
    return is_heavy || norm[p] > std::numeric_limits<float>::max() ? 0 : std::nearbyint(w / double{step[p]});
  }
};

}  // namespace xmc
