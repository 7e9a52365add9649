#include "tree/predict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "core/parallel.h"
#include "core/prefetch.h"
#include "core/topk.h"
#include "tree/chunk.h"

namespace xmc::tree {
namespace {

// Rows that go through the tree together: the more, the more often a chunk is used while it is in the caches.
constexpr int64_t kBatch = 16384;
constexpr int64_t kBatchScores = 1 << 21;  // places in the beams or answers of a batch
constexpr int64_t kSmallBatch = 256;       // the least, where rows are shared by threads
constexpr int64_t kAhead = 4;              // visits
constexpr double kSteps = 1 << 23;         // of |x|_1
constexpr size_t kFirst = 3;               // parents of a row that are looked at before the others
constexpr int64_t kTouched = 4;            // lines of a chunk that a feature of a row reads, about

struct Visit {
  int32_t parent, row;
  float above;  // what a child inherits of the parent's log score
};

// The k best of each row of a batch.
class Best {
 public:
  void reset(int64_t rows, int64_t k) {
    k_ = k;
    heap_.resize(static_cast<size_t>(rows * k));
    held_.assign(static_cast<size_t>(rows), 0);
    threshold_.assign(static_cast<size_t>(rows), -std::numeric_limits<float>::infinity());
  }

  // A score below this cannot enter.
  float threshold(int64_t row) const { return threshold_[static_cast<size_t>(row)]; }

  void push(int64_t row, Scored s) {
    Scored* const heap = heap_.data() + row * k_;
    int64_t& held = held_[static_cast<size_t>(row)];
    if (held < k_) {
      heap[held++] = s;
    } else if (k_ > 0 && better(s, heap[0])) {
      std::pop_heap(heap, heap + held, better);
      heap[held - 1] = s;
    } else {
      return;
    }
    std::push_heap(heap, heap + held, better);
    if (held == k_ && !std::isnan(heap[0].score)) threshold_[static_cast<size_t>(row)] = heap[0].score;
  }

  // Best first; then nothing more can be pushed.
  Span<const Scored> sorted(int64_t row) {
    Scored* const heap = heap_.data() + row * k_;
    const int64_t held = held_[static_cast<size_t>(row)];
    std::sort_heap(heap, heap + held, better);
    return {heap, held};
  }

  void prefetch_row(int64_t row) const {
    const Scored* const heap = heap_.data() + row * k_;
    prefetch(heap);
    prefetch(threshold_.data() + row);
  }

 private:
  int64_t k_ = 0;
  std::vector<Scored> heap_;
  std::vector<int64_t> held_;
  std::vector<float> threshold_;
};

class Search {
 public:
  Search(const CsrView<>& X, const std::vector<LevelView>& levels, const BeamOptions& options)
      : X_(X), levels_(levels), options_(options) {}

  void batch(int64_t from, int64_t to, int32_t* ids, float* scores) {
    const int64_t rows = to - from;
    round(from, to);
    for (size_t t = 0; t < levels_.size(); ++t) {
      const LevelView& level = levels_[t];
      if (t > 0) std::swap(best_, above_);
      best_.reset(rows, t + 1 == levels_.size() ? options_.k : options_.beam);
      if (t == 0) {
        visits_.clear();
        for (int64_t p = 0; p < level.parents; ++p) {
          for (int64_t i = 0; i < rows; ++i)
            visits_.push_back({static_cast<int32_t>(p), static_cast<int32_t>(i), 0});
        }
        score(level);
        continue;
      }
      followed_.resize(static_cast<size_t>(rows));
      for (int64_t i = 0; i < rows; ++i) followed_[static_cast<size_t>(i)] = above_.sorted(i);
      descend(level, 0, kFirst);
      descend(level, kFirst, options_.beam);
    }
    for (int64_t i = 0; i < rows; ++i) {
      int64_t t = 0;
      for (const Scored& s : best_.sorted(i)) {
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
  std::vector<Item> items_;               // of the rows,
  std::vector<int64_t> start_;            // which begin here,
  std::vector<float> unit_;               // in these steps, which include the row's scale
  std::vector<Visit> visits_, unsorted_;  // by parent
  std::vector<int64_t> place_;
  Best best_, above_;                         // of this level and of the one above
  std::vector<Span<const Scored>> followed_;  // of the one above
  std::vector<Found> found_;

  Span<const Item> row(int64_t i) const {
    const int64_t at = start_[static_cast<size_t>(i)];
    return {items_.data() + at, start_[static_cast<size_t>(i) + 1] - at};
  }

  // The values of each row as integers: with |x|_1 2^23 steps, no sum of products with weights of 8 bits leaves 32.
  void round(int64_t from, int64_t to) {
    items_.clear();
    start_.assign(1, 0);
    unit_.clear();
    int64_t longest = 0;
    for (int64_t i = from; i < to; ++i) {
      const float* x = X_.data + X_.begin(i);
      double total = 0;
      for (int64_t e = 0; e < X_.size(i); ++e) total += std::abs(x[e]);
      const double steps = total > 0 && std::isfinite(total) ? kSteps / total : 0;
      for (int64_t e = 0; e < X_.size(i); ++e) {
        const auto feature = static_cast<uint32_t>(X_.indices[X_.begin(i) + e]);
        items_.push_back({feature, static_cast<int32_t>(std::lround(x[e] * steps))});
      }
      start_.push_back(static_cast<int64_t>(items_.size()));
      const float scale = row_scale(options_.rows, squared_length(x, X_.size(i)));
      unit_.push_back(steps > 0 ? static_cast<float>(scale / steps) : 0.f);
      longest = std::max(longest, X_.size(i));
    }
    found_.resize(static_cast<size_t>(longest));
  }

  // A node is never better than what it inherits, so that a parent worse than what a row has already is passed over.
  void score(const LevelView& level) {
    std::array<float, kMaxChildren> value;
    std::array<int32_t, kMaxChildren> sum;
    const auto count = static_cast<int64_t>(visits_.size());
    const auto end_of_parent = [&](int64_t v) {
      const int32_t parent = visits_[static_cast<size_t>(v)].parent;
      while (v < count && visits_[static_cast<size_t>(v)].parent == parent) ++v;
      return v;
    };
    int64_t next = 0, after = count > 0 ? end_of_parent(0) : 0;  // where the next parents begin
    ChunkLines lines;
    int64_t step = 0;
    for (int64_t v = 0; v < count; ++v) {
      const Visit& visit = visits_[static_cast<size_t>(v)];
      const Chunk chunk(level, visit.parent);
      if (v == next) {
        next = after;
        step = 0;
        if (next < count) {
          after = end_of_parent(next);
          lines = ChunkLines(level, visits_[static_cast<size_t>(next)].parent);
          const int64_t size = lines.size();
          const int64_t touched = (after - next) * kTouched * static_cast<int64_t>(items_.size()) / rows();
          if (touched >= size) step = size / (next - v) + 1;
        }
      }
      lines.fetch(step);
      if (v + kAhead < count) {
        const int32_t later = visits_[static_cast<size_t>(v + kAhead)].row;
        for (const Item* item = row(later).begin(); item < row(later).end(); item += 8) prefetch(item);
        best_.prefetch_row(later);
      }
      if (v + 1 < count) {
        const Visit& soon = visits_[static_cast<size_t>(v + 1)];
        Chunk(level, soon.parent).prefetch_buckets(row(soon.row));
      }
      if (visit.above < best_.threshold(visit.row)) continue;
      chunk.sums(row(visit.row), found_.data(), sum.data());
      const float unit = unit_[static_cast<size_t>(visit.row)];
      switch (options_.power) {
        case 1:
          chunk.values<1>(sum.data(), unit, visit.above, value.data());
          break;
        case 2:
          chunk.values<2>(sum.data(), unit, visit.above, value.data());
          break;
        default:
          chunk.values<3>(sum.data(), unit, visit.above, value.data());
      }
      keep(visit.row, chunk, value.data());
    }
  }

  // The children that enter a row's best: most blocks of kBlock have none.
  void keep(int32_t row, const Chunk& chunk, float* value) {
    constexpr int64_t kBlock = 16;
    static_assert(kMaxChildren % kBlock == 0);
    const int64_t children = chunk.children(), blocks = (children + kBlock - 1) / kBlock;
    std::fill(value + children, value + blocks * kBlock, -std::numeric_limits<float>::infinity());
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = block * kBlock;
      const float least = best_.threshold(row);
      int any = 0;
      for (int64_t c = first; c < first + kBlock; ++c) any |= !(value[c] < least);
      if (!any) continue;
      for (int64_t c = first; c < std::min(first + kBlock, children); ++c) {
        if (value[c] < best_.threshold(row)) continue;
        best_.push(row, {value[c], static_cast<int32_t>(chunk.first() + c)});
      }
    }
  }

  int64_t rows() const { return static_cast<int64_t>(unit_.size()); }

  // Visits the children of each row's nodes from rank `first` to `last` of the level above, and scores them.
  void descend(const LevelView& level, size_t first, size_t last) {
    place_.assign(static_cast<size_t>(level.parents) + 1, 0);
    unsorted_.clear();
    for (size_t i = 0; i < followed_.size(); ++i) {
      const Span<const Scored> nodes = followed_[i];
      for (size_t rank = first; rank < std::min(last, static_cast<size_t>(nodes.size())); ++rank) {
        const Scored& s = nodes[static_cast<int64_t>(rank)];
        const float inherited = options_.decay * s.score;
        if (s.score < nodes[0].score - options_.slack) break;
        if (inherited < best_.threshold(static_cast<int64_t>(i))) break;
        unsorted_.push_back({s.id, static_cast<int32_t>(i), inherited});
        ++place_[static_cast<size_t>(s.id) + 1];
      }
    }
    for (size_t p = 1; p < place_.size(); ++p) place_[p] += place_[p - 1];
    visits_.resize(unsorted_.size());
    for (const Visit& visit : unsorted_)
      visits_[static_cast<size_t>(place_[static_cast<size_t>(visit.parent)]++)] = visit;
    score(level);
  }
};

}  // namespace

void beam_search(const CsrView<>& X, const std::vector<LevelView>& levels, const BeamOptions& options,
                 int threads, int32_t* ids, float* scores) {
  std::vector<std::unique_ptr<Search>> search(static_cast<size_t>(std::max(threads, 1)));
  const int64_t batch =
      std::clamp(kBatchScores / std::max({options.k, options.beam, int64_t{1}}), int64_t{1}, kBatch);
  const int64_t size =
      std::clamp(chunk_count(X.rows, std::max(threads, 1)), std::min(kSmallBatch, batch), batch);
  parallel_for(chunk_count(X.rows, size), threads, [&](int64_t task, int thread) {
    auto& mine = search[static_cast<size_t>(thread)];
    if (!mine) mine = std::make_unique<Search>(X, levels, options);
    mine->batch(task * size, std::min(X.rows, (task + 1) * size), ids, scores);
  });
}

}  // namespace xmc::tree
