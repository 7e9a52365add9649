#include "decide/bca.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "core/parallel.h"
#include "core/rng.h"
#include "decide/best.h"
#include "decide/terms.h"

namespace xmc {
namespace {

constexpr int64_t kAhead = 3;    // rows fetched ahead
constexpr int64_t kBlock = 256;  // rows that a thread checks at a time

int64_t rows_in_batch(int64_t n) {
  return std::max<int64_t>(2048, (n + 7) / 8);
}

template <class Term>
class Ascent {
 public:
  Ascent(const Probabilities& proba, Term term, const BcaOptions& options)
      : proba_(proba), term_(std::move(term)), options_(options), k_(options.k) {
    for (int64_t i = 0; i < proba.rows; ++i) widest_ = std::max(widest_, proba.size(i));
    scratch_.resize(static_cast<size_t>(widest_ * options.threads));
    picks_.resize(static_cast<size_t>(k_));
    pick_gains_.resize(static_cast<size_t>(k_));
  }

  BcaResult run(const std::vector<int32_t>& start) {
    BcaResult result;
    double before = result.start_utility = place(start);
    std::vector<int32_t> order(static_cast<size_t>(proba_.rows));
    std::iota(order.begin(), order.end(), 0);
    bool settled = false;
    for (int pass = 0; pass < options_.max_passes && proba_.rows > 0 && k_ > 0; ++pass) {
      Rng rng(mix64(options_.seed) + static_cast<uint64_t>(pass));
      shuffle(order.data(), proba_.rows, rng);
      const int64_t changed = settled ? checked_pass() : plain_pass(order.data(), proba_.rows);
      const double after = term_.utility();
      result.changed.push_back(changed);
      result.utility.push_back(after);
      const bool greedy = start.empty() && pass == 0;
      result.converged = changed == 0 || (!greedy && after - before <= options_.tolerance * std::abs(after));
      if (result.converged) break;
      settled = 4 * changed < proba_.rows;
      before = after;
    }
    result.converged |= proba_.rows == 0 || k_ == 0;
    finish(result);
    return result;
  }

  // Sets the prediction (positions; empty: none yet); its utility.
  double place(const std::vector<int32_t>& start) {
    chosen_.assign(static_cast<size_t>(proba_.rows * k_), -1);
    if (!start.empty()) {
      chosen_ = start;
      for (int64_t i = 0; i < proba_.rows; ++i) {
        for (int64_t s = 0; s < k_; ++s) term_.place(label(i, chosen(i)[s]), eta(i, chosen(i)[s]));
      }
      term_.refresh_all();
    }
    return term_.utility();
  }

 private:
  int32_t* chosen(int64_t i) { return chosen_.data() + i * k_; }
  const int32_t* labels(int64_t i) const { return proba_.indices + proba_.begin(i); }
  const float* etas(int64_t i) const { return proba_.data + proba_.begin(i); }
  int32_t label(int64_t i, int64_t c) const { return labels(i)[c]; }
  double eta(int64_t i, int64_t c) const { return static_cast<double>(etas(i)[c]); }

  // Rows come in random order: fetch those that are next while this one is worked on.
  void prefetch_row([[maybe_unused]] int64_t i) const {
#if defined(__GNUC__)
    constexpr int64_t kLine = 16;  // entries per cache line
    for (int64_t e = proba_.begin(i); e < proba_.end(i); e += kLine) {
      __builtin_prefetch(proba_.indices + e);
      __builtin_prefetch(proba_.data + e);
    }
#endif
  }

  bool contains(const int32_t* items, int32_t item) const {
    return std::find(items, items + k_, item) != items + k_;
  }

  // Gains of all candidates of row i, the chosen ones never; returns what the least of those is worth.
  double gains_of_others(int64_t i, double* gains) {
    const int32_t *row = labels(i), *now = chosen(i);
    const float* eta_row = etas(i);
    const int64_t m = proba_.size(i);
    term_.begin_row(row, eta_row, m);
    for (int64_t c = 0; c < m; ++c) gains[c] = term_.add(row[c], static_cast<double>(eta_row[c]), c);
    double least = std::numeric_limits<double>::infinity();
    for (int64_t s = 0; s < k_; ++s) {
      least = std::min(least, term_.keep(row[now[s]], static_cast<double>(eta_row[now[s]]), now[s]));
      gains[now[s]] = kNever;
    }
    return least;
  }

  // Whether a step of row i would change something.
  bool wants_change(int64_t i, double* gains) {
    const double least = gains_of_others(i, gains);
    return largest(gains, proba_.size(i)) > least;
  }

  // The best response of row i; true if it changed.
  bool step(int64_t i) {
    int32_t* now = chosen(i);
    double* gains = scratch_.data();
    const int64_t m = proba_.size(i);
    const bool empty = now[0] < 0;
    if (empty) {
      term_.begin_row(labels(i), etas(i), m);
      for (int64_t c = 0; c < m; ++c) gains[c] = term_.add(label(i, c), eta(i, c), c);
    } else {
      if (!wants_change(i, gains)) return false;
      for (int64_t s = 0; s < k_; ++s) gains[now[s]] = term_.keep(label(i, now[s]), eta(i, now[s]), now[s]);
    }
    pick_largest(gains, m, k_, picks_.data(), pick_gains_.data());
    for (int64_t s = 0; s < k_ && !empty; ++s) {
      if (!contains(picks_.data(), now[s])) term_.remove(label(i, now[s]), eta(i, now[s]));
    }
    for (int64_t s = 0; s < k_; ++s) {
      if (empty || !contains(now, picks_[static_cast<size_t>(s)])) {
        term_.insert(label(i, picks_[static_cast<size_t>(s)]), eta(i, picks_[static_cast<size_t>(s)]));
      }
    }
    std::copy(picks_.begin(), picks_.end(), now);
    return true;
  }

  int64_t plain_pass(const int32_t* order, int64_t n) {
    int64_t changed = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i % 4096 == 0) check_interrupt();
      if (i + kAhead < n) prefetch_row(order[i + kAhead]);
      changed += step(order[i]) ? 1 : 0;
    }
    return changed;
  }

  int64_t checked_pass() {
    const int64_t batch = rows_in_batch(proba_.rows);
    std::vector<uint8_t> wants(static_cast<size_t>(std::min(batch, proba_.rows)));
    int64_t changed = 0;
    for (int64_t first = 0; first < proba_.rows; first += batch) {
      const int64_t size = std::min(batch, proba_.rows - first);
      parallel_for(chunk_count(size, kBlock), options_.threads, [&](int64_t block, int thread) {
        double* gains = scratch_.data() + thread * widest_;
        for (int64_t r = block * kBlock; r < std::min(size, (block + 1) * kBlock); ++r) {
          wants[static_cast<size_t>(r)] = wants_change(first + r, gains);
        }
      });
      for (int64_t r = 0; r < size; ++r) {
        if (wants[static_cast<size_t>(r)]) changed += step(first + r) ? 1 : 0;
      }
    }
    return changed;
  }

  // Labels and scores, best first.
  void finish(BcaResult& result) {
    result.labels.resize(chosen_.size());
    result.scores.resize(chosen_.size());
    for (int64_t i = 0; i < proba_.rows; ++i) {
      int32_t* now = chosen(i);
      if (k_ == 0 || now[0] < 0) continue;
      std::sort(now, now + k_);
      term_.begin_row(labels(i), etas(i), proba_.size(i));
      for (int64_t s = 0; s < k_; ++s) {
        scratch_[static_cast<size_t>(s)] = term_.keep(label(i, now[s]), eta(i, now[s]), now[s]);
      }
      pick_largest(scratch_.data(), k_, k_, picks_.data(), pick_gains_.data());
      for (int64_t s = 0; s < k_; ++s) {
        const auto slot = static_cast<size_t>(i * k_ + s);
        result.labels[slot] = label(i, now[picks_[static_cast<size_t>(s)]]);
        result.scores[slot] = static_cast<float>(pick_gains_[static_cast<size_t>(s)]);
      }
    }
  }

  const Probabilities& proba_;
  Term term_;
  const BcaOptions& options_;
  int64_t k_;
  int64_t widest_ = 0;              // candidates of the longest row
  std::vector<double> scratch_;     // threads x widest: gains of a row
  std::vector<int32_t> picks_;      // k
  std::vector<double> pick_gains_;  // k
  std::vector<int32_t> chosen_;     // n x k positions within the row, -1 before the first choice
};

// Calls f with the state that suits the utility.
template <class F>
auto with_term(const Utility& u, const MetricCallback& custom, double custom_weight, F&& f) {
  if (custom) return f(CallbackTerm(u, custom, custom_weight));
  if (u.terms.empty()) return f(AffineTerm(u, TruePositives{}, 0));
  if (u.terms.size() > 1) return f(GeneralTerm(u));
  const MetricTerm& term = u.terms[0];
  return visit_metric(term, [&](auto metric) {
    using Metric = decltype(metric);
    if constexpr (std::is_same_v<Metric, Coverage>) {
      return f(CoverageTerm(u, term.weight));
    } else if constexpr (Metric::affine) {
      return f(AffineTerm(u, metric, term.weight));
    } else {
      return f(CurvedTerm(u, metric, term.weight));
    }
  });
}

}  // namespace

BcaResult block_coordinate_ascent(const Probabilities& proba, const Utility& u, const MetricCallback& custom,
                                  double custom_weight, const std::vector<int32_t>& start,
                                  const BcaOptions& options) {
  return with_term(u, custom, custom_weight, [&](auto term) {
    return Ascent<decltype(term)>(proba, std::move(term), options).run(start);
  });
}

double prediction_utility(const Probabilities& proba, const Utility& u, const MetricCallback& custom,
                          double custom_weight, const std::vector<int32_t>& chosen,
                          const BcaOptions& options) {
  return with_term(u, custom, custom_weight, [&](auto term) {
    return Ascent<decltype(term)>(proba, std::move(term), options).place(chosen);
  });
}

}  // namespace xmc
