#include "linear/train.h"

#include <algorithm>
#include <bit>
#include <chrono>
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
#include "linear/prune.h"
#include "linear/tail.h"
#include "linear/tail_tuning.h"

namespace xmc::linear {
namespace {

constexpr int64_t kTaskLabels = 256;
constexpr int64_t kTaskLabelsOfMany = 1024;  // the few labels that need all of many rows share their passes
constexpr int64_t kCommon = 100;  // a label on more than one row in so many needs many rows: these come first
constexpr cluster::LabelTreeOptions kOrderTree{
    .max_leaf = 8, .max_features = 64, .max_iterations = 8, .tolerance = 1e-4, .seed = 0};

// Common labels first, so that others do not walk through all their rows; then neighbours in the label tree
// beside each other: they need the same rows. Dense problems: labels of similar size, the largest first.
std::vector<int32_t> order_labels(const LinearProblem& problem, const PreparedFeatures& X, LabelBlock block) {
  const int64_t count = block.last - block.first;
  std::vector<int32_t> labels(count);
  std::iota(labels.begin(), labels.end(), static_cast<int32_t>(block.first));
  if (problem.dense()) {
    const auto bucket = [&](int32_t label) {
      return std::bit_width(static_cast<uint64_t>(problem.positives.size(label)));
    };
    std::stable_sort(labels.begin(), labels.end(),
                     [&](int32_t a, int32_t b) { return bucket(a) > bucket(b); });
    return labels;
  }
  const CsrView<> mine{count, problem.n(), problem.positives.indptr + block.first, problem.positives.indices,
                       nullptr};
  cluster::LabelTreeOptions options = kOrderTree;
  options.seed = problem.seed;
  const cluster::LabelTree tree = cluster::label_tree(problem.X, mine, options, 1, X.scale.data());
  for (int64_t k = 0; k < count; ++k) labels[k] = static_cast<int32_t>(block.first) + tree.order[k];
  std::stable_partition(labels.begin(), labels.end(),
                        [&](int32_t label) { return problem.positives.size(label) * kCommon > problem.n(); });
  return labels;
}

constexpr size_t kGiveBack = size_t{8} << 20;  // bytes of freed labels after which the system gets them back

// What is freed on the way is given back: else a block would take its size twice.
SolvedBlock join(std::vector<SolvedLabel>& labels) {
  SolvedBlock out;
  size_t size = 0;
  for (const SolvedLabel& label : labels) size += label.features.size();
  out.indices.reserve(size);
  out.values.reserve(size);
  // Page faults would be most of the time.
  advise_huge(out.indices.data(), static_cast<int64_t>(size * sizeof(int32_t)));
  advise_huge(out.values.data(), static_cast<int64_t>(size * sizeof(float)));
  size_t freed = 0;
  for (SolvedLabel& label : labels) {
    out.indices.insert(out.indices.end(), label.features.begin(), label.features.end());
    out.values.insert(out.values.end(), label.weights.begin(), label.weights.end());
    out.indptr.push_back(static_cast<int64_t>(out.indices.size()));
    out.reports.push_back(label.report);
    const Multipliers& m = label.multipliers;
    out.alpha_rows.insert(out.alpha_rows.end(), m.rows.begin(), m.rows.end());
    out.alpha.insert(out.alpha.end(), m.alpha.begin(), m.alpha.end());
    out.alpha_indptr.push_back(static_cast<int64_t>(out.alpha.size()));
    out.bias_weights.push_back(m.bias_weight);
    freed += label.features.size() * (sizeof(int32_t) + sizeof(float));
    label = SolvedLabel();
    if (freed >= kGiveBack) {
      give_back_freed();
      freed = 0;
    }
  }
  return out;
}

// Labels of one class share one solution: that without positives, or its mirror image. Solved when the first
// of them is met.
class OneClassLabels {
 public:
  template <class Solve>
  OneClassLabels(const LinearProblem& problem, const PreparedFeatures& X, const PruneRule& rule,
                 const Solve& solve)
      : problem_(problem), solve_([&X, rule, solve, this] {
          BaseSolution base = solve();
          base.report.seconds = 0;
          negative_ = prune(rule, X, base.report, [&](int64_t j) { return base.w[j]; });
          positive_ = prune(rule, X, base.report, [&](int64_t j) { return -base.w[j]; });
          positive_.multipliers = negative_.multipliers = std::move(base.multipliers);
          positive_.multipliers.bias_weight *= -1;
        }) {}

  // Null for labels with both classes, or whose positives cost something else than 1.
  const SolvedLabel* find(int64_t label) {
    const bool positive = problem_.positives.size(label) > 0;
    if (!problem_.one_class(label) || (positive && problem_.positive_cost(label) != 1)) return nullptr;
    std::call_once(solved_, solve_);
    return positive ? &positive_ : &negative_;
  }

 private:
  const LinearProblem& problem_;
  std::function<void()> solve_;
  std::once_flag solved_;
  SolvedLabel negative_, positive_;
};

// Labels of a block that one thread solves: [first, last) in the block's order.
struct Task {
  int64_t block, first, last;
};

// A block under way. The first of its tasks to start orders the labels, the last to end hands it over.
struct OpenBlock {
  std::once_flag ordered;
  std::vector<int32_t> order;
  std::vector<SolvedLabel> solved;
  int64_t open = 0;
};

// A training: blocks cut into tasks, on threads pinned to the nodes of X's replicas.
struct Training {
  const LinearProblem& problem;
  const TrainOptions& options;
  const std::vector<LabelBlock>& blocks;
  const BlockSink& sink;
  Topology nodes = machine_topology();
  NumaReplicas<PreparedFeatures> replicas{nodes, options.threads, [this] {
                                            const bool copy = options.threads > 1 && nodes.size() > 1;
                                            return prepare_features(problem, copy, options.threads);
                                          }};

  const PreparedFeatures& X() const { return replicas.local(0); }

  // make(thread) -> unique_ptr to a solver with solve(labels, count, prune, seed, sink).
  template <class Make>
  std::vector<NodePlacement> run(OneClassLabels& one_class, const Make& make) {
    std::vector<decltype(make(0))> solvers(options.threads);
    run_tasks([&](int thread, Span<const int32_t> labels, uint64_t seed, const LabelSink& done) {
      std::vector<int32_t> rest;
      for (const int32_t label : labels) {
        if (const SolvedLabel* solved = one_class.find(label)) {
          done(label, SolvedLabel(*solved));
        } else {
          rest.push_back(label);
        }
      }
      if (rest.empty()) return;
      if (!solvers[thread]) solvers[thread] = make(thread);
      solvers[thread]->solve(rest.data(), static_cast<int64_t>(rest.size()), options.prune, seed, done);
    });
    return replicas.placement();
  }

 private:
  template <class Solve>
  void run_tasks(const Solve& solve) {
    std::vector<Task> tasks;
    std::vector<OpenBlock> state(blocks.size());
    for (size_t b = 0; b < blocks.size(); ++b) {
      const int64_t size = blocks[b].last - blocks[b].first;
      const int64_t labels = X().n >= kManyRows && !problem.dense() ? kTaskLabelsOfMany : kTaskLabels;
      const int64_t count = std::max<int64_t>(1, (size + labels / 2) / labels);
      state[b].open = count;
      for (int64_t t = 0; t < count; ++t) {
        tasks.push_back({static_cast<int64_t>(b), size * t / count, size * (t + 1) / count});
      }
    }
    std::mutex handing_over;
    using Clock = std::chrono::steady_clock;
    auto polled = Clock::now();  // thread 0's: a task can take minutes
    parallel_for(static_cast<int64_t>(tasks.size()), options.threads, [&](int64_t t, int thread) {
      const NodeGuard pinned(replicas.nodes(), thread);
      const Task task = tasks[t];
      const LabelBlock block = blocks[task.block];
      OpenBlock& mine = state[task.block];
      std::call_once(mine.ordered, [&] {
        mine.order = order_labels(problem, X(), block);
        mine.solved.resize(mine.order.size());
      });
      const uint64_t seed = mix64(problem.seed ^ mix64(static_cast<uint64_t>(block.first + task.first)));
      const LabelSink done = [&](int64_t label, SolvedLabel&& solved) {
        if (solved.report.status == LabelStatus::converged && problem.one_class(label)) {
          solved.report.status = LabelStatus::trivial;
        }
        mine.solved[label - block.first] = std::move(solved);
        if (thread == 0 && Clock::now() - polled > std::chrono::milliseconds(50)) {
          polled = Clock::now();
          check_interrupt();
        }
      };
      solve(thread, Span<const int32_t>(mine.order.data() + task.first, task.last - task.first), seed, done);
      const std::lock_guard<std::mutex> lock(handing_over);
      if (--mine.open > 0) return;
      SolvedBlock out = join(mine.solved);
      mine.solved = {};
      mine.order = {};
      sink(task.block, std::move(out));
    });
  }
};

// Rare labels alone where rows can be searched, the others in lane groups.
class DualSolvers {
 public:
  DualSolvers(const LinearProblem& problem, const PreparedFeatures& X, const DualStart& start,
              const DualOptions& options, const Postings& postings)
      : problem_(problem), X_(X), start_(start), options_(options) {
    if (!postings.begin.empty()) tail_ = std::make_unique<TailSolver>(problem, X, postings, options);
  }
  void solve(const int32_t* labels, int64_t count, const PruneRule& prune, uint64_t seed,
             const LabelSink& sink) {
    std::vector<int32_t> others(labels, labels + count);
    if (tail_) others = tail_->solve(labels, count, prune, seed, sink);
    if (others.empty()) return;
    if (!lanes_) lanes_ = std::make_unique<DualSolver>(problem_, X_, start_, options_);
    lanes_->solve(others.data(), static_cast<int64_t>(others.size()), prune, seed, sink);
  }

 private:
  const LinearProblem& problem_;
  const PreparedFeatures& X_;
  const DualStart& start_;
  const DualOptions& options_;
  std::unique_ptr<TailSolver> tail_;
  std::unique_ptr<DualSolver> lanes_;
};

std::vector<NodePlacement> train_dual(Training& t) {
  // Without a bias every label starts from the solution without positives; with one only labels of one class
  // need it.
  const DualStart origin = t.X().bias != 0 ? bias_alone(t.X()) : solve_dual_start(t.problem, t.X());
  OneClassLabels one_class(t.problem, t.X(), t.options.prune, [&] {
    const DualStart solved = t.X().bias == 0 ? origin : solve_dual_start(t.problem, t.X());
    BaseSolution base{solved.w, solved.report, {}};
    base.report.status = LabelStatus::converged;  // a tenth of tol may be below what rounding allows
    if (t.options.keep_multipliers) base.multipliers = multipliers_of(solved, t.X().bias != 0);
    return base;
  });
  const DualOptions dual{t.options.old, t.options.old_rows, t.options.keep_multipliers};
  const NumaReplicas<Postings> postings(t.nodes, t.options.threads, [&] {
    return t.options.solver == SolverKind::lanes ? Postings() : make_postings(t.X());
  });
  return t.run(one_class, [&](int thread) {
    return std::make_unique<DualSolvers>(t.problem, t.replicas.local(thread), origin, dual,
                                         postings.local(thread));
  });
}

std::vector<NodePlacement> train_newton(Training& t) {
  NewtonFit fit{t.problem, t.options.loss, t.options.init, t.options.warm, {}, {}};
  if (fit.init == InitRule::bias) {
    std::vector<float> z;
    fit.base_w = solve_newton_base(fit, t.X(), &z).w;
    fit.base_z = std::move(z);
  }
  OneClassLabels one_class(t.problem, t.X(), t.options.prune, [&] {
    const NewtonFit plain{t.problem, fit.loss, fit.init, fit.warm, {}, {}};
    return solve_newton_base(plain, t.X(), nullptr);
  });
  return t.run(one_class,
               [&](int thread) { return std::make_unique<NewtonSolver>(fit, t.replicas.local(thread)); });
}

std::vector<NodePlacement> train_l1(Training& t) {
  const NumaReplicas<L1Columns> columns(t.nodes, t.options.threads, [&] { return l1_columns(t.X()); });
  OneClassLabels one_class(t.problem, t.X(), t.options.prune,
                           [&] { return L1Solver(t.problem, t.X(), columns.local(0)).solve_base(); });
  return t.run(one_class, [&](int thread) {
    return std::make_unique<L1Solver>(t.problem, t.X(), columns.local(thread));
  });
}

}  // namespace

std::vector<NodePlacement> train(const LinearProblem& problem, const TrainOptions& options,
                                 const std::vector<LabelBlock>& blocks, const BlockSink& sink) {
  Training training{problem, options, blocks, sink};
  switch (options.solver) {
    case SolverKind::newton:
      return train_newton(training);
    case SolverKind::l1:
      return train_l1(training);
    default:
      return train_dual(training);
  }
}

}  // namespace xmc::linear
