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
  std::vector<float> length, rounding;  // rows (DenseRows)

  DenseRows dense_rows() const {
    return {dense_start.data(), dense.data(), dense_value.data(), length.data(), rounding.data()};
  }

  void split(const LayoutView& layout, const CsrView<>& x, const RowOptions& options, int64_t from,
             int64_t to) {
    for (auto* v : {&dense_start, &sparse_start}) v->assign(1, 0);
    for (auto* v : {&dense, &sparse}) v->clear();
    for (auto* v : {&dense_value, &sparse_value, &length, &rounding}) v->clear();
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
      add_bounds();
      dense_start.push_back(static_cast<int64_t>(dense.size()));
      sparse_start.push_back(static_cast<int64_t>(sparse.size()));
    }
    dense.resize(dense.size() + kAhead);
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

  void add_bounds() {
    double squares = 0;
    const auto start = static_cast<size_t>(dense_start.back());
    for (size_t p = start; p < dense_value.size(); ++p) {
      squares += static_cast<double>(dense_value[p]) * dense_value[p];
    }
    // The constant here and in layout.cpp's error: products below the smallest normal number.
    const auto n = dense_value.size() - start;
    length.push_back(n ? static_cast<float>(std::sqrt(squares) * (1 + 1e-6) + 1e-10) : 0.f);
    rounding.push_back(5 * 0x1p-24f * static_cast<float>(n + 8));
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

// A label that may be among a row's k best.
struct Candidate {
  int32_t row, label;
  float partial;  // its score without the dense columns
  float upper;
};

struct Scratch {
  SplitRows rows;
  Buffer<float> partial;       // chunk x block
  TopKRows lower{0, 0};        // bounds of the k best
  std::vector<Candidate> may;  // ascending labels
  TopKRows top{0, 0};
};

inline void fetch([[maybe_unused]] const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p);
#endif
}

// Lists are short and lie far apart: their starts are asked for kStarts lists ahead, then their first
// entries.
void add_postings(const LayoutView& layout, const SplitRows& rows, int64_t n, int64_t b, float* scores) {
  constexpr int64_t kStarts = 16, kEntries = 8;
  const int64_t* ptr = layout.ptr + b * (layout.n_sparse + 1);
  const auto last = rows.sparse_start[static_cast<size_t>(n)];
  const int32_t* lists = rows.sparse.data();
  for (int64_t i = 0; i < n; ++i) {
    float* row = scores + i * layout.block;
    for (int64_t f = rows.sparse_start[static_cast<size_t>(i)];
         f < rows.sparse_start[static_cast<size_t>(i) + 1]; ++f) {
      if (f + kStarts < last) fetch(ptr + lists[f + kStarts]);
      if (f + kEntries < last) {
        const int64_t next = ptr[lists[f + kEntries]];
        fetch(layout.label + next);
        fetch(layout.weight + next);
        fetch(layout.weight + next + 16);
      }
      const int32_t list = lists[f];
      const float x = rows.sparse_value[static_cast<size_t>(f)];
      for (int64_t p = ptr[list]; p < ptr[list + 1]; ++p) row[layout.label[p]] += x * layout.weight[p];
    }
  }
}

// The tile-by-tile pass over one chunk of rows (predict.h).
class Pass {
 public:
  Pass(const LayoutView& layout, const Calibration& calibration, int64_t n, int64_t k, Scratch& s)
      : layout_(layout),
        calibration_(calibration),
        n_(n),
        exact_(k * kExactShare > layout.labels),
        rows_(s.rows.dense_rows()),
        s_(s) {}

  // Tile t; partial is that of its first label, rows `block` apart.
  void run(int64_t t, const float* partial) {
    const PredictTile tile = tile_at(t);
    const auto kernel = exact_ ? predict_kernels().exact : predict_kernels().bounds;
    const float* thresholds = (exact_ ? s_.top : s_.lower).thresholds();
    const int64_t labels = layout_.labels - t * kTile;
    const uint64_t inside = labels < kTile ? (uint64_t{1} << labels) - 1 : ~uint64_t{0};
    for (int64_t from = 0; from < n_; from += kGroup) {
      const int64_t to = std::min(n_, from + kGroup);
      kernel(tile, rows_, from, to, partial, layout_.block, thresholds, hits_, lower_, upper_);
      for (int64_t i = from; i < to; ++i) {
        if (const uint64_t hits = hits_[i - from] & inside) take(i, t, hits, partial + i * layout_.block);
      }
      if (s_.may.size() > kMaxCandidates) drop_candidates();
    }
  }

  // Keeps the list of candidates short: without those that are out by now, or scored early.
  void drop_candidates() {
    std::erase_if(s_.may, [&](const Candidate& c) { return c.upper < s_.lower.thresholds()[c.row]; });
    if (s_.may.size() > kMaxCandidates / 2) score_candidates();
  }

  void score_candidates() {
    const auto score = predict_kernels().score;
    for (const Candidate& c : s_.may) {
      if (c.upper < s_.lower.thresholds()[c.row]) continue;
      const float value = score(tile_at(c.label / kTile), rows_, c.row, c.label % kTile, c.partial);
      s_.top.push(c.row, {value, c.label});
    }
    s_.may.clear();
  }

 private:
  static constexpr int64_t kGroup = 16;
  static constexpr int64_t kExactShare = 16;  // of the labels, from which on k is large
  static constexpr size_t kMaxCandidates = size_t{1} << 18;

  PredictTile tile_at(int64_t t) const {
    const int64_t at = t * layout_.n_dense * kTile, first = t * kTile;
    return {layout_.high + at,
            layout_.low + at,
            layout_.error + first,
            layout_.norm + first,
            calibration_.scale ? calibration_.scale + first : nullptr,
            calibration_.scale ? calibration_.shift + first : nullptr};
  }

  void take(int64_t i, int64_t t, uint64_t hits, const float* partial) {
    const float* lower = lower_ + i % kGroup * kTile;
    const float* upper = upper_ + i % kGroup * kTile;
    for (; hits; hits &= hits - 1) {
      const int j = std::countr_zero(hits);
      const auto label = static_cast<int32_t>(t * kTile + j);
      if (exact_) {
        s_.top.push(i, {upper[j], label});
      } else if (!(upper[j] <= s_.lower.thresholds()[i])) {
        s_.may.push_back({static_cast<int32_t>(i), label, partial[j], upper[j]});
        s_.lower.push(i, {lower[j], label});
      }
    }
  }

  const LayoutView& layout_;
  const Calibration& calibration_;
  const int64_t n_;
  const bool exact_;
  const DenseRows rows_;
  Scratch& s_;
  uint64_t hits_[kGroup];
  float lower_[kGroup * kTile], upper_[kGroup * kTile];
};

void predict_chunk(const LayoutView& layout, const CsrView<>& x, const RowOptions& options,
                   const Calibration& calibration, int64_t k, int64_t from, int64_t to, Scratch& s,
                   int32_t* ids, float* scores) {
  const int64_t n = to - from;
  s.rows.split(layout, x, options, from, to);
  if (s.partial.size() < n * layout.block) s.partial = Buffer<float>(n * layout.block);
  s.lower = TopKRows(n, k);
  s.top = TopKRows(n, k);
  Pass pass(layout, calibration, n, k, s);
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    const int64_t first = b * layout.block;
    const int64_t width = std::min(layout.block, layout.tiles() * kTile - first);
    for (int64_t i = 0; i < n; ++i) {
      std::memset(s.partial.data() + i * layout.block, 0, static_cast<size_t>(width) * sizeof(float));
    }
    if (layout.n_sparse) add_postings(layout, s.rows, n, b, s.partial.data());
    for (int64_t t = 0; t < width; t += kTile) pass.run((first + t) / kTile, s.partial.data() + t);
  }
  pass.score_candidates();
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
