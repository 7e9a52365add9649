#include "linear/newton_state.h"

namespace xmc::linear {

void NewtonSolver::State::newton_directions() {
  const uint32_t lanes = lanes_in(NewtonLane::newton);
  if (!lanes) {
    std::fill_n(m_.step.data(), X_.D * kLanes, 0.f);
    return;
  }
  collect_active_rows(lanes);
  compact_features();
  conjugate_gradients(gradient(lanes));
  for (const int32_t j : m_.features) m_.compact[j] = -1;
}

void NewtonSolver::State::collect_active_rows(uint32_t lanes) {
  // A negative row is active when its z is above the margin (hinge), or always (logistic); positives have
  // z = kMasked and are marked one by one.
  const float threshold = fit_.loss == Loss::squared_hinge ? -1.f : 0.5f * kMasked;
  LaneFloats above, cost{};
  std::fill_n(above, kLanes, std::numeric_limits<float>::infinity());
  for_lanes(lanes, [&](int l) {
    above[l] = threshold;
    cost[l] = static_cast<float>(p_.C);
  });
  loss_.mark(m_.Z.data(), above, X_.n, m_.marks.data());
  for_each_positive(lanes, [&](int l, int64_t k, const LossTerms& t) {
    if (t.second > 0) m_.marks[lane_[l].rows[k]] |= 1u << l;
  });
  m_.ids.clear();
  m_.mask.clear();
  for (int64_t i = 0; i < X_.n; ++i) {
    if (!m_.marks[i]) continue;
    m_.place[i] = static_cast<int32_t>(m_.ids.size());
    m_.ids.push_back(static_cast<int32_t>(i));
    m_.mask.push_back(m_.marks[i]);
  }
  active_ = all_;
  active_.count = static_cast<int64_t>(m_.ids.size());
  active_.ids = m_.ids.data();
  active_.mask = m_.mask.data();
  m_.reserve_active(active_.count);
  loss_.terms(m_.Z.data(), m_.ids.data(), active_.count, above, cost, m_.S.data(), m_.H.data());
  for_each_positive(lanes, [&](int l, int64_t k, const LossTerms& t) {
    if (!(t.second > 0)) return;
    const int64_t at = int64_t{m_.place[lane_[l].rows[k]]} * kLanes + l;
    m_.S[at] = static_cast<float>(std::sqrt(lane_[l].cost_positive * t.second));
    m_.H[at] = static_cast<float>(lane_[l].cost_positive * t.first);
  });
}

void NewtonSolver::State::compact_features() {
  m_.features.clear();
  compacted_ = false;
  if (X_.dense) return;
  int64_t entries = active_.count;
  for (const int32_t i : m_.ids) entries += X_.rows[i].head + X_.rows[i].tail;
  if (entries >= X_.D) return;
  compacted_ = true;
  m_.rows.clear();
  m_.words.clear();
  m_.values.clear();
  for (const int32_t i : m_.ids) compact_row(i);
  if (X_.bias != 0) m_.features.push_back(static_cast<int32_t>(X_.D - 1));
  active_.x = {m_.rows.data(), m_.words.data(), m_.values.data(), nullptr, X_.width, X_.bias};
  active_.lines = static_cast<int64_t>(m_.features.size());
  active_.ids = nullptr;
}

void NewtonSolver::State::compact_row(int64_t i) {
  RowRef row{static_cast<int64_t>(m_.values.size()), static_cast<int64_t>(m_.words.size()), 0, 0, 0, 0};
  for_entries(X_, i, [&](int64_t j, float v) {
    int32_t& id = m_.compact[j];
    if (id < 0) {
      id = static_cast<int32_t>(m_.features.size());
      m_.features.push_back(static_cast<int32_t>(j));
    }
    if (id >= kHeadIds) {
      ++row.tail;
      return;
    }
    ++row.head;
    m_.words.push_back(static_cast<uint16_t>(id));
    m_.values.push_back(v);
  });
  row.stored = (row.head + kPad - 1) / kPad * kPad;
  for (int32_t t = row.head; t < row.stored; ++t) {
    m_.words.push_back(static_cast<uint16_t>(std::min<int64_t>(t % kPad, X_.D - 1)));
    m_.values.push_back(0.f);
  }
  if (row.tail > 0) {
    for_entries(X_, i, [&](int64_t j, float v) {
      const int32_t id = m_.compact[j];
      if (id < kHeadIds) return;
      m_.words.push_back(static_cast<uint16_t>(id));
      m_.words.push_back(static_cast<uint16_t>(id >> 16));
      m_.values.push_back(v);
    });
  }
  m_.rows.push_back(row);
}

uint32_t NewtonSolver::State::gradient(uint32_t lanes) {
  LaneFloats on{};
  for_lanes(lanes, [&](int l) { on[l] = 1.f; });
  LaneDoubles outside{};
  if (compacted_) {
    for (int64_t f = 0; f < active_.lines; ++f) {
      const float* w = m_.W.data() + int64_t{m_.features[f]} * kLanes;
      for (int l = 0; l < kLanes; ++l) m_.G[f * kLanes + l] = on[l] * w[l];
    }
    LaneDoubles inside;
    k_.dot(m_.W.data(), m_.W.data(), X_.D, outside);
    k_.dot(m_.G.data(), m_.G.data(), active_.lines, inside);
    for (int l = 0; l < kLanes; ++l) outside[l] = std::max(outside[l] - inside[l], 0.0);
  } else {
    k_.scale(on, m_.W.data(), X_.D, m_.G.data());
  }
  k_.add_transposed(active_, lanes, nullptr, m_.H.data(), m_.G.data());
  k_.dot(m_.G.data(), m_.G.data(), active_.lines, gg_);
  uint32_t live = 0;
  for_lanes(lanes, [&](int l) {
    NewtonLane& a = lane_[l];
    a.report.gradient_norm = std::sqrt(gg_[l] + outside[l]);
    a.stalled = a.report.gradient_norm < 0.9 * a.best ? 0 : a.stalled + 1;
    a.best = std::min(a.best, a.report.gradient_norm);
    if (converged(l)) {
      leave(l, LabelStatus::converged);
    } else if (a.report.outer_iterations >= p_.max_iter || a.stalled >= kMaxStalled) {
      evaluate(l);
      leave(l, LabelStatus::iteration_limit);
    } else {
      ++a.report.outer_iterations;
      a.search = true;
      live |= 1u << l;
    }
  });
  return live;
}

void NewtonSolver::State::conjugate_gradients(uint32_t live) {
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
    k_.scale(yr, m_.G.data(), active_.lines, m_.V.data());
    if (k > 0) {
      k_.add_transposed(active_, going, m_.S.data(), m_.cr.data(), m_.V.data());
      k_.dot(m_.V.data(), m_.V.data(), active_.lines, rho);
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
  k_.scale(yd, m_.G.data(), active_.lines, d);
  k_.add_transposed(active_, live, m_.S.data(), m_.cd.data(), d);
  if (compacted_) {
    LaneFloats minus;
    for (int l = 0; l < kLanes; ++l) minus[l] = live >> l & 1 ? -1.f : 0.f;
    k_.scale(minus, m_.W.data(), X_.D, m_.step.data());
    for (int64_t f = 0; f < active_.lines; ++f) {
      std::copy_n(d + f * kLanes, kLanes, m_.step.data() + int64_t{m_.features[f]} * kLanes);
    }
  }
}

}  // namespace xmc::linear
