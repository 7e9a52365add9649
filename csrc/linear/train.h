// One-vs-all training of many labels: batches of consecutive labels, pruned at once, in threads.
//
// A batch is solved as `runs` of labels, each a unit of work for one thread. Batches, runs and the order of
// the labels in them are fixed by data and parameters, so that models are bit-equal for any thread count.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/numa.h"
#include "linear/newton.h"
#include "linear/problem.h"

namespace xmc {

struct LabelBatch {
  int64_t first = 0;  // labels [first, last)
  int64_t last = 0;
};

struct SolvedBatch {
  LabelBatch labels;
  LabelWeights weights;
  std::vector<LabelReport> reports;
};

// Called once per batch, from any thread but never from two at once, in any order.
using BatchSink = std::function<void(int64_t batch, SolvedBatch&& solved)>;

// dual: l2 squared hinge, `loss`, `init` and `warm` are not used. newton: l2, either loss. l1: squared hinge.
enum class SolverKind : int32_t { dual = 0, newton = 1, l1 = 2 };
struct TrainOptions {
  SolverKind solver = SolverKind::dual;
  Loss loss = Loss::squared_hinge;
  InitRule init = InitRule::mean;
  CsrView<int32_t, float> warm;  // labels x D, rule warm only
};

// On a machine with several memory nodes each has its own copy of X, read by the threads pinned there;
// returns what is where.
std::vector<NodePlacement> train(const LinearProblem& problem, const TrainOptions& options,
                                 const std::vector<LabelBatch>& batches, const PruneRule& prune, int threads,
                                 const BatchSink& sink);

}  // namespace xmc
