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

constexpr int64_t kAhead = 4;   // rows fetched ahead
constexpr int64_t kRuns = 256;  // runs of a pass, at least
constexpr int64_t kLongestRun = 32;
constexpr int64_t kBlock = 256;  // rows that a thread checks at a time
constexpr int64_t kFew = 8;      // newcomers that replace the worst one by one

int64_t rows_in_batch(int64_t n) {
  return std::max<int64_t>(2048, (n + 7) / 8);
}

template <class Term>
class Ascent {
 public:
  Ascent(const Probabilities& proba, Term term, const BcaOptions& options)
      : proba_(proba), term_(std::move(term)), options_(options), k_(options.k) {
    const Scratch one{RowScratch(widest_row(proba)), std::vector<double>(static_cast<size_t>(k_))};
    scratch_.assign(static_cast<size_t>(options.threads), one);
    picks_.resize(static_cast<size_t>(k_));
    pick_gains_.resize(static_cast<size_t>(k_));
  }

  BcaResult run(const std::vector<int32_t>& start) {
    BcaResult result;
    double before = result.start_utility = place(start);
    // Runs of neighbouring rows in random order: memory is read in streams.
    const int64_t run = std::clamp<int64_t>(proba_.rows / kRuns, 1, kLongestRun);
    std::vector<int32_t> order(static_cast<size_t>(chunk_count(proba_.rows, run)));
    std::iota(order.begin(), order.end(), 0);
    bool settled = false;
    for (int pass = 0; pass < options_.max_passes && proba_.rows > 0 && k_ > 0; ++pass) {
      Rng rng(mix64(options_.seed) + static_cast<uint64_t>(pass));
      shuffle(order.data(), static_cast<int64_t>(order.size()), rng);
      const int64_t changed = settled ? checked_pass() : plain_pass(order, run);
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
  struct Scratch {
    RowScratch row;
    std::vector<double> kept;  // k: what the chosen labels are worth
  };

  int32_t* chosen(int64_t i) { return chosen_.data() + i * k_; }
  const int32_t* labels(int64_t i) const { return proba_.indices + proba_.begin(i); }
  const float* etas(int64_t i) const { return proba_.data + proba_.begin(i); }
  int32_t label(int64_t i, int64_t c) const { return labels(i)[c]; }
  double eta(int64_t i, int64_t c) const { return static_cast<double>(etas(i)[c]); }

  // The first rows of the next run are fetched while this one ends; within a run the processor sees itself
  // what comes next, but for the labels' state.
  void prefetch_chosen(int64_t i) {
    for (int64_t s = 0; s < k_ && chosen(i)[s] >= 0; ++s) term_.prefetch(label(i, chosen(i)[s]));
  }

  bool contains(const int32_t* items, int32_t item) const {
    return std::find(items, items + k_, item) != items + k_;
  }

  double add(int64_t i, int64_t c) const { return term_.add(label(i, c), eta(i, c), c); }
  double keep(int64_t i, int64_t c) const { return term_.keep(label(i, c), eta(i, c), c); }

  // What the chosen labels are worth, into `kept`; returns the least.
  double worth(int64_t i, double* kept) {
    double least = std::numeric_limits<double>::infinity();
    for (int64_t s = 0; s < k_; ++s) {
      kept[s] = keep(i, chosen(i)[s]);
      least = std::min(least, kept[s]);
    }
    return least;
  }

  // Float gains of the candidates that are not chosen (of the others never); returns what a candidate must
  // reach for a chance to replace one of the chosen.
  float quick_gains(int64_t i, RowScratch& row) {
    term_.row_gains(labels(i), etas(i), proba_.size(i), row.gains.data());
    float least = -kNever;
    for (int64_t s = 0; s < k_; ++s) {
      const int32_t c = chosen(i)[s];
      float& gain = row.gains[static_cast<size_t>(c)];
      least = std::min(least, term_.quick_keep(label(i, c), etas(i)[c], gain));
      gain = kNever;
    }
    const RowFilter& filter = term_.filter();
    return filter.lower(filter.lower(least));
  }

  // Gains in double, of the chosen ones `kept`.
  void exact_gains(int64_t i, RowScratch& row, const double* kept) {
    for (int64_t c = 0; c < proba_.size(i); ++c) row.exact[static_cast<size_t>(c)] = add(i, c);
    for (int64_t s = 0; s < k_; ++s) row.exact[static_cast<size_t>(chosen(i)[s])] = kept[s];
  }

  // Whether a step of row i may change something.
  bool wants_change(int64_t i, Scratch& scratch) {
    if constexpr (Term::kTable) {
      const float bound = quick_gains(i, scratch.row);
      return kernels_.largest(scratch.row.gains.data(), proba_.size(i)) >= bound;
    } else {
      term_.begin_row(labels(i), etas(i), proba_.size(i));
      const double least = worth(i, scratch.kept.data());
      bool wants = false;
      for (int64_t c = 0; c < proba_.size(i); ++c) {
        wants |= add(i, c) > least && !contains(chosen(i), static_cast<int32_t>(c));
      }
      return wants;
    }
  }

  // The best response of row i into picks_; false if it is the present choice (which wins ties).
  bool respond(int64_t i) {
    RowScratch& row = scratch_[0].row;
    double* kept = scratch_[0].kept.data();
    const int64_t m = proba_.size(i);
    int64_t count = m;
    if constexpr (Term::kTable) {
      const float bound = quick_gains(i, row);
      count = kernels_.at_least(row.gains.data(), m, bound, row.found.data());
      if (count == 0) return false;
    }
    const double least = worth(i, kept);
    if constexpr (Term::kTable) {
      if (k_ <= kRowLanes) return count <= kFew ? replace(i, count) : choose(i, least);
    }
    exact_gains(i, row, kept);
    pick_largest(row.exact.data(), m, k_, row.found.data(), picks_.data(), pick_gains_.data());
    return is_better(i, least);
  }

  // The first `count` candidates found replace the worst of the chosen ones, one by one.
  bool replace(int64_t i, int64_t count) {
    double* kept = scratch_[0].kept.data();
    std::copy(chosen(i), chosen(i) + k_, picks_.begin());
    bool changed = false;
    for (int64_t f = 0; f < count; ++f) {
      const int32_t c = scratch_[0].row.found[static_cast<size_t>(f)];
      const double gain = add(i, c);
      int64_t worst = 0;
      for (int64_t s = 1; s < k_; ++s) worst = kept[s] < kept[worst] ? s : worst;
      if (!(gain > kept[worst])) continue;
      kept[worst] = gain;
      picks_[static_cast<size_t>(worst)] = c;
      changed = true;
    }
    return changed;
  }

  // The k best of all candidates.
  bool choose(int64_t i, double least) {
    RowScratch& row = scratch_[0].row;
    const double* kept = scratch_[0].kept.data();
    for (int64_t s = 0; s < k_; ++s) {
      row.gains[static_cast<size_t>(chosen(i)[s])] = static_cast<float>(kept[s]);
    }
    pick_largest(row, term_.filter(), proba_.size(i), k_, picks_.data(), pick_gains_.data(), [&](int32_t c) {
      const int64_t s = std::find(chosen(i), chosen(i) + k_, c) - chosen(i);
      return s < k_ ? kept[s] : add(i, c);
    });
    return is_better(i, least);
  }

  // Whether picks_ has a label that beats the least of the chosen ones.
  bool is_better(int64_t i, double least) {
    bool better = false;
    for (int64_t s = 0; s < k_; ++s) {
      const auto slot = static_cast<size_t>(s);
      better |= pick_gains_[slot] > least && !contains(chosen(i), picks_[slot]);
    }
    return better;
  }

  // Makes the best response of row i; true if it changed.
  bool step(int64_t i) {
    int32_t* now = chosen(i);
    const bool empty = now[0] < 0;
    term_.begin_row(labels(i), etas(i), proba_.size(i));
    if (empty) {
      RowScratch& row = scratch_[0].row;
      for (int64_t c = 0; c < proba_.size(i); ++c) row.exact[static_cast<size_t>(c)] = add(i, c);
      pick_largest(row.exact.data(), proba_.size(i), k_, row.found.data(), picks_.data(), pick_gains_.data());
    } else if (!respond(i)) {
      return false;
    }
    for (int64_t s = 0; s < k_ && !empty; ++s) {
      if (!contains(picks_.data(), now[s])) term_.remove(label(i, now[s]), eta(i, now[s]));
    }
    for (int64_t s = 0; s < k_; ++s) {
      const int32_t pick = picks_[static_cast<size_t>(s)];
      if (empty || !contains(now, pick)) term_.insert(label(i, pick), eta(i, pick));
    }
    std::copy(picks_.begin(), picks_.end(), now);
    return true;
  }

  int64_t plain_pass(const std::vector<int32_t>& order, int64_t run) {
    int64_t changed = 0;
    for (size_t r = 0; r < order.size(); ++r) {
      check_interrupt();
      const int64_t first = order[r] * run, last = std::min(first + run, proba_.rows);
      for (int64_t i = first; i < last; ++i) {
        const bool inside = i + kAhead < last;
        if (inside) prefetch_chosen(i + kAhead);
        if (!inside && r + 1 < order.size()) {
          prefetch_row(proba_, std::min(order[r + 1] * run + kAhead - (last - i), proba_.rows - 1));
        }
        changed += step(i) ? 1 : 0;
      }
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
        Scratch& scratch = scratch_[static_cast<size_t>(thread)];
        const int64_t last = std::min(size, (block + 1) * kBlock);
        for (int64_t r = block * kBlock; r < last; ++r) {
          wants[static_cast<size_t>(r)] = wants_change(first + r, scratch);
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
      if (k_ > 1) std::sort(now, now + k_);
      term_.begin_row(labels(i), etas(i), proba_.size(i));
      for (int64_t s = 0; s < k_; ++s) {
        insert_best(now[s], keep(i, now[s]), s, k_, picks_.data(), pick_gains_.data());
      }
      for (int64_t s = 0; s < k_; ++s) {
        const auto slot = static_cast<size_t>(i * k_ + s);
        result.labels[slot] = label(i, picks_[static_cast<size_t>(s)]);
        result.scores[slot] = static_cast<float>(pick_gains_[static_cast<size_t>(s)]);
      }
    }
  }

  const Probabilities& proba_;
  Term term_;
  const BcaOptions& options_;
  int64_t k_;
  const RowKernels& kernels_ = row_kernels();
  std::vector<Scratch> scratch_;    // one per thread
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
