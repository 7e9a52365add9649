#include "linear/dual.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/rng.h"
#include "linear/bias.h"
#include "linear/dual_kernels.h"

namespace xmc {
namespace {

constexpr double kRound2 = 3;       // inner tolerance of a label's second round, in units of its limit on |g|
constexpr double kRound3 = 1.2;     // of the third; halved when that was not enough
constexpr double kSlight = 0.5;     // of the tolerance: what an epoch leaves as it is, all rows together
constexpr double kAlike = 0.25;     // rows less alike than this look ahead (dual_kernels.h, epoch)
constexpr int kMaxEpochs = 60;      // per round
constexpr int64_t kFrequent = 512;  // with a bias, a label on this fraction of the rows needs three rounds
constexpr int kCloser = 8;          // rounds spent on the bound of |w - w*| at most (rounding may forbid it)
constexpr double kCentered = 0.5;   // of the limit on |g|, with a bias, whose part of g is about 0 then
constexpr double kPromising = 1.5;  // the exact gradient is computed when the dual violation is below this

constexpr int64_t kWindow = 256;  // rows of an epoch that are sorted by length
constexpr int32_t kLengths = 16;  // different lengths, in units of kPad

struct Lane {
  int64_t label = -1;
  bool busy = false;
  double limit = 0;    // the stopping rule's bound on |g|
  int32_t enough = 0;  // the round that met the stopping rule itself, 0: none yet
  double factor = 1;   // inner tolerance of later rounds, in units of limit
  double seconds = 0;
  int32_t rounds = 0;
  int32_t epochs = 0;
  bool eager = false;  // this round's full pass takes steps
};

// |g| bounds |w - w*|: this share of |w| is asked for as well.
double distance_limit(double eps) {
  return std::min(20 * eps, 200 * eps * std::sqrt(eps));
}

// The mean product of two rows over the mean of |x|^2: about their mean cosine.
double alike(const PreparedFeatures& X) {
  double norms = 0;
  for (int64_t i = 0; i < X.n; ++i) norms += static_cast<double>(X.rows[i].norm2);
  const double n = static_cast<double>(X.n), bias = n * X.bias;
  return norms > 0 ? (X.total_norm2 - bias * bias) / (n * norms) : 1.0;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void keep_largest(SolvedLabel& label, int64_t top) {
  const auto size = static_cast<int64_t>(label.features.size());
  if (top <= 0 || size <= top) return;
  std::vector<int64_t> by_size(static_cast<size_t>(size));
  std::iota(by_size.begin(), by_size.end(), 0);
  std::nth_element(by_size.begin(), by_size.begin() + top, by_size.end(), [&](int64_t a, int64_t b) {
    const float x = std::abs(label.weights[a]), y = std::abs(label.weights[b]);
    return x != y ? x > y : a < b;
  });
  by_size.resize(static_cast<size_t>(top));
  std::sort(by_size.begin(), by_size.end());
  for (int64_t k = 0; k < top; ++k) {
    label.features[k] = label.features[by_size[k]];
    label.weights[k] = label.weights[by_size[k]];
  }
  label.features.resize(static_cast<size_t>(top));
  label.weights.resize(static_cast<size_t>(top));
}

struct DualSolver::State {
  const LinearProblem& problem;
  const PreparedFeatures& X;
  const DualStart& start;
  const DualKernels& kernels = dual_kernels();

  Buffer<float> w, g, alpha, slacks;
  Buffer<uint16_t> positive, masks;
  Buffer<uint8_t> flags;
  Buffer<int32_t> rows;
  Lane lane[kLanes];
  float half_inverse_positive[kLanes], half_inverse_negative[kLanes];
  float balance[kLanes] = {}, share[kLanes] = {}, slight[kLanes] = {};
  BiasGuess bias_guess;
  Lanes view;
  PassResult found;

  std::vector<int32_t> working, order;
  std::vector<int32_t> features, place, chosen;      // scratch of write_out
  std::vector<uint16_t> feature_masks, place_masks;  // and
  std::vector<uint64_t> kept;                        // one bit per feature
  std::vector<double> sum;                           // scratch of start_lane: sum of the positives
  std::vector<uint8_t> length;                       // n, of a row: see sort_windows

  State(const LinearProblem& p, const PreparedFeatures& x, const DualStart& s)
      : problem(p),
        X(x),
        start(s),
        w(x.D * kLanes),
        g(x.D * kLanes),
        alpha(x.n * kLanes),
        slacks(x.n * kLanes),
        positive(x.n),
        masks(x.n),
        flags(x.n),
        rows(x.n),
        features(static_cast<size_t>(x.D)),
        place(static_cast<size_t>(x.D)),
        chosen(static_cast<size_t>(x.D)),
        feature_masks(static_cast<size_t>(x.D)),
        place_masks(static_cast<size_t>(x.D)),
        kept(static_cast<size_t>((x.D + 63) / 64)),
        sum(static_cast<size_t>(x.D)),
        length(static_cast<size_t>(x.n)) {
    for (int64_t i = 0; i < x.n; ++i) {
      length[i] = static_cast<uint8_t>(std::min(x.rows[i].stored / kPad, kLengths - 1));
    }
    std::fill_n(half_inverse_positive, kLanes, 1.f);
    std::fill_n(half_inverse_negative, kLanes, 1.f);
    view.n = X.n;
    view.D = X.D;
    view.rows = X.rows.data();
    view.ids = X.ids.data();
    view.values = X.values.data();
    view.dense = X.dense;
    view.bias = X.bias;
    view.look_ahead = alike(X) < kAlike;
    view.bias_share = share;
    view.slight = slight;
    view.w = w.data();
    view.alpha = alpha.data();
    view.balance = balance;
    view.positive = positive.data();
    view.half_inverse_positive = half_inverse_positive;
    view.half_inverse_negative = half_inverse_negative;
    found.rows = rows.data();
    found.masks = masks.data();
    found.slacks = slacks.data();
  }

  int64_t positives_begin(int64_t label) const { return label < 0 ? 0 : problem.positives.begin(label); }
  int64_t positives_end(int64_t label) const { return label < 0 ? 0 : problem.positives.end(label); }
  int64_t positives_of(int64_t label) const { return positives_end(label) - positives_begin(label); }
  float& bias_weight(int l) { return w[(X.D - 1) * kLanes + l]; }
  // The slope of the objective along it, as far as alpha is settled.
  double bias_slope(int l) {
    return X.bias == 0 ? 0.0 : static_cast<double>(bias_weight(l)) - static_cast<double>(X.bias) * balance[l];
  }
  double cost(const float* costs, int64_t label) const {
    return costs && label >= 0 ? static_cast<double>(costs[label]) : 1.0;
  }

  // |g(0)|, g(0) = -2 C ((c+ + c-) p - c- sum_i x_i) with p the sum of the positives.
  double gradient_at_zero(int64_t label) {
    const double cp = cost(problem.cost_positive, label), cn = cost(problem.cost_negative, label);
    double pp = 0, px = 0;
    int64_t entries = 0;
    for (int64_t t = positives_begin(label); t < positives_end(label); ++t) {
      const int64_t i = problem.positives.indices[t];
      for_entries(X, i, [&](int64_t j, float v) {
        sum[j] += v;
        ++entries;
      });
      px += X.row_total[i];
    }
    const auto take = [&](int64_t j) {
      pp += sum[j] * sum[j];
      sum[j] = 0;
    };
    if (entries > X.D) {
      for (int64_t j = 0; j < X.D; ++j) take(j);
    } else {
      for (int64_t t = positives_begin(label); t < positives_end(label); ++t) {
        for_entries(X, problem.positives.indices[t], [&](int64_t j, float) { take(j); });
      }
    }
    const double c = cp + cn;
    const double bias_sum = X.bias * static_cast<double>(positives_of(label));
    pp += bias_sum * bias_sum;
    return 2 * problem.C * std::sqrt(std::max(0.0, c * c * pp - 2 * c * cn * px + cn * cn * X.total_norm2));
  }

  void start_lane(int l, int64_t label, double tightness) {
    const double cp = cost(problem.cost_positive, label), cn = cost(problem.cost_negative, label);
    const auto pos = static_cast<double>(positives_of(label));
    const auto n = static_cast<double>(X.n);
    lane[l] = Lane();
    lane[l].label = label;
    lane[l].busy = true;
    lane[l].factor = kRound3;
    lane[l].limit =
        tightness * problem.eps * std::max(std::min(pos, n - pos), 1.0) / n * gradient_at_zero(label);
    half_inverse_positive[l] = static_cast<float>(1 / (2 * problem.C * cp));
    half_inverse_negative[l] = static_cast<float>(1 / (2 * problem.C * cn));
    balance[l] = start.balance;
    if (X.bias != 0) {
      bias_weight(l) = static_cast<float>(bias_guess.of(positives_of(label), bias_weight(l)));
    }
    for (int64_t t = positives_begin(label); t < positives_end(label); ++t) {
      const int64_t i = problem.positives.indices[t];
      positive[i] = static_cast<uint16_t>(positive[i] | 1u << l);
      float& a = alpha[i * kLanes + l];
      if (a > 0) kernels.add_row(view, i, l, a);  // the start counted it as a negative
      balance[l] += a;
      a = 0;
    }
  }

  // Gives the free lanes the next labels. Returns whether any lane is busy.
  bool refill(const int32_t* labels, int64_t count, int64_t* next, double tightness) {
    uint32_t fresh = 0;
    int64_t first = *next;
    for (int l = 0; l < kLanes; ++l) {
      if (!lane[l].busy && *next < count) {
        fresh |= 1u << l;
        ++*next;
      }
    }
    if (fresh) {
      kernels.fill(w.data(), start.w.data(), X.D, fresh);
      kernels.fill(alpha.data(), start.alpha.data(), X.n, fresh);
      for (int32_t i : working) flags[i] = 2;
      for (int32_t i : start.rows) flags[i] = 2;
      for (int l = 0; l < kLanes; ++l) {
        if (!(fresh >> l & 1u)) continue;
        start_lane(l, labels[first++], tightness);
        for (int64_t t = positives_begin(lane[l].label); t < positives_end(lane[l].label); ++t) {
          flags[problem.positives.indices[t]] = 2;
        }
      }
      working.resize(static_cast<size_t>(X.n));
      size_t count = 0;  // no branch on the flag: it cannot be predicted
      for (int64_t i = 0; i < X.n; ++i) {
        working[count] = static_cast<int32_t>(i);
        count += flags[i] == 2;
        flags[i] = flags[i] == 2 ? 1 : flags[i];
      }
      working.resize(count);
    }
    view.live = 0;
    for (int l = 0; l < kLanes; ++l) view.live |= static_cast<uint32_t>(lane[l].busy) << l;
    return view.live != 0;
  }

  // Rows of similar length one after the other, within windows too small to matter to the descent: the CPU
  // foresees how often its loops turn.
  void sort_windows(int32_t* rows, int64_t count) {
    int32_t sorted[kWindow];
    for (int64_t begin = 0; begin < count; begin += kWindow) {
      const int64_t size = std::min(kWindow, count - begin);
      int32_t* window = rows + begin;
      int64_t next[kLengths + 1] = {};
      for (int64_t t = 0; t < size; ++t) ++next[length[window[t]] + 1];
      std::partial_sum(next, next + kLengths, next);
      for (int64_t t = 0; t < size; ++t) sorted[next[length[window[t]]]++] = window[t];
      std::copy_n(sorted, size, window);
    }
  }

  void descend(Rng& rng, bool thorough) {
    double tolerance[kLanes];
    const auto usual_share = static_cast<float>(bias_share(problem, X));
    for (int l = 0; l < kLanes; ++l) {
      tolerance[l] = share[l] = 0;
      if (!lane[l].busy) continue;
      const int32_t round = ++lane[l].rounds;
      const bool frequent = X.bias != 0 && positives_of(lane[l].label) * kFrequent >= X.n;
      lane[l].eager = !thorough && round <= (frequent ? 2 : 1) && round < problem.max_iterations;
      tolerance[l] = thorough     ? lane[l].limit
                     : round == 1 ? std::numeric_limits<double>::infinity()
                                  : lane[l].limit * (round == 2 ? kRound2 : lane[l].factor);
      if (thorough || round > 1) share[l] = usual_share;  // at first the positives alone would pull at it
    }
    for (int32_t i : working) flags[i] = 1;
    order.assign(working.begin(), working.end());
    auto count = static_cast<int64_t>(order.size());
    uint32_t open = view.live;
    for (int epoch = 0; epoch < kMaxEpochs && open && count > 0; ++epoch) {
      shuffle(order.data(), count, rng);
      sort_windows(order.data(), count);
      for (int l = 0; l < kLanes && !thorough; ++l) {
        const double left = std::min(tolerance[l], kRound2 * lane[l].limit) / (2 * problem.C);
        slight[l] = static_cast<float>(kSlight * left / std::sqrt(static_cast<double>(count)));
      }
      float violation2[kLanes];
      count = kernels.epoch(view, order.data(), count, open, violation2);
      for (int l = 0; l < kLanes; ++l) {
        if (!(open >> l & 1u)) continue;
        ++lane[l].epochs;
        const double slope = bias_slope(l);
        if (X.bias != 0) bias_weight(l) -= static_cast<float>(share[l] * slope);
        if (std::hypot(2 * problem.C * std::sqrt(static_cast<double>(violation2[l])), slope) <=
            tolerance[l]) {
          open &= ~(1u << l);
        }
      }
    }
  }

  // The full pass; lanes that meet the stopping rule (or the iteration limit) come back in the mask.
  uint32_t check(SolvedLabel* solved) {
    view.eager = 0;
    for (int l = 0; l < kLanes; ++l) view.eager |= static_cast<uint32_t>(lane[l].busy && lane[l].eager) << l;
    kernels.pass(view, flags.data(), found);
    double measure[kLanes];
    uint32_t wanted = 0;
    for (int l = 0; l < kLanes; ++l) {
      if (!lane[l].busy) continue;
      balance[l] = static_cast<float>(found.balance[l]);
      measure[l] = std::hypot(2 * problem.C * std::sqrt(found.violation2[l]), bias_slope(l));
      const int32_t last = lane[l].enough > 0 ? lane[l].enough + kCloser : problem.max_iterations;
      if (lane[l].eager) continue;
      if (measure[l] <= kPromising * lane[l].limit || lane[l].rounds >= last) wanted |= 1u << l;
    }
    uint32_t done = 0;
    if (wanted) {
      double g_norm2[kLanes], w_norm2[kLanes];
      kernels.gradient(view, found, wanted, g.data(), g_norm2, w_norm2);
      for (int l = 0; l < kLanes; ++l) {
        if (!(wanted >> l & 1u)) continue;
        const double norm = std::sqrt(g_norm2[l]), asked = X.bias != 0 ? kCentered : 1.0;
        if (norm <= asked * lane[l].limit && lane[l].enough == 0) {
          lane[l].enough = lane[l].rounds;
          lane[l].limit = std::min(lane[l].limit, distance_limit(problem.eps) * std::sqrt(w_norm2[l]));
        }
        const bool close = norm <= asked * lane[l].limit;
        const bool tired = lane[l].rounds >= problem.max_iterations ||
                           (lane[l].enough > 0 && lane[l].rounds >= lane[l].enough + kCloser);
        if (!close && !tired) continue;
        const bool converged = close || lane[l].enough > 0;
        done |= 1u << l;
        LabelReport& r = solved[l].report;
        r.status = converged ? LabelStatus::converged : LabelStatus::iteration_limit;
        r.outer_iterations = lane[l].rounds;
        r.inner_iterations = lane[l].epochs;
        r.active_rows = found.active[l];
        r.objective = 0.5 * w_norm2[l] + found.loss[l];
        r.gradient_norm = norm;
      }
    }
    for (int l = 0; l < kLanes; ++l) {
      if (!lane[l].busy || (done >> l & 1u)) continue;
      if (measure[l] <= 4 * lane[l].limit || lane[l].rounds > 3) lane[l].factor *= 0.5;
    }
    const uint32_t open = view.live & ~done;
    working.clear();
    for (int64_t u = 0; u < found.count; ++u) {
      if (found.masks[u] & open) working.push_back(found.rows[u]);
    }
    return done;
  }

  // The pruned weights of the lanes in `done`, features ascending in the caller's numbering.
  void write_out(uint32_t done, const PruneRule& prune, SolvedLabel* solved) {
    int64_t count = kernels.select(view, done, prune.threshold, features.data(), feature_masks.data());
    for (int64_t t = 0; t < count; ++t) {
      const int32_t j = X.original[features[t]];
      kept[j / 64] |= uint64_t{1} << (j % 64);
      place[j] = features[t];
      place_masks[j] = feature_masks[t];
    }
    count = 0;
    for (size_t word = 0; word < kept.size(); ++word) {
      for (; kept[word]; kept[word] &= kept[word] - 1) {
        const auto j = static_cast<int32_t>(word * 64) + std::countr_zero(kept[word]);
        feature_masks[count] = place_masks[j];
        features[count++] = j;
      }
    }
    float* weights = g.data();  // free until the next gradient
    for (int l = 0; l < kLanes; ++l) {
      if (!(done >> l & 1u)) continue;
      int64_t size = 0;  // no branch on the mask: it cannot be predicted
      for (int64_t t = 0; t < count; ++t) {
        chosen[size] = features[t];
        weights[size] = w[static_cast<int64_t>(place[features[t]]) * kLanes + l];
        size += feature_masks[t] >> l & 1;
      }
      solved[l].features.assign(chosen.begin(), chosen.begin() + size);
      solved[l].weights.assign(weights, weights + size);
      keep_largest(solved[l], prune.keep_top);
    }
  }

  void release(uint32_t done) {
    for (int l = 0; l < kLanes; ++l) {
      if (!(done >> l & 1u)) continue;
      for (int64_t t = positives_begin(lane[l].label); t < positives_end(lane[l].label); ++t) {
        uint16_t& mask = positive[problem.positives.indices[t]];
        mask = static_cast<uint16_t>(mask & ~(1u << l));
      }
      if (X.bias != 0) bias_guess.add(positives_of(lane[l].label), bias_weight(l));
      lane[l].busy = false;
    }
  }

  void run(const int32_t* labels, int64_t count, const PruneRule& prune, uint64_t seed,
           const LabelSink& sink) {
    Rng rng(seed);
    int64_t next = 0;
    working.clear();
    bias_guess.clear();
    while (refill(labels, count, &next, 1.0)) {
      const double began = now();
      SolvedLabel solved[kLanes];
      descend(rng, false);
      const uint32_t done = check(solved);
      if (done) write_out(done, prune, solved);
      const double share = (now() - began) / std::popcount(view.live);
      for (int l = 0; l < kLanes; ++l) {
        if (lane[l].busy) lane[l].seconds += share;
        if (done >> l & 1u) solved[l].report.seconds = lane[l].seconds;
      }
      for (int l = 0; l < kLanes; ++l) {
        if (done >> l & 1u) sink(lane[l].label, std::move(solved[l]));
      }
      release(done);
    }
  }
};

DualSolver::DualSolver(const LinearProblem& problem, const PreparedFeatures& X, const DualStart& start)
    : state_(std::make_unique<State>(problem, X, start)) {}
DualSolver::~DualSolver() = default;

void DualSolver::solve(const int32_t* labels, int64_t count, const PruneRule& prune, uint64_t seed,
                       const LabelSink& sink) {
  state_->run(labels, count, prune, seed, sink);
}

DualStart solve_start(const LinearProblem& problem, const PreparedFeatures& X) {
  DualStart out;
  out.w.assign(static_cast<size_t>(X.D), 0.f);
  out.alpha.assign(static_cast<size_t>(X.n), 0.f);
  if (X.n == 0) return out;
  DualSolver::State s(problem, X, out);
  Rng rng(problem.seed);
  const int32_t none = -1;
  int64_t next = 0;
  s.refill(&none, 1, &next, 0.1);
  s.working.resize(static_cast<size_t>(X.n));
  std::iota(s.working.begin(), s.working.end(), 0);
  SolvedLabel solved[kLanes];
  do {
    s.descend(rng, true);
  } while (!s.check(solved));
  out.report = solved[0].report;
  std::vector<double> w(static_cast<size_t>(X.D), 0.0);
  for (int64_t i = 0; i < X.n; ++i) {
    const float a = s.alpha[i * kLanes];
    if (!(a > 0)) continue;
    out.alpha[i] = a;
    out.rows.push_back(static_cast<int32_t>(i));
    for_entries(X, i, [&](int64_t j, float v) { w[j] -= static_cast<double>(a) * v; });
  }
  for (int64_t j = 0; j < X.D; ++j) out.w[j] = static_cast<float>(w[j]);
  if (X.bias != 0) out.w[X.D - 1] = s.bias_weight(0);
  out.balance = s.balance[0];
  return out;
}

DualStart bias_alone(const PreparedFeatures& X) {
  DualStart out;
  out.w.assign(static_cast<size_t>(X.D), 0.f);
  out.alpha.assign(static_cast<size_t>(X.n), 0.f);
  out.w.back() = -1 / X.bias;
  return out;
}

}  // namespace xmc
