// The SIMD kernels of the lock-step Newton solver (newton.h).
//
// A "lane matrix" A[m][kLanes] stores one number per lane beside each other: one cache line per feature (or
// row), so that one read of (index, value) of X feeds kLanes fused multiply-adds. "Lane vectors" [kLanes]
// hold one number per lane. Sums over a lane matrix run in float over 128 rows and in double beyond. Positives are
// kept apart (newton.cpp): in Z they hold kMasked, which no loss sees, so that every kernel here treats all rows as
// negatives.
#pragma once

#include <cstdint>

#include "core/simd.h"
#include "linear/rows_view.h"

namespace xmc::linear {

inline constexpr float kMasked = -1e30f;

// Some rows of X: row u is row ids[u] of x (ids null: u). mask (may be null) has bit l set if lane l needs
// the row. Lane matrices over the features have `lines` lines; with a bias the last one is its.
struct RowSet {
  RowsView x;
  int64_t count = 0;
  int64_t lines = 0;
  const int32_t* ids = nullptr;
  const uint32_t* mask = nullptr;
};

struct NewtonKernels {
  // out[u] = scale[u] * (x_u . M); scale may be null. Rows that no live lane needs get 0.
  void (*product)(const RowSet& rows, uint32_t live, const float* M, const float* scale, float* out);
  // M[j] += sum_u x_uj scale[u] coef[u]; scale may be null. Rows that no live lane needs are skipped.
  void (*add_transposed)(const RowSet& rows, uint32_t live, const float* scale, const float* coef, float* M);

  // out = sum_i a[i] * b[i] per lane.
  void (*dot)(const float* a, const float* b, int64_t m, double* out);
  // A = keep * A + step * B
  void (*update)(const float* keep, const float* step, const float* B, int64_t m, float* A);
  // A = keep * A + step * v[i]: v has one number per row, the same for all lanes.
  void (*update_outer)(const float* keep, const float* step, const float* v, int64_t m, float* A);
  // A = s * B
  void (*scale)(const float* s, const float* B, int64_t m, float* A);

  // Conjugate gradients in the row space (newton.h): u = ur + beta u; c = cr + beta c; uu = u . u
  void (*cg_direction)(const float* beta, const float* ur, const float* cr, int64_t m, float* u, float* c,
                       double* uu);
  // cd += alpha c; cr -= alpha (c + u)
  void (*cg_step)(const float* alpha, const float* u, const float* c, int64_t m, float* cd, float* cr);
};
XMC_SIMD_TABLE(NewtonKernels, newton_kernels)

// What differs between the losses. Negatives have margin -z: squared hinge max(0, 1 + z)^2, logistic
// log(1 + e^z). `above[l]` is the z above which lane l is active (infinity switches a lane off).
struct LossKernels {
  // mask[i] = bits of the lanes with Z[i] > above.
  void (*mark)(const float* Z, const float* above, int64_t m, uint32_t* mask);
  // For the rows listed (ids null: all): S = sqrt(cost * loss''), H = cost * loss', 0 where inactive.
  void (*terms)(const float* Z, const int32_t* ids, int64_t m, const float* above, const float* cost,
                float* S, float* H);
  // first = sum_i loss'(z + t q) q, second = sum_i loss''(z + t q) q^2, per lane.
  void (*slope)(const float* Z, const float* Q, const float* t, int64_t m, double* first, double* second);
};
XMC_SIMD_TABLE(LossKernels, hinge_kernels)
XMC_SIMD_TABLE(LossKernels, logistic_kernels)

}  // namespace xmc::linear
