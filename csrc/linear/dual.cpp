#include "linear/dual.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/rng.h"
#include "linear/bias.h"
#include "linear/dual_lane.h"
#include "linear/epoch_order.h"
#include "linear/lane_weights.h"
#include "linear/stopping.h"

namespace xmc::linear {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

struct DualSolver::State {
  const LinearProblem& problem;
  const PreparedFeatures& X;
  const DualStart& start;
  const DualOptions options;
  const DualKernels& kernels = dual_kernels();

  Buffer<float> w, g, alpha, slacks;  // alpha: 0 in free lanes
  Buffer<uint16_t> positive, masks;
  Buffer<uint8_t> flags;  // n: rows the full pass must look at; 2 while a working set is collected
  Buffer<int32_t> rows;
  Lane lane[kLanes];
  float half_inverse_positive[kLanes];
  float balance[kLanes] = {}, share[kLanes] = {}, slight[kLanes] = {};
  const float usual_share;
  BiasGuess bias_guess;
  LaneGroup view;
  PassResult found;
  LaneWeights weights;
  std::vector<int32_t> working, order;
  std::vector<double> sum;  // D zeros, scratch
  const EpochOrder epoch_order;

  double gap[kLanes], objective[kLanes];
  std::vector<float> zeros;  // to start from an earlier solution

  State(const LinearProblem& p, const PreparedFeatures& x, const DualStart& s, const DualOptions& o)
      : problem(p),
        X(x),
        start(s),
        options(o),
        w(x.D * kLanes),
        g(x.D * kLanes),
        alpha(x.n * kLanes),
        slacks(x.n * kLanes),
        positive(x.n),
        masks(x.n),
        flags(x.n),
        rows(x.n),
        usual_share(static_cast<float>(bias_share(p, x))),
        weights(x),
        sum(x.D),
        epoch_order(x),
        zeros(o.old.bias_weight ? x.D : 0) {
    std::fill_n(half_inverse_positive, kLanes, 1.f);
    view.n = X.n;
    view.D = X.D;
    view.x = X.view();
    view.look_ahead = alike(X) < kAlike;
    view.bias_share = share;
    view.slight = slight;
    view.w = w.data();
    view.alpha = alpha.data();
    view.balance = balance;
    view.positive = positive.data();
    view.half_inverse_positive = half_inverse_positive;
    view.half_inverse_negative = static_cast<float>(1 / (2 * problem.C));
    found.rows = rows.data();
    found.masks = masks.data();
    found.slacks = slacks.data();
  }

  float& bias_weight(int l) { return w[(X.D - 1) * kLanes + l]; }
  // The slope of the objective along it, as far as alpha is settled.
  double bias_slope(int l) {
    return X.bias == 0 ? 0.0 : static_cast<double>(bias_weight(l)) - static_cast<double>(X.bias) * balance[l];
  }
  // |projected gradient of the dual| of a lane, with the bias's part.
  double dual_violation(int l, double squares) {
    return std::hypot(2 * problem.C * std::sqrt(squares), bias_slope(l));
  }

  // ---- labels into lanes

  void start_lane(int l, int64_t label, double tightness) {
    Lane& a = lane[l];
    a = Lane();
    a.label = label;
    a.busy = true;
    a.factor = kRound3;
    a.warm = options.old.has(label);
    if (a.warm) {
      a.factor = kWarm;
      const double f = std::max(options.old.objective[label], 1e-6);
      a.limit =
          2 * std::sqrt(problem.C * certified_share(problem.tol) * f);  // the gap is about violation^2 / 4C
    } else {
      a.limit = tightness * stopping_norm(problem, X, label, positive_moments(problem, X, label, sum), 2.0);
    }
    half_inverse_positive[l] = static_cast<float>(1 / (2 * problem.C * problem.positive_cost(label)));
    a.warm ? from_multipliers(l, label) : from_shared_start(l, label);
  }

  // w and balance follow, for all such lanes at once (refill).
  void from_multipliers(int l, int64_t label) {
    const CsrView<>& old = options.old.alpha;
    for (int64_t t = old.begin(label); t < old.end(label); ++t) {
      alpha[int64_t{old.indices[t]} * kLanes + l] = old.data[t];
      flags[old.indices[t]] = 2;
    }
    for (const int32_t i : problem.positive_rows(label)) {
      positive[i] = static_cast<uint16_t>(positive[i] | 1u << l);
      flags[i] = 2;
    }
    balance[l] = 0;
    if (X.bias != 0) bias_weight(l) = options.old.bias_weight[label];
  }

  void from_shared_start(int l, int64_t label) {
    const auto positives = problem.positive_rows(label);
    balance[l] = start.balance;
    if (X.bias != 0) {
      bias_weight(l) = static_cast<float>(bias_guess.of(positives.size(), bias_weight(l)));
    }
    for (const int32_t i : positives) {
      positive[i] = static_cast<uint16_t>(positive[i] | 1u << l);
      flags[i] = 2;
      float& multiplier = alpha[int64_t{i} * kLanes + l];
      if (multiplier > 0) kernels.add_row(view, i, l, multiplier);  // the start counted it as a negative
      balance[l] += multiplier;
      multiplier = 0;
    }
  }

  // Gives the free lanes the next labels. Returns whether any lane is busy.
  bool refill(const int32_t* labels, int64_t count, int64_t* next, double tightness, Rng& rng) {
    uint32_t fresh = 0;
    int64_t first = *next;
    for (int l = 0; l < kLanes; ++l) {
      if (lane[l].busy || *next == count) continue;
      fresh |= 1u << l;
      ++*next;
    }
    if (fresh) {
      uint32_t warm = 0;
      int64_t t = first;
      for_lanes(fresh, [&](int l) { warm |= static_cast<uint32_t>(options.old.has(labels[t++])) << l; });
      if (const uint32_t cold = fresh & ~warm) {
        kernels.fill(w.data(), start.w.data(), X.D, cold);
        for (const int32_t i : start.rows) {
          flags[i] = 2;
          for_lanes(cold, [&](int l) { alpha[int64_t{i} * kLanes + l] = start.alpha[i]; });
        }
      }
      if (warm) {
        kernels.fill(w.data(), zeros.data(), X.D, warm);
        std::fill(flags.data() + options.old_rows, flags.data() + X.n, uint8_t{2});
      }
      for_lanes(fresh, [&](int l) { start_lane(l, labels[first++], tightness); });
      if (warm) add_multipliers(warm);
      if (warm) step_at_new_rows(warm, rng);
      for (const int32_t i : working) flags[i] = 2;
      collect_flagged();
    }
    view.live = 0;
    for (int l = 0; l < kLanes; ++l) view.live |= static_cast<uint32_t>(lane[l].busy) << l;
    return view.live != 0;
  }

  // w and balance of lanes that were given multipliers.
  void add_multipliers(uint32_t lanes) {
    order.clear();
    for_lanes(lanes, [&](int l) {
      const CsrView<>& old = options.old.alpha;
      const int64_t label = lane[l].label;
      for (int64_t t = old.begin(label); t < old.end(label); ++t) {
        if (flags[old.indices[t]] != 2) continue;
        flags[old.indices[t]] = 3;
        order.push_back(old.indices[t]);
      }
    });
    std::sort(order.begin(), order.end());
    kernels.add_rows(view, order.data(), static_cast<int64_t>(order.size()), lanes);
    for (const int32_t i : order) flags[i] = 2;
  }

  // Epochs on the new rows alone, so that the first one on all sees what they changed.
  void step_at_new_rows(uint32_t lanes, Rng& rng) {
    order.resize(X.n - options.old_rows);
    std::iota(order.begin(), order.end(), static_cast<int32_t>(options.old_rows));
    std::fill_n(slight, kLanes, 0.f);
    std::fill_n(share, kLanes, usual_share);
    view.live = lanes;
    auto count = static_cast<int64_t>(order.size());
    float violation2[kLanes];
    for (int epoch = 0; epoch < kNewRowEpochs && count > 0; ++epoch) {
      epoch_order.shuffle_rows(order.data(), count, rng);
      count = kernels.epoch(view, order.data(), count, lanes, violation2);
    }
  }

  // The working set: rows with flag 2, which becomes 1.
  void collect_flagged() {
    working.resize(X.n);
    int64_t size = 0;  // no branch on the flag: it cannot be predicted
    for (int64_t i = 0; i < X.n; ++i) {
      working[size] = static_cast<int32_t>(i);
      size += flags[i] == 2;
      flags[i] = flags[i] == 2 ? 1 : flags[i];
    }
    working.resize(size);
  }

  // ---- part 1 of a round: coordinate descent on the working set

  // How far the descent of this round goes. `thorough`: to the limit, at once.
  void plan_round(Lane& a, float* bias_moves, bool thorough) {
    const int32_t round = ++a.rounds + (a.warm ? 2 : 0);  // an earlier solution stands for the first two
    const bool frequent = X.bias != 0 && problem.positive_rows(a.label).size() * kFrequent >= X.n;
    a.eager = !thorough && !a.warm && round <= (frequent ? 2 : 1) && round < problem.max_iter;
    if (thorough) {
      a.tolerance = a.limit;
    } else if (round == 1) {
      a.tolerance = std::numeric_limits<double>::infinity();  // one epoch
    } else {
      a.tolerance = a.limit * (round == 2 ? kRound2 : a.factor);
    }
    if (thorough || round > 1) *bias_moves = usual_share;  // at first the positives alone would pull at it
  }

  // Projected gradients so small that `count` of them together are a share of the tolerance are skipped.
  void set_slight(int64_t count) {
    for (int l = 0; l < kLanes; ++l) {
      const double left = std::min(lane[l].tolerance, kRound2 * lane[l].limit) / (2 * problem.C);
      slight[l] = static_cast<float>((lane[l].warm ? kWarmSlight : kSlight) * left /
                                     std::sqrt(static_cast<double>(count)));
    }
  }

  void descend(Rng& rng, bool thorough) {
    for (int l = 0; l < kLanes; ++l) {
      lane[l].tolerance = share[l] = 0;
      if (lane[l].busy) plan_round(lane[l], &share[l], thorough);
    }
    for (const int32_t i : working) flags[i] = 1;
    order.assign(working.begin(), working.end());
    auto count = static_cast<int64_t>(order.size());
    uint32_t open = view.live;
    for (int epoch = 0; epoch < kMaxEpochs && open && count > 0; ++epoch) {
      epoch_order.shuffle_rows(order.data(), count, rng);
      if (!thorough) set_slight(count);
      float violation2[kLanes];
      count = kernels.epoch(view, order.data(), count, open, violation2);
      for_lanes(open, [&](int l) {
        ++lane[l].epochs;
        const double violation = dual_violation(l, violation2[l]);
        if (X.bias != 0) bias_weight(l) -= static_cast<float>(share[l] * bias_slope(l));
        if (violation <= lane[l].tolerance) open &= ~(1u << l);
      });
    }
  }

  // ---- part 2 of a round: the full pass and what follows from it

  bool out_of_rounds(const Lane& a) const {
    return a.rounds >= problem.max_iter || (a.met > 0 && a.rounds >= a.met + kCloser);
  }

  // Visits all rows. Lanes that are done come back in the mask, their reports in solved[lane].
  uint32_t full_pass(SolvedLabel* solved) {
    view.eager = 0;
    for_lanes(view.live, [&](int l) { view.eager |= static_cast<uint32_t>(lane[l].eager) << l; });
    kernels.pass(view, flags.data(), found);
    uint32_t promising = 0;
    for_lanes(view.live, [&](int l) {
      Lane& a = lane[l];
      balance[l] = static_cast<float>(found.balance[l]);
      a.violation = dual_violation(l, found.violation2[l]);
      if (a.eager) return;
      if (a.violation <= kPromising * a.limit || out_of_rounds(a)) promising |= 1u << l;
    });
    uint32_t warm = 0;
    for_lanes(promising, [&](int l) { warm |= static_cast<uint32_t>(lane[l].warm) << l; });
    if (promising && (warm || options.keep_multipliers)) kernels.gap(view, found, promising, gap, objective);
    uint32_t done = warm ? stop_warm_lanes(warm, solved) : 0;
    if (promising & ~warm) done |= stop_lanes(promising & ~warm, solved);
    const uint32_t open = view.live & ~done;
    for_lanes(open, [&](int l) {
      Lane& a = lane[l];
      if (a.violation <= kNearlyThere * a.limit || a.rounds > kPatientRounds) a.factor *= kTighten;
    });
    working.clear();
    for (int64_t u = 0; u < found.count; ++u) {
      if (found.masks[u] & open) working.push_back(found.rows[u]);
    }
    return done;
  }

  // Lanes that came from an earlier solution end where the gap proves them near enough the minimum.
  uint32_t stop_warm_lanes(uint32_t wanted, SolvedLabel* solved) {
    uint32_t done = 0;
    for_lanes(wanted, [&](int l) {
      const bool close = gap[l] <= certified_share(problem.tol) * (objective[l] - gap[l]);
      if (!close && !out_of_rounds(lane[l])) return;
      done |= 1u << l;
      LabelReport& r = solved[l].report;
      r.status = close ? LabelStatus::converged : LabelStatus::iteration_limit;
      r.outer_iterations = lane[l].rounds;
      r.inner_iterations = lane[l].epochs;
      for (int64_t u = 0; u < found.count; ++u) r.active_rows += found.slacks[u * kLanes + l] > 0;
      r.objective = objective[l];
      r.gradient_norm = std::numeric_limits<double>::quiet_NaN();
      r.gap = gap[l];
    });
    return done;
  }

  // The stopping rule on the exact gradient of some lanes; those that end come back.
  uint32_t stop_lanes(uint32_t wanted, SolvedLabel* solved) {
    double g_norm2[kLanes], w_norm2[kLanes];
    kernels.gradient(view, found, wanted, g.data(), g_norm2, w_norm2);
    const double centered = X.bias != 0 ? kCentered : 1.0;
    uint32_t done = 0;
    for_lanes(wanted, [&](int l) {
      Lane& a = lane[l];
      const double norm = std::sqrt(g_norm2[l]);
      if (a.met == 0 && norm <= centered * a.limit) {
        a.met = a.rounds;
        a.limit = std::min(a.limit, distance_limit(problem.tol) * std::sqrt(w_norm2[l]));
      }
      const bool close = norm <= centered * a.limit;
      if (!close && !out_of_rounds(a)) return;
      done |= 1u << l;
      LabelReport& r = solved[l].report;
      r.status = close || a.met > 0 ? LabelStatus::converged : LabelStatus::iteration_limit;
      r.outer_iterations = a.rounds;
      r.inner_iterations = a.epochs;
      r.active_rows = found.active[l];
      r.objective = 0.5 * w_norm2[l] + found.loss[l];
      r.gradient_norm = norm;
      r.gap = options.keep_multipliers ? std::min(gap[l], 0.5 * g_norm2[l]) : 0.5 * g_norm2[l];
    });
    return done;
  }

  // Of a lane that the last full pass has seen.
  Multipliers multipliers(int l) {
    Multipliers out;
    for (int64_t u = 0; u < found.count; ++u) {
      const float a = alpha[int64_t{found.rows[u]} * kLanes + l];
      if (!(found.masks[u] >> l & 1) || !(a > 0)) continue;
      out.rows.push_back(found.rows[u]);
      out.alpha.push_back(a);
    }
    out.bias_weight = X.bias != 0 ? bias_weight(l) : 0.f;
    return out;
  }

  void release(int l) {
    for (int64_t u = 0; u < found.count; ++u) {
      if (found.masks[u] >> l & 1) alpha[int64_t{found.rows[u]} * kLanes + l] = 0;
    }
    const auto positives = problem.positive_rows(lane[l].label);
    for (const int32_t i : positives) positive[i] = static_cast<uint16_t>(positive[i] & ~(1u << l));
    if (X.bias != 0) bias_guess.add(positives.size(), bias_weight(l));
    lane[l].busy = false;
  }

  void run(const int32_t* labels, int64_t count, const PruneRule& prune, uint64_t seed,
           const LabelSink& sink) {
    Rng rng(seed);
    int64_t next = 0;
    working.clear();
    bias_guess.clear();
    while (refill(labels, count, &next, 1.0, rng)) {
      const double began = now();
      SolvedLabel solved[kLanes];
      descend(rng, false);
      const uint32_t done = full_pass(solved);
      if (done) weights.take(view, done, prune, g.data(), solved);  // g is free until the next gradient
      const double seconds = (now() - began) / std::popcount(view.live);
      for_lanes(view.live, [&](int l) { lane[l].seconds += seconds; });
      for_lanes(done, [&](int l) {
        solved[l].report.seconds = lane[l].seconds;
        if (options.keep_multipliers) solved[l].multipliers = multipliers(l);
        sink(lane[l].label, std::move(solved[l]));
        release(l);
      });
    }
  }
};

DualSolver::DualSolver(const LinearProblem& problem, const PreparedFeatures& X, const DualStart& start,
                       const DualOptions& options)
    : state_(std::make_unique<State>(problem, X, start, options)) {}
DualSolver::~DualSolver() = default;

void DualSolver::solve(const int32_t* labels, int64_t count, const PruneRule& prune, uint64_t seed,
                       const LabelSink& sink) {
  state_->run(labels, count, prune, seed, sink);
}

DualStart solve_dual_start(const LinearProblem& problem, const PreparedFeatures& X) {
  DualStart out;
  out.w.assign(X.D, 0.f);
  out.alpha.assign(X.n, 0.f);
  if (X.n == 0) return out;
  LinearProblem rounded = problem;  // its limit may be below what rounding allows
  rounded.max_iter = std::min(problem.max_iter, kBaseRounds);
  DualSolver::State s(rounded, X, out, {});
  Rng rng(problem.seed);
  int64_t next = 0;
  s.refill(&kNoLabel, 1, &next, 0.1, rng);
  s.working.resize(X.n);
  std::iota(s.working.begin(), s.working.end(), 0);
  SolvedLabel solved[kLanes];
  do {
    s.descend(rng, true);
  } while (!s.full_pass(solved));
  out.report = solved[0].report;
  std::vector<double> w(X.D, 0.0);
  for (int64_t i = 0; i < X.n; ++i) {
    const float a = s.alpha[i * kLanes];
    if (!(a > 0)) continue;
    out.alpha[i] = a;
    out.rows.push_back(static_cast<int32_t>(i));
    for_entries(X, i, [&](int64_t j, float v) { w[j] -= static_cast<double>(a) * v; });
  }
  out.w.assign(w.begin(), w.end());
  if (X.bias != 0) out.w[X.D - 1] = s.bias_weight(0);
  out.balance = s.balance[0];
  return out;
}

}  // namespace xmc::linear
