// The state of block coordinate ascent per label, and the gain of adding or keeping it. A term has
//
//   kTable                                  gains of a row come from a table: row_gains(labels, eta, m,
//   gains) begin_row(labels, eta, m)               before the gains of a row are asked for add(j, eta, c)
//   else: gain of choosing label j (candidate c of the row) keep(j, eta, c)                         what not
//   choosing it any more would lose insert(j, eta), remove(j, eta)          change the prediction place(j,
//   eta), refresh_all()            the same as many inserts, for the start utility()
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
  static constexpr bool kTable = false;
  explicit Counts(const Utility& utility) : u(utility), t(u.p.size(), 0.0), q(u.p.size(), 0.0) {}
  void begin_row(const int32_t*, const float*, int64_t) {}
  void prefetch(int32_t) const {}
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

// One metric that is affine in t: gains are lines in eta, kept per label. What a change of a label needs is
// in one cache line.
template <class Metric>
class AffineTerm {
 public:
  static constexpr bool kTable = true;
  AffineTerm(const Utility& u, Metric metric, double weight)
      : metric_(metric),
        weight_(weight),
        n_(u.n),
        constant_(u.constant),
        add_(u.labels()),
        quick_keep_(u.p.size()),
        labels_(u.p.size()) {
    for (size_t j = 0; j < labels_.size(); ++j) labels_[j] = {0, 0, u.p[j], u.a[j], u.b[j], {}};
    refresh_all();
  }
  void begin_row(const int32_t*, const float*, int64_t) {}
  void prefetch([[maybe_unused]] int32_t j) const {
#if defined(__GNUC__)
    __builtin_prefetch(&labels_[j]);
#endif
  }
  void row_gains(const int32_t* labels, const float* eta, int64_t m, float* gains) const {
    kernels_.line_gains(add_.quick(), labels, eta, m, gains);
  }
  float quick_keep(int32_t j, float eta, float) const {
    return quick_keep_[j].offset + quick_keep_[j].slope * eta;
  }
  const RowFilter& filter() const { return filter_; }
  double add(int32_t j, double eta, int64_t) const { return add_[j](eta); }
  double keep(int32_t j, double eta, int64_t) const { return labels_[j].keep(eta); }
  void place(int32_t j, double eta) {
    labels_[j].t += eta;
    labels_[j].q += 1;
  }
  void refresh_all() {
    for (size_t j = 0; j < labels_.size(); ++j) refresh(static_cast<int32_t>(j));
  }
  void insert(int32_t j, double eta) {
    place(j, eta);
    refresh(j);
  }
  void remove(int32_t j, double eta) {
    Label& l = labels_[j];
    l.q -= 1;
    l.t = l.q > 0 ? std::max(l.t - eta, 0.0) : 0.0;
    refresh(j);
  }
  double utility() const {
    double values = 0, linear = constant_;
    for (const Label& l : labels_) {
      values += metric_.value(l.t, l.q, l.p, n_);
      linear += l.a * l.t + l.b * l.q;
    }
    return weight_ * values + linear;
  }

 private:
  struct alignas(64) Label {
    double t, q, p, a, b;
    Line keep;
  };
  double psi(double t, double q, double p) const { return weight_ * metric_.value(t, q, p, n_); }
  void refresh(int32_t j) {
    Label& l = labels_[j];
    const double now = psi(l.t, l.q, l.p), more = l.q + 1, less = l.q - 1;
    add_.set(j, {psi(l.t, more, l.p) - now + l.b, psi(1, more, l.p) - psi(0, more, l.p) + l.a});
    const bool last = l.q <= 1;  // without it nothing is predicted, t = 0 whatever eta
    l.keep = {now - psi(last ? 0 : l.t, less, l.p) + l.b,
              (last ? 0 : psi(1, less, l.p) - psi(0, less, l.p)) + l.a};
    quick_keep_[j] = {static_cast<float>(l.keep.offset), static_cast<float>(l.keep.slope)};
    filter_.largest_offset =
        std::max({filter_.largest_offset, add_.filter().largest_offset, std::abs(l.keep.offset)});
  }

  const RowKernels& kernels_ = row_kernels();
  Metric metric_;
  double weight_, n_, constant_;
  LineTable add_;
  std::vector<FloatLine> quick_keep_;
  RowFilter filter_;
  std::vector<Label> labels_;
};

// Coverage: chance that at least one of the instances that predict j has it; the chances to miss multiply.
// The product is kept with a power of 2^-512 taken out when it gets too small for a double, and certain hits
// (eta = 1) are counted: a zero cannot be divided out again.
class CoverageTerm {
 public:
  static constexpr bool kTable = true;
  CoverageTerm(const Utility& utility, double weight)
      : u_(utility), weight_(weight), slope_(u_.p.size()), labels_(u_.p.size()) {
    for (size_t j = 0; j < slope_.size(); ++j) {
      alone_ &= u_.a[j] == 0 && u_.b[j] == 0;
      filter_.largest_offset = std::max(filter_.largest_offset, std::abs(u_.b[j]));
    }
    refresh_all();
  }
  void begin_row(const int32_t*, const float*, int64_t) {}
  void prefetch([[maybe_unused]] int32_t j) const {
#if defined(__GNUC__)
    __builtin_prefetch(&labels_[j]);
#endif
  }
  void row_gains(const int32_t* labels, const float* eta, int64_t m, float* gains) const {
    kernels_.slope_gains(slope_.data(), labels, eta, m, gains);
    for (int64_t c = 0; c < m && !alone_; ++c) gains[c] += static_cast<float>(u_.b[labels[c]]);
  }
  float quick_keep(int32_t, float eta, float gain) const {
    // A miss by all the others is a miss by all over 1 - eta; where that does not help, look closer.
    return alone_ && eta < 1.f ? gain / (1.f - eta) : -1e30f;
  }
  const RowFilter& filter() const { return filter_; }
  double add(int32_t j, double eta, int64_t) const {
    const double covered = weight_ * miss(labels_[j]) * eta;
    return alone_ ? covered : covered + u_.a[j] * eta + u_.b[j];
  }
  double keep(int32_t j, double eta, int64_t) const {
    const Label& l = labels_[j];
    double without = 0;
    if (l.scale == 0 && l.certain == 0) {
      without = l.misses / (1 - eta);
    } else if (l.scale == 0 && l.certain == 1 && eta == 1) {
      without = l.misses;
    }
    const double covered = weight_ * without * eta;
    return alone_ ? covered : covered + u_.a[j] * eta + u_.b[j];
  }
  void place(int32_t j, double eta) {
    Label& l = labels_[j];
    l.t += eta;
    ++l.q;
    if (eta == 1) {
      ++l.certain;
    } else {
      l.misses *= 1 - eta;
      if (l.misses < kTiny) {
        l.misses /= kTiny;
        ++l.scale;
      }
    }
  }
  void refresh_all() {
    for (size_t j = 0; j < slope_.size(); ++j) refresh(static_cast<int32_t>(j));
  }
  void insert(int32_t j, double eta) {
    place(j, eta);
    refresh(j);
  }
  void remove(int32_t j, double eta) {
    Label& l = labels_[j];
    if (--l.q == 0) {
      l = {};
    } else {
      l.t = std::max(l.t - eta, 0.0);
      if (eta == 1) {
        --l.certain;
      } else {
        l.misses /= 1 - eta;
        if (l.misses > 1 && l.scale > 0) {
          l.misses *= kTiny;
          --l.scale;
        }
      }
    }
    refresh(j);
  }
  double utility() const {
    double covered = 0, linear = u_.constant;
    for (size_t j = 0; j < labels_.size(); ++j) {
      covered += 1 - miss(labels_[j]);
      linear += u_.a[j] * labels_[j].t + u_.b[j] * static_cast<double>(labels_[j].q);
    }
    return weight_ * covered + linear;
  }

 private:
  static constexpr double kTiny = 0x1.0p-512;
  struct alignas(32) Label {
    double t = 0, misses = 1;
    int32_t q = 0, scale = 0,
            certain = 0;  // chance of a miss: misses * kTiny^scale, or 0 if a hit is certain
  };
  static double miss(const Label& l) { return l.scale == 0 && l.certain == 0 ? l.misses : 0.0; }
  void refresh(int32_t j) {
    slope_[j] = static_cast<float>(weight_ * miss(labels_[j]) + (alone_ ? 0.0 : u_.a[j]));
  }

  const RowKernels& kernels_ = row_kernels();
  const Utility& u_;
  double weight_;
  bool alone_ = true;  // there is no linear part
  RowFilter filter_;
  std::vector<float> slope_;
  std::vector<Label> labels_;
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
