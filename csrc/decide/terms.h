// The state of block coordinate ascent per label, and the gain of adding or keeping it. A term has
//
//   begin_row(labels, eta, m, chosen, k)    before the gains of a row are asked for
//   add(j, eta, c)                          gain of choosing label j (candidate c of the row), not chosen now
//   keep(j, eta, c)                         what not choosing it any more would lose
//   insert(j, eta), remove(j, eta)          change the prediction
//   place(j, eta), refresh_all()            the same as many inserts, for the start
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
#include "decide/weighted_topk.h"

namespace xmc {

class Counts {
 public:
  explicit Counts(const Utility& utility) : u(utility), t(u.p.size(), 0.0), q(u.p.size(), 0.0) {}
  void begin_row(const int32_t*, const float*, int64_t) {}
  void place(int32_t j, double eta) { count_in(j, eta); }
  void refresh_all() {}

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
      : Counts(utility), metric_(metric), weight_(weight), add_(u.p.size()), keep_(u.p.size()) {
    refresh_all();
  }
  void refresh_all() {
    for (size_t j = 0; j < add_.size(); ++j) refresh(static_cast<int32_t>(j));
  }
  double add(int32_t j, double eta, int64_t) const { return add_[j](eta); }
  double keep(int32_t j, double eta, int64_t) const { return keep_[j](eta); }
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
  double psi(double t_, double q_, double p_) const { return weight_ * metric_.value(t_, q_, p_, u.n); }
  void refresh(int32_t j) {
    const double p = u.p[j], now = psi(t[j], q[j], p);
    add_[j] = {psi(t[j], q[j] + 1, p) - now + u.b[j], psi(1, q[j] + 1, p) - psi(0, q[j] + 1, p) + u.a[j]};
    const bool last = q[j] <= 1;  // without it nothing is predicted, t = 0 whatever eta
    keep_[j] = {now - psi(last ? 0 : t[j], q[j] - 1, p) + u.b[j],
                (last ? 0 : psi(1, q[j] - 1, p) - psi(0, q[j] - 1, p)) + u.a[j]};
  }

  Metric metric_;
  double weight_;
  std::vector<Line> add_, keep_;
};

// Coverage: chance that at least one of the instances that predict j has it; the chances to miss multiply.
// The product is kept with a power of 2^-512 taken out when it gets too small for a double, and certain hits
// (eta = 1) are counted: a zero cannot be divided out again.
class CoverageTerm : public Counts {
 public:
  CoverageTerm(const Utility& utility, double weight)
      : Counts(utility), weight_(weight), state_(u.p.size()), add_(u.p.size()) {
    refresh_all();
  }
  void refresh_all() {
    for (size_t j = 0; j < add_.size(); ++j) refresh(static_cast<int32_t>(j));
  }
  double add(int32_t j, double eta, int64_t) const { return add_[j](eta); }
  double keep(int32_t j, double eta, int64_t) const {
    const Misses& m = state_[j];
    double without = 0;
    if (m.scale == 0 && m.certain == 0) {
      without = m.product / (1 - eta);
    } else if (m.scale == 0 && m.certain == 1 && eta == 1) {
      without = m.product;
    }
    return (weight_ * without + u.a[j]) * eta + u.b[j];
  }
  void place(int32_t j, double eta) {
    count_in(j, eta);
    Misses& m = state_[j];
    if (eta == 1) {
      ++m.certain;
    } else {
      m.product *= 1 - eta;
      if (m.product < kTiny) {
        m.product /= kTiny;
        ++m.scale;
      }
    }
  }
  void insert(int32_t j, double eta) {
    place(j, eta);
    refresh(j);
  }
  void remove(int32_t j, double eta) {
    count_out(j, eta);
    Misses& m = state_[j];
    if (eta == 1) {
      --m.certain;
    } else {
      m.product /= 1 - eta;
      if (m.product > 1 && m.scale > 0) {
        m.product *= kTiny;
        --m.scale;
      }
    }
    if (q[j] == 0) m = {};
    refresh(j);
  }
  double utility() const {
    double covered = 0, linear = u.constant;
    for (int32_t j = 0; j < static_cast<int32_t>(state_.size()); ++j) {
      covered += 1 - miss(j);
      linear += u.a[j] * t[j] + u.b[j] * q[j];
    }
    return weight_ * covered + linear;
  }

 private:
  static constexpr double kTiny = 0x1.0p-512;
  struct Misses {
    double product = 1;
    int32_t scale = 0, certain = 0;  // chance of a miss: product * kTiny^scale, or 0 if any hit is certain
  };
  double miss(int32_t j) const {
    return state_[j].scale == 0 && state_[j].certain == 0 ? state_[j].product : 0.0;
  }
  void refresh(int32_t j) { add_[j] = {u.b[j], weight_ * miss(j) + u.a[j]}; }

  double weight_;
  std::vector<Misses> state_;
  std::vector<Line> add_;
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
  void place(int32_t j, double eta) {
    count_in(j, eta);
    covered_.place(j, eta);
  }
  void refresh_all() { covered_.refresh_all(); }
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
    refresh_all();
  }
  void refresh_all() {
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
