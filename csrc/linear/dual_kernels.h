// The inner loops of the blocked dual solver (dual.h), one table per instruction set.
//
// A lane group of sixteen labels is solved at once. Feature-major layout: w[j][lane], alpha[i][lane], so that
// one stored entry (id, value) of a row feeds sixteen multiply-adds. `live` and other masks have bit l for
// lane l.
#pragma once

#include <cstdint>

#include "core/simd.h"
#include "linear/dual_tuning.h"
#include "linear/rows_view.h"

namespace xmc::linear {

struct LaneGroup {
  int64_t n = 0;
  int64_t D = 0;
  RowsView x;
  const float* bias_share = nullptr;             // kLanes: how far steps move the bias's weight (dual.h)
  const float* slight = nullptr;                 // kLanes: projected gradients that an epoch skips
  float* w = nullptr;                            // D x kLanes
  float* balance = nullptr;                      // kLanes: sum_i alpha_i s_i
  float* alpha = nullptr;                        // n x kLanes
  const uint16_t* positive = nullptr;            // n: bit l set when row i has the label of lane l
  const float* half_inverse_positive = nullptr;  // kLanes: 1 / (2 C c+) of the lane's label
  float half_inverse_negative = 1;               // 1 / (2 C)
  bool look_ahead = false;                       // rows are little alike
  uint32_t live = 0;
  uint32_t eager = 0;  // lanes in which a full pass takes the steps of an epoch
};

// What a full pass finds out at the current w.
struct PassResult {
  int32_t* rows = nullptr;  // n: rows with alpha > 0 or less than kNear outside the margin in some live lane
  uint16_t* masks = nullptr;  // n: ... and in which
  float* slacks = nullptr;    // n x kLanes: 1 - s_i z_i of those rows
  int64_t count = 0;
  double violation2[kLanes] = {};  // sum of squared projected dual gradients
  double balance[kLanes] = {};     // sum_i alpha_i s_i
  // Of the lanes whose gradient was required:
  double loss[kLanes] = {};     // C sum c_i max(0, 1 - s_i z_i)^2
  int64_t active[kLanes] = {};  // rows inside the margin
};

struct DualKernels {
  // One epoch of dual coordinate descent over order[0, count), in that order:
  //   G = s z - 1 + alpha / (2 C c),  alpha <- max(0, alpha - G / Q), Q = (|x|^2 + 1 / (2 C c)) /
  //   kRelaxation, w += s d(alpha) x, of the bias's weight only the share `bias_share`; balance += s d(alpha)
  // With look_ahead and kMany rows the next row's dot product is taken while this row's step is stored, and
  // sees a part of it; rows that are alike would oscillate then unless Q > |x|^2, so Q >= kDelayed
  // |x|^2. A row whose G is `slight` in every lane takes no step. Rows where it is in every lane of `open`
  // are dropped from order; the number of those kept is returned. violation2[kLanes] gets the sum of squared
  // projected gradients as they were met.
  int64_t (*epoch)(const LaneGroup& lanes, int32_t* order, int64_t count, uint32_t open, float* violation2);
  // Visits every row. flags[i] != 0 marks rows that may have alpha > 0 or a positive; cleared where neither.
  // Lanes in `eager` take an epoch's step at each row (the bias's weight stays); of them only rows, masks and
  // balance are of use.
  void (*pass)(const LaneGroup& lanes, uint8_t* flags, PassResult& out);
  // g = w - sum_i 2 C c_i s_i max(0, slack_i) x_i of the lanes in `wanted`; squared norms of g and w. A
  // bias's weight first moves to where its part of g is about 0, by kNear / bias at most.
  void (*gradient)(const LaneGroup& lanes, PassResult& pass, uint32_t wanted, float* g, double* g_norm2,
                   double* w_norm2);
  // Of the lanes in `wanted`, from the rows a full pass has found: f(w), and f(w) minus the dual objective at
  // alpha, a bound of f(w) - min f: sum_i C c_i (xi_i - alpha_i / (2 C c_i))^2, alpha_i |slack_i| outside the
  // margin, and (b - bias sum_i alpha_i s_i)^2 / 2.
  void (*gap)(const LaneGroup& lanes, const PassResult& pass, uint32_t wanted, double* gap,
              double* objective);
  // m[i][lane] = start[i] for the lanes of `mask`, i < count.
  void (*fill)(float* m, const float* start, int64_t count, uint32_t mask);
  // Features with |w| >= threshold in a lane of `mask`, ascending, and in which lanes; returns their number.
  int64_t (*select)(const LaneGroup& lanes, uint32_t mask, float threshold, int32_t* features,
                    uint16_t* masks);
  // w[lane] += scale * x_i for one lane, without the bias.
  void (*add_row)(const LaneGroup& lanes, int64_t i, int lane, float scale);
  // w += s_i alpha_i x_i without the bias, balance += s_i alpha_i, of rows[0, count) and the lanes of `mask`.
  void (*add_rows)(const LaneGroup& lanes, const int32_t* rows, int64_t count, uint32_t mask);
  // z[u][lane] = w.x, with the bias, of rows[u], u < count.
  void (*dots)(const LaneGroup& lanes, const int32_t* rows, int64_t count, float* z);
};
XMC_SIMD_TABLE(DualKernels, dual_kernels)

}  // namespace xmc::linear
