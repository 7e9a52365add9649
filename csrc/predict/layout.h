// The prediction layout of a sparse linear model W (labels x columns): by column, in blocks of labels.
//
// In trained one-vs-all models the few frequent labels have most of the weights. So labels are sorted by
// falling number of weights: place p holds label[p], a block is `block` consecutive places (a multiple of
// kTile), a tile kTile = 64 of them. A column is then nearly full in one block and nearly empty in another,
// and each block stores it in the way that suits its density there:
//
//                 block 0                     block 1                  entry[b * columns + c]
//                 tile 0 | tile 1 | ..        tile 0 | tile 1 | ..
//   column 0      ################ dense      ##  # ########  dense    slot r >= 0
//   column 1      # ###### ##### # dense         #      #     sparse   -2 - offset of its list
//   column 2        #       #      sparse                     empty    kEmpty
//
// dense: a column with slot r has one cell per tile t of its block, cell[first_cell + t * n_dense + r]. Its
//   mask has bit `lane` set where the label has a weight, the weights follow each other:
//
//     mask    ..0 0 1 0 1 1      lanes 0, 1 and 3 have a weight
//     first = 70                 weight[70], weight[71], weight[72] are theirs
//
// sparse: a list of six-byte postings from posting[first_posting + offset] on, place and weight side by side
//   since lists are short and far apart:
//
//     +-------+-----------+ +-------+----------+ +-------+----------+
//     |   -   | count = 2 | | place | weight   | | place | weight   |
//     +-------+-----------+ +-------+----------+ +-------+----------+
//      uint16    uint32       uint16   float
//
// Dense columns are numbered by falling number of weights, so that frequent features lie together. The first
// n_heavy slots are different: columns with a large share of all squared weights (a bias). Their weights are
// also stored in full, heavy[first_heavy + (t * n_heavy + r) * kTile + lane].
//
// The first pass of a prediction reads the other dense weights as bytes (predict.h): w ~ step[p] * q with
// integers |q| <= 127, q = byte[(first_cell + t * n_dense + r) * kTile + byte_place(lane)]. A label's largest
// weights (kOutliers of them) would need a larger step: they are left out of `cell` and `byte` and are
// postings too, outlier[out_ptr[first_slot + r] .. out_ptr[first_slot + r + 1]) for slot r. One posting of
// zeros follows the last list (predict.cpp reads one past a list's end).
//
// Bounds of each place: error = largest |w - step q|, spread = norm of step q, norm = norm of all weights;
// rounded up, padded to whole tiles, infinite for labels with a weight that is not finite.
//
// The arrays are what an exact model has on disk (docs/howto/file_format.md), mapped as they are.
//
// A score is summed in an order that depends on the model only, never on the batch or the threads: sparse
// columns from left to right, then outliers, then the other dense weights.
#pragma once

#include <cstdint>
#include <cstring>
#include <variant>
#include <vector>

#include "core/buffer.h"
#include "core/types.h"

namespace xmc::predict {

inline constexpr int64_t kTile = 64;
inline constexpr int32_t kEmpty = -1;

// Where a lane's byte is in its tile: interleaving the 16-byte parts of four columns twice by the processor's
// unpack instructions then gives the four bytes of 16 consecutive lanes.
inline constexpr int64_t byte_place(int64_t lane) {
  return lane % 16 / 4 * 16 + lane / 16 * 4 + lane % 4;
}

// `Number` is the type a struct is seen as in Python: a Posting is three numbers of 16 bits, a Cell two and
// a LayoutBlock six of 64.
struct Posting {
  using Number = uint16_t;
  uint16_t place = 0;
  uint16_t bits[2] = {0, 0};  // a float, or the count of a list; not aligned

  Posting() = default;
  Posting(uint16_t p, float w) : place(p) { std::memcpy(bits, &w, sizeof w); }
  static Posting head(uint32_t count) {
    Posting p;
    std::memcpy(p.bits, &count, sizeof count);
    return p;
  }
  float weight() const { return as<float>(); }
  uint32_t count() const { return as<uint32_t>(); }

 private:
  template <class T>
  T as() const {
    T value;
    std::memcpy(&value, bits, sizeof value);
    return value;
  }
};

struct Cell {
  using Number = int64_t;
  uint64_t mask = 0;
  uint64_t first = 0;
};

struct LayoutBlock {
  using Number = int64_t;
  int64_t n_dense = 0;
  int64_t n_heavy = 0;
  int64_t first_cell = 0;
  int64_t first_heavy = 0;
  int64_t first_slot = 0;
  int64_t first_posting = 0;
};

// Memory of somebody else; reads like a pointer.
template <class T>
struct ArrayView {
  const T* data = nullptr;
  int64_t size = 0;
  operator const T*() const { return data; }
};

// The arrays of a layout: Buffer where it is built, ArrayView where it is read.
template <template <class> class Array>
struct LayoutArrays {
  LayoutArrays() = default;
  LayoutArrays(int64_t n_labels, int64_t n_columns, int64_t block_places)
      : labels(n_labels), columns(n_columns), block(block_places) {}

  int64_t labels = 0;
  int64_t columns = 0;
  int64_t block = kTile;
  Array<int32_t> label;      // labels
  Array<LayoutBlock> parts;  // blocks
  Array<int32_t> entry;      // blocks * columns
  Array<Cell> cell;
  Array<float> weight;
  Array<float> heavy;
  Array<int8_t> byte;                      // cells * kTile
  Array<float> step, error, spread, norm;  // tiles * kTile
  Array<Posting> posting;
  Array<int32_t> out_ptr;  // slots of all blocks + 1
  Array<Posting> outlier;

  // Calls fn(name, array) for each: the only list of the arrays, their names are those in Python.
  template <class Fn>
  void for_each(Fn&& fn) {
    fn("label", label), fn("parts", parts), fn("entry", entry), fn("cell", cell), fn("weight", weight);
    fn("heavy", heavy), fn("byte", byte), fn("step", step), fn("error", error), fn("spread", spread);
    fn("norm", norm), fn("posting", posting), fn("out_ptr", out_ptr), fn("outlier", outlier);
  }

  int64_t tiles() const { return (labels + kTile - 1) / kTile; }
  int64_t blocks() const { return (labels + block - 1) / block; }
  int64_t tiles_of(int64_t b) const {
    const int64_t left = tiles() - b * block / kTile;
    return left < block / kTile ? left : block / kTile;
  }
};

// The largest bounds of a tile.
struct TileBounds {
  float error, spread, norm;
};

struct LayoutView : LayoutArrays<ArrayView> {
  const TileBounds* most = nullptr;  // tiles; not stored
};

// Consecutive labels of a model; rows have sorted unique columns.
struct LabelBlock {
  int64_t first_label;
  std::variant<CsrView<int32_t>, CsrView<uint16_t>> rows;
};

// Weights as CSR with ascending columns.
struct UnpackedRows {
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
  std::vector<float> data;
};

// A layout ready to predict: its own arrays, or those of a file.
class Layout {
 public:
  // `blocks` in label order. A column is dense in a block from the density `min_density` on.
  static Layout build(int64_t labels, int64_t columns, const std::vector<LabelBlock>& blocks,
                      double min_density, int threads);
  static constexpr double kMinDensity = 1.0 / 16;  // tuned, see layout.cpp

  // Arrays that somebody else keeps, as they are. Throws std::invalid_argument unless they are what build()
  // could have made, but for the numbers that are only added and multiplied (layout_file.cpp). `known`: that was seen
  // before, only sizes are looked at.
  static Layout open(const LayoutArrays<ArrayView>& arrays, bool known, int threads);

  const LayoutView& view() const { return view_; }

 private:
  explicit Layout(const LayoutArrays<ArrayView>& arrays);
  LayoutArrays<Buffer> own_;
  std::vector<TileBounds> most_;
  LayoutView view_;
};

// The weights of a layout, bit by bit those it was built from. Throws std::invalid_argument if a label has two
// for a column.
UnpackedRows rows_of(const LayoutView& layout, int threads);

}  // namespace xmc::predict
