// One thread's lock-step Newton solver (newton.h): the labels in the lanes, their memory and the steps of a
// round. The methods are in newton.cpp (labels in and out of lanes), newton_start.cpp (first weights),
// newton_direction.cpp (active rows, gradient, conjugate gradients) and newton_step.cpp (line search).
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "core/buffer.h"
#include "linear/lane_weights.h"
#include "linear/newton.h"
#include "linear/newton_kernels.h"

namespace xmc::linear {

// Lane matrices over features (D), rows (n) and active rows (grown on demand).
struct NewtonMemory {
  Buffer<float> W, G, V, step;             // features: weights, gradient, CG residual, direction d
  Buffer<float> Z, Q;                      // rows: Xw, Xd
  Buffer<float> S, H, ur, cr, up, cp, cd;  // active rows: sqrt of the curvature, slope, CG vectors
  int64_t active_capacity = 0;
  std::vector<uint32_t> marks, mask;       // lanes that need a row: per row, per active row
  std::vector<int32_t> ids, place;         // active row -> row, row -> active row
  std::vector<int32_t> compact, features;  // feature -> compact id or -1, and back
  std::vector<RowRef> rows;                // the active rows with compact ids, packed as in prepare.h
  std::vector<uint16_t> words;
  std::vector<float> values;
  std::vector<double> work;  // D zeros

  NewtonMemory(int64_t n, int64_t D) : marks(n, 0), place(n, 0), compact(D, -1), work(D, 0.0) {
    for (auto* b : {&W, &G, &V, &step}) *b = Buffer<float>(D * kLanes);
    for (auto* b : {&Z, &Q}) *b = Buffer<float>(n * kLanes);
  }
  void reserve_active(int64_t count) {
    if (count <= active_capacity) return;
    active_capacity = std::min(static_cast<int64_t>(marks.size()), count + count / 2);
    for (auto* b : {&S, &H, &ur, &cr, &up, &cp, &cd}) *b = Buffer<float>(active_capacity * kLanes);
  }
};

using LaneFloats = float[kLanes];
using LaneDoubles = double[kLanes];

inline constexpr double kCgTolerance = 0.1;  // of the gradient norm
inline constexpr double kCgFloor = 0.3;      // of the norm at which the label stops anyway
inline constexpr double kMaxGap = 5e-4;      // of f: the largest distance to the minimum at the end
inline constexpr int kMaxCg = 200;
inline constexpr int kMaxLineSearch = 20;
inline constexpr int kMaxStalled = 10;          // float weights cannot reach an arbitrarily small gradient
inline constexpr double kStepTolerance = 0.02;  // relative, of the step length

// loss(z), first and second derivative of a positive (s = +1) or negative row; scalar, in double.
struct LossTerms {
  double value, first, second;
};
inline LossTerms loss_terms(Loss loss, bool positive, double z) {
  const double s = positive ? 1 : -1, margin = s * z;
  if (loss == Loss::squared_hinge) {
    const double slack = 1 - margin;
    return slack > 0 ? LossTerms{slack * slack, -2 * s * slack, 2} : LossTerms{0, 0, 0};
  }
  const double e = std::exp(-std::abs(margin));
  const double p = margin > 0 ? e / (1 + e) : 1 / (1 + e);  // sigmoid(-margin)
  return {std::log1p(e) + std::max(-margin, 0.0), -s * p, p * (1 - p)};
}

struct NewtonLane {
  enum Phase { idle, start, newton } phase = idle;
  int64_t label = kNoLabel;
  Span<const int32_t> rows;                               // the positives
  double cost_positive = 1;                               // C included
  std::vector<float> z, q;                                // of the positives
  double stop = 0;                                        // gradient norm to reach
  double best = std::numeric_limits<double>::infinity();  // smallest gradient norm so far
  int stalled = 0;                                        // Newton steps since it last fell by a tenth
  bool search = false;  // this round's direction is searched along (else t = 1)
  LabelReport report;
};

struct NewtonSolver::State {
  State(const NewtonFit& fit, const PreparedFeatures& X)
      : fit_(fit), p_(fit.problem), X_(X), m_(X.n, X.D), total_(X.total.begin(), X.total.end()) {
    all_ = {X.view(), X.n, X.D, nullptr, nullptr};
  }

  void run(const int32_t* labels, int64_t count, const PruneRule& prune, const LabelSink& sink);
  // After run() on the one label kNoLabel: its weights and scores.
  void read_base(std::vector<float>* w, std::vector<float>* z) const;

 private:
  uint32_t lanes_in(NewtonLane::Phase phase) const;

  // ---- labels in and out of lanes
  void enter(NewtonLane& a, int64_t label);
  void leave(int l, LabelStatus status);
  // Objective and active rows of a lane, in double, into its report.
  void evaluate(int l);
  // LIBLINEAR's rule; and f is 1-strongly convex, so f - min f <= |g|^2 / 2, which must be small as well: for
  // frequent labels the rule alone allows more. If it does, the norm to reach becomes smaller.
  bool converged(int l);

  // ---- starts
  void add_row(int l, int64_t row, double scale);
  // Writes the first step of the lanes that start. Newton lanes' steps are there already, other columns 0.
  void start_directions();
  // Returns whether the lane starts from the solution without positives; *all is the share of sum_i x_i.
  bool start_lane(int l, float* all);
  void mask_positives(int l);

  // ---- Newton direction
  void newton_directions();
  // The rows any of the lanes needs, with their curvature S^2 and slope H.
  void collect_active_rows(uint32_t lanes);
  // fn(lane, k, terms of the loss at its k-th positive)
  template <class Fn>
  void for_each_positive(uint32_t lanes, const Fn& fn) {
    for_lanes(lanes, [&](int l) {
      const NewtonLane& a = lane_[l];
      for (int64_t k = 0; k < a.rows.size(); ++k) fn(l, k, loss_terms(fit_.loss, true, a.z[k]));
    });
  }
  // When the active rows hold fewer entries than X has features: a copy of them with features renamed 0, 1,
  // ... in order of appearance (a bias last), so that G and V stay small.
  void compact_features();
  void compact_row(int64_t row);
  // G = w + X'H on the features in use (g = w on the others). Lanes that meet the stopping rule leave;
  // returns those that go on.
  uint32_t gradient(uint32_t lanes);
  // The direction of the live lanes into m_.step; other columns become 0. See newton.h for (y, c).
  void conjugate_gradients(uint32_t live);

  // ---- line search and update
  void advance();
  // The minimum of f(w + t d) over t per searching lane, by safeguarded Newton on its derivative; the others
  // take t = 1 (starts) or 0 (idle).
  void line_search(LaneFloats& t);

  const NewtonFit& fit_;
  const LinearProblem& p_;
  const PreparedFeatures& X_;
  NewtonMemory m_;
  const std::vector<float> total_;  // sum_i x_i, D
  const NewtonKernels& k_ = newton_kernels();
  const LossKernels& loss_ = fit_.loss == Loss::logistic ? logistic_kernels() : hinge_kernels();
  PruneRule prune_;
  const LabelSink* sink_ = nullptr;
  NewtonLane lane_[kLanes];
  RowSet all_, active_;
  bool compacted_ = false;
  LaneDoubles gg_{};  // squared gradient norm on the features in use
};

}  // namespace xmc::linear
