#include "cluster/gram.h"

#include <algorithm>
#include <cmath>

#include "core/rng.h"

namespace xmc::cluster {
void Gram::load(const NodeVectors& labels) {
  const CsrView<>& V = labels.V;
  const int64_t n = V.rows;
  if (G_.size() == 0) G_ = Buffer<float>(kGramLabels * kGramLabels);
  ld_ = (n + 63) / 64 * 64;

  // Frequent features: a dense product. post_begin_ holds -1 - h for the h-th of them.
  const int64_t frequent = std::max<int64_t>(n / 6, 1);
  int64_t heavy = 0, listed = 0;
  post_begin_.resize(V.cols);
  for (size_t f = 0; f < post_begin_.size(); ++f) {
    if (labels.count[f] > frequent) {
      post_begin_[f] = -1 - heavy++;
    } else {
      post_begin_[f] = listed;
      listed += labels.count[f];
    }
  }
  if (dense_.size() < heavy * ld_) dense_ = Buffer<float>(heavy * ld_);
  std::fill_n(dense_.data(), heavy * ld_, 0.f);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t e = V.begin(i); e < V.end(i); ++e) {
      const int64_t start = post_begin_[V.indices[e]];
      if (start < 0) dense_[(-1 - start) * ld_ + i] = V.data[e];
    }
  }
  gram_kernels().syrk(dense_.data(), heavy, ld_, n, G_.data());

  // The others: each label meets itself and the earlier labels of its features (so that equal labels
  // have equal rows).
  post_end_ = post_begin_;
  post_label_.resize(listed);
  post_value_.resize(listed);
  for (int64_t i = 0; i < n; ++i) {
    float* g = G_.data() + i * ld_;
    g[i] += labels.own[i];
    for (int64_t e = V.begin(i); e < V.end(i); ++e) {
      const size_t f = V.indices[e];
      const int64_t start = post_begin_[f];
      if (start < 0) continue;
      const float v = V.data[e];
      const int64_t end = ++post_end_[f];
      post_label_[end - 1] = static_cast<int32_t>(i);
      post_value_[end - 1] = v;
      for (int64_t p = start; p < end; ++p) g[post_label_[p]] += v * post_value_[p];
    }
    for (int64_t j = 0; j < i; ++j) G_[j * ld_ + i] = g[j];
  }
}

void assign_sides(std::vector<Ranked>& ranked, int64_t ones, uint8_t* side, std::vector<int32_t>& changed) {
  const auto before = [](const Ranked& a, const Ranked& b) {
    return a.d != b.d ? a.d > b.d : a.index < b.index;
  };
  std::nth_element(ranked.begin(), ranked.begin() + ones, ranked.end(), before);
  changed.clear();
  for (size_t k = 0; k < ranked.size(); ++k) {
    const auto to = static_cast<uint8_t>(static_cast<int64_t>(k) < ones);
    uint8_t& now = side[ranked[k].index];
    if (to == now) continue;
    now = to;
    changed.push_back(ranked[k].index);
  }
  // Ascending, so that later sums do not depend on how nth_element arranges its halves.
  std::sort(changed.begin(), changed.end());
}

TwoNorms two_means(const Gram& G, const int32_t* members, int64_t n, int64_t ones,
                   const TwoMeansOptions& options, uint8_t* side) {
  Rng rng(options.seed);
  const int64_t first = rng.below(static_cast<uint32_t>(n));
  const int64_t second = (first + 1 + rng.below(static_cast<uint32_t>(n - 1))) % n;
  std::vector<float> p(n, 0.f), t(n, 0.f);
  std::vector<Ranked> ranked(n);
  std::vector<int32_t> changed;
  const auto add = [&](int64_t k, float sign, std::vector<float>& to) {
    const float* g = G.row(members[k]);
    for (int64_t l = 0; l < n; ++l) to[l] += sign * g[members[l]];
  };
  add(first, 1.f, p);
  add(second, -1.f, p);
  for (int64_t l = 0; l < n; ++l) ranked[l] = {p[l], static_cast<int32_t>(l)};
  std::fill(p.begin(), p.end(), 0.f);
  std::fill(side, side + n, uint8_t{0});
  for (int64_t l = 0; l < n; ++l) add(l, 1.f, t);
  TwoNorms norms{0, 0};
  double objective = 0;
  for (int iteration = 0;; ++iteration) {
    assign_sides(ranked, ones, side, changed);
    if (changed.empty() && iteration > 0) return norms;
    for (const int32_t l : changed) add(l, side[l] ? 1.f : -1.f, p);
    double one = 0, two = 0;
    for (int64_t l = 0; l < n; ++l) {
      one += side[l] ? p[l] : 0.f;
      two += side[l] ? 0.f : t[l] - p[l];
    }
    norms = {std::sqrt(std::max(one, 0.)), std::sqrt(std::max(two, 0.))};
    const double now = norms.one + norms.two;
    if (iteration + 1 >= options.max_iterations || now - objective <= options.tolerance * objective)
      return norms;
    objective = now;
    const auto a = static_cast<float>(norms.one > 0 ? 1 / norms.one : 0);
    const auto b = static_cast<float>(norms.two > 0 ? 1 / norms.two : 0);
    for (int64_t l = 0; l < n; ++l) {
      ranked[l] = {a * p[l] - b * (t[l] - p[l]), static_cast<int32_t>(l)};
    }
  }
}

}  // namespace xmc::cluster
