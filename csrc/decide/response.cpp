#include "decide/response.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "core/prefetch.h"

namespace xmc::decide {
namespace {

constexpr int64_t kRows = 512;  // rows that a thread takes at a time
constexpr int64_t kAhead = 2;   // rows fetched ahead

}  // namespace

Response::Response(const Probabilities& proba, const Truth& truth, const std::vector<int32_t>& start,
                   int64_t k, int threads)
    : proba_(proba),
      truth_(truth),
      k_(k),
      threads_(threads),
      line_(proba.cols),
      scratch_(threads, RowScratch(widest_row(proba))),
      at_(start),
      label_(at_.size()),
      eta_(at_.size()) {
  for (int64_t i = 0; i < proba.rows; ++i) note_row(i);
}

void Response::choose(const double* a, const double* b) {
  RowFilter filter;
  for (size_t j = 0; j < line_.size(); ++j) {
    line_[j] = {static_cast<float>(b[j]), static_cast<float>(a[j])};
    filter.largest_offset = std::max(filter.largest_offset, std::abs(b[j]));
  }
  parallel_items(proba_.rows, kRows, threads_, [&](int64_t i, int thread) {
    if (i + kAhead < proba_.rows) prefetch_row(proba_, i + kAhead);
    choose_row(i, a, b, filter, scratch_[thread]);
    note_row(i);
  });
}

void Response::choose_row(int64_t i, const double* a, const double* b, const RowFilter& filter,
                          RowScratch& scratch) {
  const int64_t m = proba_.size(i);
  const int32_t* labels = proba_.indices + proba_.begin(i);
  const float* eta = proba_.data + proba_.begin(i);
  int32_t* at = at_.data() + i * k_;
  const auto exact = [&](int32_t c) { return b[labels[c]] + a[labels[c]] * static_cast<double>(eta[c]); };
  if (k_ > kRowLanes) return sort_exact(scratch, m, k_, at, scratch.best.data(), exact);
  float least = -kNever;
  for (int64_t s = 0; s < k_; ++s) {
    const FloatLine& line = line_[labels[at[s]]];
    least = std::min(least, line.offset + line.slope * eta[at[s]]);
  }
  const float bound = filter.lower(filter.lower(least));
  const int64_t count = row_kernels().lines_at_least(line_.data(), labels, eta, m, bound,
                                                     scratch.found.data(), scratch.gains.data());
  pick_set(scratch, filter, count, k_, at, exact);
}

void Response::note_row(int64_t i) {
  for (int64_t s = i * k_; s < (i + 1) * k_; ++s) {
    const int64_t e = proba_.begin(i) + at_[s];
    label_[s] = proba_.indices[e];
    eta_[s] = proba_.data[e];
  }
}

void Response::count(double smoothing, double* t, double* q) {
  const int64_t labels = proba_.cols;
  counts_.assign(labels, {0, 0, 0});
  for (size_t s = 0; s < label_.size(); ++s) {
    Count& count = counts_[label_[s]];
    count.eta += static_cast<double>(eta_[s]);
    ++count.chosen;
  }
  const CsrView<int32_t, float>& truth = truth_.labels;
  for (int64_t i = 0; i < truth.rows; ++i) {
    const int32_t* chosen = label_.data() + i * k_;
    for (int64_t e = truth.begin(i); e < truth.end(i); ++e) {
      const int32_t y = truth.indices[e];
      int32_t hit = 0;
      for (int64_t s = 0; s < k_; ++s) hit |= static_cast<int32_t>(chosen[s] == y);
      counts_[y].hits += hit;
    }
  }
  for (int64_t j = 0; j < labels; ++j) {
    const double trust = truth.rows > 0 ? static_cast<double>(truth_.trust[j]) : 0.0;
    t[j] = (1 - trust) * counts_[j].eta + trust * counts_[j].hits;
    q[j] = counts_[j].chosen + smoothing;
  }
}

}  // namespace xmc::decide
