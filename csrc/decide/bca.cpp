#include "decide/bca.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "core/parallel.h"
#include "core/prefetch.h"
#include "core/rng.h"
#include "decide/ascent_state.h"
#include "decide/best.h"

namespace xmc::decide {
namespace {

// Tuned with `bench_decide.py --tables scaling threads` (CPU time of a pass, 5,000 to 80,000 rows).
constexpr int64_t kAhead = 4;        // rows fetched ahead
constexpr int64_t kRuns = 256;       // runs of neighbouring rows in a pass, at least
constexpr int64_t kLongestRun = 32;  // rows of a run, at most
constexpr int64_t kChunk = 256;      // rows that a thread checks at a time
constexpr int64_t kBatch = 2048;     // rows checked before any of them changes: so many,
constexpr int64_t kBatches = 8;      // or this part of all rows
constexpr int64_t kSettled = 4;      // a pass is checked first if the last one changed less than this part
constexpr int64_t kFew = 8;          // so many newcomers replace the worst chosen label one by one

template <class State>
class Ascent {
 public:
  Ascent(const Probabilities& proba, State state, const BcaOptions& options)
      : proba_(proba),
        state_(std::move(state)),
        options_(options),
        k_(options.k),
        picks_(k_),
        pick_gains_(k_) {
    scratch_.assign(options.threads, {RowScratch(widest_row(proba)), std::vector<double>(k_)});
  }

  BcaResult run(const std::vector<int32_t>& start) {
    BcaResult result;
    double before = result.start_utility = place(start);
    const int64_t run = std::clamp<int64_t>(proba_.rows / kRuns, 1, kLongestRun);
    std::vector<int32_t> order(chunk_count(proba_.rows, run));
    std::iota(order.begin(), order.end(), 0);
    bool settled = false;
    for (int pass = 0; pass < options_.max_iter && proba_.rows > 0 && k_ > 0; ++pass) {
      Rng rng(mix64(options_.seed) + static_cast<uint64_t>(pass));
      shuffle(order.data(), static_cast<int64_t>(order.size()), rng);
      const int64_t changed = settled ? checked_pass() : plain_pass(order, run);
      const double after = state_.utility();
      result.changed.push_back(changed);
      result.utility.push_back(after);
      const bool greedy = start.empty() && pass == 0;
      result.converged = changed == 0 || (!greedy && after - before <= options_.tol * std::abs(after));
      if (result.converged) break;
      settled = kSettled * changed < proba_.rows;
      before = after;
    }
    result.converged |= proba_.rows == 0 || k_ == 0;
    finish(result);
    return result;
  }

  // Sets the prediction (positions; empty: none yet); its utility.
  double place(const std::vector<int32_t>& start) {
    chosen_.assign(proba_.rows * k_, -1);
    if (!start.empty()) {
      chosen_ = start;
      for (int64_t i = 0; i < proba_.rows; ++i) {
        for (int64_t s = 0; s < k_; ++s) state_.place(label(i, chosen(i)[s]), eta(i, chosen(i)[s]));
      }
      state_.refresh_all();
    }
    return state_.utility();
  }

 private:
  struct Scratch {
    RowScratch row;
    std::vector<double> kept;  // k: what the chosen labels are worth
  };

  int32_t* chosen(int64_t i) { return chosen_.data() + i * k_; }
  const int32_t* labels(int64_t i) const { return proba_.indices + proba_.begin(i); }
  const float* etas(int64_t i) const { return proba_.data + proba_.begin(i); }
  int32_t label(int64_t i, int64_t c) const { return labels(i)[c]; }
  double eta(int64_t i, int64_t c) const { return static_cast<double>(etas(i)[c]); }
  double add(int64_t i, int64_t c) const { return state_.add(label(i, c), eta(i, c), c); }
  double keep(int64_t i, int64_t c) const { return state_.keep(label(i, c), eta(i, c), c); }
  bool contains(const int32_t* items, int32_t item) const {
    return std::find(items, items + k_, item) != items + k_;
  }

  // One step, from the cheapest test to the exact choice. Most rows of a late pass end at the first.
  //
  //   1. reachable()   float gains of all candidates; which may beat the least chosen label? none: done
  //   2. worth()       what the chosen labels are worth, in double
  //   3. replace() for a few candidates, choose() for many, choose_exact() where there are no float gains

  // Float gains of the candidates that are not chosen (of the others never), and the bound that a candidate
  // must reach for a chance to replace one of the chosen.
  float reachable(int64_t i, RowScratch& row) {
    state_.row_gains(labels(i), etas(i), proba_.size(i), row.gains.data());
    float least = -kNever;
    for (int64_t s = 0; s < k_; ++s) {
      const int32_t c = chosen(i)[s];
      float& gain = row.gains[c];
      least = std::min(least, state_.quick_keep(label(i, c), etas(i)[c], gain));
      gain = kNever;
    }
    const RowFilter& filter = state_.filter();
    return filter.lower(filter.lower(least));  // once for the rounding of `least`, once for that of the gains
  }

  // What the chosen labels are worth, into `kept`; returns the least.
  double worth(int64_t i, double* kept) {
    double least = std::numeric_limits<double>::infinity();
    for (int64_t s = 0; s < k_; ++s) {
      kept[s] = keep(i, chosen(i)[s]);
      least = std::min(least, kept[s]);
    }
    return least;
  }

  // Whether a step of row i may change something.
  bool wants_change(int64_t i, Scratch& scratch) {
    const int64_t m = proba_.size(i);
    if constexpr (State::kTable) {
      const float bound = reachable(i, scratch.row);
      return kernels_.largest(scratch.row.gains.data(), m) >= bound;
    } else {
      state_.begin_row(labels(i), etas(i), m);
      const double least = worth(i, scratch.kept.data());
      bool wants = false;
      for (int64_t c = 0; c < m; ++c) {
        wants |= add(i, c) > least && !contains(chosen(i), static_cast<int32_t>(c));
      }
      return wants;
    }
  }

  // The best response of row i into picks_; false if it is the present choice (which wins ties).
  bool respond(int64_t i) {
    double* kept = scratch_[0].kept.data();
    if constexpr (State::kTable) {
      RowScratch& row = scratch_[0].row;
      const float bound = reachable(i, row);
      const int64_t count = kernels_.at_least(row.gains.data(), proba_.size(i), bound, row.found.data());
      if (count == 0) return false;
      const double least = worth(i, kept);
      if (k_ > kRowLanes) return choose_exact(i, least);
      return count <= kFew ? replace(i, count) : choose(i, least);
    } else {
      return choose_exact(i, worth(i, kept));
    }
  }

  // The first `count` candidates found replace the worst of the chosen ones, one by one.
  bool replace(int64_t i, int64_t count) {
    double* kept = scratch_[0].kept.data();
    std::copy(chosen(i), chosen(i) + k_, picks_.begin());
    bool changed = false;
    for (int64_t f = 0; f < count; ++f) {
      const int32_t c = scratch_[0].row.found[f];
      const double gain = add(i, c);
      const int64_t worst = std::min_element(kept, kept + k_) - kept;
      if (!(gain > kept[worst])) continue;
      kept[worst] = gain;
      picks_[worst] = c;
      changed = true;
    }
    return changed;
  }

  // The k best of all candidates, float gains first.
  bool choose(int64_t i, double least) {
    RowScratch& row = scratch_[0].row;
    const double* kept = scratch_[0].kept.data();
    for (int64_t s = 0; s < k_; ++s) row.gains[chosen(i)[s]] = static_cast<float>(kept[s]);
    pick_largest(row, state_.filter(), proba_.size(i), k_, picks_.data(), pick_gains_.data(), [&](int32_t c) {
      const int64_t s = std::find(chosen(i), chosen(i) + k_, c) - chosen(i);
      return s < k_ ? kept[s] : add(i, c);
    });
    return is_better(i, least);
  }

  // The same with all gains in double.
  bool choose_exact(int64_t i, double least) {
    auto& [row, kept] = scratch_[0];
    for (int64_t c = 0; c < proba_.size(i); ++c) row.exact[c] = add(i, c);
    for (int64_t s = 0; s < k_; ++s) row.exact[chosen(i)[s]] = kept[s];
    sort_exact(row, proba_.size(i), k_, picks_.data(), pick_gains_.data());
    return is_better(i, least);
  }

  // Whether picks_ has a label that beats the least of the chosen ones.
  bool is_better(int64_t i, double least) {
    bool better = false;
    for (int64_t s = 0; s < k_; ++s) better |= pick_gains_[s] > least && !contains(chosen(i), picks_[s]);
    return better;
  }

  // Makes the best response of row i; true if it changed.
  bool step(int64_t i) {
    int32_t* now = chosen(i);
    const bool empty = now[0] < 0;
    state_.begin_row(labels(i), etas(i), proba_.size(i));
    if (empty) {
      sort_exact(scratch_[0].row, proba_.size(i), k_, picks_.data(), pick_gains_.data(),
                 [&](int32_t c) { return add(i, c); });
    } else if (!respond(i)) {
      return false;
    }
    for (int64_t s = 0; s < k_ && !empty; ++s) {
      if (!contains(picks_.data(), now[s])) state_.remove(label(i, now[s]), eta(i, now[s]));
    }
    for (const int32_t pick : picks_) {
      if (empty || !contains(now, pick)) state_.insert(label(i, pick), eta(i, pick));
    }
    std::copy(picks_.begin(), picks_.end(), now);
    return true;
  }

  // Row after row. Within a run the hardware fetches the rows itself, but not the labels' state; the first
  // rows of the next run are fetched while this one ends.
  int64_t plain_pass(const std::vector<int32_t>& order, int64_t run) {
    int64_t changed = 0;
    for (size_t r = 0; r < order.size(); ++r) {
      check_interrupt();
      const int64_t first = order[r] * run, last = std::min(first + run, proba_.rows);
      for (int64_t i = first; i < last; ++i) {
        const int64_t ahead = i + kAhead;
        if (ahead < last) {
          for (int64_t s = 0; s < k_ && chosen(ahead)[s] >= 0; ++s) {
            state_.prefetch(label(ahead, chosen(ahead)[s]));
          }
        } else if (r + 1 < order.size()) {
          prefetch_row(proba_, std::min(order[r + 1] * run + ahead - last, proba_.rows - 1));
        }
        changed += step(i);
      }
    }
    return changed;
  }

  // Batch after batch, checked in parallel (bca.h).
  int64_t checked_pass() {
    const int64_t batch = std::max<int64_t>(kBatch, chunk_count(proba_.rows, kBatches));
    std::vector<uint8_t> wants(std::min(batch, proba_.rows));
    int64_t changed = 0;
    for (int64_t first = 0; first < proba_.rows; first += batch) {
      const int64_t size = std::min(batch, proba_.rows - first);
      parallel_items(size, kChunk, options_.threads,
                     [&](int64_t r, int thread) { wants[r] = wants_change(first + r, scratch_[thread]); });
      for (int64_t r = 0; r < size; ++r) {
        if (wants[r]) changed += step(first + r);
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
      state_.begin_row(labels(i), etas(i), proba_.size(i));
      insert_all(now, k_, k_, picks_.data(), pick_gains_.data(), [&](int32_t c) { return keep(i, c); });
      for (int64_t s = 0; s < k_; ++s) {
        result.labels[i * k_ + s] = label(i, picks_[s]);
        result.scores[i * k_ + s] = static_cast<float>(pick_gains_[s]);
      }
    }
  }

  const Probabilities& proba_;
  State state_;
  const BcaOptions& options_;
  int64_t k_;
  const RowKernels& kernels_ = row_kernels();
  std::vector<Scratch> scratch_;    // one per thread
  std::vector<int32_t> picks_;      // k
  std::vector<double> pick_gains_;  // k
  std::vector<int32_t> chosen_;     // n x k positions within the row, -1 before the first choice
};

// Calls f with an ascent whose state suits the utility.
template <class F>
auto with_ascent(const Probabilities& proba, const Utility& u, const BcaOptions& options, F&& f) {
  const auto call = [&](auto state) { return f(Ascent<decltype(state)>(proba, std::move(state), options)); };
  if (u.custom) return call(CallbackState(u));
  if (u.terms.empty()) return call(AffineState(u, TruePositives{}, 0));
  if (u.terms.size() > 1) return call(GeneralState(u));
  const MetricTerm& term = u.terms[0];
  return visit_metric(term, [&](auto metric) {
    using Metric = decltype(metric);
    if constexpr (std::is_same_v<Metric, Coverage>) {
      return call(CoverageState(u, term.weight));
    } else if constexpr (Metric::affine) {
      return call(AffineState(u, metric, term.weight));
    } else {
      return call(CurvedState(u, metric, term.weight));
    }
  });
}

}  // namespace

BcaResult block_coordinate_ascent(const Probabilities& proba, const Utility& utility,
                                  const std::vector<int32_t>& start, const BcaOptions& options) {
  return with_ascent(proba, utility, options, [&](auto ascent) { return ascent.run(start); });
}

double prediction_utility(const Probabilities& proba, const Utility& utility,
                          const std::vector<int32_t>& chosen, const BcaOptions& options) {
  return with_ascent(proba, utility, options, [&](auto ascent) { return ascent.place(chosen); });
}

}  // namespace xmc::decide
