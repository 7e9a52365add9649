#include "linear/newton_block.h"

namespace xmc {

void BlockSolver::newton_directions() {
  const uint32_t lanes = lanes_in(NewtonLane::newton);
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

void BlockSolver::collect_active_rows(uint32_t lanes) {
  LaneFloats above, cost{};
  const bool hinge = fit_.loss == Loss::squared_hinge;
  for (int l = 0; l < kLanes; ++l) {
    const bool on = lanes >> l & 1;
    above[l] = !on ? std::numeric_limits<float>::infinity() : hinge ? -1.f : 0.5f * kMasked;
    if (on) cost[l] = static_cast<float>(lane_[l].cost_negative);
  }
  loss_.mark(m_.Z.data(), above, m_.n, m_.marks.data());
  for_each_positive(lanes, [&](int l, int64_t k, const LossTerms& t) {
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
  for_each_positive(lanes, [&](int l, int64_t k, const LossTerms& t) {
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

void BlockSolver::compact_features() {
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

uint32_t BlockSolver::gradient(uint32_t lanes) {
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
    NewtonLane& a = lane_[l];
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

void BlockSolver::conjugate_gradients(uint32_t live) {
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

}  // namespace xmc
