#include "linear/newton_state.h"

namespace xmc::linear {

using Clock = std::chrono::steady_clock;

NewtonSolver::NewtonSolver(const NewtonFit& fit, const PreparedFeatures& X)
    : state_(std::make_unique<State>(fit, X)) {}
NewtonSolver::~NewtonSolver() = default;

void NewtonSolver::solve(const int32_t* labels, int64_t count, const PruneRule& prune, uint64_t,
                         const LabelSink& sink) {
  state_->run(labels, count, prune, sink);
}

BaseSolution solve_newton_base(const NewtonFit& fit, const PreparedFeatures& X, std::vector<float>* z) {
  BaseSolution base;
  std::vector<float> scores;
  NewtonSolver::State solver(fit, X);
  solver.run(&kNoLabel, 1, {0.f, 0}, [&](int64_t, SolvedLabel&& solved) { base.report = solved.report; });
  solver.read_base(&base.w, z ? z : &scores);
  return base;
}

void NewtonSolver::State::run(const int32_t* labels, int64_t count, const PruneRule& prune,
                              const LabelSink& sink) {
  prune_ = prune;
  sink_ = &sink;
  for (int64_t next = 0;;) {
    const auto start = Clock::now();
    newton_directions();
    for (int l = 0; l < kLanes && next < count; ++l) {
      if (lane_[l].phase == NewtonLane::idle) enter(lane_[l], labels[next++]);
    }
    const auto live =
        std::count_if(lane_, lane_ + kLanes, [](const NewtonLane& a) { return a.phase != NewtonLane::idle; });
    if (live == 0) return;
    start_directions();
    k_.product(all_, ~0u, m_.step.data(), nullptr, m_.Q.data());
    advance();
    const double share =
        std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(live);
    for (NewtonLane& a : lane_) a.report.seconds += share;
  }
}

void NewtonSolver::State::read_base(std::vector<float>* w, std::vector<float>* z) const {
  w->resize(X_.D);
  z->resize(X_.n);
  for (int64_t j = 0; j < X_.D; ++j) (*w)[j] = m_.W[j * kLanes];
  for (int64_t i = 0; i < X_.n; ++i) (*z)[i] = m_.Z[i * kLanes];
}

uint32_t NewtonSolver::State::lanes_in(NewtonLane::Phase phase) const {
  uint32_t bits = 0;
  for (int l = 0; l < kLanes; ++l) bits |= static_cast<uint32_t>(lane_[l].phase == phase) << l;
  return bits;
}

void NewtonSolver::State::enter(NewtonLane& a, int64_t label) {
  a = NewtonLane();
  a.phase = NewtonLane::start;
  a.label = label;
  a.rows = p_.positive_rows(label);
  a.cost_positive = p_.C * p_.positive_cost(label);
  a.z.assign(a.rows.size(), 0.f);
  a.q = a.z;
}

void NewtonSolver::State::leave(int l, LabelStatus status) {
  NewtonLane& a = lane_[l];
  a.phase = NewtonLane::idle;
  a.report.status = status;
  (*sink_)(a.label, prune(prune_, X_, a.report, [&](int64_t j) { return m_.W[j * kLanes + l]; }));
}

void NewtonSolver::State::evaluate(int l) {
  NewtonLane& a = lane_[l];
  double norm2 = 0, loss = 0;
  a.report.active_rows = 0;
  for (int64_t j = 0; j < X_.D; ++j) {
    const double w = m_.W[j * kLanes + l];
    norm2 += w * w;
  }
  const auto add = [&](bool positive, double cost, double z) {
    const LossTerms t = loss_terms(fit_.loss, positive, z);
    loss += cost * t.value;
    a.report.active_rows += t.value > 0;
  };
  for (int64_t i = 0; i < X_.n; ++i) {
    const float z = m_.Z[i * kLanes + l];
    if (z > 0.5f * kMasked) add(false, p_.C, z);
  }
  for (const float z : a.z) add(true, a.cost_positive, z);
  a.report.objective = 0.5 * norm2 + loss;
}

bool NewtonSolver::State::converged(int l) {
  NewtonLane& a = lane_[l];
  if (a.report.gradient_norm > a.stop) return false;
  evaluate(l);
  const double limit = std::sqrt(2 * kMaxGap * a.report.objective);
  if (a.report.gradient_norm <= limit) return true;
  a.stop = limit;
  return false;
}

}  // namespace xmc::linear
