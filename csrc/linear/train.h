// One-vs-all training of many labels: batches of consecutive labels, pruned at once, in threads.
//
// A batch is solved as `runs` of labels, each a unit of work for one thread. Batches, runs and the order of
// the labels in them are fixed by data and parameters, so that models are bit-equal for any thread count.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "linear/prepare.h"
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

void train_dual(const LinearProblem& problem, const std::vector<LabelBatch>& batches, const PruneRule& prune,
                int threads, const BatchSink& sink);

}  // namespace xmc
