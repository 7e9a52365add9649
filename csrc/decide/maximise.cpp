#include "decide/maximise.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "core/rng.h"
#include "decide/frank_wolfe.h"
#include "decide/weighted_topk.h"

namespace xmc::decide {
namespace {

// Tuned on EURLex-4K with `bench_decide.py eurlex --tables starts`.
constexpr int kRounds = 8;  // of Frank-Wolfe: four end lower, 16 a little higher for 1.5 times the time
constexpr double kSmoothing = 0.1;  // of q there: keeps the slopes finite for labels without predictions
constexpr double kCoarse = 1e-4;    // tolerance of the metrics that only give a start

using Positions = std::vector<int32_t>;  // n x k, within the rows

Positions random_positions(const Probabilities& proba, int64_t k, uint64_t seed) {
  Positions start(proba.rows * k);
  std::vector<int32_t> row;
  for (int64_t i = 0; i < proba.rows; ++i) {
    Rng rng(mix64(seed) ^ static_cast<uint64_t>(i));
    row.resize(proba.size(i));
    std::iota(row.begin(), row.end(), 0);
    shuffle(row.data(), proba.size(i), rng);
    std::copy_n(row.begin(), k, start.begin() + i * k);
  }
  return start;
}

Positions positions_of(const Probabilities& proba, const int32_t* labels, int64_t k) {
  Positions start(proba.rows * k);
  for (int64_t i = 0; i < proba.rows; ++i) {
    const int32_t *row = proba.indices + proba.begin(i), *end = proba.indices + proba.end(i);
    const auto first = start.begin() + i * k;
    for (int64_t s = 0; s < k; ++s) {
      const int32_t label = labels[i * k + s];
      const int32_t* found = std::lower_bound(row, end, label);
      const bool candidate = found != end && *found == label;
      first[s] = static_cast<int32_t>(found - row);
      if (!candidate || std::find(first, first + s, first[s]) != first + s) {
        throw std::invalid_argument(
            "init: label " + std::to_string(label) + " of row " + std::to_string(i) +
            (candidate ? " occurs twice" : " is not a candidate (its probability is 0)"));
      }
    }
  }
  return start;
}

// From the top-k, kRounds times the best response to the utility linearised at the mean counts of all rounds
// so far: Frank-Wolfe with steps 1 / (round + 1).
Positions relaxed_positions(const Probabilities& proba, const Utility& utility, const Positions& topk,
                            const BcaOptions& options) {
  const int64_t labels = utility.labels();
  std::vector<double> a(labels), b(labels), t(labels, 0.0), q(labels, 0.0), t_round(labels), q_round(labels);
  const Truth none;
  Response response(proba, none, topk, options.k, options.threads);
  for (int round = 0; round < kRounds; ++round) {
    response.count(kSmoothing, t_round.data(), q_round.data());
    for (int64_t j = 0; j < labels; ++j) {
      t[j] += (t_round[j] - t[j]) / (round + 1);
      q[j] += (q_round[j] - q[j]) / (round + 1);
    }
    utility_gradient(utility, t.data(), q.data(), a.data(), b.data());
    response.choose(a.data(), b.data());
  }
  return response.positions();
}

// `metrics` with macro-precision replaced by another metric.
Metrics replace_precision(Metrics metrics, MetricKind kind, double beta) {
  for (MetricTerm& term : metrics.terms) {
    if (term.kind == MetricKind::macro_precision) term = {kind, term.weight, beta};
  }
  return metrics;
}

Positions relaxed_start(const Probabilities& proba, const Metrics& metrics, const Positions& topk,
                        const BcaOptions& options) {
  const bool precision = std::any_of(metrics.terms.begin(), metrics.terms.end(), [](const MetricTerm& term) {
    return term.kind == MetricKind::macro_precision;
  });
  if (!precision)
    return relaxed_positions(proba, make_utility(metrics, proba.rows, options.k), topk, options);
  BcaOptions coarse = options;
  coarse.tol = std::max(options.tol, kCoarse);
  Positions start;
  for (const Metrics& easier : {replace_precision(metrics, MetricKind::coverage, 1.0),
                                replace_precision(metrics, MetricKind::macro_fbeta, 0.1)}) {
    const Utility utility = make_utility(easier, proba.rows, options.k);
    if (start.empty()) start = relaxed_positions(proba, utility, topk, options);
    start =
        positions_of(proba, block_coordinate_ascent(proba, utility, start, coarse).labels.data(), options.k);
  }
  return start;
}

Maximum maximise_linear(const Probabilities& proba, const Utility& u, const Positions& topk,
                        const BcaOptions& options) {
  const RowChoice choice = weighted_topk(proba, u.a.data(), u.b.data(), options.k, options.threads);
  Maximum r;
  r.labels = labels_at(proba, choice.at, options.k);
  r.scores.assign(choice.gain.begin(), choice.gain.end());
  r.value = std::accumulate(choice.gain.begin(), choice.gain.end(), u.constant);
  r.start_utility = r.topk_utility =
      u.constant + sum_of_gains(proba, topk, u.a.data(), u.b.data(), options.k);
  r.converged = true;
  return r;
}

}  // namespace

Maximum maximise(const Probabilities& proba, const Metrics& metrics, const std::string& start,
                 const int32_t* labels, const BcaOptions& given) {
  BcaOptions options = given;
  if (metrics.custom) options.threads = 1;
  const Utility u = make_utility(metrics, proba.rows, options.k);
  const Positions topk = topk_positions(proba, options.k, options.threads);
  if (start != "labels" && u.terms.empty() && !u.custom) return maximise_linear(proba, u, topk, options);
  const bool from_topk = start == "topk" || (start == "relaxed" && u.custom);
  Positions from;  // greedy: empty
  if (from_topk) {
    from = topk;
  } else if (start == "relaxed") {
    from = relaxed_start(proba, metrics, topk, options);
  } else if (start == "random") {
    from = random_positions(proba, options.k, options.seed);
  } else if (start == "labels") {
    from = positions_of(proba, labels, options.k);
  }
  Maximum r{block_coordinate_ascent(proba, u, from, options)};
  r.topk_utility = from_topk ? r.start_utility : prediction_utility(proba, u, topk, options);
  if (!from_topk && (r.utility.empty() || r.utility.back() < r.topk_utility)) {
    static_cast<BcaResult&>(r) = block_coordinate_ascent(proba, u, topk, options);
  }
  r.value = r.utility.empty() ? r.start_utility : r.utility.back();
  return r;
}

}  // namespace xmc::decide
