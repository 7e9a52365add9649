#include "linear/newton_state.h"

namespace xmc::linear {

void NewtonSolver::State::advance() {
  for (int l = 0; l < kLanes; ++l) {
    NewtonLane& a = lane_[l];
    for (int64_t k = 0; a.phase != NewtonLane::idle && k < a.rows.size(); ++k) {
      float& q = m_.Q[int64_t{a.rows[k]} * kLanes + l];
      a.q[k] = q;
      q = 0;
    }
  }
  LaneFloats t, keep;
  line_search(t);
  for (int l = 0; l < kLanes; ++l) {
    keep[l] = lane_[l].phase == NewtonLane::start && !lane_[l].search ? 0.f : 1.f;
  }
  k_.update(keep, t, m_.step.data(), X_.D, m_.W.data());
  k_.update(keep, t, m_.Q.data(), X_.n, m_.Z.data());
  for (int l = 0; l < kLanes; ++l) {
    NewtonLane& a = lane_[l];
    if (a.phase == NewtonLane::idle) continue;
    for (size_t k = 0; k < a.z.size(); ++k) a.z[k] = keep[l] * a.z[k] + t[l] * a.q[k];
    if (keep[l] == 0.f) mask_positives(l);
    a.phase = NewtonLane::newton;
  }
}

void NewtonSolver::State::line_search(LaneFloats& t) {
  LaneDoubles wd, dd, first, second, low{}, high, step;
  k_.dot(m_.W.data(), m_.step.data(), X_.D, wd);
  k_.dot(m_.step.data(), m_.step.data(), X_.D, dd);
  uint32_t open = 0;
  for (int l = 0; l < kLanes; ++l) {
    step[l] = lane_[l].phase == NewtonLane::idle ? 0 : 1;
    high[l] = std::numeric_limits<double>::infinity();
    if (lane_[l].phase != NewtonLane::idle && lane_[l].search && dd[l] > 0) open |= 1u << l;
  }
  for (int k = 0; k < kMaxLineSearch && open; ++k) {
    for (int l = 0; l < kLanes; ++l) t[l] = static_cast<float>(step[l]);
    loss_.slope(m_.Z.data(), m_.Q.data(), t, X_.n, first, second);
    for_lanes(open, [&](int l) {
      const NewtonLane& a = lane_[l];
      double f1 = wd[l] + step[l] * dd[l] + p_.C * first[l];
      double f2 = dd[l] + p_.C * second[l];
      for (size_t i = 0; i < a.z.size(); ++i) {
        const double q = a.q[i];
        const LossTerms p = loss_terms(fit_.loss, true, a.z[i] + step[l] * q);
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
    });
  }
  for (int l = 0; l < kLanes; ++l) t[l] = static_cast<float>(step[l]);
}

}  // namespace xmc::linear
