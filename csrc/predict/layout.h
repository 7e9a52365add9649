// The prediction layout of a sparse linear model W (labels x columns): by column, in two parts.
//
// In trained one-vs-all models a column is either nearly full (a frequent word: every label's solution leans
// on it) or nearly empty. So each column is stored in one of two ways, decided by its own density alone:
//
//   dense   slot[c] = r >= 0.  Tiles of kTile labels, the last one padded with zeros: the weight of label
//           t * kTile + lane is value[(t * n_dense + r) * kTile + lane].
//   sparse  slot[c] = -2 - j.  Postings, in blocks of `block` labels (a multiple of kTile): those of block b
//           are ptr[b * (n_sparse + 1) + j] .. ptr[.. + j + 1), sorted by label: posting[p] is the label's
//           position in the block and its weight, side by side, because lists are short and far apart.
//   empty   slot[c] = kEmpty.
//
// Dense columns are numbered by descending sum of squares: that puts the features that rows share most next
// to each other, which the caches like. The first n_heavy of them have a good part of all squares (a bias).
//
// Most labels are ruled out with the other dense weights in bytes (predict.h): w ~ step[l] * q with integers
// |q| <= 127, q = byte[(t * n_dense + r) * kTile + byte_place(lane)]. The largest kOutliers of a label's
// dense weights would need a larger step: they are zero in `value` and `byte` and are postings as well, those
// of block b and dense column r are outlier[out_ptr[b * n_dense + r] .. out_ptr[.. + 1)). An entry of zeros
// follows the last list.
// error[l] is a label's largest |w - step q|, spread[l] the norm of step q, norm[l] that of all its weights;
// rounded up, padded to whole tiles, infinite for labels with a weight that is not finite.
//
// The order in which a score is summed, sparse columns ascending, then outliers and then the other dense
// weights by number, thus depends on the model only: never on the block size, the batch or the threads.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/buffer.h"
#include "core/types.h"

namespace xmc {

inline constexpr int64_t kTile = 64;
inline constexpr int32_t kEmpty = -1;
inline constexpr int64_t kMostDense = 65536;  // numbers of 16 bits, sums of products of 32
inline constexpr double kOutliers = 0.003;    // share of a label's dense weights

// Where a lane's byte is in its tile: interleaving the 16-byte parts of four columns twice by the processor's
// unpack instructions then gives the four bytes of 16 consecutive lanes.
inline constexpr int64_t byte_place(int64_t lane) {
  return lane % 16 / 4 * 16 + lane / 16 * 4 + lane % 4;
}

// Six bytes; in arrays of the layout three numbers of 16 bits.
struct Posting {
  uint16_t label;
  uint16_t bits[2];

  Posting(uint16_t l, float w) : label(l) { std::memcpy(bits, &w, sizeof w); }
  Posting() : label(0), bits{0, 0} {}
  float weight() const {
    float w;
    std::memcpy(&w, bits, sizeof w);
    return w;
  }
};

struct LayoutView {
  int64_t labels = 0;
  int64_t columns = 0;
  int64_t n_dense = 0;
  int64_t n_heavy = 0;
  int64_t n_sparse = 0;
  int64_t block = kTile;
  const int32_t* slot = nullptr;  // columns
  const float* value = nullptr;   // tiles * n_dense * kTile
  const int8_t* byte = nullptr;   // the same
  const float* step = nullptr;    // tiles * kTile, as the next three
  const float* error = nullptr;
  const float* spread = nullptr;
  const float* norm = nullptr;
  const int64_t* ptr = nullptr;  // blocks * (n_sparse + 1) + 1
  const Posting* posting = nullptr;
  const int32_t* out_ptr = nullptr;  // blocks * n_dense + 1
  const Posting* outlier = nullptr;

  int64_t tiles() const { return (labels + kTile - 1) / kTile; }
  int64_t blocks() const { return (labels + block - 1) / block; }
};

// What a plan needs to know of a column.
struct ColumnStats {
  int64_t nnz = 0;
  double squares = 0;
};

// Which columns are dense, and the block size. A column is dense from `min_density` on, the fullest first,
// while the dense part stays within `budget` bytes, and at most kMostDense of them; while they are few, from
// somewhat less on.
struct LayoutPlan {
  int64_t n_dense = 0;
  int64_t n_heavy = 0;
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
  Buffer<float> value;
  Buffer<int8_t> byte;
  Buffer<float> step, error, spread, norm;
  Buffer<int64_t> ptr;
  Buffer<int32_t> out_ptr;
  Buffer<Posting> posting, outlier;

 private:
  struct Outlier {
    int32_t slot;
    Posting posting;
  };
  std::vector<std::vector<Outlier>> outliers_;  // by block

  // Dense weights, outliers and bounds of label l, from its n weights; `sizes` is scratch.
  template <class Index>
  void fill_dense(int64_t l, const Index* columns, const float* weights, int64_t n,
                  std::vector<float>& sizes);
};

// Adds n weights to the figures of their columns.
template <class Index>
void count_columns(const Index* indices, const float* data, int64_t n, std::vector<ColumnStats>& stats);

}  // namespace xmc
