// What the passes share: packed features, a block of labels as float32 scratch, the split of the work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "core/buffer.h"
#include "core/buffer_pool.h"
#include "core/parallel.h"
#include "fanin/kernels.h"
#include "fanin/tuning.h"

namespace xmc::fanin {

inline int64_t size_of(DType type) {
  return type == DType::f32 ? 4 : 2;
}
inline const void* at(ConstTensor t, int64_t i) {
  return static_cast<const char*>(t.data) + i * size_of(t.type);
}
inline void* at(Tensor t, int64_t i) {
  return static_cast<char*>(t.data) + i * size_of(t.type);
}

inline int64_t tile_count(int64_t batch, int64_t tile = tile_size()) {
  return (batch + tile - 1) / tile;
}
// Batch rows in tile t.
inline int64_t tile_rows(int64_t batch, int64_t t, int64_t tile = tile_size()) {
  return std::min(tile, batch - t * tile);
}

// Labels processed together, a multiple of the group: `most` of them, fewer for long lists, so that weights
// and logits stay in L2. A row of g is read faster in long pieces.
inline int64_t block_labels(const Layer& layer, int64_t most = kBlockLabels) {
  const int64_t wanted = layer.fan_in <= kLongList ? most : most / 4;
  return std::max<int64_t>(1, wanted / layer.group) * layer.group;
}

// Whether a packed tile of x is too large to stay in L2: its next lines are then prefetched.
inline bool far_tile(const Layer& layer) {
  return layer.features * tile_size() * int64_t{sizeof(float)} >= kFarTileBytes;
}

// The order of tiles and blocks of labels. Usually all tiles work on a block, one after the other. If that would
// fetch a tile from L3 again and again, tiles are narrow and each stays for many blocks (kStayWeights).
struct Walk {
  int64_t tile;  // rows
  int64_t stay;  // labels that a tile works on before the next one does
  int64_t step;  // labels of a block
};
inline Walk plain_walk(const Layer& layer, int64_t step, int64_t far_step = kBlockLabels) {
  if (layer.group > 1 || !far_tile(layer)) return {tile_size(), step, step};
  const int64_t blocks = kStayWeights / (far_step * layer.fan_in);
  return {kNarrow, std::max<int64_t>(1, blocks) * far_step, far_step};
}

// Scratch for each thread of a parallel_for.
template <class T>
class PerThread {
 public:
  template <class Make>
  PerThread(int threads, const Make& make) {
    for (int t = 0; t < std::max(threads, 1); ++t) items_.push_back(make());
  }
  T& operator[](int thread) { return items_[thread]; }

 private:
  std::vector<T> items_;
};

// Some columns of a matrix as float32: in place, or widened in the scratch.
struct FloatRows {
  const float* data;
  int64_t stride;
};
FloatRows float_rows(ConstTensor x, int64_t stride, int64_t rows, int64_t cols, std::vector<float>& scratch);

// A block of g (or x): some rows of some labels (features).
struct Piece {
  int64_t first, labels, row, rows;
  bool operator==(const Piece&) const = default;
};

// A piece of g, a matrix batch x labels, as tiles [tile][label][tile], `step` floats from tile to tile.
void pack_tiles(ConstTensor g, int64_t batch, int64_t labels, const Piece& piece, std::vector<float>& scratch,
                int64_t tile, int64_t step, float* tiles);
Buffer<float> pack_features(ConstTensor x, int64_t batch, int64_t features, int threads,
                            int64_t tile = tile_size());

// Blocks of g in the layout of FaninConvert::lanes, one after the other: while a kernel works on one of them,
// it copies the next one line by line (LaneCopy).
class GradientLanes {
 public:
  // Blocks have at most `labels` labels, a multiple of kLanes, and `rows` rows.
  GradientLanes(ConstTensor g, int64_t stride, int64_t labels, int64_t rows);
  // The block, to be used until the next call. `next` is the one needed then, or null.
  const float* get(const Piece& piece, const Piece* next);
  LaneCopy* copy() { return &copy_; }

 private:
  void start(const Piece& piece);

  ConstTensor g_;
  int64_t stride_;
  Buffer<float> now_, next_;
  std::vector<float> widened_;
  Piece coming_{};
  LaneCopy copy_;
};

// Reads blocks of labels into scratch (or points into the layer where the storage is float32 already).
class BlockReader {
 public:
  explicit BlockReader(const Layer& layer) : layer_(layer) {}

  // Lists of groups are checked here, those of a plain layer by the kernel that reads them first.
  void read(int64_t first, int64_t labels);
  // What that kernel says about the lists of the block; throws unless all indices are features.
  void accept(bool below) const;
  Lists lists() const { return lists_; }
  const float* weights() const { return weights_; }
  const float* bias() const { return bias_; }

 private:
  const Layer& layer_;
  Lists lists_{nullptr, 16};
  std::vector<float> weight_scratch_, bias_scratch_;
  const float* weights_ = nullptr;
  const float* bias_ = nullptr;
  int64_t first_ = 0, labels_ = 0;
};

// The gradient for the features is a sum over labels. The labels are cut into parts (by the shapes only),
// each with its own sum, added up in order: the same bits for any number of threads.
class FeatureSums {
 public:
  FeatureSums(const Layer& layer, int64_t batch, int64_t tile = tile_size());

  int64_t parts() const { return parts_; }
  // Labels of a part, cut at multiples of `step`.
  int64_t begin(int64_t part, int64_t step) const;
  float* tile(int64_t part, int64_t t) {
    return sums_ + (part * tile_count(batch_, tile_) + t) * features_ * tile_;
  }
  void store(Tensor gx, int threads);

 private:
  int64_t batch_, features_, labels_, tile_, parts_;
  Recycled memory_;
  float* sums_;
};

}  // namespace xmc::fanin
