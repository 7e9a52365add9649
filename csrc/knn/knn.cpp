#include "knn/knn.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "core/parallel.h"
#include "core/topk.h"

namespace xmc::knn {
namespace {

constexpr int64_t kChunkPanels = 4096;  // 131,072 rows: a unit of work when there are few queries
constexpr int64_t kTryPanels = 16;      // of which one is filtered where that drops little
constexpr float kInf = std::numeric_limits<float>::infinity();
static_assert(kKnnBlock % kKnnTile == 0);

void raise(std::atomic<float>& x, float to) {
  float now = x.load(std::memory_order_relaxed);
  while (now < to && !x.compare_exchange_weak(now, to, std::memory_order_relaxed)) {
  }
}

// Rows come in ascending order, so an equal score never enters a full list. Until it is full (or while it
// holds NaN) everything may: NaN, which no score is below.
float limit(const TopK& list) {
  return list.open() ? std::numeric_limits<float>::quiet_NaN() : list.threshold();
}

// A block of queries and their lists.
struct Block {
  Block(int64_t c, int64_t groups, int64_t q)
      : features(c),
        stride(chunk_count(c, kKnnLanes) * kKnnLanes),
        values(kKnnBlock * stride),
        bytes(kKnnBlock, groups),
        masks(kKnnBlock),
        best(kKnnBlock, TopK(q)) {}

  // `others` is the q-th best score in another chunk.
  void set(int64_t i, const float* query, double longest, float others) {
    std::copy_n(query, features, values.data() + i * stride);
    bytes.set(i, query, features, longest);
    best[i].clear();
    // One below, because an equal score in this chunk may have the lower row.
    if (others > -kInf) bytes.threshold(i, std::nextafter(others, -kInf));
  }

  // Scores the rows `mask` of a panel that begins at `row` for query i; returns how many they were.
  int score(const KnnKernels& kernels, int64_t i, const float* panel, int64_t row, uint32_t mask) {
    int32_t at[kKnnPanel];
    float scores[kKnnPanel];
    int n = 0;
    for (; mask; mask &= mask - 1) at[n++] = std::countr_zero(mask);
    kernels.score(panel, features, values.data() + i * stride, at, n, scores);
    TopK& list = best[i];
    float least = limit(list);
    for (int k = 0; k < n; ++k) {
      if (scores[k] <= least) continue;
      list.push({scores[k], static_cast<int32_t>(row + at[k])});
      least = limit(list);
    }
    if (!std::isnan(least)) bytes.threshold(i, least);
    return n;
  }

  int64_t features, stride;
  Buffer<float> values;  // [kKnnBlock][stride], zero beyond the features
  KnnQueries bytes;
  std::vector<uint32_t> masks;
  std::vector<TopK> best;
};

}  // namespace

KnnIndex::KnnIndex(DenseView<float> rows)
    : rows_(rows.rows), features_(rows.cols), values_(rows.rows * rows.cols + kKnnLanes), bytes_(rows) {
  std::copy_n(rows.data, rows.rows * rows.cols, values_.data());
}

void KnnIndex::search(DenseView<float> queries, int64_t q, int threads, int32_t* ids, float* scores) const {
  const KnnKernels& kernels = knn_kernels();
  const KnnFilterKernels& filter = knn_filter_kernels();
  const int64_t blocks = chunk_count(queries.rows, kKnnBlock);
  const int64_t panels = chunk_count(rows_, kKnnPanel);
  const int64_t chunks = std::max<int64_t>(1, chunk_count(panels, kChunkPanels));
  // Unit = one block of queries against one chunk of rows; a row of `partial` per (query, chunk).
  std::vector<Scored> partial(queries.rows * chunks * q);
  std::vector<int32_t> found(queries.rows * chunks);
  // The best q-th score of a chunk so far, per query: what is below it in another chunk is out.
  std::vector<std::atomic<float>> floor(queries.rows);
  for (auto& f : floor) f.store(-kInf, std::memory_order_relaxed);
  std::vector<std::optional<Block>> scratch(std::max(threads, 1));

  parallel_for(blocks * chunks, threads, [&](int64_t unit, int thread) {
    auto& mine = scratch[thread];
    if (!mine) mine.emplace(features_, bytes_.groups(), q);
    Block& s = *mine;
    const int64_t first = unit / chunks * kKnnBlock, chunk = unit % chunks;
    const int64_t count = std::min(kKnnBlock, queries.rows - first);
    const int64_t tiles = chunk_count(count, kKnnTile);
    for (int64_t i = 0; i < count; ++i) {
      const float others = floor[first + i].load(std::memory_order_relaxed);
      s.set(i, queries.row(first + i), bytes_.longest(), others);
    }

    bool dense = false;
    const int64_t first_panel = chunk * kChunkPanels;
    const int64_t last_panel = std::min(panels, first_panel + kChunkPanels);
    for (int64_t p = first_panel; p < last_panel; ++p) {
      const int64_t row = p * kKnnPanel, left = std::min(kKnnPanel, rows_ - row);
      const uint32_t valid = left == kKnnPanel ? ~uint32_t{0} : (uint32_t{1} << left) - 1;
      // Where most rows pass, the filter only takes time: try it now and then.
      if (!dense || p % kTryPanels == 0) {
        filter.filter(bytes_.panel(p), s.bytes.a(), s.bytes.factors(), tiles, bytes_.groups(),
                      s.masks.data());
      } else {
        std::fill_n(s.masks.begin(), count, ~uint32_t{0});
      }
      int64_t scored = 0;
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t mask = s.masks[i] & valid;
        if (mask) scored += s.score(kernels, i, values_.data() + row * features_, row, mask);
      }
      dense = p > first_panel && 2 * scored > count * left;  // the lists of the first were empty
    }
    for (int64_t i = 0; i < count; ++i) {
      TopK& best = s.best[i];
      if (!best.open()) raise(floor[first + i], best.threshold());
      const auto& sorted = best.sorted();
      const int64_t slot = (first + i) * chunks + chunk;
      found[slot] = static_cast<int32_t>(sorted.size());
      std::copy(sorted.begin(), sorted.end(), partial.begin() + slot * q);
    }
  });

  parallel_for(blocks, threads, [&](int64_t block, int) {
    TopK best(q);
    for (int64_t i = block * kKnnBlock; i < std::min(queries.rows, (block + 1) * kKnnBlock); ++i) {
      best.clear();
      for (int64_t slot = i * chunks; slot < (i + 1) * chunks; ++slot)
        for (int64_t r = 0; r < found[slot]; ++r) best.push(partial[slot * q + r]);
      const auto& sorted = best.sorted();
      for (size_t r = 0; r < sorted.size(); ++r) {
        ids[i * q + static_cast<int64_t>(r)] = sorted[r].id;
        scores[i * q + static_cast<int64_t>(r)] = sorted[r].score;
      }
    }
  });
}

}  // namespace xmc::knn
