#include "decide/frank_wolfe.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "core/rng.h"
#include "decide/weighted_topk.h"

namespace xmc::decide {
namespace {

// Tuned with `bench_decide.py --tables frank_wolfe scaling`.
constexpr int64_t kLabels = 2048;  // labels of the line search that a thread takes at a time
constexpr int kPoints = 8;         // steps of its grid,
constexpr int kRefinements = 6;    // and parabolas around the best of them
constexpr int kUsual = 16;         // rules that there is room for from the beginning
constexpr int64_t kRows = 512;     // rows that a thread takes at a time

// The line from (t0, q0) to (t1, q1), over the labels that move. `rest`: the utility of everything at the start
// but for the non-linear terms of these labels; `slope`: the gain of the linear part.
struct Segment {
  std::vector<double> t, q, dt, dq, p;
  double rest, slope = 0;
};

Segment segment_between(const Utility& u, const double* t0, const double* q0, const double* t1,
                        const double* q1, double now) {
  Segment line;
  line.rest = now;
  for (auto* values : {&line.t, &line.q, &line.dt, &line.dq, &line.p}) values->reserve(u.p.size());
  for (int64_t j = 0; j < u.labels(); ++j) {
    if (t0[j] == t1[j] && q0[j] == q1[j]) continue;
    line.t.push_back(t0[j]);
    line.q.push_back(q0[j]);
    line.dt.push_back(t1[j] - t0[j]);
    line.dq.push_back(q1[j] - q0[j]);
    line.p.push_back(u.p[j]);
    line.slope += u.a[j] * line.dt.back() + u.b[j] * line.dq.back();
  }
  for (const MetricTerm& term : u.terms) {
    line.rest -= visit_metric(term, [&](auto metric) {
      double values = 0;
      for (size_t j = 0; j < line.t.size(); ++j) values += metric.value(line.t[j], line.q[j], line.p[j], u.n);
      return term.weight * values;
    });
  }
  return line;
}

// Utility after each step along the line.
std::vector<double> utility_along(const Utility& u, const Segment& line, const std::vector<double>& steps,
                                  int threads) {
  const auto labels = static_cast<int64_t>(line.t.size()), blocks = chunk_count(labels, kLabels);
  const size_t points = steps.size();
  std::vector<double> partial(blocks * points, 0.0);
  parallel_for(blocks, threads, [&](int64_t block, int) {
    double* sums = partial.data() + block * points;
    const int64_t first = block * kLabels, last = std::min(labels, first + kLabels);
    for (const MetricTerm& term : u.terms) {
      visit_metric(term, [&](auto metric) {
        for (size_t s = 0; s < points; ++s) {
          const double step = steps[s];
          double sum = 0;
          for (int64_t j = first; j < last; ++j) {
            sum += metric.value(line.t[j] + step * line.dt[j], line.q[j] + step * line.dq[j], line.p[j], u.n);
          }
          sums[s] += term.weight * sum;
        }
      });
    }
  });
  std::vector<double> values(points);
  for (size_t s = 0; s < points; ++s) values[s] = line.rest + steps[s] * line.slope;
  for (size_t i = 0; i < partial.size(); ++i) values[i % points] += partial[i];
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
  if (u.terms.empty()) {
    double slope = 0;
    for (int64_t j = 0; j < u.labels(); ++j) slope += u.a[j] * (t1[j] - t0[j]) + u.b[j] * (q1[j] - q0[j]);
    return slope > 0 ? Step{1, now + slope} : Step{0, now};
  }
  const Segment line = segment_between(u, t0, q0, t1, q1, now);
  std::vector<double> steps(kPoints);
  for (int s = 0; s < kPoints; ++s) steps[s] = static_cast<double>(s + 1) / kPoints;
  const std::vector<double> values = utility_along(u, line, steps, threads);
  std::vector<Step> grid{{0, now}};
  for (size_t s = 0; s < steps.size(); ++s) grid.push_back({steps[s], values[s]});
  size_t top = 0;
  for (size_t s = 1; s < grid.size(); ++s) top = grid[s].utility > grid[top].utility ? s : top;
  Step low = grid[top > 0 ? top - 1 : 0], best = grid[top], high = grid[std::min(top + 1, grid.size() - 1)];
  for (int round = 0; round < kRefinements; ++round) {
    const double size = next_step(low, best, high);
    const Step tried{size, utility_along(u, line, {size}, 1)[0]};
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

FrankWolfeResult frank_wolfe(const Probabilities& proba, const Truth& truth, const Utility& u,
                             const FrankWolfeOptions& options) {
  const int64_t labels = u.labels();
  FrankWolfeResult result;
  for (auto* weights : {&result.a, &result.b}) {
    weights->reserve(labels * std::min(options.max_iter + 1, kUsual));
  }
  result.a.assign(labels, 1.0);  // the first rule is plain top-k
  result.b.assign(labels, 0.0);
  result.weights = {1.0};
  std::vector<double> t(labels), q(labels), t1(labels), q1(labels);
  Response response(proba, truth, topk_positions(proba, options.k, options.threads), options.k,
                    options.threads);
  response.count(options.smoothing, t.data(), q.data());
  result.utility.push_back(utility_value(u, t.data(), q.data()));
  for (int iteration = 0; iteration < options.max_iter && labels > 0; ++iteration) {
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
    for (int64_t j = 0; j < labels; ++j) {
      t[j] += step.size * (t1[j] - t[j]);
      q[j] += step.size * (q1[j] - q[j]);
    }
    result.steps.push_back(step.size);
    result.utility.push_back(utility_value(u, t.data(), q.data()));
    const bool solved = u.terms.empty();  // linear: the first response is the optimum
    if (solved || result.utility.back() - now <= options.tol * std::abs(now)) {
      result.converged = true;
      break;
    }
  }
  return result;
}

MixtureChoice predict_mixture(const Probabilities& proba, const double* a, const double* b,
                              const std::vector<double>& cumulative, int64_t k, uint64_t seed, int threads) {
  MixtureChoice out;
  out.labels.resize(proba.rows * k);
  out.gains.resize(out.labels.size());
  if (k == 0) return out;
  std::vector<LineTable> rules;
  for (size_t r = 0; r < cumulative.size(); ++r) {
    const int64_t first = static_cast<int64_t>(r) * proba.cols;
    rules.emplace_back(a + first, b + first, proba.cols);
  }
  struct Scratch {
    RowScratch row;
    std::vector<int32_t> at;
    std::vector<double> best;
  };
  std::vector<Scratch> scratch(
      threads, {RowScratch(widest_row(proba)), std::vector<int32_t>(k), std::vector<double>(k)});
  parallel_items(proba.rows, kRows, threads, [&](int64_t i, int thread) {
    auto& [row, at, best] = scratch[thread];
    Rng rng(mix64(seed) ^ static_cast<uint64_t>(i));
    const size_t rule =
        std::upper_bound(cumulative.begin(), cumulative.end(), rng.uniform()) - cumulative.begin();
    weighted_topk_row(proba, i, rules[std::min(rule, rules.size() - 1)], k, row, at.data(), best.data());
    for (int64_t s = 0; s < k; ++s) {
      out.labels[i * k + s] = proba.indices[proba.begin(i) + at[s]];
      out.gains[i * k + s] = static_cast<float>(best[s]);
    }
  });
  return out;
}

}  // namespace xmc::decide
