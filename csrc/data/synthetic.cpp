#include "data/synthetic.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/parallel.h"
#include "core/rng.h"

namespace xmc::data {
namespace {

constexpr int64_t kRows = 1024;  // rows per block

// Ranks 0..n-1 with P(r) = integral of x^-beta over [r + 1, r + 2], by inversion.
class PowerLaw {
 public:
  PowerLaw(int64_t n, double beta)
      : n_(n),
        power_(1 - beta),
        total_(std::abs(power_) < 1e-9 ? std::log(n + 1.0) : std::pow(n + 1.0, power_) - 1) {}

  int64_t operator()(double u) const {
    const double x = std::abs(power_) < 1e-9 ? std::exp(u * total_) : std::pow(u * total_ + 1, 1 / power_);
    return std::clamp<int64_t>(static_cast<int64_t>(x) - 1, 0, n_ - 1);
  }

 private:
  int64_t n_;
  double power_;
  double total_;
};

class Generator {
 public:
  Generator(const SyntheticOptions& o, const int32_t* feature_ids, const int32_t* label_ids)
      : o_(o),
        feature_ids_(feature_ids),
        label_ids_(label_ids),
        label_rank_(o.n_labels, o.beta),
        noise_rank_(o.n_features, 1.0),
        prototype_rank_(o.n_features, 0.5) {}

  void row(int64_t i, Rows& x, Rows& y) {
    Rng rng(mix64(o_.seed) ^ mix64(static_cast<uint64_t>(i) * 2 + 1));
    draw_labels(rng);
    draw_words(rng);
    const size_t first = y.indices.size();
    for (const int64_t rank : labels_) y.indices.push_back(label_ids_[rank]);
    std::sort(y.indices.begin() + static_cast<std::ptrdiff_t>(first), y.indices.end());
    y.indptr.push_back(static_cast<int64_t>(y.indices.size()));
    append_features(x);
  }

 private:
  // 1 + a binomial-like spread around the mean: uniform on [0, 2 (mean - 1)].
  void draw_labels(Rng& rng) {
    labels_.clear();
    const double extra = rng.uniform() * 2 * (o_.labels_per_point - 1);
    const int64_t count = std::min(o_.n_labels, 1 + static_cast<int64_t>(extra + rng.uniform()));
    for (int64_t tries = 0; static_cast<int64_t>(labels_.size()) < count && tries < 50 * count; ++tries) {
      const int64_t rank = label_rank_(rng.uniform());
      if (std::find(labels_.begin(), labels_.end(), rank) == labels_.end()) labels_.push_back(rank);
    }
  }

  void draw_words(Rng& rng) {
    words_.clear();
    const auto count = static_cast<int64_t>(o_.features_per_point * (0.5 + rng.uniform()) + 0.5);
    for (int64_t k = 0; k < count; ++k) {
      if (!labels_.empty() && rng.uniform() < o_.signal) {
        const auto label = static_cast<uint64_t>(labels_[rng.below(static_cast<uint32_t>(labels_.size()))]);
        const uint64_t which = rng.below(static_cast<uint32_t>(o_.prototype));
        Rng own(mix64(o_.seed + 1) ^ mix64(label * static_cast<uint64_t>(o_.prototype) + which));
        words_.push_back(prototype_rank_(own.uniform()));
      } else {
        words_.push_back(noise_rank_(rng.uniform()));
      }
    }
  }

  void append_features(Rows& x) {
    std::sort(words_.begin(), words_.end());
    entries_.clear();
    double norm = 0;
    for (size_t k = 0; k < words_.size();) {
      size_t end = k;
      while (end < words_.size() && words_[end] == words_[k]) ++end;
      const double value =
          (1 + std::log(static_cast<double>(end - k))) * std::log(2.0 + static_cast<double>(words_[k]));
      norm += value * value;
      entries_.emplace_back(feature_ids_[words_[k]], value);
      k = end;
    }
    std::sort(entries_.begin(), entries_.end());
    norm = std::sqrt(norm);
    for (const auto& [id, value] : entries_) {
      x.indices.push_back(id);
      x.values.push_back(static_cast<float>(value / norm));
    }
    x.indptr.push_back(static_cast<int64_t>(x.indices.size()));
  }

  const SyntheticOptions& o_;
  const int32_t* feature_ids_;
  const int32_t* label_ids_;
  const PowerLaw label_rank_;
  const PowerLaw noise_rank_;
  const PowerLaw prototype_rank_;
  std::vector<int64_t> labels_;
  std::vector<int64_t> words_;
  std::vector<std::pair<int32_t, double>> entries_;
};

// Blocks one after the other; each is freed as soon as it is copied.
Rows join(std::vector<Rows>& blocks) {
  Rows out;
  size_t entries = 0;
  for (const auto& b : blocks) entries += b.indices.size();
  out.indptr.push_back(0);
  out.indices.reserve(entries);
  if (!blocks.empty() && !blocks[0].values.empty()) out.values.reserve(entries);
  for (auto& b : blocks) {
    const auto base = static_cast<int64_t>(out.indices.size());
    for (const int64_t end : b.indptr) out.indptr.push_back(base + end);
    out.indices.insert(out.indices.end(), b.indices.begin(), b.indices.end());
    out.values.insert(out.values.end(), b.values.begin(), b.values.end());
    b = {};
  }
  return out;
}

}  // namespace

Synthetic make_synthetic(const SyntheticOptions& options, const int32_t* feature_ids,
                         const int32_t* label_ids, int threads) {
  const int64_t blocks = chunk_count(options.rows, kRows);
  std::vector<Rows> x(static_cast<size_t>(blocks));
  std::vector<Rows> y(static_cast<size_t>(blocks));
  parallel_for(blocks, threads, [&](int64_t block, int) {
    Generator generator(options, feature_ids, label_ids);
    const auto b = static_cast<size_t>(block);
    const int64_t last = std::min((block + 1) * kRows, options.rows);
    for (int64_t i = block * kRows; i < last; ++i) generator.row(i, x[b], y[b]);
  });
  return {join(x), join(y)};
}

}  // namespace xmc::data
