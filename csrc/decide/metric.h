// The metrics that a decision can maximise: which of core/confusion.h, averaged how, with which weight.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "core/confusion.h"

namespace xmc::decide {

enum class MetricKind : int32_t {
  precision,           // P@k, mean over instances
  weighted_precision,  // the same with a weight per label (PSP@k: 1 / propensity)
  macro_precision,
  macro_recall,
  macro_fbeta,
  macro_jaccard,
  macro_balanced_accuracy,
  macro_gmean,
  macro_hmean,
  coverage,
};

// One summand of a utility: weight * metric.
struct MetricTerm {
  MetricKind kind;
  double weight;
  double beta;  // of macro_fbeta
};

// Calls f with the metric's struct.
template <class F>
auto visit_metric(const MetricTerm& term, F&& f) {
  switch (term.kind) {
    case MetricKind::precision:
    case MetricKind::weighted_precision:
      return f(TruePositives{});
    case MetricKind::macro_precision:
      return f(Precision{});
    case MetricKind::macro_recall:
      return f(Recall{});
    case MetricKind::macro_fbeta:
      return f(FBeta{term.beta * term.beta});
    case MetricKind::macro_jaccard:
      return f(Jaccard{});
    case MetricKind::macro_balanced_accuracy:
      return f(BalancedAccuracy{});
    case MetricKind::macro_gmean:
      return f(GMean{});
    case MetricKind::macro_hmean:
      return f(HMean{});
    case MetricKind::coverage:
      return f(Coverage{});
  }
  throw std::invalid_argument("unknown metric kind");
}

inline bool is_linear(const MetricTerm& term) {
  return visit_metric(term, [](auto metric) { return decltype(metric)::linear; });
}

}  // namespace xmc::decide
