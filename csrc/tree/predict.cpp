#include "tree/predict.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <memory>

#include "core/parallel.h"
#include "core/topk.h"

namespace xmc::tree {
namespace {

constexpr int64_t kBatch = 512;  // rows that go through the tree together

struct Visit {
  int32_t parent, row;
  float above;  // the parent's log score
};

float penalty(float score, int power) {
  const float missing = std::max(0.f, 1 - score);
  return power == 2 ? missing * missing : power == 3 ? missing * missing * missing : missing;
}

// The scores of one chunk's children for a row.
void chunk_scores(const LevelView& level, int64_t p, const CsrView<>& X, int64_t row, float row_scale,
                  float* score) {
  const int64_t first = level.child_start[p], children = level.child_start[p + 1] - first;
  const Bucket* bucket = level.bucket + level.bucket_start[p];
  const auto mask = static_cast<uint32_t>(level.bucket_start[p + 1] - level.bucket_start[p] - 2);
  const int shift = std::popcount(mask);
  const uint16_t* tag = level.tag + level.feature_start[p];
  const uint8_t* count = level.count + level.feature_start[p];
  const uint8_t* child = level.child + level.entry_start[p];
  const int8_t* weight = level.weight + level.entry_start[p];
  std::fill_n(score, children, 0.f);
  for (int64_t e = X.begin(row); e < X.end(row); ++e) {
    const auto feature = static_cast<uint32_t>(X.indices[e]);
    const uint32_t wanted = feature >> shift;
    const Bucket from = bucket[feature & mask];
    const uint32_t end = bucket[(feature & mask) + 1].feature;
    uint32_t entry = from.entry;
    for (uint32_t f = from.feature; f < end; ++f) {
      const uint32_t size = count[f] + 1u;
      if (tag[f] == wanted) {
        const float x = X.data[e];
        for (uint32_t t = entry; t < entry + size; ++t) score[child[t]] += x * static_cast<float>(weight[t]);
        break;
      }
      entry += size;
    }
  }
  const float* scale = level.scale + first;
  const float* bias = level.bias + first;
  for (int64_t c = 0; c < children; ++c) score[c] = score[c] * (scale[c] * row_scale) + bias[c];
}

class Search {
 public:
  Search(const CsrView<>& X, const std::vector<LevelView>& levels, const BeamOptions& options)
      : X_(X), levels_(levels), options_(options) {}

  void batch(int64_t from, int64_t to, int32_t* ids, float* scores) {
    row_scale_.clear();
    for (int64_t i = from; i < to; ++i) {
      row_scale_.push_back(row_scale(options_.rows, squared_length(X_.data + X_.begin(i), X_.size(i))));
    }
    const LevelView& top = levels_.front();
    visits_.clear();
    for (int64_t p = 0; p < top.parents; ++p) {
      for (int64_t i = from; i < to; ++i)
        visits_.push_back({static_cast<int32_t>(p), static_cast<int32_t>(i - from), 0});
    }
    for (size_t t = 0; t < levels_.size(); ++t) {
      const bool last = t + 1 == levels_.size();
      best_.assign(static_cast<size_t>(to - from), TopK(last ? options_.k : options_.beam));
      score_level(levels_[t], from);
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
  std::vector<float> row_scale_;
  std::vector<Visit> visits_, sorted_;
  std::vector<int64_t> start_;
  std::vector<TopK> best_;

  void score_level(const LevelView& level, int64_t from) {
    std::array<float, kMaxChildren> score;
    for (const Visit& visit : visits_) {
      chunk_scores(level, visit.parent, X_, from + visit.row, row_scale_[static_cast<size_t>(visit.row)],
                   score.data());
      TopK& best = best_[static_cast<size_t>(visit.row)];
      const int64_t first = level.child_start[visit.parent],
                    children = level.child_start[visit.parent + 1] - first;
      for (int64_t c = 0; c < children; ++c) {
        const float value = visit.above - penalty(score[static_cast<size_t>(c)], options_.power);
        if (value >= best.threshold()) best.push({value, static_cast<int32_t>(first + c)});
      }
    }
  }

  // The next level's visits, by parent.
  void descend(const LevelView& next) {
    start_.assign(static_cast<size_t>(next.parents) + 1, 0);
    visits_.clear();
    for (size_t i = 0; i < best_.size(); ++i) {
      for (const Scored& s : best_[i].sorted()) {
        visits_.push_back({s.id, static_cast<int32_t>(i), s.score});
        ++start_[static_cast<size_t>(s.id) + 1];
      }
    }
    for (size_t p = 1; p < start_.size(); ++p) start_[p] += start_[p - 1];
    sorted_.resize(visits_.size());
    for (const Visit& visit : visits_)
      sorted_[static_cast<size_t>(start_[static_cast<size_t>(visit.parent)]++)] = visit;
    visits_.swap(sorted_);
  }
};

}  // namespace

void beam_search(const CsrView<>& X, const std::vector<LevelView>& levels, const BeamOptions& options,
                 int threads, int32_t* ids, float* scores) {
  std::vector<std::unique_ptr<Search>> search(static_cast<size_t>(std::max(threads, 1)));
  parallel_for(chunk_count(X.rows, kBatch), threads, [&](int64_t task, int thread) {
    auto& mine = search[static_cast<size_t>(thread)];
    if (!mine) mine = std::make_unique<Search>(X, levels, options);
    mine->batch(task * kBatch, std::min(X.rows, (task + 1) * kBatch), ids, scores);
  });
}

}  // namespace xmc::tree
