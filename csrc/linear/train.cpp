#include "linear/train.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "cluster/label_tree.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "linear/dual.h"
#include "linear/l1.h"
#include "linear/prepare.h"
#include "linear/replica.h"

namespace xmc {
namespace {

constexpr int64_t kRun = 256;  // labels of one unit of work
constexpr int64_t kLeaf = 8;   // labels of a leaf of the ordering tree
constexpr int64_t kFrequent =
    100;  // a label on more than one row in so many needs many rows: these labels first
constexpr int64_t kTreeFeatures = 64;
constexpr int kTreeIterations = 8;

// Frequent labels first, so that others do not walk through all their rows; then neighbours in the label tree
// beside each other: they need the same rows. Dense problems: labels of similar size, the largest first.
std::vector<int32_t> order_labels(const LinearProblem& problem, LabelBatch batch) {
  const int64_t count = batch.last - batch.first;
  std::vector<int32_t> labels(static_cast<size_t>(count));
  std::iota(labels.begin(), labels.end(), static_cast<int32_t>(batch.first));
  if (problem.dense()) {
    const auto bucket = [&](int32_t label) {
      return std::bit_width(static_cast<uint64_t>(problem.positives.size(label)));
    };
    std::stable_sort(labels.begin(), labels.end(),
                     [&](int32_t a, int32_t b) { return bucket(a) > bucket(b); });
    return labels;
  }
  const CsrView<> mine{count, problem.rows(), problem.positives.indptr + batch.first,
                       problem.positives.indices, nullptr};
  LabelTreeOptions tree_options{};
  tree_options.max_leaf = kLeaf;
  tree_options.max_features = kTreeFeatures;
  tree_options.max_iterations = kTreeIterations;
  tree_options.tolerance = 1e-4;
  tree_options.seed = problem.seed;
  const LabelTree tree = label_tree(problem.X, mine, tree_options, 1);
  for (int64_t k = 0; k < count; ++k) labels[k] = static_cast<int32_t>(batch.first) + tree.order[k];
  std::stable_partition(labels.begin(), labels.end(), [&](int32_t label) {
    return problem.positives.size(label) * kFrequent > problem.rows();
  });
  return labels;
}

LabelWeights join(std::vector<SolvedLabel>& labels) {
  LabelWeights out;
  size_t size = 0;
  for (const SolvedLabel& label : labels) size += label.features.size();
  out.indices.reserve(size);
  out.values.reserve(size);
  // Page faults would be most of the time.
  advise_huge(out.indices.data(), static_cast<int64_t>(size * sizeof(int32_t)));
  advise_huge(out.values.data(), static_cast<int64_t>(size * sizeof(float)));
  for (SolvedLabel& label : labels) {
    out.indices.insert(out.indices.end(), label.features.begin(), label.features.end());
    out.values.insert(out.values.end(), label.weights.begin(), label.weights.end());
    out.indptr.push_back(static_cast<int64_t>(out.indices.size()));
    label = SolvedLabel();
  }
  return out;
}

// The all-negative (sign 1) or all-positive (sign -1) model: one problem's solution is the other's mirror.
SolvedLabel trivial_label(const DualStart& start, const PreparedFeatures& X, float sign,
                          const PruneRule& prune) {
  SolvedLabel out;
  std::vector<float> w(static_cast<size_t>(X.D));
  for (int64_t j = 0; j < X.D; ++j) w[X.original[j]] = sign * start.w[j];
  for (int64_t j = 0; j < X.D; ++j) {
    if (w[j] != 0 && std::abs(w[j]) >= prune.threshold) {
      out.features.push_back(static_cast<int32_t>(j));
      out.weights.push_back(w[j]);
    }
  }
  keep_largest(out, prune.keep_top);
  out.report = start.report;
  out.report.status = LabelStatus::trivial;
  return out;
}

struct Unit {
  int64_t batch;
  int64_t first;  // in the batch's order
  int64_t last;
};

// A batch under way. The first of its units to start orders the labels, the last to end hands it over.
struct Work {
  std::once_flag ordered;
  std::vector<int32_t> order;
  std::vector<SolvedLabel> solved;
  int64_t open = 0;
};

// Solves labels on worker `thread` and hands each to the sink, in any order.
using UnitSolver =
    std::function<void(int thread, const std::vector<int32_t>& labels, uint64_t seed, const LabelSink& sink)>;

// All batches, cut into units of kRun labels, on threads pinned to their nodes.
void run_units(const LinearProblem& problem, const std::vector<LabelBatch>& batches, const Topology& nodes,
               int threads, const UnitSolver& solve, const BatchSink& sink) {
  std::vector<Unit> units;
  std::vector<Work> work(batches.size());
  for (size_t b = 0; b < batches.size(); ++b) {
    const int64_t size = batches[b].last - batches[b].first;
    const int64_t count = std::max<int64_t>(1, (size + kRun / 2) / kRun);
    work[b].open = count;
    for (int64_t u = 0; u < count; ++u) {
      units.push_back({static_cast<int64_t>(b), size * u / count, size * (u + 1) / count});
    }
  }
  std::mutex handing_over;
  parallel_for(static_cast<int64_t>(units.size()), threads, [&](int64_t u, int thread) {
    const NodeGuard pinned(nodes, thread);
    const Unit unit = units[u];
    const LabelBatch batch = batches[unit.batch];
    Work& mine = work[unit.batch];
    std::call_once(mine.ordered, [&] {
      mine.order = order_labels(problem, batch);
      mine.solved.resize(mine.order.size());
    });
    const uint64_t seed = mix64(problem.seed ^ mix64(static_cast<uint64_t>(batch.first + unit.first)));
    solve(thread, {mine.order.begin() + unit.first, mine.order.begin() + unit.last}, seed,
          [&](int64_t label, SolvedLabel&& solved) { mine.solved[label - batch.first] = std::move(solved); });
    const std::lock_guard<std::mutex> lock(handing_over);
    if (--mine.open > 0) return;
    SolvedBatch out{batch, {}, {}};
    for (const SolvedLabel& label : mine.solved) out.reports.push_back(label.report);
    out.weights = join(mine.solved);
    mine.solved = {};
    mine.order = {};
    sink(unit.batch, std::move(out));
  });
}

// What one memory node holds of a fit.
struct DualReplica {
  OwnedProblem own;
  PreparedFeatures X;
};
std::vector<MemoryRange> memory_of(const DualReplica& r) {
  const auto range = [](const auto& b) {
    return MemoryRange{b.data(), static_cast<size_t>(b.size()) * sizeof(*b.data())};
  };
  std::vector<MemoryRange> out = r.own.memory();
  out.insert(out.end(), {range(r.X.rows), range(r.X.ids), range(r.X.values)});
  return out;
}

struct NewtonReplica {
  OwnedProblem own;
  NewtonFit fit;
};
std::vector<MemoryRange> memory_of(const NewtonReplica& r) {
  return r.own.memory();
}

struct L1Replica {
  L1Fit fit;
};
std::vector<MemoryRange> memory_of(const L1Replica& r) {
  return {{r.fit.rows.data(), r.fit.rows.size() * sizeof(int32_t)},
          {r.fit.values.data(), r.fit.values.size() * sizeof(float)}};
}

// The common arguments of a training.
struct Job {
  const LinearProblem& problem;
  const TrainOptions& options;
  const std::vector<LabelBatch>& batches;
  const PruneRule& prune;
  int threads;
  const BatchSink& sink;
  Topology nodes = machine_topology();

  bool copies() const { return std::min<size_t>(nodes.size(), static_cast<size_t>(threads)) > 1; }
};

std::vector<NodePlacement> train_dual(const Job& job) {
  const LinearProblem& problem = job.problem;
  const NumaReplicas<DualReplica> replicas(job.nodes, job.threads, [&] {
    OwnedProblem own(problem, problem.dense() && job.copies());  // sparse X is laid out anew anyway
    PreparedFeatures X = prepare_features(own.problem(), job.threads);
    return DualReplica{std::move(own), std::move(X)};
  });
  const PreparedFeatures& X = replicas.local(0).X;
  // With a bias labels start elsewhere: only those of one class ask for the base then.
  struct Base {
    DualStart start;
    SolvedLabel negative, positive;
  } base;
  std::once_flag asked;
  const auto solved_base = [&]() -> const Base& {
    std::call_once(asked, [&] {
      base.start = solve_start(problem, X);
      base.negative = trivial_label(base.start, X, 1.f, job.prune);
      base.positive = trivial_label(base.start, X, -1.f, job.prune);
    });
    return base;
  };
  const DualStart origin = X.bias != 0 ? bias_alone(X) : solved_base().start;
  const auto costs_one = [](const float* cost, int64_t label) { return !cost || cost[label] == 1.f; };
  const auto trivial = [&](int64_t label) -> const SolvedLabel* {
    const int64_t size = problem.positives.size(label);
    if (size == 0 && costs_one(problem.cost_negative, label)) return &solved_base().negative;
    if (size == X.n && costs_one(problem.cost_positive, label)) return &solved_base().positive;
    return nullptr;
  };
  using Clock = std::chrono::steady_clock;
  auto polled = Clock::now();  // thread 0's: a unit can take minutes
  std::vector<std::unique_ptr<DualSolver>> solvers(static_cast<size_t>(job.threads));
  const auto solve = [&](int thread, const std::vector<int32_t>& labels, uint64_t seed,
                         const LabelSink& sink) {
    std::vector<int32_t> rest;
    for (const int32_t label : labels) {
      if (const SolvedLabel* done = trivial(label)) {
        sink(label, SolvedLabel(*done));
      } else {
        rest.push_back(label);
      }
    }
    if (rest.empty()) return;
    if (!solvers[thread]) {
      solvers[thread] = std::make_unique<DualSolver>(problem, replicas.local(thread).X, origin);
    }
    const LabelSink polling = [&](int64_t label, SolvedLabel&& solved) {
      sink(label, std::move(solved));
      if (thread == 0 && Clock::now() - polled > std::chrono::milliseconds(50)) {
        polled = Clock::now();
        check_interrupt();
      }
    };
    solvers[thread]->solve(rest.data(), static_cast<int64_t>(rest.size()), job.prune, seed, polling);
  };
  run_units(problem, job.batches, replicas.nodes(), job.threads, solve, job.sink);
  return replicas.placement();
}

// Solvers that append to LabelWeights: solve_some(thread, labels, count, &weights, reports).
template <class Replica, class SolveSome>
std::vector<NodePlacement> train_appending(const Job& job, const NumaReplicas<Replica>& replicas,
                                           const SolveSome& solve_some) {
  const auto solve = [&](int thread, const std::vector<int32_t>& labels, uint64_t, const LabelSink& sink) {
    LabelWeights all;
    std::vector<LabelReport> reports(labels.size());
    solve_some(thread, labels.data(), static_cast<int64_t>(labels.size()), &all, reports.data());
    for (size_t k = 0; k < labels.size(); ++k) {
      const int64_t from = all.indptr[k], to = all.indptr[k + 1];
      sink(labels[k], {{all.indices.begin() + from, all.indices.begin() + to},
                       {all.values.begin() + from, all.values.begin() + to},
                       reports[k]});
    }
  };
  run_units(job.problem, job.batches, replicas.nodes(), job.threads, solve, job.sink);
  return replicas.placement();
}

std::vector<NodePlacement> train_newton(const Job& job) {
  const TrainOptions& o = job.options;
  const NewtonFit fit = prepare_newton(job.problem, o.loss, o.init, o.warm);
  const NumaReplicas<NewtonReplica> replicas(job.nodes, job.threads, [&] {
    NewtonReplica r{OwnedProblem(job.problem, job.copies()), fit};
    r.fit.problem = r.own.problem();
    return r;
  });
  std::vector<NewtonScratch> scratch(static_cast<size_t>(job.threads));
  return train_appending(
      job, replicas,
      [&](int thread, const int32_t* labels, int64_t count, LabelWeights* out, LabelReport* reports) {
        solve_newton(replicas.local(thread).fit, labels, count, job.prune, scratch[thread], out, reports);
      });
}

std::vector<NodePlacement> train_l1(const Job& job) {
  L1Fit fit = prepare_l1(job.problem);
  const NumaReplicas<L1Replica> replicas(
      job.nodes, job.threads, [&] { return job.copies() ? L1Replica{fit} : L1Replica{std::move(fit)}; });
  std::vector<L1Scratch> scratch(static_cast<size_t>(job.threads));
  return train_appending(
      job, replicas,
      [&](int thread, const int32_t* labels, int64_t count, LabelWeights* out, LabelReport* reports) {
        solve_l1(replicas.local(thread).fit, labels, count, job.prune, scratch[thread], out, reports);
      });
}

}  // namespace

std::vector<NodePlacement> train(const LinearProblem& problem, const TrainOptions& options,
                                 const std::vector<LabelBatch>& batches, const PruneRule& prune, int threads,
                                 const BatchSink& sink) {
  const Job job{problem, options, batches, prune, std::max(threads, 1), sink};
  switch (options.solver) {
    case SolverKind::newton:
      return train_newton(job);
    case SolverKind::l1:
      return train_l1(job);
    default:
      return train_dual(job);
  }
}

}  // namespace xmc
