#include "linear/newton.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/buffer.h"
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

NewtonScratch::NewtonScratch() : memory_(std::make_unique<Memory>()) {}
NewtonScratch::~NewtonScratch() = default;
NewtonScratch::NewtonScratch(NewtonScratch&&) noexcept = default;

namespace {

using Clock = std::chrono::steady_clock;
using LaneFloats = float[kLanes];
using LaneDoubles = double[kLanes];

constexpr double kCgTolerance = 0.1;  // of the gradient norm
constexpr double kCgFloor = 0.3;      // of the norm at which the label stops anyway
constexpr double kMaxGap = 5e-4;      // of f: the largest distance to the minimum at the end
constexpr int kMaxCg = 200;
constexpr int kMaxLineSearch = 20;
constexpr int kMaxStalled = 10;          // float weights cannot reach an arbitrarily small gradient
constexpr double kStepTolerance = 0.02;  // relative, of the step length
constexpr int32_t kNoLabel = -1;         // the problem without positives

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// loss(z), first and second derivative of a positive (s = +1) or negative row; scalar, in double.
struct Terms {
  double value, first, second;
};
Terms loss_terms(Loss loss, bool positive, double z) {
  const double s = positive ? 1 : -1, margin = s * z;
  if (loss == Loss::squared_hinge) {
    const double slack = 1 - margin;
    return slack > 0 ? Terms{slack * slack, -2 * s * slack, 2} : Terms{0, 0, 0};
  }
  const double e = std::exp(-std::abs(margin));
  const double p = margin > 0 ? e / (1 + e) : 1 / (1 + e);  // sigmoid(-margin)
  return {std::log1p(e) + std::max(-margin, 0.0), -s * p, p * (1 - p)};
}

struct Lane {
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

struct Solved {
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

  std::vector<Solved> run(const PruneRule& prune) {
    prune_ = prune;
    while (true) {
      const auto start = Clock::now();
      newton_directions();
      refill();
      const int live = static_cast<int>(
          std::count_if(lane_, lane_ + kLanes, [](const Lane& a) { return a.state != Lane::idle; }));
      if (live == 0) return std::move(solved_);
      start_directions();
      k_.product(all_, ~0u, m_.step.data(), nullptr, m_.Q.data());
      advance();
      const double share = seconds_since(start) / live;
      for (Lane& a : lane_) a.report.seconds += share;
    }
  }

  // After run() on the one label kNoLabel: its weights and scores.
  void read_base(std::vector<float>* w, std::vector<float>* z) const {
    w->resize(static_cast<size_t>(m_.D));
    z->resize(static_cast<size_t>(m_.n));
    for (int64_t j = 0; j < m_.D; ++j) (*w)[static_cast<size_t>(j)] = m_.W[j * kLanes];
    for (int64_t i = 0; i < m_.n; ++i) (*z)[static_cast<size_t>(i)] = m_.Z[i * kLanes];
  }

 private:
  uint32_t lanes_in(Lane::State state) const {
    uint32_t bits = 0;
    for (int l = 0; l < kLanes; ++l) bits |= static_cast<uint32_t>(lane_[l].state == state) << l;
    return bits;
  }

  // ---- labels in and out of lanes

  void refill() {
    for (int l = 0; l < kLanes && next_ < count_; ++l) {
      if (lane_[l].state != Lane::idle) continue;
      while (next_ < count_ && copy_shared(next_)) ++next_;
      if (next_ < count_) enter(lane_[l], next_++);
    }
  }

  // A label without positives or without negatives at cost 1: the shared solution, or its mirror image.
  bool copy_shared(int64_t slot) {
    const int32_t label = labels_[slot];
    if (label == kNoLabel || fit_.base_w.empty()) return false;
    const int64_t positives = p_.positives.size(label);
    const float* cost = positives ? p_.cost_positive : p_.cost_negative;
    if ((positives != 0 && positives != p_.rows()) || (cost && cost[label] != 1.f)) return false;
    const float sign = positives ? -1.f : 1.f;
    Solved& s = solved_[static_cast<size_t>(slot)];
    for (int64_t j = 0; j < m_.D; ++j) keep(s, j, sign * fit_.base_w[static_cast<size_t>(j)]);
    keep_largest(prune_, s.indices, s.values);
    s.report = fit_.base_report;
    s.report.seconds = 0;
    return true;
  }

  void enter(Lane& a, int64_t slot) {
    const int32_t label = labels_[slot];
    const bool real = label != kNoLabel;
    a = Lane();
    a.state = Lane::start;
    a.slot = slot;
    a.rows = real ? p_.positives.indices + p_.positives.begin(label) : nullptr;
    a.positives = real ? p_.positives.size(label) : 0;
    a.cost_positive = p_.C * (real && p_.cost_positive ? double{p_.cost_positive[label]} : 1.0);
    a.cost_negative = p_.C * (real && p_.cost_negative ? double{p_.cost_negative[label]} : 1.0);
    a.z.assign(static_cast<size_t>(a.positives), 0.f);
    a.q = a.z;
  }

  void leave(int l, LabelStatus status) {
    Lane& a = lane_[l];
    Solved& s = solved_[static_cast<size_t>(a.slot)];
    for (int64_t j = 0; j < m_.D; ++j) keep(s, j, m_.W[j * kLanes + l]);
    keep_largest(prune_, s.indices, s.values);
    const bool trivial = a.positives == 0 || a.positives == m_.n;
    a.report.status = trivial && status == LabelStatus::converged ? LabelStatus::trivial : status;
    s.report = a.report;
    a.state = Lane::idle;
  }

  // Objective and active rows of a lane, in double, into its report.
  void evaluate(int l) {
    Lane& a = lane_[l];
    double norm2 = 0, loss = 0;
    a.report.active_rows = 0;
    for (int64_t j = 0; j < m_.D; ++j) {
      const double w = m_.W[j * kLanes + l];
      norm2 += w * w;
    }
    const auto add = [&](bool positive, double cost, double z) {
      const Terms t = loss_terms(fit_.loss, positive, z);
      loss += cost * t.value;
      a.report.active_rows += t.value > 0;
    };
    for (int64_t i = 0; i < m_.n; ++i) {
      const float z = m_.Z[i * kLanes + l];
      if (z > 0.5f * kMasked) add(false, a.cost_negative, z);
    }
    for (const float z : a.z) add(true, a.cost_positive, z);
    a.report.objective = 0.5 * norm2 + loss;
  }

  // LIBLINEAR's rule; and f is 1-strongly convex, so f - min f <= |g|^2 / 2, which must be small as well: for
  // frequent labels the rule alone allows more. If it does, the norm to reach becomes smaller.
  bool converged(int l) {
    Lane& a = lane_[l];
    if (a.report.gradient_norm > a.stop) return false;
    evaluate(l);
    const double limit = std::sqrt(2 * kMaxGap * a.report.objective);
    if (a.report.gradient_norm <= limit) return true;
    a.stop = limit;
    return false;
  }

  void keep(Solved& s, int64_t feature, float w) const {
    if (!keeps(prune_, w)) return;
    s.indices.push_back(static_cast<int32_t>(feature));
    s.values.push_back(w);
  }

  // ---- starts

  void add_row(int l, int64_t row, double scale) {
    for_each_entry(p_, row,
                   [&](int64_t j, float x) { m_.step[j * kLanes + l] += static_cast<float>(scale * x); });
  }

  // Writes the first step of the lanes that start. Newton lanes' steps are there already, other columns 0.
  void start_directions() {
    const uint32_t starting = lanes_in(Lane::start);
    if (!starting) return;
    LaneFloats keep, all{}, base{};
    for (int l = 0; l < kLanes; ++l) {
      keep[l] = 1.f;
      if (starting >> l & 1) base[l] = start_lane(l, &all[l]) ? 1.f : 0.f;
    }
    if (std::any_of(all, all + kLanes, [](float v) { return v != 0; })) {
      k_.update_outer(keep, all, fit_.totals.total_float.data(), m_.D, m_.step.data());
    }
    if (std::any_of(base, base + kLanes, [](float v) { return v != 0; })) {
      for (int l = 0; l < kLanes; ++l) keep[l] = 1.f - base[l];
      k_.update_outer(keep, base, fit_.base_w.data(), m_.D, m_.W.data());
      k_.update_outer(keep, base, fit_.base_z.data(), m_.n, m_.Z.data());
      for (int l = 0; l < kLanes; ++l) {
        if (base[l] != 0) mask_positives(l);
      }
    }
  }

  // Returns whether the lane starts from the all-negative solution; *all is the share of sum_i x_i.
  bool start_lane(int l, float* all) {
    Lane& a = lane_[l];
    const auto moments = positive_moments(p_, fit_.totals, a.rows, a.positives, m_.work);
    // |g(0)|, g(0) = -loss'(0) ((c+ + c-) sum_positives x - c- T)
    const double both = a.cost_positive + a.cost_negative, n = std::max(1.0, static_cast<double>(m_.n)),
                 P = static_cast<double>(a.positives);
    const double g2 = both * both * moments.pp - 2 * both * a.cost_negative * moments.pT +
                      a.cost_negative * a.cost_negative * fit_.totals.norm2;
    a.stop = p_.eps * std::max(std::min(P, n - P), 1.0) / n * std::sqrt(std::max(g2, 0.0)) *
             std::abs(loss_terms(fit_.loss, true, 0).first);
    a.search = false;
    if (fit_.init == InitRule::bias && !fit_.base_w.empty() && a.cost_negative == p_.C) {
      // First step: steepest descent on what the positives change, g = (c+ loss'(z) - c- loss'(-z)) x.
      a.search = true;
      for (int64_t k = 0; k < a.positives; ++k) {
        const float z = fit_.base_z[static_cast<size_t>(a.rows[k])];
        a.z[static_cast<size_t>(k)] = z;
        add_row(l, a.rows[k],
                a.cost_negative * loss_terms(fit_.loss, false, z).first -
                    a.cost_positive * loss_terms(fit_.loss, true, z).first);
      }
      return true;
    }
    if (fit_.init == InitRule::warm && labels_[a.slot] != kNoLabel) {
      for (int64_t t = fit_.warm.begin(labels_[a.slot]); t < fit_.warm.end(labels_[a.slot]); ++t) {
        m_.step[int64_t{fit_.warm.indices[t]} * kLanes + l] = fit_.warm.data[t];
      }
    } else if (fit_.init != InitRule::zero) {
      const Start start = separating_start(p_, fit_.totals, fit_.init, a.rows, a.positives, moments, m_.work);
      for (size_t k = 0; k < start.positive.size(); ++k) add_row(l, a.rows[k], start.positive[k]);
      *all = static_cast<float>(start.all);
    }
    return false;
  }

  void mask_positives(int l) {
    for (int64_t k = 0; k < lane_[l].positives; ++k) m_.Z[int64_t{lane_[l].rows[k]} * kLanes + l] = kMasked;
  }

  // ---- Newton direction

  void newton_directions() {
    const uint32_t lanes = lanes_in(Lane::newton);
    if (!lanes) {
      std::fill_n(m_.step.data(), m_.D * kLanes, 0.f);
      return;
    }
    collect_active_rows(lanes);
    compact_features();
    const uint32_t live = gradient(lanes);
    conjugate_gradients(live);
    for (const int32_t j : m_.features) m_.compact[static_cast<size_t>(j)] = -1;
  }

  // The rows any of the lanes needs, with their curvature S^2 and slope H.
  void collect_active_rows(uint32_t lanes) {
    LaneFloats above, cost{};
    const bool hinge = fit_.loss == Loss::squared_hinge;
    for (int l = 0; l < kLanes; ++l) {
      const bool on = lanes >> l & 1;
      above[l] = !on ? std::numeric_limits<float>::infinity() : hinge ? -1.f : 0.5f * kMasked;
      if (on) cost[l] = static_cast<float>(lane_[l].cost_negative);
    }
    loss_.mark(m_.Z.data(), above, m_.n, m_.marks.data());
    for_each_positive(lanes, [&](int l, int64_t k, const Terms& t) {
      if (t.second > 0) m_.marks[static_cast<size_t>(lane_[l].rows[k])] |= 1u << l;
    });
    m_.ids.clear();
    m_.mask.clear();
    for (int64_t i = 0; i < m_.n; ++i) {
      if (!m_.marks[static_cast<size_t>(i)]) continue;
      m_.place[static_cast<size_t>(i)] = static_cast<int32_t>(m_.ids.size());
      m_.ids.push_back(static_cast<int32_t>(i));
      m_.mask.push_back(m_.marks[static_cast<size_t>(i)]);
    }
    const auto count = static_cast<int64_t>(m_.ids.size());
    m_.resize_rows(count);
    loss_.terms(m_.Z.data(), m_.ids.data(), count, above, cost, m_.S.data(), m_.H.data());
    for_each_positive(lanes, [&](int l, int64_t k, const Terms& t) {
      if (!(t.second > 0)) return;
      const int64_t at = int64_t{m_.place[static_cast<size_t>(lane_[l].rows[k])]} * kLanes + l;
      m_.S[at] = static_cast<float>(std::sqrt(lane_[l].cost_positive * t.second));
      m_.H[at] = static_cast<float>(lane_[l].cost_positive * t.first);
    });
    active_ = all_;
    active_.count = count;
    active_.ids = m_.ids.data();
    active_.mask = m_.mask.data();
  }

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
  void compact_features() {
    m_.features.clear();
    compacted_ = false;
    features_ = m_.D;
    if (p_.dense()) return;
    const auto count = static_cast<size_t>(active_.count);
    m_.begin.resize(count);
    m_.end.resize(count);
    int64_t nnz = 0;
    for (size_t u = 0; u < count; ++u) {
      m_.begin[u] = p_.X.begin(m_.ids[u]);
      m_.end[u] = p_.X.end(m_.ids[u]);
      nnz += m_.end[u] - m_.begin[u];
    }
    if (nnz < m_.D) {
      compacted_ = true;
      m_.indices.clear();
      m_.values.clear();
      for (size_t u = 0; u < count; ++u) {
        const int64_t from = m_.begin[u], to = m_.end[u];
        m_.begin[u] = static_cast<int64_t>(m_.indices.size());
        for (int64_t t = from; t < to; ++t) {
          int32_t& id = m_.compact[static_cast<size_t>(p_.X.indices[t])];
          if (id < 0) {
            id = static_cast<int32_t>(m_.features.size());
            m_.features.push_back(p_.X.indices[t]);
          }
          m_.indices.push_back(id);
          m_.values.push_back(p_.X.data[t]);
        }
        m_.end[u] = static_cast<int64_t>(m_.indices.size());
      }
      features_ = static_cast<int64_t>(m_.features.size());
      active_.indices = m_.indices.data();
      active_.values = m_.values.data();
    }
    active_.begin = m_.begin.data();
    active_.end = m_.end.data();
  }

  // G = w + X'H on the features in use (g = w on the others). Lanes that meet the stopping rule leave;
  // returns those that go on.
  uint32_t gradient(uint32_t lanes) {
    LaneFloats on;
    for (int l = 0; l < kLanes; ++l) on[l] = static_cast<float>(lanes >> l & 1);
    LaneDoubles outside{};
    if (compacted_) {
      for (int64_t f = 0; f < features_; ++f) {
        const float* w = m_.W.data() + int64_t{m_.features[static_cast<size_t>(f)]} * kLanes;
        for (int l = 0; l < kLanes; ++l) m_.G[f * kLanes + l] = on[l] * w[l];
      }
      LaneDoubles inside;
      k_.dot(m_.W.data(), m_.W.data(), m_.D, outside);
      k_.dot(m_.G.data(), m_.G.data(), features_, inside);
      for (int l = 0; l < kLanes; ++l) outside[l] = std::max(outside[l] - inside[l], 0.0);
    } else {
      k_.scale(on, m_.W.data(), m_.D, m_.G.data());
    }
    k_.add_transposed(active_, lanes, nullptr, m_.H.data(), m_.G.data());
    k_.dot(m_.G.data(), m_.G.data(), features_, gg_);
    uint32_t live = 0;
    for (int l = 0; l < kLanes; ++l) {
      if (!(lanes >> l & 1)) continue;
      Lane& a = lane_[l];
      a.report.gradient_norm = std::sqrt(gg_[l] + outside[l]);
      a.stalled = a.report.gradient_norm < 0.9 * a.best ? 0 : a.stalled + 1;
      a.best = std::min(a.best, a.report.gradient_norm);
      if (converged(l)) {
        leave(l, LabelStatus::converged);
      } else if (a.report.outer_iterations >= p_.max_iterations || a.stalled >= kMaxStalled) {
        evaluate(l);
        leave(l, LabelStatus::iteration_limit);
      } else {
        ++a.report.outer_iterations;
        a.search = true;
        live |= 1u << l;
      }
    }
    return live;
  }

  // The direction of the live lanes into m_.step; other columns become 0. See newton.h for (y, c).
  void conjugate_gradients(uint32_t live) {
    const int64_t U = active_.count;
    for (auto* b : {&m_.cr, &m_.up, &m_.cp, &m_.cd}) std::fill_n(b->data(), U * kLanes, 0.f);
    LaneDoubles rho, old{}, pp{}, uu;
    LaneFloats yr{}, yp{}, yd{}, alpha, beta;
    for (int l = 0; l < kLanes; ++l) {
      rho[l] = gg_[l];
      if (live >> l & 1) yr[l] = -1.f;
    }
    uint32_t going = live;
    for (int k = 0; k < kMaxCg && going; ++k) {
      k_.scale(yr, m_.G.data(), features_, m_.V.data());
      if (k > 0) {
        k_.add_transposed(active_, going, m_.S.data(), m_.cr.data(), m_.V.data());
        k_.dot(m_.V.data(), m_.V.data(), features_, rho);
        for (int l = 0; l < kLanes; ++l) {
          const double tolerance = std::max(kCgTolerance * std::sqrt(gg_[l]), kCgFloor * lane_[l].stop);
          if (rho[l] <= tolerance * tolerance) going &= ~(1u << l);
        }
        if (!going) break;
      }
      k_.product(active_, going, m_.V.data(), m_.S.data(), m_.ur.data());
      for (int l = 0; l < kLanes; ++l) {
        const bool on = going >> l & 1;
        beta[l] = on && k > 0 ? static_cast<float>(rho[l] / old[l]) : 0.f;
        yp[l] = yr[l] + beta[l] * yp[l];
        pp[l] = rho[l] + double{beta[l]} * beta[l] * pp[l];
        lane_[l].report.inner_iterations += on;
      }
      k_.cg_direction(beta, m_.ur.data(), m_.cr.data(), U, m_.up.data(), m_.cp.data(), uu);
      for (int l = 0; l < kLanes; ++l) {
        alpha[l] = going >> l & 1 ? static_cast<float>(rho[l] / (pp[l] + uu[l])) : 0.f;
        yd[l] += alpha[l] * yp[l];
        yr[l] -= alpha[l] * yp[l];
        old[l] = rho[l];
      }
      k_.cg_step(alpha, m_.up.data(), m_.cp.data(), U, m_.cd.data(), m_.cr.data());
    }
    float* d = compacted_ ? m_.V.data() : m_.step.data();
    k_.scale(yd, m_.G.data(), features_, d);
    k_.add_transposed(active_, live, m_.S.data(), m_.cd.data(), d);
    if (compacted_) {
      LaneFloats minus;
      for (int l = 0; l < kLanes; ++l) minus[l] = live >> l & 1 ? -1.f : 0.f;
      k_.scale(minus, m_.W.data(), m_.D, m_.step.data());
      for (int64_t f = 0; f < features_; ++f) {
        std::copy_n(d + f * kLanes, kLanes,
                    m_.step.data() + int64_t{m_.features[static_cast<size_t>(f)]} * kLanes);
      }
    }
  }

  // ---- line search and update

  void advance() {
    for (int l = 0; l < kLanes; ++l) {
      Lane& a = lane_[l];
      for (int64_t k = 0; a.state != Lane::idle && k < a.positives; ++k) {
        float& q = m_.Q[int64_t{a.rows[k]} * kLanes + l];
        a.q[static_cast<size_t>(k)] = q;
        q = 0;
      }
    }
    LaneFloats t, keep;
    line_search(t);
    for (int l = 0; l < kLanes; ++l) keep[l] = lane_[l].state == Lane::start && !lane_[l].search ? 0.f : 1.f;
    k_.update(keep, t, m_.step.data(), m_.D, m_.W.data());
    k_.update(keep, t, m_.Q.data(), m_.n, m_.Z.data());
    for (int l = 0; l < kLanes; ++l) {
      Lane& a = lane_[l];
      if (a.state == Lane::idle) continue;
      for (size_t k = 0; k < a.z.size(); ++k) a.z[k] = keep[l] * a.z[k] + t[l] * a.q[k];
      if (keep[l] == 0.f) mask_positives(l);
      a.state = Lane::newton;
    }
  }

  // The minimum of f(w + t d) over t per searching lane, by safeguarded Newton on its derivative; the others
  // take t = 1 (starts) or 0 (idle).
  void line_search(LaneFloats& t) {
    LaneDoubles wd, dd, first, second, low{}, high, step;
    k_.dot(m_.W.data(), m_.step.data(), m_.D, wd);
    k_.dot(m_.step.data(), m_.step.data(), m_.D, dd);
    uint32_t open = 0;
    for (int l = 0; l < kLanes; ++l) {
      step[l] = lane_[l].state == Lane::idle ? 0 : 1;
      high[l] = std::numeric_limits<double>::infinity();
      if (lane_[l].state != Lane::idle && lane_[l].search && dd[l] > 0) open |= 1u << l;
    }
    for (int k = 0; k < kMaxLineSearch && open; ++k) {
      for (int l = 0; l < kLanes; ++l) t[l] = static_cast<float>(step[l]);
      loss_.slope(m_.Z.data(), m_.Q.data(), t, m_.n, first, second);
      for (int l = 0; l < kLanes; ++l) {
        if (!(open >> l & 1)) continue;
        const Lane& a = lane_[l];
        double f1 = wd[l] + step[l] * dd[l] + a.cost_negative * first[l];
        double f2 = dd[l] + a.cost_negative * second[l];
        for (size_t i = 0; i < a.z.size(); ++i) {
          const double q = a.q[i];
          const Terms p = loss_terms(fit_.loss, true, a.z[i] + step[l] * q);
          f1 += a.cost_positive * p.first * q;
          f2 += a.cost_positive * p.second * q * q;
        }
        (f1 > 0 ? high : low)[l] = step[l];
        double next = step[l] - f1 / f2;
        if (!(next > low[l] && next < high[l])) {
          next = std::isfinite(high[l]) ? 0.5 * (low[l] + high[l]) : 2 * step[l];
        }
        if (std::abs(next - step[l]) <= kStepTolerance * step[l]) open &= ~(1u << l);
        step[l] = next;
      }
    }
    for (int l = 0; l < kLanes; ++l) t[l] = static_cast<float>(step[l]);
  }

  const NewtonFit& fit_;
  const LinearProblem& p_;
  const int32_t* labels_;
  const int64_t count_;
  NewtonScratch::Memory& m_;
  std::vector<Solved> solved_;
  PruneRule prune_;
  const NewtonKernels& k_ = newton_kernels();
  const LossKernels& loss_ = fit_.loss == Loss::logistic ? logistic_kernels() : hinge_kernels();
  Lane lane_[kLanes];
  int64_t next_ = 0;
  RowSet all_, active_;
  int64_t features_ = 0;  // lines of G and V in use
  bool compacted_ = false;
  LaneDoubles gg_{};  // squared gradient norm on those features
};

}  // namespace

NewtonFit prepare_newton(const LinearProblem& problem, Loss loss, InitRule init,
                         const CsrView<int32_t, float>& warm) {
  NewtonFit fit;
  fit.problem = problem;
  fit.loss = loss;
  fit.init = init;
  fit.warm = warm;
  fit.totals = row_totals(problem);
  bool shared = init == InitRule::bias;
  for (int64_t label = 0; label < problem.positives.rows && !shared; ++label) {
    const int64_t positives = problem.positives.size(label);
    shared = positives == 0 || positives == problem.rows();
  }
  if (shared) {
    NewtonScratch scratch;
    BlockSolver solver(fit, &kNoLabel, 1, scratch.memory());
    fit.base_report = solver.run({0.f, 0})[0].report;
    solver.read_base(&fit.base_w, &fit.base_z);
  }
  return fit;
}

void solve_newton(const NewtonFit& fit, const int32_t* labels, int64_t count, const PruneRule& prune,
                  NewtonScratch& scratch, LabelWeights* out, LabelReport* reports) {
  BlockSolver solver(fit, labels, count, scratch.memory());
  for (const Solved& s : solver.run(prune)) {
    out->indices.insert(out->indices.end(), s.indices.begin(), s.indices.end());
    out->values.insert(out->values.end(), s.values.begin(), s.values.end());
    out->indptr.push_back(static_cast<int64_t>(out->indices.size()));
    *reports++ = s.report;
  }
}

}  // namespace xmc
