#include "tree/train.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "core/rng.h"
#include "linear/train.h"

namespace xmc::tree {
namespace {

// Never a child without rows: its score is this.
constexpr float kNever = -20;

// One parent's problem on local rows and columns. Memory: O(n + D) per thread, kept from node to node.
class Node {
 public:
  explicit Node(const NodeProblem& problem)
      : problem_(problem),
        local_row_(static_cast<size_t>(problem.X.rows), -1),
        local_column_(static_cast<size_t>(problem.X.cols), -1) {}

  void solve(int64_t p, Level& out) {
    gather(p);
    const int64_t first = problem_.child_start[p], children = problem_.child_start[p + 1] - first;
    std::vector<float> biases(static_cast<size_t>(children), kNever);
    weights_ = {};
    if (children == 1 && rows_ > 0) {  // nothing to tell apart
      biases[0] = 1;
      weights_.indptr = {0, 0};
    } else if (rows_ > 0) {
      train(p, biases);
    } else {
      weights_.indptr.assign(static_cast<size_t>(children) + 1, 0);
    }
    out.add(weights_.indptr, weights_.indices, weights_.values, column_, problem_.X.cols, biases);
    forget(p);
  }

 private:
  const NodeProblem& problem_;
  std::vector<int32_t> local_row_, local_column_;
  int64_t rows_ = 0;
  std::vector<int32_t> column_;  // local column -> feature, ascending
  std::vector<int64_t> x_indptr_, y_indptr_;
  std::vector<int32_t> x_indices_, y_indices_;
  std::vector<float> x_values_;
  linear::SolvedBlock weights_;

  void gather(int64_t p) {
    const CsrView<>& X = problem_.X;
    const int64_t from = problem_.rows.begin(p), to = problem_.rows.end(p);
    rows_ = to - from;
    column_.clear();
    for (int64_t t = from; t < to; ++t) {
      const int32_t row = problem_.rows.indices[t];
      local_row_[static_cast<size_t>(row)] = static_cast<int32_t>(t - from);
      for (int64_t e = X.begin(row); e < X.end(row); ++e) {
        int32_t& at = local_column_[static_cast<size_t>(X.indices[e])];
        if (at < 0) {
          at = 0;
          column_.push_back(X.indices[e]);
        }
      }
    }
    std::sort(column_.begin(), column_.end());
    for (size_t j = 0; j < column_.size(); ++j) {
      local_column_[static_cast<size_t>(column_[j])] = static_cast<int32_t>(j);
    }
  }

  void forget(int64_t p) {
    for (int64_t t = problem_.rows.begin(p); t < problem_.rows.end(p); ++t) {
      local_row_[static_cast<size_t>(problem_.rows.indices[t])] = -1;
    }
    for (const int32_t j : column_) local_column_[static_cast<size_t>(j)] = -1;
  }

  void train(int64_t p, std::vector<float>& biases) {
    const CsrView<>& X = problem_.X;
    const auto width = static_cast<int32_t>(column_.size());
    x_indptr_.assign(1, 0);
    x_indices_.clear();
    x_values_.clear();
    for (int64_t t = problem_.rows.begin(p); t < problem_.rows.end(p); ++t) {
      const int32_t row = problem_.rows.indices[t];
      for (int64_t e = X.begin(row); e < X.end(row); ++e) {
        x_indices_.push_back(local_column_[static_cast<size_t>(X.indices[e])]);
        x_values_.push_back(X.data[e]);
      }
      x_indptr_.push_back(static_cast<int64_t>(x_indices_.size()));
    }
    y_indptr_.assign(1, 0);
    y_indices_.clear();
    for (int64_t c = problem_.child_start[p]; c < problem_.child_start[p + 1]; ++c) {
      for (int64_t t = problem_.positives.begin(c); t < problem_.positives.end(c); ++t) {
        y_indices_.push_back(local_row_[static_cast<size_t>(problem_.positives.indices[t])]);
      }
      y_indptr_.push_back(static_cast<int64_t>(y_indices_.size()));
    }
    const auto children = static_cast<int64_t>(y_indptr_.size()) - 1;
    linear::LinearProblem local;
    local.X = {rows_, width, x_indptr_.data(), x_indices_.data(), x_values_.data()};
    local.positives = {children, rows_, y_indptr_.data(), y_indices_.data(), nullptr};
    local.C = problem_.C;
    local.rows = problem_.options;
    local.tol = problem_.tol;
    local.max_iter = problem_.max_iter;
    local.seed = mix64(problem_.seed ^ static_cast<uint64_t>(p));
    linear::TrainOptions options;
    options.prune = {problem_.prune, 0};
    linear::train(local, options, {{0, children}},
                  [&](int64_t, linear::SolvedBlock&& solved) { weights_ = std::move(solved); });
    split_bias(width, biases);
  }

  // Takes the bias's weights out of weights_. A child without rows keeps kNever and has no weights.
  void split_bias(int32_t width, std::vector<float>& biases) {
    size_t to = 0;
    int64_t begin = 0;
    for (size_t c = 0; c < biases.size(); ++c) {
      const int64_t end = weights_.indptr[c + 1];
      const bool known = y_indptr_[c + 1] > y_indptr_[c];
      if (known) biases[c] = 0;
      for (int64_t t = begin; t < end && known; ++t) {
        const auto at = static_cast<size_t>(t);
        if (weights_.indices[at] == width) {
          biases[c] = weights_.values[at] * problem_.options.bias;
        } else {
          weights_.indices[to] = weights_.indices[at];
          weights_.values[to++] = weights_.values[at];
        }
      }
      begin = end;
      weights_.indptr[c + 1] = static_cast<int64_t>(to);
    }
    weights_.indices.resize(to);
    weights_.values.resize(to);
  }
};

}  // namespace

void train_level(const NodeProblem& problem, const std::vector<ParentBlock>& blocks, int threads,
                 const LevelSink& sink) {
  std::vector<std::unique_ptr<Node>> node(static_cast<size_t>(std::max(threads, 1)));
  std::mutex one_at_a_time;
  parallel_for(static_cast<int64_t>(blocks.size()), threads, [&](int64_t block, int thread) {
    auto& mine = node[static_cast<size_t>(thread)];
    if (!mine) mine = std::make_unique<Node>(problem);
    const ParentBlock range = blocks[static_cast<size_t>(block)];
    Level solved;
    for (int64_t p = range.first; p < range.last; ++p) mine->solve(p, solved);
    const std::lock_guard lock(one_at_a_time);
    sink(block, std::move(solved));
  });
}

}  // namespace xmc::tree
