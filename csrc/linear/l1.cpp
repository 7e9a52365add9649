#include "linear/l1.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/rng.h"
#include "linear/init.h"
#include "linear/prune.h"

namespace xmc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kNoLabel = -1;  // the problem without positives
constexpr int kMaxHalvings = 20;
constexpr double kSufficient = 0.01;  // share of the predicted decrease a step must reach
constexpr double kTiny = 1e-12;

class L1Solver {
 public:
  L1Solver(const L1Fit& fit, L1Scratch& scratch) : fit_(fit), p_(fit.problem), s_(scratch) {
    s_.cost.resize(static_cast<size_t>(p_.rows()));
    s_.sign.resize(static_cast<size_t>(p_.rows()));
    s_.active.resize(static_cast<size_t>(p_.features()));
  }

  // Leaves the weights in scratch.w.
  LabelReport solve(int32_t label) {
    const auto start = Clock::now();
    enter(label);
    LabelReport report;
    const double n = static_cast<double>(std::max<int64_t>(p_.rows(), 1));
    const double P = static_cast<double>(positives_);
    const double eps = p_.eps * std::max(std::min(P, n - P), 1.0) / n;
    Rng rng(p_.seed ^ mix64(static_cast<uint64_t>(static_cast<uint32_t>(label))));
    size_t active = s_.active.size();
    double worst = std::numeric_limits<double>::infinity(), first = -1;
    report.status = LabelStatus::iteration_limit;
    while (report.outer_iterations < p_.max_iterations) {
      ++report.outer_iterations;
      shuffle(s_.active.data(), static_cast<int64_t>(active), rng);
      const Sweep sweep = visit(active, worst / n);
      report.inner_iterations += sweep.steps;
      report.gradient_norm = sweep.violation;
      if (first < 0) first = sweep.violation;
      worst = sweep.worst;
      if (sweep.violation > eps * first) continue;
      if (active == s_.active.size()) {
        report.status = LabelStatus::converged;
        break;
      }
      active = s_.active.size();  // bring the shrunk features back and look again
      worst = std::numeric_limits<double>::infinity();
    }
    for (size_t i = 0; i < s_.slack.size(); ++i) {
      if (s_.slack[i] <= 0) continue;
      ++report.active_rows;
      report.objective += s_.cost[i] * s_.slack[i] * s_.slack[i];
    }
    for (const double w : s_.w) report.objective += std::abs(w);
    if ((positives_ == 0 || positives_ == p_.rows()) && report.status == LabelStatus::converged) {
      report.status = LabelStatus::trivial;
    }
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return report;
  }

 private:
  struct Sweep {
    double violation = 0, worst = 0;
    int32_t steps = 0;
  };

  void enter(int32_t label) {
    const bool real = label != kNoLabel;
    positives_ = real ? p_.positives.size(label) : 0;
    const double c_pos = p_.C * (real && p_.cost_positive ? double{p_.cost_positive[label]} : 1.0);
    const double c_neg = p_.C * (real && p_.cost_negative ? double{p_.cost_negative[label]} : 1.0);
    s_.w.assign(s_.active.size(), 0.0);
    s_.slack.assign(s_.cost.size(), 1.0);
    std::fill(s_.cost.begin(), s_.cost.end(), c_neg);
    std::fill(s_.sign.begin(), s_.sign.end(), int8_t{-1});
    std::iota(s_.active.begin(), s_.active.end(), 0);
    s_.bound.resize(fit_.norm2.size());
    for (size_t j = 0; j < s_.bound.size(); ++j) s_.bound[j] = c_neg * fit_.norm2[j];
    for (int64_t k = 0; k < positives_; ++k) {
      const int64_t i = p_.positives.indices[p_.positives.begin(label) + k];
      s_.cost[static_cast<size_t>(i)] = c_pos;
      s_.sign[static_cast<size_t>(i)] = 1;
      if (c_pos == c_neg) continue;
      for_each_entry(p_, i, [&](int64_t j, float x) {
        s_.bound[static_cast<size_t>(j)] += (c_pos - c_neg) * x * double{x};
      });
    }
  }

  template <class Fn>
  void for_column(int32_t j, const Fn& fn) const {
    for (int64_t t = fit_.begin[static_cast<size_t>(j)]; t < fit_.begin[static_cast<size_t>(j) + 1]; ++t) {
      const auto i = static_cast<size_t>(fit_.rows[static_cast<size_t>(t)]);
      fn(i, double{fit_.values[static_cast<size_t>(t)]} * s_.sign[i]);
    }
  }

  // Slope and curvature of the loss along feature j.
  std::pair<double, double> derivatives(int32_t j) const {
    double g = 0, h = 0;
    for_column(j, [&](size_t i, double x) {
      if (s_.slack[i] <= 0) return;
      const double cx = s_.cost[i] * x;
      g -= cx * s_.slack[i];
      h += cx * x;
    });
    return {2 * g, std::max(2 * h, kTiny)};
  }

  // Moves w_j by `step` in the slacks; returns the change of the loss.
  double shift(int32_t j, double step) {
    double change = 0;
    for_column(j, [&](size_t i, double x) {
      const double before = s_.slack[i], after = before - step * x;
      s_.slack[i] = after;
      if (before > 0) change -= s_.cost[i] * before * before;
      if (after > 0) change += s_.cost[i] * after * after;
    });
    return change;
  }

  // One pass over the first `active` features; shrinks those at zero whose slope is inside by `margin`.
  Sweep visit(size_t& active, double margin) {
    Sweep sweep;
    for (size_t k = 0; k < active; ++k) {
      const int32_t j = s_.active[k];
      double& w = s_.w[static_cast<size_t>(j)];
      const auto [g, h] = derivatives(j);
      double violation = 0;
      if (w == 0) {
        violation = std::max({0.0, g - 1, -1 - g});
        if (violation == 0 && g + 1 > margin && g - 1 < -margin) {
          std::swap(s_.active[k--], s_.active[--active]);
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
      w += search(j, w, g, std::clamp(d, -10.0, 10.0));
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
      const bool surely = s_.bound[static_cast<size_t>(j)] * step * step + g * step + slack <= 0;
      change += shift(j, step - moved);
      moved = step;
      if (surely || change + slack <= 0) return moved;
    }
    shift(j, -moved);
    return 0;
  }

  const L1Fit& fit_;
  const LinearProblem& p_;
  L1Scratch& s_;
  int64_t positives_ = 0;
};

bool one_class(const LinearProblem& p, int64_t label) {
  const int64_t positives = p.positives.size(label);
  return positives == 0 || positives == p.rows();
}

}  // namespace

L1Fit prepare_l1(const LinearProblem& problem) {
  L1Fit fit;
  fit.problem = problem;
  const auto D = static_cast<size_t>(problem.features());
  fit.begin.assign(D + 1, 0);
  fit.norm2.assign(D, 0.0);
  const auto entries = [&](const auto& fn) {
    for (int64_t i = 0; i < problem.rows(); ++i) {
      for_each_entry(problem, i, [&](int64_t j, float x) {
        if (x != 0.f) fn(i, static_cast<size_t>(j), x);
      });
    }
  };
  entries([&](int64_t, size_t j, float x) {
    ++fit.begin[j + 1];
    fit.norm2[j] += double{x} * x;
  });
  std::partial_sum(fit.begin.begin(), fit.begin.end(), fit.begin.begin());
  fit.rows.resize(static_cast<size_t>(fit.begin[D]));
  fit.values.resize(fit.rows.size());
  std::vector<int64_t> next(fit.begin.begin(), fit.begin.end() - 1);
  entries([&](int64_t i, size_t j, float x) {
    const auto t = static_cast<size_t>(next[j]++);
    fit.rows[t] = static_cast<int32_t>(i);
    fit.values[t] = x;
  });
  bool shared = false;
  for (int64_t label = 0; label < problem.positives.rows; ++label) shared |= one_class(problem, label);
  if (shared) {
    L1Scratch scratch;
    fit.base_report = L1Solver(fit, scratch).solve(kNoLabel);
    fit.base_report.seconds = 0;
    fit.base_w.assign(scratch.w.begin(), scratch.w.end());
  }
  return fit;
}

void solve_l1(const L1Fit& fit, const int32_t* labels, int64_t count, const PruneRule& prune,
              L1Scratch& scratch, LabelWeights* out, LabelReport* reports) {
  L1Solver solver(fit, scratch);
  const LinearProblem& p = fit.problem;
  std::vector<int32_t> indices;
  std::vector<float> values;
  for (int64_t k = 0; k < count; ++k) {
    const int32_t label = labels[k];
    const bool mirrored = p.positives.size(label) > 0;
    const float* cost = mirrored ? p.cost_positive : p.cost_negative;
    const bool shared = one_class(p, label) && (!cost || cost[label] == 1.f);
    reports[k] = shared ? fit.base_report : solver.solve(label);
    indices.clear();
    values.clear();
    for (int64_t j = 0; j < p.features(); ++j) {
      const auto at = static_cast<size_t>(j);
      const float w = !shared    ? static_cast<float>(scratch.w[at])
                      : mirrored ? -fit.base_w[at]
                                 : fit.base_w[at];
      if (!keeps(prune, w)) continue;
      indices.push_back(static_cast<int32_t>(j));
      values.push_back(w);
    }
    keep_largest(prune, indices, values);
    out->indices.insert(out->indices.end(), indices.begin(), indices.end());
    out->values.insert(out->values.end(), values.begin(), values.end());
    out->indptr.push_back(static_cast<int64_t>(out->indices.size()));
  }
}

}  // namespace xmc
