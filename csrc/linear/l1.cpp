#include "linear/l1.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/rng.h"
#include "linear/prune.h"

namespace xmc::linear {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxHalvings = 20;
constexpr double kSufficient = 0.01;  // share of the predicted decrease a step must reach
constexpr double kTiny = 1e-12;
constexpr double kMaxStep = 10;

}  // namespace

struct L1Solver::State {
  State(const LinearProblem& problem, const PreparedFeatures& X, const L1Columns& columns)
      : p_(problem), X_(X), columns_(columns), cost_(X.n), sign_(X.n), active_(X.D) {}

  // Leaves the weights in w.
  LabelReport solve(int32_t label) {
    const auto start = Clock::now();
    enter(label);
    LabelReport report;
    const double n = static_cast<double>(std::max<int64_t>(X_.n, 1));
    const auto P = static_cast<double>(p_.positive_rows(label).size());
    const double tol = p_.tol * std::max(std::min(P, n - P), 1.0) / n;
    Rng rng(p_.seed ^ mix64(static_cast<uint64_t>(static_cast<uint32_t>(label))));
    size_t active = active_.size();
    double worst = std::numeric_limits<double>::infinity(), first = -1;
    report.status = LabelStatus::iteration_limit;
    while (report.outer_iterations < p_.max_iter) {
      ++report.outer_iterations;
      shuffle(active_.data(), static_cast<int64_t>(active), rng);
      const Sweep sweep = visit(active, worst / n);
      report.inner_iterations += sweep.steps;
      report.gradient_norm = sweep.violation;
      if (first < 0) first = sweep.violation;
      worst = sweep.worst;
      if (sweep.violation > tol * first) continue;
      if (active == active_.size()) {
        report.status = LabelStatus::converged;
        break;
      }
      active = active_.size();  // bring the shrunk features back and look again
      worst = std::numeric_limits<double>::infinity();
    }
    for (size_t i = 0; i < slack_.size(); ++i) {
      if (slack_[i] <= 0) continue;
      ++report.active_rows;
      report.objective += cost_[i] * slack_[i] * slack_[i];
    }
    for (const double w : w_) report.objective += std::abs(w);
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return report;
  }

  const PreparedFeatures& X() const { return X_; }
  // Of feature j in the numbering of prepare.h.
  float weight(int64_t j) const { return static_cast<float>(w_[X_.original[j]]); }

 private:
  struct Sweep {
    double violation = 0, worst = 0;
    int32_t steps = 0;
  };

  void enter(int32_t label) {
    const auto positives = p_.positive_rows(label);
    const double c_pos = p_.C * p_.positive_cost(label);
    w_.assign(X_.D, 0.0);
    slack_.assign(X_.n, 1.0);
    std::fill(cost_.begin(), cost_.end(), p_.C);
    std::fill(sign_.begin(), sign_.end(), int8_t{-1});
    std::iota(active_.begin(), active_.end(), 0);
    bound_.resize(X_.D);
    for (int64_t j = 0; j < X_.D; ++j) bound_[j] = p_.C * columns_.norm2[j];
    for (const int32_t i : positives) {
      cost_[i] = c_pos;
      sign_[i] = 1;
      if (c_pos == p_.C) continue;
      for_features(X_, i,
                   [&](int64_t j, float x) { bound_[X_.original[j]] += (c_pos - p_.C) * x * double{x}; });
    }
  }

  template <class Fn>
  void for_column(int32_t j, const Fn& fn) const {
    for (int64_t t = columns_.begin[j]; t < columns_.begin[j + 1]; ++t) {
      const auto i = columns_.rows[t];
      fn(i, double{columns_.values[t]} * sign_[i]);
    }
  }

  // Slope and curvature of the loss along feature j.
  std::pair<double, double> derivatives(int32_t j) const {
    double g = 0, h = 0;
    for_column(j, [&](int64_t i, double x) {
      if (slack_[i] <= 0) return;
      const double cx = cost_[i] * x;
      g -= cx * slack_[i];
      h += cx * x;
    });
    return {2 * g, std::max(2 * h, kTiny)};
  }

  // Moves w_j by `step` in the slacks; returns the change of the loss.
  double shift(int32_t j, double step) {
    double change = 0;
    for_column(j, [&](int64_t i, double x) {
      const double before = slack_[i], after = before - step * x;
      slack_[i] = after;
      if (before > 0) change -= cost_[i] * before * before;
      if (after > 0) change += cost_[i] * after * after;
    });
    return change;
  }

  // One pass over the first `active` features; shrinks those at zero whose slope is inside by `margin`.
  Sweep visit(size_t& active, double margin) {
    Sweep sweep;
    for (size_t k = 0; k < active; ++k) {
      const int32_t j = active_[k];
      double& w = w_[j];
      const auto [g, h] = derivatives(j);
      double violation = 0;
      if (w == 0) {
        violation = std::max({0.0, g - 1, -1 - g});
        if (violation == 0 && g + 1 > margin && g - 1 < -margin) {
          std::swap(active_[k--], active_[--active]);
          continue;
        }
      } else {
        violation = std::abs(w > 0 ? g + 1 : g - 1);
      }
      sweep.worst = std::max(sweep.worst, violation);
      sweep.violation += violation;
      // The minimum of the quadratic model plus |w|.
      const double d = g + 1 < h * w ? -(g + 1) / h : g - 1 > h * w ? -(g - 1) / h : -w;
      if (std::abs(d) < kTiny) continue;
      ++sweep.steps;
      w += search(j, w, g, std::clamp(d, -kMaxStep, kMaxStep));
    }
    return sweep;
  }

  // The first of d, d/2, d/4, ... that decreases f enough; the slacks follow. Returns the step taken.
  double search(int32_t j, double w, double g, double d) {
    const double predicted = std::abs(w + d) - std::abs(w) + g * d;
    double moved = 0, change = 0, scale = 1;
    for (int k = 0; k < kMaxHalvings; ++k, scale *= 0.5) {
      const double step = scale * d, penalty = std::abs(w + step) - std::abs(w);
      const double slack = penalty - kSufficient * scale * predicted;
      // A bound on the loss that needs no pass before the slacks are moved.
      const bool surely = bound_[j] * step * step + g * step + slack <= 0;
      change += shift(j, step - moved);
      moved = step;
      if (surely || change + slack <= 0) return moved;
    }
    shift(j, -moved);
    return 0;
  }

  const LinearProblem& p_;
  const PreparedFeatures& X_;
  const L1Columns& columns_;
  std::vector<double> slack_;    // n: 1 - s_i w.x_i
  std::vector<double> cost_;     // n: C c_i
  std::vector<int8_t> sign_;     // n
  std::vector<double> w_;        // D
  std::vector<double> bound_;    // D: sum_i C c_i x_ij^2
  std::vector<int32_t> active_;  // D: features in play first
};

L1Solver::L1Solver(const LinearProblem& problem, const PreparedFeatures& X, const L1Columns& columns)
    : state_(std::make_unique<State>(problem, X, columns)) {}
L1Solver::~L1Solver() = default;

void L1Solver::solve(const int32_t* labels, int64_t count, const PruneRule& rule, uint64_t,
                     const LabelSink& sink) {
  for (int64_t k = 0; k < count; ++k) {
    const LabelReport report = state_->solve(labels[k]);
    sink(labels[k], prune(rule, state_->X(), report, [&](int64_t j) { return state_->weight(j); }));
  }
}

BaseSolution L1Solver::solve_base() {
  BaseSolution base;
  base.report = state_->solve(kNoLabel);
  for (int64_t j = 0; j < state_->X().D; ++j) base.w.push_back(state_->weight(j));
  return base;
}

L1Columns l1_columns(const PreparedFeatures& X) {
  L1Columns out;
  out.begin.assign(X.D + 1, 0);
  out.norm2.assign(X.D, 0.0);
  const auto entries = [&](const auto& fn) {
    for (int64_t i = 0; i < X.n; ++i) {
      for_features(X, i, [&](int64_t j, float x) {
        if (x != 0.f) fn(i, X.original[j], x);
      });
    }
  };
  entries([&](int64_t, int32_t j, float x) {
    ++out.begin[j + 1];
    out.norm2[j] += double{x} * x;
  });
  std::partial_sum(out.begin.begin(), out.begin.end(), out.begin.begin());
  out.rows.resize(out.begin[X.D]);
  out.values.resize(out.rows.size());
  std::vector<int64_t> next(out.begin.begin(), out.begin.end() - 1);
  entries([&](int64_t i, int32_t j, float x) {
    const int64_t t = next[j]++;
    out.rows[t] = static_cast<int32_t>(i);
    out.values[t] = x;
  });
  return out;
}

std::vector<MemoryRange> memory_of(const L1Columns& columns) {
  return {{columns.rows.data(), columns.rows.size() * sizeof(int32_t)},
          {columns.values.data(), columns.values.size() * sizeof(float)}};
}

}  // namespace xmc::linear
