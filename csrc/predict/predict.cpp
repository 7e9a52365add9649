#include "predict/predict.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/buffer.h"
#include "core/parallel.h"
#include "predict/topk_rows.h"

namespace xmc {
namespace {

constexpr int64_t kScoreBytes = int64_t{4} << 20;  // of a chunk's scores for one block
constexpr int64_t kMaxChunk = 2048;

// A chunk's rows as the layout wants them: normalised, with the bias, split by kind of column, the dense ones
// in the order of their slots.
struct SplitRows {
  std::vector<int64_t> dense_start, sparse_start;  // rows + 1
  std::vector<int32_t> dense, sparse;              // slots
  std::vector<float> dense_value, sparse_value;

  void split(const LayoutView& layout, const CsrView<>& x, const RowOptions& options, int64_t from,
             int64_t to) {
    for (auto* v : {&dense_start, &sparse_start}) v->assign(1, 0);
    for (auto* v : {&dense, &sparse}) v->clear();
    for (auto* v : {&dense_value, &sparse_value}) v->clear();
    present.resize(static_cast<size_t>(layout.n_dense + 63) / 64);
    by_slot.resize(static_cast<size_t>(layout.n_dense));
    for (int64_t i = from; i < to; ++i) {
      float scale = 1.f;
      if (options.normalize) {
        double squares = 0;
        for (int64_t p = x.begin(i); p < x.end(i); ++p) squares += static_cast<double>(x.data[p]) * x.data[p];
        if (squares > 0) scale = static_cast<float>(1 / std::sqrt(squares));
      }
      for (int64_t p = x.begin(i); p < x.end(i); ++p) add(layout, x.indices[p], x.data[p] * scale);
      if (options.has_bias) add(layout, layout.columns - 1, options.bias);
      take_dense();
      dense_start.push_back(static_cast<int64_t>(dense.size()));
      sparse_start.push_back(static_cast<int64_t>(sparse.size()));
    }
  }

 private:
  std::vector<uint64_t> present;  // a bit per slot: cheaper than sorting a few hundred of them
  std::vector<float> by_slot;

  void take_dense() {
    for (size_t word = 0; word < present.size(); ++word) {
      for (uint64_t bits = present[word]; bits; bits &= bits - 1) {
        const auto slot = static_cast<int32_t>(word * 64) + std::countr_zero(bits);
        dense.push_back(slot);
        dense_value.push_back(by_slot[static_cast<size_t>(slot)]);
      }
      present[word] = 0;
    }
  }

  void add(const LayoutView& layout, int64_t column, float value) {
    const int32_t slot = layout.slot[column];
    if (slot >= 0) {
      present[static_cast<size_t>(slot) / 64] |= uint64_t{1} << (slot % 64);
      by_slot[static_cast<size_t>(slot)] = value;
    } else if (slot != kEmpty) {
      sparse.push_back(-2 - slot);
      sparse_value.push_back(value);
    }
  }
};

struct Scratch {
  SplitRows rows;
  Buffer<float> scores;  // chunk x block
  std::vector<uint64_t> hits;
  TopKRows top{0, 0};
};

void add_postings(const LayoutView& layout, const SplitRows& rows, int64_t n, int64_t b, float* scores) {
  const int64_t* ptr = layout.ptr + b * (layout.n_sparse + 1);
  for (int64_t i = 0; i < n; ++i) {
    float* row = scores + i * layout.block;
    for (int64_t f = rows.sparse_start[static_cast<size_t>(i)];
         f < rows.sparse_start[static_cast<size_t>(i) + 1]; ++f) {
      const int32_t list = rows.sparse[static_cast<size_t>(f)];
      const float x = rows.sparse_value[static_cast<size_t>(f)];
      for (int64_t p = ptr[list]; p < ptr[list + 1]; ++p) row[layout.label[p]] += x * layout.weight[p];
    }
  }
}

void push_hits(uint64_t hits, const float* scores, int64_t first_label, int64_t labels, int64_t row,
               TopKRows& top) {
  if (labels - first_label < kTile) hits &= (uint64_t{1} << (labels - first_label)) - 1;
  while (hits) {
    const int j = std::countr_zero(hits);
    hits &= hits - 1;
    top.push(row, {scores[j], static_cast<int32_t>(first_label + j)});
  }
}

void predict_chunk(const LayoutView& layout, const CsrView<>& x, const RowOptions& options,
                   const Calibration& calibration, int64_t k, int64_t from, int64_t to, Scratch& s,
                   int32_t* ids, float* scores) {
  const int64_t n = to - from;
  const auto kernel = predict_kernels().tile;
  s.rows.split(layout, x, options, from, to);
  if (s.scores.size() < n * layout.block) s.scores = Buffer<float>(n * layout.block);
  s.hits.resize(static_cast<size_t>(n));
  s.top = TopKRows(n, k);
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    const int64_t first = b * layout.block;
    const int64_t width = std::min(layout.block, layout.tiles() * kTile - first);
    for (int64_t i = 0; i < n; ++i) {
      std::memset(s.scores.data() + i * layout.block, 0, static_cast<size_t>(width) * sizeof(float));
    }
    if (layout.n_sparse) add_postings(layout, s.rows, n, b, s.scores.data());
    for (int64_t t = 0; t < width; t += kTile) {
      kernel(layout.dense + (first + t) * layout.n_dense, s.rows.dense_start.data(), s.rows.dense.data(),
             s.rows.dense_value.data(), n, s.scores.data() + t, layout.block,
             calibration.scale ? calibration.scale + first + t : nullptr,
             calibration.scale ? calibration.shift + first + t : nullptr, s.top.thresholds(), s.hits.data());
      for (int64_t i = 0; i < n; ++i) {
        if (const uint64_t hits = s.hits[static_cast<size_t>(i)]) {
          push_hits(hits, s.scores.data() + i * layout.block + t, first + t, layout.labels, i, s.top);
        }
      }
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const Scored* best = s.top.sorted(i);
    for (int64_t j = 0; j < k; ++j) {
      ids[(from + i) * k + j] = best[j].id;
      scores[(from + i) * k + j] = best[j].score;
    }
  }
}

}  // namespace

void predict_topk(const LayoutView& layout, const CsrView<>& x, const RowOptions& options,
                  const Calibration& calibration, int64_t k, int threads, int32_t* ids, float* scores) {
  k = std::min(k, layout.labels);
  if (k <= 0 || x.rows == 0) return;
  const int64_t fit = kScoreBytes / (layout.block * static_cast<int64_t>(sizeof(float)));
  const int64_t limit = std::clamp<int64_t>(fit, 16, kMaxChunk);
  // Chunks of equal size, a multiple of the threads of them.
  const int64_t chunks = chunk_count(x.rows, limit * threads) * threads;
  const int64_t chunk = std::max<int64_t>(1, chunk_count(x.rows, chunks));
  std::vector<Scratch> scratch(static_cast<size_t>(threads));
  parallel_for(chunk_count(x.rows, chunk), threads, [&](int64_t c, int thread) {
    predict_chunk(layout, x, options, calibration, k, c * chunk, std::min(x.rows, (c + 1) * chunk),
                  scratch[static_cast<size_t>(thread)], ids, scores);
  });
}

}  // namespace xmc
