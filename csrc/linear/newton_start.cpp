#include "linear/newton_block.h"

namespace xmc {

void BlockSolver::add_row(int l, int64_t row, double scale) {
  for_each_entry(p_, row,
                 [&](int64_t j, float x) { m_.step[j * kLanes + l] += static_cast<float>(scale * x); });
}

void BlockSolver::start_directions() {
  const uint32_t starting = lanes_in(NewtonLane::start);
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

bool BlockSolver::start_lane(int l, float* all) {
  NewtonLane& a = lane_[l];
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

void BlockSolver::mask_positives(int l) {
  for (int64_t k = 0; k < lane_[l].positives; ++k) m_.Z[int64_t{lane_[l].rows[k]} * kLanes + l] = kMasked;
}

}  // namespace xmc
