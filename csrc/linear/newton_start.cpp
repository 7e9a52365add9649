#include "linear/newton_state.h"

namespace xmc::linear {

void NewtonSolver::State::add_row(int l, int64_t row, double scale) {
  for_features(X_, row,
               [&](int64_t j, float x) { m_.step[j * kLanes + l] += static_cast<float>(scale * x); });
}

void NewtonSolver::State::start_directions() {
  const uint32_t starting = lanes_in(NewtonLane::start);
  if (!starting) return;
  LaneFloats keep, all{}, base{};
  std::fill_n(keep, kLanes, 1.f);
  for_lanes(starting, [&](int l) { base[l] = start_lane(l, &all[l]) ? 1.f : 0.f; });
  if (std::any_of(all, all + kLanes, [](float v) { return v != 0; })) {
    k_.update_outer(keep, all, total_.data(), X_.D, m_.step.data());
  }
  if (std::any_of(base, base + kLanes, [](float v) { return v != 0; })) {
    for (int l = 0; l < kLanes; ++l) keep[l] = 1.f - base[l];
    k_.update_outer(keep, base, fit_.base_w.data(), X_.D, m_.W.data());
    k_.update_outer(keep, base, fit_.base_z.data(), X_.n, m_.Z.data());
    for (int l = 0; l < kLanes; ++l) {
      if (base[l] != 0) mask_positives(l);
    }
  }
}

bool NewtonSolver::State::start_lane(int l, float* all) {
  NewtonLane& a = lane_[l];
  const auto moments = positive_moments(p_, X_, a.label, m_.work);
  a.stop = stopping_norm(p_, X_, a.label, moments, std::abs(loss_terms(fit_.loss, true, 0).first));
  a.search = false;
  if (!fit_.base_w.empty()) {
    // First step: steepest descent on what the positives change, g = (c+ loss'(z) - C loss'(-z)) x.
    a.search = true;
    for (int64_t k = 0; k < a.rows.size(); ++k) {
      const float z = fit_.base_z[a.rows[k]];
      a.z[k] = z;
      add_row(l, a.rows[k],
              p_.C * loss_terms(fit_.loss, false, z).first -
                  a.cost_positive * loss_terms(fit_.loss, true, z).first);
    }
    return true;
  }
  if (fit_.init == InitRule::warm && a.label != kNoLabel) {
    for (int64_t t = fit_.warm.begin(a.label); t < fit_.warm.end(a.label); ++t) {
      m_.step[int64_t{X_.renamed[fit_.warm.indices[t]]} * kLanes + l] = fit_.warm.data[t];
    }
  } else if (fit_.init != InitRule::zero) {
    const Start start = separating_start(X_, fit_.init, a.rows, moments, m_.work);
    for (size_t k = 0; k < start.positive.size(); ++k) add_row(l, a.rows[k], start.positive[k]);
    *all = static_cast<float>(start.all);
  }
  return false;
}

void NewtonSolver::State::mask_positives(int l) {
  for (const int32_t i : lane_[l].rows) m_.Z[int64_t{i} * kLanes + l] = kMasked;
}

}  // namespace xmc::linear
