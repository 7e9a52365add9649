// The first pass of the exact search: which rows of a panel may still enter a query's list, decided on bytes.
//
// A row is kept as z ~ s (b - 64) with bytes b in [1, 127] and s = max|z| / 63, a query as q ~ t a with
// integers |a| <= 127. With the exact integer I = sum_j a_j (b_j - 64) and the rounding residuals
// e_z = z - s (b - 64) and e_q = q - t a, Cauchy-Schwarz bounds the score:
//
//   <q, z> = t s I + <t a, e_z> + <e_q, z>  <=  t (s I + |a| |e_z| + |e_q| / t |z|)
//
// A row whose bound does not exceed the query's q-th best score so far is dropped; all others are scored in
// float32. The norms are rounded up and the factors carry the rounding errors of the float32 score and of the
// bound itself, so that no row is lost: dropping changes the time and nothing else.
//
// Layout: bytes[panel][feature / 4][row][4], queries a[tile][feature / 4][query][4]: one vector of rows by
// four bytes of a query is one instruction. Products are summed in 16 bits over kKnnSegment features and
// then in 32; t is chosen such that neither can overflow. Without AVX2 there is no first pass.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/simd.h"
#include "core/types.h"

namespace xmc::knn {

inline constexpr int64_t kKnnPanel = 32;    // rows per panel
inline constexpr int64_t kKnnTile = 4;      // queries per register tile
inline constexpr int64_t kKnnSegment = 32;  // features summed in 16 bits

struct KnnPanel {
  const uint8_t* bytes;               // [groups][kKnnPanel][4]
  const float *scale, *norm, *error;  // s, |z|, |e_z| of kKnnPanel rows
};

struct KnnFactors {
  int32_t offset;  // -64 sum_j a_j
  float of_norm;   // |e_q| / t
  float of_error;  // |a|
  float limit;     // a row is dropped if its bound is at most this; NaN drops none
};

struct KnnFilterKernels {
  // masks[i]: bit r is set if row r of the panel may enter the list of query i, i < tiles * kKnnTile.
  void (*filter)(const KnnPanel& panel, const int8_t* a, const KnnFactors* factors, int64_t tiles,
                 int64_t groups, uint32_t* masks);
  // b and s of a row, and the sums of the squares of z / s and e_z / s. `work` holds c floats.
  float (*quantise)(const float* z, int64_t c, float* work, uint8_t* b, float* norm2, float* error2);
};
XMC_SIMD_TABLE(KnnFilterKernels, knn_filter_kernels)

// The database as bytes.
class KnnBytes {
 public:
  explicit KnnBytes(DenseView<float> rows);

  int64_t groups() const { return groups_; }
  int64_t bytes() const { return bytes_.size() + 3 * scale_.size() * static_cast<int64_t>(sizeof(float)); }
  double longest() const { return longest_; }  // norm of the longest row, inf if a row is not finite
  KnnPanel panel(int64_t p) const {
    const int64_t at = p * kKnnPanel;
    return {bytes_.data() + at * groups_ * 4, scale_.data() + at, norm_.data() + at, error_.data() + at};
  }

 private:
  int64_t groups_;  // of four features
  Buffer<uint8_t> bytes_;
  Buffer<float> scale_, norm_, error_;
  double longest_ = 0;
};

// A block of queries as bytes, with their thresholds.
class KnnQueries {
 public:
  KnnQueries(int64_t most, int64_t groups);

  // Query `i`, whose list is empty.
  void set(int64_t i, const float* query, int64_t c, double longest);
  // Rows that score at most this cannot enter the list of query `i`. Only ever rises.
  void threshold(int64_t i, float score);

  const int8_t* a() const { return a_.data(); }
  const KnnFactors* factors() const { return factors_.data(); }

 private:
  int64_t groups_;
  Buffer<int8_t> a_;
  std::vector<KnnFactors> factors_;
  std::vector<double> scale_, slack_;  // t, and the float32 score's error from underflow; t = 0: no filter
};

}  // namespace xmc::knn
