// What the fixed fan-in passes need from the instruction set. Everything here is float32 scratch: storage
// types are widened and narrowed at the border (widen, narrow).
//
// A packed tile is [feature][kTile]; a logit or gradient tile is [label][kTile], the labels of one block.
// kTile is the level's own: two vectors, at least 16 rows (a cache line). Where a function has an argument
// `line`, the tile is [..][line] instead, with kTile or kNarrow rows.
#pragma once

#include <cstdint>

#include "core/simd.h"
#include "fanin/fanin.h"

namespace xmc::fanin {

// Index lists, uint16 or int32.
struct Lists {
  const void* data;
  int bits;
};

inline constexpr int kNarrow = 16;  // rows of a narrow tile: a cache line
inline constexpr int kLanes = 16;   // labels side by side in FaninConvert::lanes

// A copy of a block of g that a kernel makes meanwhile: while it works on one block it copies the next, a line
// of kLanes floats every few multiply-adds, so that memory and arithmetic overlap.
//
//   g      row r      | line 0 | line 1 | .. | line `lines` - 1 | next block ..
//   to     line l     | row 0 | row 1 | .. | row `rows` - 1 |            (the layout of FaninConvert::lanes)
//
// It goes row by row: rows of g that are a power of two apart share their place in the caches, so that lines of
// few rows can wait there. `warm` rows are prefetched and not yet copied; behind the last row of the block
// prefetching goes on with the columns of the next block.
struct LaneCopy {
  const float* from = nullptr;  // the current row in g
  float* to = nullptr;          // its place in line 0
  int64_t stride = 0, rows = 0, lines = 0;
  const float* ahead = nullptr;       // the row to prefetch
  const float* next_block = nullptr;  // the first row of the next block
  int64_t row = 0, line = 0, warm = 0;
};

// Storage <-> scratch.
struct FaninConvert {
  void (*widen)(const void* from, DType type, int64_t n, float* to);
  // Rounds to nearest even. `streamed`: past the caches (float32 only), to be followed by fence().
  void (*narrow)(const float* from, DType type, int64_t n, void* to, bool streamed);
  void (*fence)();
  // Whether all of n indices are below `features`.
  bool (*below)(Lists indices, int64_t n, int64_t features);
  // Rows cut into pieces of kLanes = 16 columns: to[c / 16][r][c % 16] = from[r][c], zeros behind the last
  // column.
  void (*lanes)(const float* from, int64_t stride, int64_t rows, int64_t cols, float* to);
  // Completes a copy.
  void (*finish)(LaneCopy* copy);
  // to[c][r] = from[r][c] for rows <= line (the rest of to's columns is zero), and back.
  void (*pack)(const float* from, int64_t stride, int64_t rows, int64_t cols, int64_t line, float* to);
  void (*unpack)(const float* from, int64_t line, int64_t rows, int64_t cols, float* to, int64_t stride);
  // The same from and to a matrix that has its columns one after the other: to[c][r] = from[c][r]. More rows
  // than a line holds go to the next tiles, `step` floats from tile to tile.
  void (*pack_columns)(const float* from, int64_t stride, int64_t rows, int64_t cols, int64_t line,
                       int64_t step, float* to);
  void (*unpack_columns)(const float* from, int64_t line, int64_t rows, int64_t cols, float* to,
                         int64_t stride, bool streamed);
  // to[r][c] = from[r][16 + c] past the caches (to be followed by fence()), in pieces from left to right. Only
  // whole cache lines go past the caches, and pieces end in the middle of lines:
  //
  //   to      .. | line | li:ne | line | line | li:ne | ..      : where two pieces meet
  //   from    [ 16 floats: carried ][ cols of this piece ]
  //
  // The floats behind the last whole line wait in `carry` (rows x 16); the next piece puts them before its own
  // columns and writes the line they share. `first` and `last` mark the ends of a run of pieces, which are
  // written through the caches. Every piece but the last has 16 columns or more.
  void (*stream_rows)(float* from, int64_t width, int64_t rows, int64_t cols, float* to, int64_t stride,
                      float* carry, bool first, bool last);
};

// What becomes of a sum: it replaces what was there, is added to it, or replaces it past the caches (to be
// followed by fence(); the place is aligned to 64 bytes, fan_in a multiple of 16).
enum class Put { set, add, stream };

// A connection in a block of labels: its weight, and where the label's line starts in a gradient tile.
struct Connection {
  float weight;
  uint32_t line;
};

// The passes, over a block of `labels` labels of which the first starts a group: lists ceil(labels / group) x
// s, w labels x s, bias null or labels.
struct FaninForward {
  int tile;  // kTile
  // Only the first `rows` of the batch rows matter.
  // z[l][r] = bias[l] + sum_i w[l][i] x[list[l / group][i]][r]
  // `far`, here and below: the tile does not stay in L2, its lines are prefetched a group ahead. `fresh`:
  // weights and lists that follow in memory are prefetched. Lists of a plain layer are checked if `features`
  // is not 0; returns false, with nothing read that is not there, if an index is not below it. Groups take no
  // narrow tiles.
  bool (*forward)(const float* x, int64_t line, Lists lists, const float* w, const float* bias,
                  int64_t labels, int64_t fan_in, int64_t group, int64_t rows, bool far, bool fresh,
                  int64_t features, float* z);
};

struct FaninBackward {
  // gx[list[l / group][i]][r] += w[l][i] g[l][r], g_stride floats from label to label; labels with
  // active[l] = 0 are skipped (null: none).
  bool (*grad_features)(float* gx, int64_t line, Lists lists, const float* w, const float* g,
                        int64_t g_stride, const uint8_t* active, int64_t labels, int64_t fan_in,
                        int64_t group, bool far, bool fresh, int64_t features);
  // The same over the connections of each feature, list[starts[d]] .. list[starts[d + 1]]: a line of gx is
  // read and written once.
  void (*grad_features_sorted)(float* gx, const Connection* list, const uint32_t* starts, int64_t features,
                               const float* g);
  // gw[l][i] += sum_t sum_r x_t[list[l / group][i]][r] g_t[l][r] over `tiles` tiles, x_t = x + t x_stride and
  // so on. gbias[l] += sum_t sum_r g_t[l][r] if not null. active_t = active + t labels.
  bool (*grad_weights)(const float* x, int64_t x_stride, Lists lists, const float* g, int64_t g_stride,
                       const uint8_t* active, int64_t tiles, int64_t labels, int64_t fan_in, int64_t group,
                       int64_t features, float* gw, float* gbias);
  // Both for groups of a multiple of 16 and a gradient in FaninConvert::lanes, all labels active. x and gx
  // have a tile for every kTile of the rows, x_stride floats apart. `copy` is advanced meanwhile.
  void (*grad_features_rows)(float* gx, int64_t x_stride, Lists lists, const float* w, const float* g,
                             int64_t rows, int64_t labels, int64_t fan_in, int64_t group, bool far,
                             LaneCopy* copy);
  void (*grad_weights_rows)(const float* x, int64_t x_stride, Lists lists, const float* g, int64_t rows,
                            int64_t labels, int64_t fan_in, int64_t group, bool far, Put put, LaneCopy* copy,
                            float* gw, float* gbias);
  // A vector holds kLanes floats. Otherwise grad_features_rows and Put::stream (which writes parts of lines)
  // were slower than tiles of g and a copy.
  bool whole_lines;
};

struct FaninLoss {
  // In place logits -> scale * gradient; sign is +1/-1 per logit, valid 1 or 0 per batch row. Returns the sum
  // of the losses; active[l] says whether a gradient of label l is not zero.
  double (*loss)(Loss kind, float* z, const float* sign, const float* valid, int64_t labels, float scale,
                 uint8_t* active);
  // Bit r: z[r] > threshold[r], of kTile.
  uint32_t (*above)(const float* z, const float* threshold);
};

XMC_SIMD_TABLE(FaninConvert, fanin_convert)
XMC_SIMD_TABLE(FaninForward, fanin_forward)
XMC_SIMD_TABLE(FaninBackward, fanin_backward)
XMC_SIMD_TABLE(FaninLoss, fanin_loss)

inline int64_t tile_size() {
  return fanin_forward().tile;
}
}  // namespace xmc::fanin
