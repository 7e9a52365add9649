// The state of block coordinate ascent, kept per label, and the gains that follow from it. A state has
//
//   kTable                         whether gains are lines in eta, kept in a table. If so:
//     row_gains(labels, eta, m, gains)   float gains of the m candidates of a row
//     quick_keep(j, eta, gain)           float value of keep(), at most; filter() bounds its error
//   begin_row(labels, eta, m)      called before add() and keep() of a row
//   add(j, eta, c)                 what choosing label j (candidate c of the row) would gain
//   keep(j, eta, c)                what the utility would lose without the chosen label j
//   insert(j, eta), remove(j, eta) change the prediction
//   place(j, eta), refresh_all()   the same as many inserts, for the start
//   prefetch(j)                    asks for the memory of label j
//   utility()
//
// The linear part of the utility (a, b) is folded into all gains.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/prefetch.h"
#include "decide/utility.h"
#include "decide/weighted_topk.h"

namespace xmc::decide {

// States that keep a struct per label and a table of gains: State has place(j, eta) and refresh(j).
template <class State, class Label>
class TableState {
 public:
  static constexpr bool kTable = true;
  void begin_row(const int32_t*, const float*, int64_t) {}
  void prefetch(int32_t j) const { xmc::prefetch(&labels_[j]); }
  const RowFilter& filter() const { return filter_; }
  void refresh_all() {
    for (size_t j = 0; j < labels_.size(); ++j) self().refresh(static_cast<int32_t>(j));
  }
  void insert(int32_t j, double eta) {
    self().place(j, eta);
    self().refresh(j);
  }

 protected:
  explicit TableState(const Utility& utility) : u(utility), labels_(u.p.size()) {}
  const Utility& u;
  const RowKernels& kernels_ = row_kernels();
  RowFilter filter_;
  std::vector<Label> labels_;

 private:
  State& self() { return static_cast<State&>(*this); }
};

// What a change of a label needs, in one cache line.
struct alignas(64) AffineLabel {
  double t, q, p, a, b;
  Line keep;
};

// One metric that is affine in t: gains are lines in eta.
template <class Metric>
class AffineState : public TableState<AffineState<Metric>, AffineLabel> {
  using Base = TableState<AffineState<Metric>, AffineLabel>;
  using Base::filter_, Base::labels_, Base::u;

 public:
  AffineState(const Utility& utility, Metric metric, double weight)
      : Base(utility), metric_(metric), weight_(weight), add_(u.labels()), quick_keep_(u.p.size()) {
    for (size_t j = 0; j < labels_.size(); ++j) labels_[j] = {0, 0, u.p[j], u.a[j], u.b[j], {}};
    this->refresh_all();
  }
  void row_gains(const int32_t* labels, const float* eta, int64_t m, float* gains) const {
    this->kernels_.line_gains(add_.quick(), labels, eta, m, gains);
  }
  float quick_keep(int32_t j, float eta, float) const {
    return quick_keep_[j].offset + quick_keep_[j].slope * eta;
  }
  double add(int32_t j, double eta, int64_t) const { return add_[j](eta); }
  double keep(int32_t j, double eta, int64_t) const { return labels_[j].keep(eta); }
  void place(int32_t j, double eta) {
    labels_[j].t += eta;
    labels_[j].q += 1;
  }
  void remove(int32_t j, double eta) {
    AffineLabel& l = labels_[j];
    l.q -= 1;
    l.t = l.q > 0 ? std::max(l.t - eta, 0.0) : 0.0;
    refresh(j);
  }
  void refresh(int32_t j) {
    AffineLabel& l = labels_[j];
    const double now = psi(l.t, l.q, l.p), more = l.q + 1, less = l.q - 1;
    add_.set(j, {psi(l.t, more, l.p) - now + l.b, psi(1, more, l.p) - psi(0, more, l.p) + l.a});
    const bool last = l.q <= 1;  // without it nothing is predicted, t = 0 whatever eta
    l.keep = {now - psi(last ? 0 : l.t, less, l.p) + l.b,
              (last ? 0 : psi(1, less, l.p) - psi(0, less, l.p)) + l.a};
    quick_keep_[j] = {static_cast<float>(l.keep.offset), static_cast<float>(l.keep.slope)};
    filter_.largest_offset =
        std::max({filter_.largest_offset, add_.filter().largest_offset, std::abs(l.keep.offset)});
  }
  double utility() const {
    double values = 0, linear = u.constant;
    for (const AffineLabel& l : labels_) {
      values += metric_.value(l.t, l.q, l.p, u.n);
      linear += l.a * l.t + l.b * l.q;
    }
    return weight_ * values + linear;
  }

 private:
  double psi(double t, double q, double p) const { return weight_ * metric_.value(t, q, p, u.n); }
  Metric metric_;
  double weight_;
  LineTable add_;
  std::vector<FloatLine> quick_keep_;
};

// The chance of a miss is misses * CoverageState::kTiny^scale, or 0 if a hit is certain.
struct alignas(32) CoverageLabel {
  double t = 0, misses = 1;
  int32_t q = 0, scale = 0, certain = 0;
  double miss() const { return scale == 0 && certain == 0 ? misses : 0.0; }
};

// Coverage: chance that at least one of the instances that predict j has it; the chances to miss multiply.
// The product is kept with a power of 2^-512 taken out when it gets too small for a double, and certain hits
// (eta = 1) are counted: a zero cannot be divided out again.
class CoverageState : public TableState<CoverageState, CoverageLabel> {
 public:
  CoverageState(const Utility& utility, double weight)
      : TableState(utility), weight_(weight), slope_(u.p.size()) {
    for (size_t j = 0; j < slope_.size(); ++j) {
      alone_ &= u.a[j] == 0 && u.b[j] == 0;
      filter_.largest_offset = std::max(filter_.largest_offset, std::abs(u.b[j]));
    }
    refresh_all();
  }
  void row_gains(const int32_t* labels, const float* eta, int64_t m, float* gains) const {
    kernels_.slope_gains(slope_.data(), labels, eta, m, gains);
    for (int64_t c = 0; c < m && !alone_; ++c) gains[c] += static_cast<float>(u.b[labels[c]]);
  }
  float quick_keep(int32_t, float eta, float gain) const {
    // A miss by all the others is a miss by all over 1 - eta. Elsewhere no bound: the exact gains decide.
    return alone_ && eta < 1.f ? gain / (1.f - eta) : -1e30f;
  }
  double add(int32_t j, double eta, int64_t) const { return gain(j, eta, labels_[j].miss()); }
  double keep(int32_t j, double eta, int64_t) const {
    const CoverageLabel& l = labels_[j];
    double without = 0;  // chance that all the others miss
    if (l.scale == 0 && l.certain == 0) without = l.misses / (1 - eta);
    if (l.scale == 0 && l.certain == 1 && eta == 1) without = l.misses;
    return gain(j, eta, without);
  }
  void place(int32_t j, double eta) {
    CoverageLabel& l = labels_[j];
    l.t += eta;
    ++l.q;
    if (eta == 1) {
      ++l.certain;
    } else if ((l.misses *= 1 - eta) < kTiny) {
      l.misses /= kTiny;
      ++l.scale;
    }
  }
  void remove(int32_t j, double eta) {
    CoverageLabel& l = labels_[j];
    l.t = std::max(l.t - eta, 0.0);
    if (--l.q == 0) {
      l = {};
    } else if (eta == 1) {
      --l.certain;
    } else if ((l.misses /= 1 - eta) > 1 && l.scale > 0) {
      l.misses *= kTiny;
      --l.scale;
    }
    refresh(j);
  }
  void refresh(int32_t j) {
    slope_[j] = static_cast<float>(weight_ * labels_[j].miss() + (alone_ ? 0.0 : u.a[j]));
  }
  double utility() const {
    double covered = 0, linear = u.constant;
    for (size_t j = 0; j < labels_.size(); ++j) {
      covered += 1 - labels_[j].miss();
      linear += u.a[j] * labels_[j].t + u.b[j] * labels_[j].q;
    }
    return weight_ * covered + linear;
  }

 private:
  static constexpr double kTiny = 0x1.0p-512;
  double gain(int32_t j, double eta, double missed) const {
    const double covered = weight_ * missed * eta;
    return alone_ ? covered : covered + u.a[j] * eta + u.b[j];
  }
  double weight_;
  bool alone_ = true;  // there is no linear part
  std::vector<float> slope_;
};

// The counts t and q, for metrics whose gains are recomputed for every candidate.
class Counts {
 public:
  static constexpr bool kTable = false;
  explicit Counts(const Utility& utility) : u(utility), t(u.p.size(), 0.0), q(u.p.size(), 0.0) {}
  void begin_row(const int32_t*, const float*, int64_t) {}
  void prefetch(int32_t) const {}
  void place(int32_t j, double eta) { insert(j, eta); }
  void refresh_all() {}
  void insert(int32_t j, double eta) {
    t[j] += eta;
    q[j] += 1;
  }
  void remove(int32_t j, double eta) {
    q[j] -= 1;
    t[j] = q[j] > 0 ? std::max(t[j] - eta, 0.0) : 0.0;
  }
  double utility() const { return utility_value(u, t.data(), q.data()); }

 protected:
  double linear(int32_t j, double eta) const { return u.a[j] * eta + u.b[j]; }
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

// Any number of metrics, chosen at run time.
class GeneralState : public Counts {
 public:
  explicit GeneralState(const Utility& utility)
      : Counts(utility), covered_(utility, coverage_weight(utility)) {}
  double add(int32_t j, double eta, int64_t c) const {
    return covered_.add(j, eta, c) + sum([&](auto metric) { return raise(metric, j, eta); });
  }
  double keep(int32_t j, double eta, int64_t c) const {
    return covered_.keep(j, eta, c) + sum([&](auto metric) { return loss(metric, j, eta); });
  }
  void place(int32_t j, double eta) {
    Counts::insert(j, eta);
    covered_.place(j, eta);
  }
  void refresh_all() { covered_.refresh_all(); }
  void insert(int32_t j, double eta) {
    Counts::insert(j, eta);
    covered_.insert(j, eta);
  }
  void remove(int32_t j, double eta) {
    Counts::remove(j, eta);
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
  CoverageState covered_;  // carries the linear part as well
};

// One metric that is not affine in t. psi(t, q) is kept per label: half of the work of a gain.
template <class Metric>
class CurvedState : public Counts {
 public:
  CurvedState(const Utility& utility, Metric metric, double weight)
      : Counts(utility), metric_(metric), weight_(weight), now_(u.p.size()) {
    refresh_all();
  }
  double add(int32_t j, double eta, int64_t) const {
    return weight_ * (metric_.value(t[j] + eta, q[j] + 1, u.p[j], u.n) - now_[j]) + linear(j, eta);
  }
  double keep(int32_t j, double eta, int64_t) const {
    return weight_ * loss(metric_, j, eta) + linear(j, eta);
  }
  void refresh_all() {
    for (size_t j = 0; j < now_.size(); ++j) refresh(j);
  }
  void insert(int32_t j, double eta) {
    Counts::insert(j, eta);
    refresh(j);
  }
  void remove(int32_t j, double eta) {
    Counts::remove(j, eta);
    refresh(j);
  }

 private:
  void refresh(size_t j) { now_[j] = metric_.value(t[j], q[j], u.p[j], u.n); }
  Metric metric_;
  double weight_;
  std::vector<double> now_;
};

// The metric of the caller (Utility::custom), called once per row with three states of each candidate: with
// it, as it is, without it.
class CallbackState : public Counts {
 public:
  explicit CallbackState(const Utility& utility)
      : Counts(utility), weight_(u.custom_weight / std::max<double>(1, u.labels())) {}
  void begin_row(const int32_t* labels, const float* eta, int64_t m) {
    rows_ = m;
    for (auto* v : {&t_, &q_, &p_, &psi_}) v->resize(3 * m);
    for (int64_t c = 0; c < m; ++c) {
      const int32_t j = labels[c];
      for (int64_t state = 0; state < 3; ++state) {
        const int64_t at = c + state * m;
        const double step = 1 - static_cast<double>(state);
        q_[at] = std::max(q[j] + step, 0.0);
        t_[at] = q_[at] > 0 ? std::max(t[j] + step * static_cast<double>(eta[c]), 0.0) : 0.0;
        p_[at] = u.p[j];
      }
    }
    u.custom(t_.data(), q_.data(), p_.data(), 3 * m, psi_.data());
  }
  double add(int32_t j, double eta, int64_t c) const {
    return weight_ * (psi_[c] - psi_[c + rows_]) + linear(j, eta);
  }
  double keep(int32_t j, double eta, int64_t c) const {
    return weight_ * (psi_[c + rows_] - psi_[c + 2 * rows_]) + linear(j, eta);
  }

 private:
  double weight_;
  int64_t rows_ = 0;
  std::vector<double> t_, q_, p_, psi_;
};

}  // namespace xmc::decide
