// The state of block coordinate ascent per label, and the gain of adding or keeping it. A term has
//
//   begin_row(labels, eta, m, chosen, k)    before the gains of a row are asked for
//   add(j, eta, c)                          gain of choosing label j (candidate c of the row), not chosen now
//   keep(j, eta, c)                         what not choosing it any more would lose
//   insert(j, eta), remove(j, eta)          change the prediction
//   utility()
//
// and the linear part of the utility (a, b) folded into all of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "decide/bca.h"
#include "decide/utility.h"

namespace xmc {

class Counts {
 public:
  explicit Counts(const Utility& utility) : u(utility), t(u.p.size(), 0.0), q(u.p.size(), 0.0) {}
  void begin_row(const int32_t*, const float*, int64_t) {}

 protected:
  void count_in(int32_t j, double eta) {
    t[j] += eta;
    q[j] += 1;
  }
  void count_out(int32_t j, double eta) {
    q[j] -= 1;
    t[j] = q[j] > 0 ? std::max(t[j] - eta, 0.0) : 0.0;
  }
  // psi(t, q) - psi(t - eta, q - 1) of a metric, t of the last one out being exactly 0.
  template <class Metric>
  double loss(const Metric& metric, int32_t j, double eta) const {
    const double rest = q[j] > 1 ? std::max(t[j] - eta, 0.0) : 0.0;
    return metric.value(t[j], q[j], u.p[j], u.n) - metric.value(rest, q[j] - 1, u.p[j], u.n);
  }
  template <class Metric>
  double raise(const Metric& metric, int32_t j, double eta) const {
    return metric.value(t[j] + eta, q[j] + 1, u.p[j], u.n) - metric.value(t[j], q[j], u.p[j], u.n);
  }

  const Utility& u;
  std::vector<double> t, q;
};

// One metric that is affine in t: gains are lines in eta, kept per label.
template <class Metric>
class AffineTerm : public Counts {
 public:
  AffineTerm(const Utility& utility, Metric metric, double weight)
      : Counts(utility), metric_(metric), weight_(weight), lines_(u.p.size()) {
    for (size_t j = 0; j < lines_.size(); ++j) refresh(static_cast<int32_t>(j));
  }
  double add(int32_t j, double eta, int64_t) const { return lines_[j].add + lines_[j].add_slope * eta; }
  double keep(int32_t j, double eta, int64_t) const { return lines_[j].keep + lines_[j].keep_slope * eta; }
  void insert(int32_t j, double eta) {
    count_in(j, eta);
    refresh(j);
  }
  void remove(int32_t j, double eta) {
    count_out(j, eta);
    refresh(j);
  }
  double utility() const { return utility_value(u, t.data(), q.data()); }

 private:
  struct Lines {
    double add, add_slope, keep, keep_slope;
  };
  double psi(double t_, double q_, double p_) const { return weight_ * metric_.value(t_, q_, p_, u.n); }
  void refresh(int32_t j) {
    const double p = u.p[j], now = psi(t[j], q[j], p);
    Lines& line = lines_[j];
    line.add = psi(t[j], q[j] + 1, p) - now + u.b[j];
    line.add_slope = psi(1, q[j] + 1, p) - psi(0, q[j] + 1, p) + u.a[j];
    const bool last = q[j] <= 1;  // without it nothing is predicted, t = 0 whatever eta
    line.keep = now - psi(last ? 0 : t[j], q[j] - 1, p) + u.b[j];
    line.keep_slope = (last ? 0 : psi(1, q[j] - 1, p) - psi(0, q[j] - 1, p)) + u.a[j];
  }

  Metric metric_;
  double weight_;
  std::vector<Lines> lines_;
};

// Coverage: chance that at least one of the instances that predict j has it. Misses multiply, so their
// logarithms are summed; certain hits (eta = 1) are counted, a zero cannot be divided out again.
class CoverageTerm : public Counts {
 public:
  CoverageTerm(const Utility& utility, double weight)
      : Counts(utility),
        weight_(weight),
        log_miss_(u.p.size(), 0.0),
        certain_(u.p.size(), 0.0),
        miss_(u.p.size(), 1.0) {}
  double add(int32_t j, double eta, int64_t) const { return (weight_ * miss_[j] + u.a[j]) * eta + u.b[j]; }
  double keep(int32_t j, double eta, int64_t) const {
    return (weight_ * miss_without(j, eta) + u.a[j]) * eta + u.b[j];
  }
  void insert(int32_t j, double eta) {
    count_in(j, eta);
    change(j, eta, 1);
  }
  void remove(int32_t j, double eta) {
    count_out(j, eta);
    change(j, eta, -1);
  }
  double utility() const {
    double covered = 0, linear = u.constant;
    for (size_t j = 0; j < miss_.size(); ++j) {
      covered += 1 - miss_[j];
      linear += u.a[j] * t[j] + u.b[j] * q[j];
    }
    return weight_ * covered + linear;
  }

 private:
  double miss_without(int32_t j, double eta) const {
    if (certain_[j] == 0) return miss_[j] / (1 - eta);
    return certain_[j] == 1 && eta == 1 ? std::exp(log_miss_[j]) : 0.0;
  }
  void change(int32_t j, double eta, double sign) {
    if (eta == 1) {
      certain_[j] += sign;
    } else {
      log_miss_[j] = q[j] > 0 ? log_miss_[j] + sign * std::log1p(-eta) : 0.0;
    }
    miss_[j] = certain_[j] > 0 ? 0.0 : std::exp(log_miss_[j]);
  }

  double weight_;
  std::vector<double> log_miss_, certain_, miss_;
};

// Any number of metrics, chosen at run time; metrics that are not affine in t come here too.
class GeneralTerm : public Counts {
 public:
  explicit GeneralTerm(const Utility& utility)
      : Counts(utility), covered_(utility, coverage_weight(utility)) {}
  double add(int32_t j, double eta, int64_t c) const {
    return covered_.add(j, eta, c) + sum([&](auto metric) { return raise(metric, j, eta); });
  }
  double keep(int32_t j, double eta, int64_t c) const {
    return covered_.keep(j, eta, c) + sum([&](auto metric) { return loss(metric, j, eta); });
  }
  void insert(int32_t j, double eta) {
    count_in(j, eta);
    covered_.insert(j, eta);
  }
  void remove(int32_t j, double eta) {
    count_out(j, eta);
    covered_.remove(j, eta);
  }
  double utility() const {
    return covered_.utility() + sum([&](auto metric) {
             double values = 0;
             for (size_t j = 0; j < t.size(); ++j) values += metric.value(t[j], q[j], u.p[j], u.n);
             return values;
           });
  }

 private:
  static double coverage_weight(const Utility& utility) {
    double weight = 0;
    for (const MetricTerm& term : utility.terms)
      weight += term.kind == MetricKind::coverage ? term.weight : 0;
    return weight;
  }
  template <class F>
  double sum(F&& f) const {
    double total = 0;
    for (const MetricTerm& term : u.terms) {
      if (term.kind != MetricKind::coverage) total += term.weight * visit_metric(term, f);
    }
    return total;
  }
  CoverageTerm covered_;  // carries the linear part as well
};

// A metric that is not affine in t, alone: evaluated for every candidate.
template <class Metric>
class CurvedTerm : public Counts {
 public:
  CurvedTerm(const Utility& utility, Metric metric, double weight)
      : Counts(utility), metric_(metric), weight_(weight), now_(u.p.size()) {
    for (size_t j = 0; j < now_.size(); ++j) refresh(static_cast<int32_t>(j));
  }
  double add(int32_t j, double eta, int64_t) const {
    return weight_ * (metric_.value(t[j] + eta, q[j] + 1, u.p[j], u.n) - now_[j]) + u.a[j] * eta + u.b[j];
  }
  double keep(int32_t j, double eta, int64_t) const {
    return weight_ * loss(metric_, j, eta) + u.a[j] * eta + u.b[j];
  }
  void insert(int32_t j, double eta) {
    count_in(j, eta);
    refresh(j);
  }
  void remove(int32_t j, double eta) {
    count_out(j, eta);
    refresh(j);
  }
  double utility() const { return utility_value(u, t.data(), q.data()); }

 private:
  void refresh(int32_t j) { now_[j] = metric_.value(t[j], q[j], u.p[j], u.n); }
  Metric metric_;
  double weight_;
  std::vector<double> now_;
};

// A metric given as a function of arrays, called once per row with three states of each candidate: with it,
// as it is, without it.
class CallbackTerm : public Counts {
 public:
  CallbackTerm(const Utility& utility, const MetricCallback& metric, double weight)
      : Counts(utility), metric_(metric), weight_(weight / std::max(1.0, static_cast<double>(u.p.size()))) {}
  void begin_row(const int32_t* labels, const float* eta, int64_t m) {
    rows_ = m;
    const auto size = static_cast<size_t>(3 * m);
    for (auto* v : {&t_, &q_, &p_, &psi_}) v->resize(size);
    for (int64_t c = 0; c < m; ++c) {
      const int32_t j = labels[c];
      for (int64_t state = 0; state < 3; ++state) {
        const auto at = static_cast<size_t>(c + state * m);
        const double step = 1 - static_cast<double>(state);
        q_[at] = std::max(q[j] + step, 0.0);
        t_[at] = q_[at] > 0 ? std::max(t[j] + step * static_cast<double>(eta[c]), 0.0) : 0.0;
        p_[at] = u.p[j];
      }
    }
    metric_(t_.data(), q_.data(), p_.data(), 3 * m, psi_.data());
  }
  double add(int32_t j, double eta, int64_t c) const {
    return difference(c, c + rows_) + u.a[j] * eta + u.b[j];
  }
  double keep(int32_t j, double eta, int64_t c) const {
    return difference(c + rows_, c + 2 * rows_) + u.a[j] * eta + u.b[j];
  }
  void insert(int32_t j, double eta) { count_in(j, eta); }
  void remove(int32_t j, double eta) { count_out(j, eta); }
  double utility() const {
    std::vector<double> values(t.size());
    metric_(t.data(), q.data(), u.p.data(), static_cast<int64_t>(t.size()), values.data());
    double sum = 0;
    for (const double value : values) sum += value;
    return weight_ * sum + utility_value(u, t.data(), q.data());
  }

 private:
  double difference(int64_t more, int64_t less) const {
    return weight_ * (psi_[static_cast<size_t>(more)] - psi_[static_cast<size_t>(less)]);
  }
  MetricCallback metric_;
  double weight_;
  int64_t rows_ = 0;
  std::vector<double> t_, q_, p_, psi_;
};

}  // namespace xmc
