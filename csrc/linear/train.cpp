#include "linear/train.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "cluster/label_tree.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "linear/dual.h"

namespace xmc {
namespace {

constexpr int64_t kRun = 256;  // labels of one unit of work
constexpr int64_t kLeaf = 8;   // labels of a leaf of the ordering tree
constexpr int64_t kTreeFeatures = 64;
constexpr int kTreeIterations = 8;

// Labels of similar size beside each other, the largest first; among those, neighbours in the label tree.
std::vector<int32_t> order_labels(const LinearProblem& problem, LabelBatch batch) {
  const int64_t count = batch.last - batch.first;
  std::vector<int32_t> labels(static_cast<size_t>(count));
  std::iota(labels.begin(), labels.end(), static_cast<int32_t>(batch.first));
  if (!problem.dense()) {
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
  }
  const auto bucket = [&](int32_t label) {
    const auto size = static_cast<uint64_t>(problem.positives.size(label));
    return size < 4 ? 0 : size < 16 ? 2 : std::bit_width(size);
  };
  std::stable_sort(labels.begin(), labels.end(), [&](int32_t a, int32_t b) { return bucket(a) > bucket(b); });
  return labels;
}

LabelWeights join(std::vector<SolvedLabel>& labels) {
  LabelWeights out;
  size_t size = 0;
  for (const SolvedLabel& label : labels) size += label.features.size();
  out.indices.reserve(size);
  out.values.reserve(size);
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

}  // namespace

void train_dual(const LinearProblem& problem, const std::vector<LabelBatch>& batches, const PruneRule& prune,
                int threads, const BatchSink& sink) {
  const PreparedFeatures X = prepare_features(problem, threads);
  const DualStart start = solve_start(problem, X);
  const SolvedLabel negative = trivial_label(start, X, 1.f, prune);
  const SolvedLabel positive = trivial_label(start, X, -1.f, prune);
  const auto costs_one = [](const float* cost, int64_t label) { return !cost || cost[label] == 1.f; };
  const auto trivial = [&](int64_t label) -> const SolvedLabel* {
    const int64_t size = problem.positives.size(label);
    if (size == 0 && costs_one(problem.cost_negative, label)) return &negative;
    if (size == X.n && costs_one(problem.cost_positive, label)) return &positive;
    return nullptr;
  };

  std::vector<Unit> units;
  std::vector<Work> work(batches.size());
  for (size_t b = 0; b < batches.size(); ++b) {
    const int64_t size = batches[b].last - batches[b].first;
    work[b].open = std::max<int64_t>(1, chunk_count(size, kRun));
    for (int64_t u = 0; u < work[b].open; ++u) {
      units.push_back({static_cast<int64_t>(b), u * kRun, std::min(size, (u + 1) * kRun)});
    }
  }
  std::mutex handing_over;
  std::vector<std::unique_ptr<DualSolver>> solvers(static_cast<size_t>(std::max(threads, 1)));
  parallel_for(static_cast<int64_t>(units.size()), threads, [&](int64_t u, int thread) {
    const Unit unit = units[u];
    const LabelBatch batch = batches[unit.batch];
    Work& mine = work[unit.batch];
    std::call_once(mine.ordered, [&] {
      mine.order = order_labels(problem, batch);
      mine.solved.resize(mine.order.size());
    });
    std::vector<int32_t> labels;
    for (int64_t k = unit.first; k < unit.last; ++k) {
      const int32_t label = mine.order[k];
      if (const SolvedLabel* done = trivial(label)) {
        mine.solved[label - batch.first] = *done;
      } else {
        labels.push_back(label);
      }
    }
    if (!labels.empty()) {
      if (!solvers[thread]) solvers[thread] = std::make_unique<DualSolver>(problem, X, start);
      const uint64_t seed = mix64(problem.seed ^ mix64(static_cast<uint64_t>(batch.first + unit.first)));
      solvers[thread]->solve(
          labels.data(), static_cast<int64_t>(labels.size()), prune, seed,
          [&](int64_t label, SolvedLabel&& solved) { mine.solved[label - batch.first] = std::move(solved); });
    }
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

}  // namespace xmc
