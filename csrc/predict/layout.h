// The prediction layout of a sparse linear model W (labels x columns): by column, in two parts.
//
// In trained one-vs-all models a column is either nearly full (a frequent word: every label's solution leans
// on it) or nearly empty. So each column is stored in one of two ways, decided by its own density alone:
//
//   dense   slot[c] = r >= 0.  Tiles of kTile labels, the last one padded with zeros. The weight of label
//           t * kTile + lane is in two halves at (t * n_dense + r) * kTile + tile_place(lane): its bits are
//           (high << 16) + low with a signed low, so that high alone is the weight rounded to bfloat16.
//   sparse  slot[c] = -2 - j.  Postings, in blocks of `block` labels (a multiple of kTile): those of block b
//           are ptr[b * (n_sparse + 1) + j] .. ptr[.. + j + 1), sorted by label:
//           label[p] is the label's position in the block, weight[p] its weight.
//   empty   slot[c] = kEmpty.
//
// Dense columns are numbered by descending sum of squares: that puts the features that rows share most next
// to each other, which the caches like (EURLEX57K: 1.4x in the tile kernel alone, about 1.1x end to end).
//
// Most labels are ruled out with the high halves alone (predict.h): error[l] is the norm of label l's dense
// weights minus their high halves, norm[l] that of the weights, both rounded up and padded to whole tiles.
//
// The order in which a score is summed, sparse columns ascending, then dense columns by number, thus depends
// on the model only: never on the block size, the batch or the threads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/types.h"

namespace xmc {

inline constexpr int64_t kTile = 64;
inline constexpr int32_t kEmpty = -1;

// Where a lane's halves are in its tile: lanes i and i + kTile / 2 are neighbours, so that one vector of
// halves widens to two vectors of consecutive lanes, whatever its length.
inline constexpr int64_t tile_place(int64_t lane) {
  return lane < kTile / 2 ? 2 * lane : 2 * lane - kTile + 1;
}

struct LayoutView {
  int64_t labels = 0;
  int64_t columns = 0;
  int64_t n_dense = 0;
  int64_t n_sparse = 0;
  int64_t block = kTile;
  const int32_t* slot = nullptr;    // columns
  const uint16_t* high = nullptr;   // tiles * n_dense * kTile
  const uint16_t* low = nullptr;    // the same
  const float* error = nullptr;     // tiles * kTile
  const float* norm = nullptr;      // tiles * kTile
  const int64_t* ptr = nullptr;     // blocks * (n_sparse + 1)
  const uint16_t* label = nullptr;  // postings
  const float* weight = nullptr;    // postings

  int64_t tiles() const { return (labels + kTile - 1) / kTile; }
  int64_t blocks() const { return (labels + block - 1) / block; }
};

// What a plan needs to know of a column.
struct ColumnStats {
  int64_t nnz = 0;
  double squares = 0;
};

// Which columns are dense, and the block size. A column is dense
// from `min_density` on, the fullest first, while the dense part stays within `budget` bytes.
struct LayoutPlan {
  int64_t n_dense = 0;
  int64_t n_sparse = 0;
  int64_t block = kTile;
  std::vector<int32_t> slot;
};
LayoutPlan plan_layout(int64_t labels, const std::vector<ColumnStats>& stats, double min_density,
                       int64_t budget);

// Fills the arrays of a planned layout from label blocks in CSR, given in label order, all of them twice:
// count() first, then start_fill() and fill(). Rows have sorted unique columns, Index is
// int32_t or uint16_t.
class LayoutBuilder {
 public:
  LayoutBuilder(int64_t labels, LayoutPlan plan);

  template <class Index>
  void count(int64_t first_label, const CsrView<Index>& rows);
  void start_fill();
  template <class Index>
  void fill(int64_t first_label, const CsrView<Index>& rows, int threads);
  void finish();

  LayoutPlan plan;
  int64_t labels;
  Buffer<uint16_t> high, low;
  Buffer<float> error, norm;
  std::vector<int64_t> ptr;
  std::vector<uint16_t> label;
  std::vector<float> weight;
};

// Adds n weights to the figures of their columns.
template <class Index>
void count_columns(const Index* indices, const float* data, int64_t n, std::vector<ColumnStats>& stats);

}  // namespace xmc
