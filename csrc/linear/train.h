// One-vs-all training of many labels: blocks of consecutive labels, pruned at once, in threads.
//
// A block is cut into tasks of labels, each for one thread. Blocks, tasks and the order of the labels in them
// are fixed by data and parameters, so that models are bit-equal for any thread count.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/numa.h"
#include "linear/newton.h"
#include "linear/problem.h"

namespace xmc::linear {

struct LabelBlock {
  int64_t first = 0;  // labels [first, last)
  int64_t last = 0;
};

// The pruned weights of a block, in label order: CSR labels x D.
struct SolvedBlock {
  std::vector<int64_t> indptr{0};
  std::vector<int32_t> indices;
  std::vector<float> values;
  std::vector<LabelReport> reports;
  // Of options.keep_multipliers: CSR labels x n, and the bias's weights.
  std::vector<int64_t> alpha_indptr{0};
  std::vector<int32_t> alpha_rows;
  std::vector<float> alpha, bias_weights;
};

// Called once per block, from any thread but never from two at once, in any order.
using BlockSink = std::function<void(int64_t block, SolvedBlock&& solved)>;

// dual: l2 squared hinge, `loss`, `init` and `warm` are not used. newton: l2, either loss. l1: squared hinge.
enum class SolverKind : int32_t { dual = 0, newton = 1, l1 = 2, lanes = 3 };  // lanes: dual without tail.h
struct TrainOptions {
  SolverKind solver = SolverKind::dual;
  Loss loss = Loss::squared_hinge;
  InitRule init = InitRule::mean;
  CsrView<> warm;                 // labels x D, rule warm only
  MultipliersView old;            // dual only: labels that have some start there
  int64_t old_rows = 0;           // rows from this one on are new to them
  bool keep_multipliers = false;  // dual only
  PruneRule prune;
  int threads = 1;
};

// On a machine with several memory nodes each has its own copy of X, read by the threads pinned there;
// returns what is where.
std::vector<NodePlacement> train(const LinearProblem& problem, const TrainOptions& options,
                                 const std::vector<LabelBlock>& blocks, const BlockSink& sink);

}  // namespace xmc::linear
