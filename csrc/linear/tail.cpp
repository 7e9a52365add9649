#include "linear/tail.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/prefetch.h"
#include "core/rng.h"
#include "linear/bias.h"
#include "linear/dual_tuning.h"
#include "linear/prune.h"
#include "linear/row_search.h"
#include "linear/stopping.h"

namespace xmc::linear {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct KnownRow {
  int32_t row;
  float sign;
  float alpha = 0;
  float slack = 0;
  bool touched = false;  // its features are in `features`
};

}  // namespace

struct TailSolver::State {
  const LinearProblem& problem;
  const PreparedFeatures& X;
  const Postings& postings;
  const DualOptions options;
  RowSearch search;
  BiasGuess bias_guess;

  Buffer<float> w, reference, g;  // D, zeros between labels
  Buffer<uint8_t> seen;           // D
  Buffer<uint8_t> known;          // n: whether the row is in `rows`
  std::vector<int32_t> features;  // where w or g may differ from 0
  std::vector<KnownRow> rows;     // positives, rows with alpha > 0 and rows near the margin
  std::vector<int32_t> order;
  std::vector<double> sum;  // D zeros
  const double usual_share;
  double b = 0, balance = 0, b_reference = 0, reach = -1;
  float h_positive = 1, h_negative = 1;
  double near = kNear;  // how far outside the margin all rows are known
  int lowerings = 0;

  State(const LinearProblem& p, const PreparedFeatures& x, const Postings& lists, const DualOptions& o)
      : problem(p),
        X(x),
        postings(lists),
        options(o),
        search(lists, x.n),
        w(x.D),
        reference(x.D),
        g(x.D),
        seen(x.D),
        known(x.n),
        sum(x.D),
        usual_share(bias_share(p, x)) {}

  bool rare(int64_t label) const {
    if (options.old.has(label)) return false;  // starts from an earlier solution
    const double most = kAffordable * static_cast<double>(postings.entries.size());
    double entries = 0;
    for (const int32_t i : problem.positive_rows(label)) {
      for_entries(X, i, [&](int64_t j, float) {
        entries += j < postings.frequent ? 0.0 : static_cast<double>(postings.size(j));
      });
      if (entries > most) return false;
    }
    return true;
  }

  // ---- rows

  float dot(int64_t i) const {
    const RowRef row = X.rows[i];
    const uint16_t* id = X.ids.data() + row.id;
    const float* value = X.values.data() + row.value;
    float s[kPad] = {};
    for (int32_t t = 0; t < row.stored; t += kPad) {
      for (int u = 0; u < kPad; ++u) s[u] += value[t + u] * w[id[t + u]];
    }
    id += row.stored;
    value += row.stored;
    for (int32_t t = 0; t < row.tail; ++t)
      s[t % kPad] += value[t] * w[int64_t{id[2 * t]} | int64_t{id[2 * t + 1]} << 16];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
  float score(int64_t i) const { return dot(i) + static_cast<float>(X.bias * b); }
  void add(int64_t i, float c) {
    for_entries(X, i, [&](int64_t j, float v) { w[j] += c * v; });
  }
  void touch(KnownRow& r) {
    if (r.touched) return;
    r.touched = true;
    for_entries(X, r.row, [&](int64_t j, float) {
      if (seen[j]) return;
      seen[j] = 1;
      features.push_back(static_cast<int32_t>(j));
    });
  }
  void know(int32_t i, float sign, float slack) {
    known[i] = 1;
    rows.push_back({i, sign, 0.f, slack, false});
  }
  float half_inverse(const KnownRow& r) const { return r.sign > 0 ? h_positive : h_negative; }
  double slope() const { return b - X.bias * balance; }
  double dual_violation(double squares) const {
    return std::hypot(2 * problem.C * std::sqrt(squares), slope());
  }

  // ---- descent

  // One step; returns the projected gradient before it.
  float step(KnownRow& r, float slack, double share) {
    const float h = half_inverse(r);
    const float G = r.alpha * h - slack;
    if (r.alpha <= 0 && G >= 0) return 0;
    const float Q = (X.rows[r.row].norm2 + h + static_cast<float>(X.bias * X.bias * share)) / kRelaxation;
    const float after = std::max(r.alpha - G / Q, 0.f);
    touch(r);
    const float d = r.sign * (after - r.alpha);
    r.alpha = after;
    add(r.row, d);
    balance += d;
    b += share * X.bias * d;
    return G;
  }

  int descend(double tolerance, double limit, double share, int most, Rng& rng) {
    order.clear();
    for (size_t k = 0; k < rows.size(); ++k) {
      if (rows[k].alpha > 0 || rows[k].slack > -near) order.push_back(static_cast<int32_t>(k));
    }
    auto count = static_cast<int64_t>(order.size());
    const double highest = b + kBiasUp / X.bias;  // it would follow the positives where few rows are known
    int epochs = 0;
    while (epochs < most && count > 0) {
      ++epochs;
      shuffle(order.data(), count, rng);
      const double left = std::min(tolerance, kRound2 * limit) / (2 * problem.C);
      const auto slight = static_cast<float>(kSlight * left / std::sqrt(static_cast<double>(count)));
      double squares = 0;
      int64_t kept = 0;
      for (int64_t q = 0; q < count; ++q) {
        KnownRow& r = rows[order[q]];
        const float slack = 1 - r.sign * score(r.row);
        const float G = r.alpha * half_inverse(r) - slack;
        if (r.alpha <= 0 && G >= 0) continue;
        squares += static_cast<double>(G) * G;
        if (std::abs(G) <= slight) continue;
        step(r, slack, share);
        order[kept++] = order[q];
      }
      count = kept;
      double violation = dual_violation(squares);
      b -= share * slope();
      if (b > highest || share == 0) {
        b = std::min(b, highest);
        violation = 2 * problem.C * std::sqrt(squares);
      }
      if (violation <= tolerance) break;
    }
    return epochs;
  }

  // ---- search

  // fn(row, score) of each row of a list that is not known yet.
  template <class Fn>
  void for_unknown(Span<const int32_t> found, const Fn& fn) {
    constexpr int64_t kAhead = 16;
    const int64_t count = found.size();
    for (int64_t t = 0; t < count; ++t) {
      if (t + 2 * kAhead < count) prefetch(X.rows.data() + found[t + 2 * kAhead]);
      if (t + kAhead < count) {
        const RowRef& next = X.rows[found[t + kAhead]];
        prefetch(X.ids.data() + next.id);
        prefetch(X.values.data() + next.value);
        prefetch(X.values.data() + next.value + 16);
      }
      if (!known[found[t]]) fn(found[t], score(found[t]));
    }
  }

  // Takes a step at each unknown row of a list that violates: the rows after it violate less then.
  void step_at(Span<const int32_t> found) {
    for_unknown(found, [&](int32_t i, float z) {
      if (z <= -1) return;
      know(i, -1.f, 1 + z);
      step(rows.back(), 1 + z, 0);
    });
  }

  // Rows to begin with, and w on them: first those that share rare features with the positives, then, to hold
  // frequent features down, any in a sample.
  int begin(double limit, Rng& rng) {
    int epochs = descend(0, limit, 0, kFirstEpochs, rng);
    const auto gap = static_cast<float>(-1 - X.bias * b);
    step_at(search.glance(w.data(), features, gap));
    epochs += descend(kRound2 * limit, limit, 0, kMaxEpochs, rng);
    if (gap > kUsualGap) step_at(search.above(w.data(), features, gap, kSampleStride));
    evaluate();
    return epochs;
  }

  void evaluate() {
    for (KnownRow& r : rows) r.slack = 1 - r.sign * score(r.row);
  }

  // Whether the rows that are not known are still more than `near` outside the margin.
  bool certified() const {
    if (reach < 0) return false;
    double moved = 0;
    for (const int32_t j : features) {
      const double d = static_cast<double>(w[j]) - reference[j];
      moved += d * d;
    }
    return std::sqrt(moved) * postings.longest + X.bias * std::abs(b - b_reference) <= reach;
  }

  // Forgets rows that are far.
  void trim() {
    size_t kept = 0;
    for (const KnownRow& r : rows) {
      if (r.sign > 0 || r.alpha > 0 || r.slack > -near) {
        rows[kept++] = r;
      } else {
        known[r.row] = 0;
      }
    }
    rows.resize(kept);
  }

  // Makes known all rows less than near + reach outside the margin. False: the label is not one for this
  // solver.
  bool find_near() {
    double gap = -1 - X.bias * b;
    if (gap < kLeastGap) {  // too few rows are known yet, and b follows the positives
      if (++lowerings > kMaxLowerings) return false;
      gap = kUsualGap;
      b = -(1 + gap) / X.bias;
      evaluate();
    }
    trim();
    near = std::min<double>(kNear, kShareOfGap * gap);
    reach = std::min(kReach, kShareOfGap * gap);
    const auto outside = static_cast<float>(-1 - near - reach);
    for_unknown(search.above(w.data(), features, static_cast<float>(gap - near - reach), 1),
                [&](int32_t i, float z) {
                  if (z > outside) know(i, -1.f, 1 + z);
                });
    for (const int32_t j : features) reference[j] = w[j];
    b_reference = b;
    return true;
  }

  // ---- the stopping rule

  // A Newton step of the bias alone (center in dual.simd.cpp).
  void center() {
    double slopes = 0, curvatures = 0;
    for (const KnownRow& r : rows) {
      if (r.slack <= 0) continue;
      const double size = r.slack / half_inverse(r);
      slopes -= r.sign * size;
      curvatures += 1 / half_inverse(r);
    }
    const double bias = X.bias, most = near;
    const double z = -bias * (b + bias * slopes) / (1 + bias * bias * curvatures);
    const double shift = std::clamp(z, -most, most);
    b += shift / bias;
    for (KnownRow& r : rows) r.slack -= static_cast<float>(r.sign * shift);
  }

  struct Gradient {
    double g_norm2 = 0, w_norm2 = 0, loss = 0;
    int64_t active = 0;
  };
  Gradient gradient() {
    Gradient out;
    for (KnownRow& r : rows) {
      if (r.slack > 0) touch(r);
    }
    for (const int32_t j : features) {
      g[j] = w[j];
      out.w_norm2 += static_cast<double>(w[j]) * w[j];
    }
    double slopes = 0;
    for (const KnownRow& r : rows) {
      if (r.slack <= 0) continue;
      const float c = -r.sign * r.slack / half_inverse(r);
      for_entries(X, r.row, [&](int64_t j, float v) { g[j] += c * v; });
      slopes += c;
      out.loss += 0.5 * std::abs(static_cast<double>(c)) * r.slack;
      ++out.active;
    }
    for (const int32_t j : features) out.g_norm2 += static_cast<double>(g[j]) * g[j];
    const double last = b + X.bias * slopes;
    out.g_norm2 += last * last;
    out.w_norm2 += b * b;
    return out;
  }

  // ---- a label

  void enter(int64_t label) {
    const auto positives = problem.positive_rows(label);
    h_positive = static_cast<float>(1 / (2 * problem.C * problem.positive_cost(label)));
    h_negative = static_cast<float>(1 / (2 * problem.C));
    b = bias_guess.of(positives.size(), -1.3 / X.bias);
    balance = 0;
    reach = -1;
    lowerings = 0;
    near = kNear;
    for (const int32_t i : positives) know(i, 1.f, 1.f);
  }

  void leave() {
    for (const int32_t j : features) w[j] = reference[j] = g[j] = 0, seen[j] = 0;
    for (const KnownRow& r : rows) known[r.row] = 0;
    features.clear();
    rows.clear();
  }

  // Squared projected gradients of the dual, over the known rows.
  double violation2() const {
    double squares = 0;
    for (const KnownRow& r : rows) {
      if (r.alpha <= 0 && r.slack <= 0) continue;
      const double G = static_cast<double>(r.alpha) * half_inverse(r) - std::max(r.slack, 0.f);
      squares += G * G;
    }
    return squares;
  }

  // False: not solved, the label is not one for this solver.
  bool solve(int64_t label, const PruneRule& prune, uint64_t seed, SolvedLabel* solved) {
    const double began = now();
    Rng rng(seed ^ mix64(static_cast<uint64_t>(label)));
    double limit = stopping_norm(problem, X, label, positive_moments(problem, X, label, sum), 2.0);
    enter(label);
    LabelReport& r = solved->report;
    r.inner_iterations = begin(limit, rng);
    double factor = kRound2, share = 0;  // at first the positives alone would pull at the bias
    int met = 0;
    for (bool done = false; !done;) {
      ++r.outer_iterations;
      r.inner_iterations += descend(factor * limit, limit, share, kMaxEpochs, rng);
      evaluate();
      if (!certified() && !find_near()) return false;
      const double violation = dual_violation(violation2());
      const bool last =
          r.outer_iterations >= problem.max_iter || (met > 0 && r.outer_iterations >= met + kCloser);
      if (violation <= kPromising * limit || last) {
        center();
        const Gradient at = gradient();
        const double norm = std::sqrt(at.g_norm2);
        if (met == 0 && norm <= kCentered * limit) {
          met = r.outer_iterations;
          limit = std::min(limit, distance_limit(problem.tol) * std::sqrt(at.w_norm2));
        }
        const bool close = norm <= kCentered * limit;
        done = close || last;
        r.status = close || met > 0 ? LabelStatus::converged : LabelStatus::iteration_limit;
        r.active_rows = at.active;
        r.objective = 0.5 * at.w_norm2 + at.loss;
        r.gradient_norm = norm;
        r.gap = 0.5 * at.g_norm2;
      }
      if (r.outer_iterations == 1) {
        factor = kRound3;
        share = usual_share;
      } else if (violation <= kNearlyThere * limit || r.outer_iterations > kPatientRounds) {
        factor *= kTighten;
      }
    }
    take(prune, solved);
    if (options.keep_multipliers) solved->multipliers = multipliers();
    bias_guess.add(problem.positive_rows(label).size(), b);
    r.seconds = now() - began;
    return true;
  }

  Multipliers multipliers() {
    std::sort(rows.begin(), rows.end(), [](const KnownRow& x, const KnownRow& y) { return x.row < y.row; });
    Multipliers out;
    for (const KnownRow& r : rows) {
      if (!(r.alpha > 0)) continue;
      out.rows.push_back(r.row);
      out.alpha.push_back(r.alpha);
    }
    out.bias_weight = static_cast<float>(b);
    return out;
  }

  void take(const PruneRule& prune, SolvedLabel* out) {
    order.clear();
    for (const int32_t j : features) {
      if (w[j] != 0 && std::abs(w[j]) >= prune.threshold) order.push_back(X.original[j]);
    }
    std::sort(order.begin(), order.end());
    out->features.assign(order.begin(), order.end());
    out->weights.clear();
    for (const int32_t j : order) out->weights.push_back(w[X.renamed[j]]);
    if (std::abs(b) >= static_cast<double>(prune.bias_threshold)) {
      out->features.push_back(X.original[X.D - 1]);
      out->weights.push_back(static_cast<float>(b));
    }
    keep_largest(*out, prune.keep_top);
  }
};

TailSolver::TailSolver(const LinearProblem& problem, const PreparedFeatures& X, const Postings& postings,
                       const DualOptions& options)
    : state_(std::make_unique<State>(problem, X, postings, options)) {}
TailSolver::~TailSolver() = default;

std::vector<int32_t> TailSolver::solve(const int32_t* labels, int64_t count, const PruneRule& prune,
                                       uint64_t seed, const LabelSink& sink) {
  State& s = *state_;
  std::vector<int32_t> others;
  s.bias_guess.clear();
  for (int64_t k = 0; k < count; ++k) {
    SolvedLabel solved;
    const bool done = s.rare(labels[k]) && s.solve(labels[k], prune, seed, &solved);
    s.leave();
    if (done) {
      sink(labels[k], std::move(solved));
    } else {
      others.push_back(labels[k]);
    }
  }
  return others;
}

}  // namespace xmc::linear
