#include "decide/start.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "core/rng.h"
#include "decide/frank_wolfe.h"
#include "decide/weighted_topk.h"

namespace xmc {

std::vector<int32_t> random_positions(const Probabilities& proba, int64_t k, uint64_t seed) {
  std::vector<int32_t> start(static_cast<size_t>(proba.rows * k));
  std::vector<int32_t> row;
  for (int64_t i = 0; i < proba.rows; ++i) {
    Rng rng(mix64(seed) ^ static_cast<uint64_t>(i));
    row.resize(static_cast<size_t>(proba.size(i)));
    std::iota(row.begin(), row.end(), 0);
    shuffle(row.data(), proba.size(i), rng);
    std::copy(row.begin(), row.begin() + k, start.begin() + i * k);
  }
  return start;
}

std::vector<int32_t> positions_of(const Probabilities& proba, const int32_t* labels, int64_t k) {
  std::vector<int32_t> start(static_cast<size_t>(proba.rows * k));
  for (int64_t i = 0; i < proba.rows; ++i) {
    const int32_t* row = proba.indices + proba.begin(i);
    auto first = start.begin() + i * k;
    for (int64_t s = 0; s < k; ++s) {
      const int32_t label = labels[i * k + s];
      const int32_t* found = std::lower_bound(row, row + proba.size(i), label);
      const bool candidate = found != row + proba.size(i) && *found == label;
      first[s] = static_cast<int32_t>(found - row);
      if (!candidate || std::find(first, first + s, first[s]) != first + s) {
        throw std::invalid_argument(
            "init: label " + std::to_string(label) + " of row " + std::to_string(i) +
            (candidate ? " is named twice" : " is not a candidate (its probability is 0)"));
      }
    }
  }
  return start;
}

std::vector<int32_t> relaxed_positions(const Probabilities& proba, const Utility& utility, int64_t k,
                                       int rounds, int threads, std::vector<int32_t>* topk) {
  constexpr double kSmoothing = 0.1;  // keeps the slopes finite for labels without predictions
  const auto labels = static_cast<size_t>(utility.labels());
  std::vector<double> a(labels), b(labels), t(labels, 0.0), q(labels, 0.0), t_round(labels), q_round(labels);
  const Truth none;
  Response response(proba, none, k, threads);
  if (topk) *topk = response.positions();
  for (int round = 0; round < rounds; ++round) {
    response.count(kSmoothing, t_round.data(), q_round.data());
    for (size_t j = 0; j < labels; ++j) {
      t[j] += (t_round[j] - t[j]) / (round + 1);
      q[j] += (q_round[j] - q[j]) / (round + 1);
    }
    utility_gradient(utility, t.data(), q.data(), a.data(), b.data());
    response.choose(a.data(), b.data());
  }
  return response.positions();
}

}  // namespace xmc
