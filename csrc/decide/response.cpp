#include "decide/response.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "decide/weighted_topk.h"

namespace xmc {
namespace {

constexpr int64_t kRows = 512;  // rows per block of the parallel loops
constexpr int64_t kAhead = 2;   // rows fetched ahead

template <class F>
void for_rows(int64_t rows, int threads, F&& f) {
  parallel_for(chunk_count(rows, kRows), threads, [&](int64_t block, int thread) {
    for (int64_t i = block * kRows; i < std::min(rows, (block + 1) * kRows); ++i) f(i, thread);
  });
}

}  // namespace

Response::Response(const Probabilities& proba, const Truth& truth, int64_t k, int threads)
    : proba_(proba),
      truth_(truth),
      k_(k),
      threads_(threads),
      line_(static_cast<size_t>(proba.cols)),
      scratch_(static_cast<size_t>(threads), RowScratch(widest_row(proba))),
      at_(static_cast<size_t>(proba.rows * k)),
      label_(at_.size()),
      eta_(at_.size()) {
  for_rows(proba.rows, threads, [&](int64_t i, int thread) {
    topk_row(proba, i, k, scratch_[static_cast<size_t>(thread)], at_.data() + i * k);
    note_row(i);
  });
}

void Response::choose(const double* a, const double* b) {
  RowFilter filter;
  for (size_t j = 0; j < line_.size(); ++j) {
    line_[j] = {static_cast<float>(b[j]), static_cast<float>(a[j])};
    filter.largest_offset = std::max(filter.largest_offset, std::abs(b[j]));
  }
  for_rows(proba_.rows, threads_, [&](int64_t i, int thread) {
    if (i + kAhead < proba_.rows) prefetch_row(proba_, i + kAhead);
    choose_row(i, a, b, filter, scratch_[static_cast<size_t>(thread)]);
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
  if (k_ > kRowLanes) {
    for (int64_t c = 0; c < m; ++c) scratch.exact[static_cast<size_t>(c)] = exact(static_cast<int32_t>(c));
    pick_largest(scratch.exact.data(), m, k_, scratch.found.data(), at, scratch.best.data());
    return;
  }
  float least = -kNever;
  for (int64_t s = 0; s < k_; ++s) {
    const FloatLine& line = line_[static_cast<size_t>(labels[at[s]])];
    least = std::min(least, line.offset + line.slope * eta[at[s]]);
  }
  const float bound = filter.lower(filter.lower(least));
  const int64_t count = row_kernels().lines_at_least(line_.data(), labels, eta, m, bound,
                                                     scratch.found.data(), scratch.gains.data());
  pick_set(scratch, filter, count, k_, at, exact);
}

void Response::note_row(int64_t i) {
  for (int64_t s = i * k_; s < (i + 1) * k_; ++s) {
    const int64_t e = proba_.begin(i) + at_[static_cast<size_t>(s)];
    label_[static_cast<size_t>(s)] = proba_.indices[e];
    eta_[static_cast<size_t>(s)] = proba_.data[e];
  }
}

void Response::count(double smoothing, double* t, double* q) {
  const auto labels = static_cast<size_t>(proba_.cols);
  counts_.assign(labels, {0, 0, 0});
  for (size_t s = 0; s < label_.size(); ++s) {
    Count& count = counts_[static_cast<size_t>(label_[s])];
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
      counts_[static_cast<size_t>(y)].hits += hit;
    }
  }
  for (size_t j = 0; j < labels; ++j) {
    const double trust = truth.rows > 0 ? static_cast<double>(truth_.trust[j]) : 0.0;
    t[j] = (1 - trust) * counts_[j].eta + trust * counts_[j].hits;
    q[j] = counts_[j].chosen + smoothing;
  }
}

}  // namespace xmc
