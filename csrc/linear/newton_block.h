// One run of the lock-step Newton solver (newton.h): the labels in the lanes, their memory and the steps of a
// round. The methods are in newton.cpp (labels in and out of lanes), newton_start.cpp (first weights),
// newton_direction.cpp (active rows, gradient, conjugate gradients) and newton_step.cpp (line search).
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "core/buffer.h"
#include "linear/newton.h"
#include "linear/newton_kernels.h"
#include "linear/prune.h"

namespace xmc {

// Lane matrices over features (D), rows (n) and active rows (grown on demand).
struct NewtonScratch::Memory {
  int64_t n = 0, D = 0, rows = 0;
  Buffer<float> W, G, V, step;             // features: weights, gradient, CG residual, direction d
  Buffer<float> Z, Q;                      // rows: Xw, Xd
  Buffer<float> S, H, ur, cr, up, cp, cd;  // active rows: sqrt of the curvature, slope, CG vectors
  std::vector<uint32_t> marks, mask;       // lanes that need a row: per row, per active row
  std::vector<int32_t> ids, place;         // active row -> row, row -> active row
  std::vector<int64_t> begin, end;
  std::vector<int32_t> compact, features, indices;  // feature -> compact id or -1, and back
  std::vector<float> values;
  std::vector<double> work;  // D zeros

  void resize(int64_t new_n, int64_t new_D) {
    if (n == new_n && D == new_D) return;
    *this = Memory();
    n = new_n;
    D = new_D;
    for (auto* b : {&W, &G, &V, &step}) *b = Buffer<float>(D * kLanes);
    for (auto* b : {&Z, &Q}) *b = Buffer<float>(n * kLanes);
    marks.assign(static_cast<size_t>(n), 0);
    place.assign(static_cast<size_t>(n), 0);
    compact.assign(static_cast<size_t>(D), -1);
    work.assign(static_cast<size_t>(D), 0.0);
  }
  void resize_rows(int64_t count) {
    if (count <= rows) return;
    rows = std::min(n, count + count / 2);
    for (auto* b : {&S, &H, &ur, &cr, &up, &cp, &cd}) *b = Buffer<float>(rows * kLanes);
  }
};

using Clock = std::chrono::steady_clock;
using LaneFloats = float[kLanes];
using LaneDoubles = double[kLanes];

inline constexpr double kCgTolerance = 0.1;  // of the gradient norm
inline constexpr double kCgFloor = 0.3;      // of the norm at which the label stops anyway
inline constexpr double kMaxGap = 5e-4;      // of f: the largest distance to the minimum at the end
inline constexpr int kMaxCg = 200;
inline constexpr int kMaxLineSearch = 20;
inline constexpr int kMaxStalled = 10;          // float weights cannot reach an arbitrarily small gradient
inline constexpr double kStepTolerance = 0.02;  // relative, of the step length
inline constexpr int32_t kNoLabel = -1;         // the problem without positives

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
  enum State { idle, start, newton } state = idle;
  int64_t slot = 0;  // index into the labels of the call
  const int32_t* rows = nullptr;
  int64_t positives = 0;
  double cost_positive = 1, cost_negative = 1;            // C included
  std::vector<float> z, q;                                // of the positives
  double stop = 0;                                        // gradient norm to reach
  double best = std::numeric_limits<double>::infinity();  // smallest gradient norm so far
  int stalled = 0;                                        // Newton steps since it last fell by a tenth
  bool search = false;  // this round's direction is searched along (else t = 1)
  LabelReport report;
};

struct NewtonSolved {
  std::vector<int32_t> indices;
  std::vector<float> values;
  LabelReport report;
};

class BlockSolver {
 public:
  BlockSolver(const NewtonFit& fit, const int32_t* labels, int64_t count, NewtonScratch::Memory& memory)
      : fit_(fit),
        p_(fit.problem),
        labels_(labels),
        count_(count),
        m_(memory),
        solved_(static_cast<size_t>(count)) {
    m_.resize(p_.rows(), p_.features());
    if (p_.dense()) {
      all_.dense = p_.X_dense.data;
      all_.cols = p_.features();
    } else {
      all_.begin = p_.X.indptr;
      all_.end = p_.X.indptr + 1;
      all_.indices = p_.X.indices;
      all_.values = p_.X.data;
    }
    all_.count = p_.rows();
  }

  std::vector<NewtonSolved> run(const PruneRule& prune);
  // After run() on the one label kNoLabel: its weights and scores.
  void read_base(std::vector<float>* w, std::vector<float>* z) const;

 private:
  uint32_t lanes_in(NewtonLane::State state) const;

  // ---- labels in and out of lanes
  void refill();
  // A label without positives or without negatives at cost 1: the shared solution, or its mirror image.
  bool copy_shared(int64_t slot);
  void enter(NewtonLane& a, int64_t slot);
  void leave(int l, LabelStatus status);
  // Objective and active rows of a lane, in double, into its report.
  void evaluate(int l);
  // LIBLINEAR's rule; and f is 1-strongly convex, so f - min f <= |g|^2 / 2, which must be small as well: for
  // frequent labels the rule alone allows more. If it does, the norm to reach becomes smaller.
  bool converged(int l);
  void keep(NewtonSolved& s, int64_t feature, float w) const;

  // ---- starts
  void add_row(int l, int64_t row, double scale);
  // Writes the first step of the lanes that start. Newton lanes' steps are there already, other columns 0.
  void start_directions();
  // Returns whether the lane starts from the all-negative solution; *all is the share of sum_i x_i.
  bool start_lane(int l, float* all);
  void mask_positives(int l);

  // ---- Newton direction
  void newton_directions();
  // The rows any of the lanes needs, with their curvature S^2 and slope H.
  void collect_active_rows(uint32_t lanes);
  template <class Fn>
  void for_each_positive(uint32_t lanes, const Fn& fn) {
    for (int l = 0; l < kLanes; ++l) {
      if (!(lanes >> l & 1)) continue;
      for (int64_t k = 0; k < lane_[l].positives; ++k) {
        fn(l, k, loss_terms(fit_.loss, true, lane_[l].z[static_cast<size_t>(k)]));
      }
    }
  }
  // Row ranges of the active rows; when they hold fewer entries than X has features, a copy of the rows with
  // features renamed 0, 1, ... in order of appearance, so that G and V stay small.
  void compact_features();
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
  const int32_t* labels_;
  const int64_t count_;
  NewtonScratch::Memory& m_;
  std::vector<NewtonSolved> solved_;
  PruneRule prune_;
  const NewtonKernels& k_ = newton_kernels();
  const LossKernels& loss_ = fit_.loss == Loss::logistic ? logistic_kernels() : hinge_kernels();
  NewtonLane lane_[kLanes];
  int64_t next_ = 0;
  RowSet all_, active_;
  int64_t features_ = 0;  // lines of G and V in use
  bool compacted_ = false;
  LaneDoubles gg_{};  // squared gradient norm on those features
};

}  // namespace xmc
