#include "knn/knn.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/parallel.h"
#include "core/topk.h"

namespace xmc {
namespace {

constexpr int64_t kChunkPanels = 4096;  // 131,072 rows: a unit of work when there are few queries

// queries[t][j][i] = row (t * kKnnTile + i), feature j; missing rows are zero.
void pack_queries(DenseView<float> queries, int64_t first, int64_t count, Buffer<float>& packed) {
  const int64_t c = queries.cols;
  for (int64_t r = 0; r < kKnnBlock; ++r) {
    float* to = packed.data() + (r / kKnnTile) * c * kKnnTile + r % kKnnTile;
    for (int64_t j = 0; j < c; ++j) to[j * kKnnTile] = r < count ? queries.row(first + r)[j] : 0.f;
  }
}

struct Scratch {
  Buffer<float> queries, scores;
  std::vector<TopK> best;
};

}  // namespace

KnnIndex::KnnIndex(DenseView<float> rows)
    : rows_(rows.rows),
      features_(rows.cols),
      panels_(chunk_count(rows.rows, kKnnPanel) * kKnnPanel * rows.cols) {
  for (int64_t i = 0; i < rows_; ++i) {
    float* to = panels_.data() + (i / kKnnPanel) * kKnnPanel * features_ + i % kKnnPanel;
    for (int64_t j = 0; j < features_; ++j) to[j * kKnnPanel] = rows.row(i)[j];
  }
}

void KnnIndex::search(DenseView<float> queries, int64_t q, int threads, int32_t* ids, float* scores) const {
  const KnnKernels& kernels = knn_kernels();
  const int64_t blocks = chunk_count(queries.rows, kKnnBlock);
  const int64_t panels = chunk_count(rows_, kKnnPanel);
  const int64_t chunks = std::max<int64_t>(1, chunk_count(panels, kChunkPanels));
  // Unit = one block of queries against one chunk of rows; a row of `partial` per (query, chunk).
  std::vector<Scored> partial(static_cast<size_t>(queries.rows * chunks * q));
  std::vector<int32_t> found(static_cast<size_t>(queries.rows * chunks));
  std::vector<Scratch> scratch(static_cast<size_t>(std::max(threads, 1)));

  parallel_for(blocks * chunks, threads, [&](int64_t unit, int thread) {
    Scratch& s = scratch[static_cast<size_t>(thread)];
    if (s.best.empty()) {
      s.queries = Buffer<float>(kKnnBlock * features_);
      s.scores = Buffer<float>(kKnnBlock * kKnnPanel);
      s.best.assign(static_cast<size_t>(kKnnBlock), TopK(q));
    }
    const int64_t first = unit / chunks * kKnnBlock, chunk = unit % chunks;
    const int64_t count = std::min(kKnnBlock, queries.rows - first);
    const int64_t tiles = chunk_count(count, kKnnTile);
    pack_queries(queries, first, count, s.queries);
    for (int64_t i = 0; i < count; ++i) s.best[static_cast<size_t>(i)].clear();

    const int64_t last_panel = std::min(panels, (chunk + 1) * kChunkPanels);
    for (int64_t p = chunk * kChunkPanels; p < last_panel; ++p) {
      const float* panel = panels_.data() + p * kKnnPanel * features_;
      const int64_t row = p * kKnnPanel, left = std::min(kKnnPanel, rows_ - row);
      const uint32_t valid = left == kKnnPanel ? ~uint32_t{0} : (uint32_t{1} << left) - 1;
      kernels.score(panel, s.queries.data(), tiles, features_, s.scores.data());
      for (int64_t i = 0; i < count; ++i) {
        TopK& best = s.best[static_cast<size_t>(i)];
        const float* line = s.scores.data() + i * kKnnPanel;
        // Rows come in ascending order, so an equal score never enters a full list. Until it is full (or
        // while it holds NaN) everything may.
        uint32_t mask = best.open() ? ~uint32_t{0} : kernels.above(line, best.threshold());
        for (mask &= valid; mask; mask &= mask - 1) {
          const int bit = std::countr_zero(mask);
          best.push({line[bit], static_cast<int32_t>(row + bit)});
        }
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto& sorted = s.best[static_cast<size_t>(i)].sorted();
      const int64_t slot = (first + i) * chunks + chunk;
      found[static_cast<size_t>(slot)] = static_cast<int32_t>(sorted.size());
      std::copy(sorted.begin(), sorted.end(), partial.begin() + slot * q);
    }
  });

  parallel_for(blocks, threads, [&](int64_t block, int) {
    TopK best(q);
    for (int64_t i = block * kKnnBlock; i < std::min(queries.rows, (block + 1) * kKnnBlock); ++i) {
      best.clear();
      for (int64_t slot = i * chunks; slot < (i + 1) * chunks; ++slot)
        for (int64_t r = 0; r < found[static_cast<size_t>(slot)]; ++r)
          best.push(partial[static_cast<size_t>(slot * q + r)]);
      const auto& sorted = best.sorted();
      for (size_t r = 0; r < sorted.size(); ++r) {
        ids[i * q + static_cast<int64_t>(r)] = sorted[r].id;
        scores[i * q + static_cast<int64_t>(r)] = sorted[r].score;
      }
    }
  });
}

}  // namespace xmc
