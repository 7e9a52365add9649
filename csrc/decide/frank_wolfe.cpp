#include "decide/frank_wolfe.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "core/rng.h"
#include "decide/weighted_topk.h"

namespace xmc {
namespace {

constexpr int64_t kLabels = 2048;  // labels of one block of the line search
constexpr int kPoints = 8;         // steps tried at once

// The way from (t0, q0) to (t1, q1), over the labels that move; `rest` is what the others and all that is
// linear are worth at the start, `slope` what the linear part gains.
struct Way {
  std::vector<double> t, q, dt, dq, p;
  double rest, slope = 0;
};

Way way_between(const Utility& u, const double* t0, const double* q0, const double* t1, const double* q1,
                double now) {
  Way way;
  way.rest = now;
  for (auto* values : {&way.t, &way.q, &way.dt, &way.dq, &way.p}) values->reserve(u.p.size());
  for (int64_t j = 0; j < u.labels(); ++j) {
    if (t0[j] == t1[j] && q0[j] == q1[j]) continue;
    way.t.push_back(t0[j]);
    way.q.push_back(q0[j]);
    way.dt.push_back(t1[j] - t0[j]);
    way.dq.push_back(q1[j] - q0[j]);
    way.p.push_back(u.p[j]);
    way.slope += u.a[j] * way.dt.back() + u.b[j] * way.dq.back();
  }
  for (const MetricTerm& term : u.terms) {
    way.rest -= visit_metric(term, [&](auto metric) {
      double values = 0;
      for (size_t j = 0; j < way.t.size(); ++j) values += metric.value(way.t[j], way.q[j], way.p[j], u.n);
      return term.weight * values;
    });
  }
  return way;
}

// Utility after each step along the way.
std::vector<double> along(const Utility& u, const Way& way, const std::vector<double>& steps, int threads) {
  const auto labels = static_cast<int64_t>(way.t.size()), blocks = chunk_count(labels, kLabels);
  const size_t points = steps.size();
  std::vector<double> partial(static_cast<size_t>(blocks) * points, 0.0);
  parallel_for(blocks, threads, [&](int64_t block, int) {
    double* sums = partial.data() + static_cast<size_t>(block) * points;
    const int64_t first = block * kLabels, last = std::min(labels, first + kLabels);
    for (const MetricTerm& term : u.terms) {
      visit_metric(term, [&](auto metric) {
        for (size_t s = 0; s < points; ++s) {
          const double step = steps[s];
          double sum = 0;
          for (auto j = static_cast<size_t>(first); j < static_cast<size_t>(last); ++j) {
            sum += metric.value(way.t[j] + step * way.dt[j], way.q[j] + step * way.dq[j], way.p[j], u.n);
          }
          sums[s] += term.weight * sum;
        }
      });
    }
  });
  std::vector<double> values(points);
  for (size_t s = 0; s < points; ++s) values[s] = way.rest + steps[s] * way.slope;
  for (int64_t block = 0; block < blocks; ++block) {
    for (size_t s = 0; s < points; ++s) values[s] += partial[static_cast<size_t>(block) * points + s];
  }
  return values;
}

struct Step {
  double size, utility;
};

// Where to look next between low and high: the vertex of the parabola through the three, or the middle of the
// longer side where that tells nothing new.
double next_step(const Step& low, const Step& best, const Step& high) {
  const double left = best.size - low.size, right = high.size - best.size;
  const double middle = left > right ? best.size - 0.5 * left : best.size + 0.5 * right;
  const double down = (best.utility - low.utility) * right, up = (high.utility - best.utility) * left;
  if (!(left > 0 && right > 0 && down > up)) return middle;
  const double shift = 0.5 * (down * right + up * left) / (down - up);
  const double least = 1e-3 * (high.size - low.size);
  const bool inside = shift > -left && shift < right && std::abs(shift) > least;
  return inside ? best.size + shift : middle;
}

// The best step in [0, 1]: a grid (the utility along the line need not be concave), then parabolas around its
// best point. Step 0 is where we are.
Step line_search(const Utility& u, const double* t0, const double* q0, const double* t1, const double* q1,
                 double now, int threads) {
  constexpr int kRefinements = 6;
  if (u.terms.empty()) {
    double slope = 0;
    for (int64_t j = 0; j < u.labels(); ++j) slope += u.a[j] * (t1[j] - t0[j]) + u.b[j] * (q1[j] - q0[j]);
    return slope > 0 ? Step{1, now + slope} : Step{0, now};
  }
  const Way way = way_between(u, t0, q0, t1, q1, now);
  std::vector<double> steps(kPoints);
  for (int s = 0; s < kPoints; ++s) steps[static_cast<size_t>(s)] = static_cast<double>(s + 1) / kPoints;
  const std::vector<double> values = along(u, way, steps, threads);
  std::vector<Step> grid{{0, now}};
  for (size_t s = 0; s < steps.size(); ++s) grid.push_back({steps[s], values[s]});
  size_t top = 0;
  for (size_t s = 1; s < grid.size(); ++s) top = grid[s].utility > grid[top].utility ? s : top;
  Step low = grid[top > 0 ? top - 1 : 0], best = grid[top], high = grid[std::min(top + 1, grid.size() - 1)];
  for (int round = 0; round < kRefinements; ++round) {
    const double size = next_step(low, best, high);
    const Step tried{size, along(u, way, {size}, 1)[0]};
    if (tried.utility > best.utility) {
      (size < best.size ? high : low) = best;
      best = tried;
    } else {
      (size < best.size ? low : high) = tried;
    }
  }
  return best;
}

}  // namespace

void utility_gradient(const Utility& u, const double* t, const double* q, double* a, double* b) {
  std::copy(u.a.begin(), u.a.end(), a);
  std::copy(u.b.begin(), u.b.end(), b);
  for (const MetricTerm& term : u.terms) {
    visit_metric(term, [&](auto metric) {
      for (int64_t j = 0; j < u.labels(); ++j) {
        const Gradient g = metric.gradient(t[j], q[j], u.p[j], u.n);
        a[j] += term.weight * g.dt;
        b[j] += term.weight * g.dq;
      }
    });
  }
}

FrankWolfeResult frank_wolfe(const Probabilities& proba, const Truth& truth, const Utility& u,
                             const FrankWolfeOptions& options) {
  constexpr int kUsual = 16;  // rules that there is room for from the beginning
  const auto labels = static_cast<size_t>(u.labels());
  FrankWolfeResult result;
  for (auto* weights : {&result.a, &result.b}) {
    weights->reserve(labels * static_cast<size_t>(std::min(options.max_iterations + 1, kUsual)));
  }
  result.a.assign(labels, 1.0);  // the first rule is plain top-k
  result.b.assign(labels, 0.0);
  result.weights = {1.0};
  std::vector<double> t(labels), q(labels), t1(labels), q1(labels);
  Response response(proba, truth, options.k, options.threads);
  response.count(options.smoothing, t.data(), q.data());
  result.utility.push_back(utility_value(u, t.data(), q.data()));
  for (int iteration = 0; iteration < options.max_iterations && labels > 0; ++iteration) {
    check_interrupt();
    const size_t rule = result.a.size();
    result.a.resize(rule + labels);
    result.b.resize(rule + labels);
    double *a = result.a.data() + rule, *b = result.b.data() + rule;
    utility_gradient(u, t.data(), q.data(), a, b);
    response.choose(a, b);
    response.count(options.smoothing, t1.data(), q1.data());
    const double now = result.utility.back();
    const Step step = line_search(u, t.data(), q.data(), t1.data(), q1.data(), now, options.threads);
    if (step.size == 0) {
      result.a.resize(rule);
      result.b.resize(rule);
      result.converged = true;
      break;
    }
    for (double& weight : result.weights) weight *= 1 - step.size;
    result.weights.push_back(step.size);
    for (size_t j = 0; j < labels; ++j) {
      t[j] += step.size * (t1[j] - t[j]);
      q[j] += step.size * (q1[j] - q[j]);
    }
    result.steps.push_back(step.size);
    result.utility.push_back(utility_value(u, t.data(), q.data()));
    const bool solved = u.terms.empty();  // linear: the first response is the optimum
    if (solved || result.utility.back() - now <= options.tolerance * std::abs(now)) {
      result.converged = true;
      break;
    }
  }
  return result;
}

MixtureChoice predict_mixture(const Probabilities& proba, const double* a, const double* b,
                              const std::vector<double>& cumulative, int64_t k, uint64_t seed, int threads) {
  constexpr int64_t kRows = 512;
  MixtureChoice out;
  out.labels.resize(static_cast<size_t>(proba.rows * k));
  out.gains.resize(out.labels.size());
  if (k == 0) return out;
  std::vector<LineTable> rules;
  for (size_t r = 0; r < cumulative.size(); ++r) {
    const int64_t first = static_cast<int64_t>(r) * proba.cols;
    rules.emplace_back(a + first, b + first, proba.cols);
  }
  const int64_t widest = widest_row(proba);
  parallel_for(chunk_count(proba.rows, kRows), threads, [&](int64_t block, int) {
    RowScratch scratch(widest);
    std::vector<double> best(static_cast<size_t>(k));
    std::vector<int32_t> at(static_cast<size_t>(k));
    for (int64_t i = block * kRows; i < std::min(proba.rows, (block + 1) * kRows); ++i) {
      Rng rng(mix64(seed) ^ static_cast<uint64_t>(i));
      const double draw = rng.uniform();
      const auto rule =
          std::min<int64_t>(std::upper_bound(cumulative.begin(), cumulative.end(), draw) - cumulative.begin(),
                            static_cast<int64_t>(cumulative.size()) - 1);
      weighted_topk_row(proba, i, rules[static_cast<size_t>(rule)], k, scratch, at.data(), best.data());
      for (int64_t s = 0; s < k; ++s) {
        out.labels[static_cast<size_t>(i * k + s)] =
            proba.indices[proba.begin(i) + at[static_cast<size_t>(s)]];
        out.gains[static_cast<size_t>(i * k + s)] = static_cast<float>(best[static_cast<size_t>(s)]);
      }
    }
  });
  return out;
}

}  // namespace xmc
