#include "linear/newton_block.h"

namespace xmc {
namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

NewtonScratch::NewtonScratch() : memory_(std::make_unique<Memory>()) {}
NewtonScratch::~NewtonScratch() = default;
NewtonScratch::NewtonScratch(NewtonScratch&&) noexcept = default;

std::vector<NewtonSolved> BlockSolver::run(const PruneRule& prune) {
  prune_ = prune;
  while (true) {
    const auto start = Clock::now();
    newton_directions();
    refill();
    const int live = static_cast<int>(std::count_if(
        lane_, lane_ + kLanes, [](const NewtonLane& a) { return a.state != NewtonLane::idle; }));
    if (live == 0) return std::move(solved_);
    start_directions();
    k_.product(all_, ~0u, m_.step.data(), nullptr, m_.Q.data());
    advance();
    const double share = seconds_since(start) / live;
    for (NewtonLane& a : lane_) a.report.seconds += share;
  }
}

void BlockSolver::read_base(std::vector<float>* w, std::vector<float>* z) const {
  w->resize(static_cast<size_t>(m_.D));
  z->resize(static_cast<size_t>(m_.n));
  for (int64_t j = 0; j < m_.D; ++j) (*w)[static_cast<size_t>(j)] = m_.W[j * kLanes];
  for (int64_t i = 0; i < m_.n; ++i) (*z)[static_cast<size_t>(i)] = m_.Z[i * kLanes];
}

uint32_t BlockSolver::lanes_in(NewtonLane::State state) const {
  uint32_t bits = 0;
  for (int l = 0; l < kLanes; ++l) bits |= static_cast<uint32_t>(lane_[l].state == state) << l;
  return bits;
}

void BlockSolver::refill() {
  for (int l = 0; l < kLanes && next_ < count_; ++l) {
    if (lane_[l].state != NewtonLane::idle) continue;
    while (next_ < count_ && copy_shared(next_)) ++next_;
    if (next_ < count_) enter(lane_[l], next_++);
  }
}

bool BlockSolver::copy_shared(int64_t slot) {
  const int32_t label = labels_[slot];
  if (label == kNoLabel || fit_.base_w.empty()) return false;
  const int64_t positives = p_.positives.size(label);
  const float* cost = positives ? p_.cost_positive : p_.cost_negative;
  if ((positives != 0 && positives != p_.rows()) || (cost && cost[label] != 1.f)) return false;
  const float sign = positives ? -1.f : 1.f;
  NewtonSolved& s = solved_[static_cast<size_t>(slot)];
  for (int64_t j = 0; j < m_.D; ++j) keep(s, j, sign * fit_.base_w[static_cast<size_t>(j)]);
  keep_largest(prune_, s.indices, s.values);
  s.report = fit_.base_report;
  s.report.seconds = 0;
  return true;
}

void BlockSolver::enter(NewtonLane& a, int64_t slot) {
  const int32_t label = labels_[slot];
  const bool real = label != kNoLabel;
  a = NewtonLane();
  a.state = NewtonLane::start;
  a.slot = slot;
  a.rows = real ? p_.positives.indices + p_.positives.begin(label) : nullptr;
  a.positives = real ? p_.positives.size(label) : 0;
  a.cost_positive = p_.C * (real && p_.cost_positive ? double{p_.cost_positive[label]} : 1.0);
  a.cost_negative = p_.C * (real && p_.cost_negative ? double{p_.cost_negative[label]} : 1.0);
  a.z.assign(static_cast<size_t>(a.positives), 0.f);
  a.q = a.z;
}

void BlockSolver::leave(int l, LabelStatus status) {
  NewtonLane& a = lane_[l];
  NewtonSolved& s = solved_[static_cast<size_t>(a.slot)];
  for (int64_t j = 0; j < m_.D; ++j) keep(s, j, m_.W[j * kLanes + l]);
  keep_largest(prune_, s.indices, s.values);
  const bool trivial = a.positives == 0 || a.positives == m_.n;
  a.report.status = trivial && status == LabelStatus::converged ? LabelStatus::trivial : status;
  s.report = a.report;
  a.state = NewtonLane::idle;
}

void BlockSolver::evaluate(int l) {
  NewtonLane& a = lane_[l];
  double norm2 = 0, loss = 0;
  a.report.active_rows = 0;
  for (int64_t j = 0; j < m_.D; ++j) {
    const double w = m_.W[j * kLanes + l];
    norm2 += w * w;
  }
  const auto add = [&](bool positive, double cost, double z) {
    const LossTerms t = loss_terms(fit_.loss, positive, z);
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

bool BlockSolver::converged(int l) {
  NewtonLane& a = lane_[l];
  if (a.report.gradient_norm > a.stop) return false;
  evaluate(l);
  const double limit = std::sqrt(2 * kMaxGap * a.report.objective);
  if (a.report.gradient_norm <= limit) return true;
  a.stop = limit;
  return false;
}

void BlockSolver::keep(NewtonSolved& s, int64_t feature, float w) const {
  if (!keeps(prune_, w)) return;
  s.indices.push_back(static_cast<int32_t>(feature));
  s.values.push_back(w);
}

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
  for (const NewtonSolved& s : solver.run(prune)) {
    out->indices.insert(out->indices.end(), s.indices.begin(), s.indices.end());
    out->values.insert(out->values.end(), s.values.begin(), s.values.end());
    out->indptr.push_back(static_cast<int64_t>(out->indices.size()));
    *reports++ = s.report;
  }
}

}  // namespace xmc
