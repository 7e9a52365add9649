#include "tree/predict.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "core/parallel.h"
#include "core/prefetch.h"
#include "core/topk.h"

namespace xmc::tree {
namespace {

// Rows that go through the tree together: the more, the more often a chunk is used while it is in the caches.
constexpr int64_t kBatch = 16384;
constexpr int64_t kSmallBatch = 256;  // the least, where rows are shared by threads
constexpr size_t kAhead = 4;          // visits
constexpr double kSteps = 1 << 23;    // of |x|_1
constexpr size_t kFirst = 3;          // parents of a row that are looked at before the others

// The entries of one of a row's features in a chunk.
struct Found {
  uint32_t entry, size;
  int32_t x;
};

struct Visit {
  int32_t parent, row;
  float above;  // what a child inherits of the parent's log score
};

float penalty(float score, int power) {
  const float missing = std::max(0.f, 1 - score);
  return power == 2 ? missing * missing : power == 3 ? missing * missing * missing : missing;
}

// A score below which the penalty is certainly more than `room`: what cannot enter is passed over by one comparison.
float least_score(float room, int power) {
  const float root = power == 2 ? std::sqrt(room) : power == 3 ? std::cbrt(room) : room;
  return 1 - root * 1.0001f - 1e-6f;
}

// One chunk, as a row meets it.
class Chunk {
 public:
  Chunk(const LevelView& level, int64_t p)
      : first_(level.child_start[p]),
        children_(level.child_start[p + 1] - first_),
        bucket_(level.bucket + level.bucket_start[p]),
        mask_(static_cast<uint32_t>(level.bucket_start[p + 1] - level.bucket_start[p] - 2)),
        shift_(std::popcount(mask_)),
        tag_(level.tag + level.feature_start[p]),
        count_(level.count + level.feature_start[p]),
        child_(level.child + level.entry_start[p]),
        weight_(level.weight + level.entry_start[p]),
        scale_(level.scale + first_),
        bias_(level.bias + first_) {}

  int64_t first() const { return first_; }
  int64_t children() const { return children_; }

  // Asks for the buckets of a row's features.
  void prefetch_buckets(const CsrView<>& X, int64_t row) const {
    for (int64_t e = X.begin(row); e < X.end(row); ++e) {
      prefetch(bucket_ + (static_cast<uint32_t>(X.indices[e]) & mask_));
    }
  }

  // The scores of the children for a row with integer values x, in steps of `unit` (Search::round). `found` is room
  // for the row's features, `sum` for the children.
  void scores(const CsrView<>& X, int64_t row, const int32_t* x, float unit, std::vector<Found>& found,
              int32_t* sum, float* score) const {
    found.clear();
    for (int64_t e = X.begin(row); e < X.end(row); ++e) {
      const auto feature = static_cast<uint32_t>(X.indices[e]);
      const uint32_t wanted = feature >> shift_;
      const Bucket from = bucket_[feature & mask_];
      const uint32_t end = bucket_[(feature & mask_) + 1].feature;
      uint32_t entry = from.entry;
      for (uint32_t f = from.feature; f < end; ++f) {
        const uint32_t size = count_[f] + 1u;
        if (tag_[f] == wanted) {
          prefetch(child_ + entry);
          prefetch(weight_ + entry);
          found.push_back({entry, size, x[e - X.begin(row)]});
          break;
        }
        entry += size;
      }
    }
    std::fill_n(sum, children_, 0);
    for (const Found& f : found) {
      for (uint32_t t = f.entry; t < f.entry + f.size; ++t) sum[child_[t]] += f.x * weight_[t];
    }
    for (int64_t c = 0; c < children_; ++c)
      score[c] = static_cast<float>(sum[c]) * (scale_[c] * unit) + bias_[c];
  }

 private:
  int64_t first_, children_;
  const Bucket* bucket_;
  uint32_t mask_;
  int shift_;
  const uint16_t* tag_;
  const uint8_t* count_;
  const uint8_t* child_;
  const int8_t* weight_;
  const float* scale_;
  const float* bias_;
};

class Search {
 public:
  Search(const CsrView<>& X, const std::vector<LevelView>& levels, const BeamOptions& options)
      : X_(X), levels_(levels), options_(options) {}

  void batch(int64_t from, int64_t to, int32_t* ids, float* scores) {
    round(from, to);
    const LevelView& top = levels_.front();
    visits_[0].clear();
    visits_[1].clear();
    for (int64_t p = 0; p < top.parents; ++p) {
      for (int64_t i = from; i < to; ++i)
        visits_[0].push_back({static_cast<int32_t>(p), static_cast<int32_t>(i - from), 0});
    }
    for (size_t t = 0; t < levels_.size(); ++t) {
      const bool last = t + 1 == levels_.size();
      best_.assign(static_cast<size_t>(to - from), TopK(last ? options_.k : options_.beam));
      threshold_.assign(best_.size(), -std::numeric_limits<float>::infinity());
      for (const auto& visits : visits_) score(levels_[t], visits, from);
      if (!last) descend(levels_[t + 1]);
    }
    for (int64_t i = 0; i < to - from; ++i) {
      int64_t t = 0;
      for (const Scored& s : best_[static_cast<size_t>(i)].sorted()) {
        ids[(from + i) * options_.k + t] = s.id;
        scores[(from + i) * options_.k + t++] = s.score;
      }
      for (; t < options_.k; ++t) {
        ids[(from + i) * options_.k + t] = -1;
        scores[(from + i) * options_.k + t] = -std::numeric_limits<float>::infinity();
      }
    }
  }

 private:
  const CsrView<>& X_;
  const std::vector<LevelView>& levels_;
  const BeamOptions options_;
  std::vector<int32_t> x_;   // the values of the rows as integers,
  std::vector<float> unit_;  // in these steps, which include the row's scale
  std::array<std::vector<Visit>, 2>
      visits_;  // by parent: of each row the best kFirst parents, then the others
  std::vector<Visit> sorted_;
  std::vector<int64_t> start_;
  std::vector<TopK> best_;
  std::vector<float> threshold_;  // of best_
  std::vector<Found> found_;

  // The values of each row as integers: with |x|_1 2^23 steps, no sum of products with weights of 8 bits leaves 32.
  void round(int64_t from, int64_t to) {
    x_.resize(static_cast<size_t>(X_.begin(to) - X_.begin(from)));
    unit_.clear();
    for (int64_t i = from; i < to; ++i) {
      const float* x = X_.data + X_.begin(i);
      double total = 0;
      for (int64_t e = 0; e < X_.size(i); ++e) total += std::abs(x[e]);
      const double steps = total > 0 && std::isfinite(total) ? kSteps / total : 0;
      int32_t* to_x = x_.data() + (X_.begin(i) - X_.begin(from));
      for (int64_t e = 0; e < X_.size(i); ++e) to_x[e] = static_cast<int32_t>(std::lround(x[e] * steps));
      const float scale = row_scale(options_.rows, squared_length(x, X_.size(i)));
      unit_.push_back(steps > 0 ? static_cast<float>(scale / steps) : 0.f);
    }
  }

  // A node is never better than what it inherits, so that a parent worse than what a row has already is passed over.
  void score(const LevelView& level, const std::vector<Visit>& visits, int64_t from) {
    std::array<float, kMaxChildren> score;
    std::array<int32_t, kMaxChildren> sum;
    for (size_t v = 0; v < visits.size(); ++v) {
      const Visit& visit = visits[v];
      if (v + kAhead < visits.size()) prefetch_row(X_, from + visits[v + kAhead].row);
      const Chunk chunk(level, visit.parent);
      if (v + 1 < visits.size()) {
        Chunk(level, visits[v + 1].parent).prefetch_buckets(X_, from + visits[v + 1].row);
      }
      const auto row = static_cast<size_t>(visit.row);
      if (visit.above < threshold_[row]) continue;
      const int32_t* x = x_.data() + (X_.begin(from + visit.row) - X_.begin(from));
      chunk.scores(X_, from + visit.row, x, unit_[row], found_, sum.data(), score.data());
      float least = least_score(visit.above - threshold_[row], options_.power);
      for (int64_t c = 0; c < chunk.children(); ++c) {
        const float s = score[static_cast<size_t>(c)];
        if (s < least) continue;
        const float value = visit.above - penalty(s, options_.power);
        if (value < threshold_[row]) continue;
        best_[row].push({value, static_cast<int32_t>(chunk.first() + c)});
        threshold_[row] = best_[row].threshold();
        least = least_score(visit.above - threshold_[row], options_.power);
      }
    }
  }

  // The next level's visits.
  void descend(const LevelView& next) {
    for (auto& visits : visits_) visits.clear();
    for (size_t i = 0; i < best_.size(); ++i) {
      size_t rank = 0;
      const std::vector<Scored>& sorted = best_[i].sorted();
      for (const Scored& s : sorted) {
        if (s.score < sorted.front().score - options_.slack) break;
        visits_[rank++ < kFirst ? 0 : 1].push_back({s.id, static_cast<int32_t>(i), options_.decay * s.score});
      }
    }
    for (auto& visits : visits_) sort(visits, next.parents);
  }

  void sort(std::vector<Visit>& visits, int64_t parents) {
    start_.assign(static_cast<size_t>(parents) + 1, 0);
    for (const Visit& visit : visits) ++start_[static_cast<size_t>(visit.parent) + 1];
    for (size_t p = 1; p < start_.size(); ++p) start_[p] += start_[p - 1];
    sorted_.resize(visits.size());
    for (const Visit& visit : visits)
      sorted_[static_cast<size_t>(start_[static_cast<size_t>(visit.parent)]++)] = visit;
    visits.swap(sorted_);
  }
};

}  // namespace

void beam_search(const CsrView<>& X, const std::vector<LevelView>& levels, const BeamOptions& options,
                 int threads, int32_t* ids, float* scores) {
  std::vector<std::unique_ptr<Search>> search(static_cast<size_t>(std::max(threads, 1)));
  const int64_t size = std::clamp(chunk_count(X.rows, std::max(threads, 1)), kSmallBatch, kBatch);
  parallel_for(chunk_count(X.rows, size), threads, [&](int64_t task, int thread) {
    auto& mine = search[static_cast<size_t>(thread)];
    if (!mine) mine = std::make_unique<Search>(X, levels, options);
    mine->batch(task * size, std::min(X.rows, (task + 1) * size), ids, scores);
  });
}

}  // namespace xmc::tree
