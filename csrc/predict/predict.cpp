#include "predict/predict.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/buffer_pool.h"
#include "core/parallel.h"
#include "predict/row_batch.h"
#include "predict/topk_rows.h"

namespace xmc::predict {
namespace {

// Tuned on EURLex-4K, EURLEX57K and tibkat-gnd models: change one, then
//   python -m bench.speed.bench_predict --sets eurlex-4k eurlex57k tibkat-gnd
constexpr int64_t kLeastScores = int64_t{32} << 20;  // bytes of a batch's scores for one block, per thread:
constexpr int64_t kMostScores = int64_t{96} << 20;   //   at least and at most,
constexpr int64_t kAllScores = int64_t{192} << 20;   //   all threads together, if each keeps the least
constexpr int64_t kMaxBatch = 8192;                  // rows
constexpr int64_t kFewBytes = int64_t{4} << 20;  // dense weights of a block that stay in the L3 cache anyway:
constexpr int64_t kFewRows = 32;                 //   so many rows at a time are enough
constexpr int64_t kRowGroup = 16;                // rows per call of a tile kernel
constexpr int64_t kNearBytes = 400 << 10;        // bytes of a tile of which two stay in the L2 cache
constexpr int64_t kListsAhead = 8;               // posting lists prefetched
constexpr int64_t kExactShare = 16;              // k > labels / kExactShare: no bounds, all scores are exact
constexpr size_t kMaxCandidates = 512;           // per row on average
constexpr int kMostTiles = 2;                    // PredictKernels::most_tiles is at most this

// A label that may be among a row's k best.
struct Candidate {
  int32_t row, place;
  float partial;  // its score without the dense columns
  float upper;
};

// Memory of one thread.
struct Scratch {
  RowBatch rows;
  std::unique_ptr<Recycled> partial;  // floats, rows at a time x block
  int64_t partial_rows = 0;
  TopKRows lower{0, 0};               // lower bounds of the k best
  TopKRows top{0, 0};                 // exact scores
  std::vector<Candidate> candidates;  // of the block
};

inline void prefetch([[maybe_unused]] const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p);
#endif
}

// Adds the postings of row i to its scores; the batch has `n_lists` lists in all. A list is one cache miss
// or two: its first lines are fetched kListsAhead lists before, also those of the next rows.
void add_postings(const Posting* postings, const Features& lists, int64_t i, int64_t n_lists, float* scores) {
  const int32_t* entry = lists.id.data();
  const auto list_of = [&](int64_t f) { return postings + (-2 - entry[f]); };
  for (int64_t f = lists.start[static_cast<size_t>(i)]; f < lists.start[static_cast<size_t>(i) + 1]; ++f) {
    if (f + kListsAhead < n_lists) {
      const Posting* next = list_of(f + kListsAhead);
      for (int line = 0; line < 4; ++line) prefetch(next + line * 11);  // 11 postings are a line of 64 bytes
    }
    const float x = lists.value[static_cast<size_t>(f)];
    const Posting* p = list_of(f);
    for (const Posting* end = p + p->count(); p < end;) {
      ++p;
      scores[p->place] += x * p->weight();
    }
  }
}

// `value` if `some`, else +0, by a mask instead of a branch.
inline float zero_unless(bool some, float value) {
  const uint32_t mask = -static_cast<uint32_t>(some);  // all ones, or all zeros
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & mask);
}

// Adds the outliers of row i to its scores. Most lists have one posting or none, which a branch predictor
// cannot learn. So the first posting is always added, as zero if the list is empty: it is then the posting
// behind the list, and its place gets + 0.
void add_outliers(const int32_t* out_ptr, const Posting* outlier, const Features& dense, int64_t i,
                  float* scores) {
  for (int64_t f = dense.start[static_cast<size_t>(i)]; f < dense.start[static_cast<size_t>(i) + 1]; ++f) {
    const int32_t* list = out_ptr + dense.id[static_cast<size_t>(f)];
    const float x = dense.value[static_cast<size_t>(f)];
    const Posting* p = outlier + list[0];
    const Posting* end = outlier + list[1];
    scores[p->place] += zero_unless(p < end, x * p->weight());
    for (++p; p < end; ++p) scores[p->place] += x * p->weight();
  }
}

// The tile-by-tile pass of some rows over one block (predict.h).
class BlockPass {
 public:
  BlockPass(const LayoutView& layout, int64_t b, const Calibration& calibration, int64_t first_row, int64_t n,
            int64_t k, Scratch& s)
      : layout_(layout),
        part_(layout.parts[b]),
        first_tile_(b * layout.block / kTile),
        calibration_(calibration),
        first_row_(first_row),
        n_(n),
        most_(static_cast<size_t>(n) * kMaxCandidates),
        exact_(k * kExactShare > layout.labels),
        rows_(s.rows.view()),
        s_(s) {}

  // Tiles that are taken at once: the row's features are read once for all of them.
  int at_once() const {
    return exact_ || part_.n_dense * kTile > kNearBytes ? 1 : predict_kernels().most_tiles;
  }

  // Tiles [t, t + n_tiles), one or at_once(); partial is that of the first label, rows `block` apart.
  void run(int64_t t, int n_tiles, const float* partial) {
    PredictTile tiles[kMostTiles];
    for (int j = 0; j < n_tiles; ++j) tiles[j] = tile_at(t + j);
    const float* thresholds = (exact_ ? s_.top : s_.lower).thresholds() + first_row_;
    const int64_t labels = layout_.labels - (t + n_tiles - 1) * kTile;  // of the last tile
    const uint64_t inside = labels < kTile ? (uint64_t{1} << labels) - 1 : ~uint64_t{0};
    for (int64_t from = 0; from < n_; from += kRowGroup) {
      const int64_t to = std::min(n_, from + kRowGroup);
      if (exact_) {
        predict_kernels().exact(tiles[0], rows_, from, to, partial, layout_.block, thresholds, hits_,
                                scores_);
      } else {
        predict_kernels().bounds(tiles, n_tiles, rows_, from, to, partial, layout_.block, thresholds, hits_,
                                 scores_);
      }
      const uint64_t* hits = hits_;
      const float* scores = scores_;
      for (int64_t i = from; i < to; ++i) {
        for (int j = 0; j < n_tiles; ++j, ++hits, scores += kTile) {
          if (const uint64_t some = j == n_tiles - 1 ? *hits & inside : *hits) {
            take(i, t + j, tiles[j], some, scores, partial + i * layout_.block + j * kTile);
          }
        }
      }
      if (s_.candidates.size() > most_) drop_candidates();
    }
  }

  // Keeps the list of candidates short: without those that are out by now, or scored early.
  void drop_candidates() {
    std::erase_if(s_.candidates, [&](const Candidate& c) { return c.upper < lower(c.row); });
    if (s_.candidates.size() > most_ / 2) score_candidates();
  }

  void score_candidates() {
    std::erase_if(s_.candidates, [&](const Candidate& c) { return c.upper < lower(c.row); });
    // The best first: most of a row's others are then out.
    std::sort(s_.candidates.begin(), s_.candidates.end(), [](const Candidate& a, const Candidate& b) {
      return a.row != b.row ? a.row < b.row : a.upper > b.upper;
    });
    const auto score = predict_kernels().score;
    for (size_t c = 0; c < s_.candidates.size(); ++c) {
      if (c + 1 < s_.candidates.size() && !out(s_.candidates[c + 1])) fetch_cells(s_.candidates[c + 1]);
      if (out(s_.candidates[c])) continue;
      const auto [row, place, partial, _] = s_.candidates[c];
      const float exact = score(tile_at(place / kTile), rows_, row, place % kTile, partial);
      s_.top.push(first_row_ + row, {exact, layout_.label[place]});
    }
    s_.candidates.clear();
  }

 private:
  PredictTile tile_at(int64_t t) const {
    const int64_t first = t * kTile;
    const int64_t in_block = t - first_tile_, cell = part_.first_cell + in_block * part_.n_dense;
    return {layout_.cell + cell,
            layout_.weight,
            layout_.heavy + part_.first_heavy + in_block * part_.n_heavy * kTile,
            layout_.byte + cell * kTile,
            layout_.step + first,
            layout_.error + first,
            layout_.spread + first,
            layout_.norm + first,
            calibration_.scale ? calibration_.scale + first : nullptr,
            calibration_.scale ? calibration_.shift + first : nullptr,
            layout_.most[t]};
  }
  bool out(const Candidate& c) const { return c.upper < s_.top.thresholds()[first_row_ + c.row]; }
  float lower(int64_t i) const { return s_.lower.thresholds()[first_row_ + i]; }

  void fetch_cells(const Candidate& c) const {
    const Cell* cell = tile_at(c.place / kTile).cell;
    for (int64_t p = rows_.start[c.row]; p < rows_.start[c.row + 1]; ++p) prefetch(cell + rows_.dense[p]);
  }

  // The lanes `hits` of a tile may be among the best of row i: they become candidates, or with exact scores
  // go straight to the best.
  void take(int64_t i, int64_t t, const PredictTile& tile, uint64_t hits, const float* scores,
            const float* partial) {
    for (; hits; hits &= hits - 1) {
      const int lane = std::countr_zero(hits);
      const auto place = static_cast<int32_t>(t * kTile + lane);
      if (exact_) {
        s_.top.push(first_row_ + i, {scores[lane], layout_.label[place]});
      } else {
        add_candidate(i, place, tile, lane, scores[lane], partial[lane]);
      }
    }
  }

  void add_candidate(int64_t i, int32_t place, const PredictTile& tile, int lane, float score,
                     float partial) {
    const PredictRow& row = rows_.row[i];
    float margin = (row.length * tile.norm[lane] + std::abs(score)) * row.rounding +
                   row.sum * tile.error[lane] + row.off * tile.spread[lane];
    if (tile.scale) {
      score = tile.scale[lane] * score + tile.shift[lane];
      margin = std::abs(tile.scale[lane]) * margin + row.rounding * std::abs(score);
    }
    const float upper = score + margin;
    if (upper < lower(i)) return;  // false for NaN, which stays a candidate with no bound
    s_.candidates.push_back({static_cast<int32_t>(i), place, partial,
                             std::isnan(upper) ? std::numeric_limits<float>::infinity() : upper});
    s_.lower.push(first_row_ + i, {score - margin, place});
  }

  const LayoutView& layout_;
  const LayoutBlock& part_;
  const int64_t first_tile_;
  const Calibration& calibration_;
  const int64_t first_row_, n_;
  const size_t most_;
  const bool exact_;
  const PredictRows rows_;
  Scratch& s_;
  uint64_t hits_[kRowGroup * kMostTiles];
  float scores_[kRowGroup * kMostTiles * kTile];
};

// Rows [from, to) of the batch in block b: partial scores from postings and outliers, then tile by tile.
void predict_block(const LayoutView& layout, const Calibration& calibration, int64_t k, int64_t b,
                   int64_t from, int64_t to, Scratch& s) {
  const LayoutBlock& part = layout.parts[b];
  const int64_t tiles = layout.tiles_of(b), n = to - from;
  if (s.partial_rows < n) {
    s.partial_rows = n;
    s.partial = std::make_unique<Recycled>(n * layout.block * static_cast<int64_t>(sizeof(float)));
  }
  auto* partial = static_cast<float*>(s.partial->data());
  s.rows.split(layout, b, from, to);
  for (int64_t i = 0; i < n; ++i) {
    float* scores = partial + i * layout.block;
    std::memset(scores, 0, static_cast<size_t>(tiles * kTile) * sizeof(float));
    add_postings(layout.posting + part.first_posting, s.rows.sparse, i,
                 s.rows.sparse.start[static_cast<size_t>(n)], scores);
    add_outliers(layout.out_ptr + part.first_slot, layout.outlier, s.rows.dense, i, scores);
  }
  BlockPass pass(layout, b, calibration, from, n, k, s);
  for (int64_t t = 0; t < tiles;) {
    const int at_once = t + pass.at_once() <= tiles ? pass.at_once() : 1;
    pass.run(b * layout.block / kTile + t, at_once, partial + t * kTile);
    t += at_once;
  }
  pass.score_candidates();
}

void predict_batch(const LayoutView& layout, const CsrView<>& x, const RowOptions& options,
                   const Calibration& calibration, int64_t k, int64_t from, int64_t to, Scratch& s,
                   int32_t* ids, float* scores) {
  const int64_t n = to - from;
  s.rows.take(x, options, layout.columns, from, to);
  s.lower = TopKRows(n, k);
  s.top = TopKRows(n, k);
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    const bool few = layout.parts[b].n_dense * layout.block <= kFewBytes;
    const int64_t group = few ? kFewRows : n;
    for (int64_t i = 0; i < n; i += group) {
      predict_block(layout, calibration, k, b, i, std::min(n, i + group), s);
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

// A batch reads all dense weights once: the more rows, the less often they come from memory.
int64_t rows_at_once(int64_t places, int threads) {
  const int64_t bytes = std::clamp(kAllScores / threads, kLeastScores, kMostScores);
  return std::clamp<int64_t>(bytes / (places * static_cast<int64_t>(sizeof(float))), 16, kMaxBatch);
}

void predict_topk(const LayoutView& layout, const CsrView<>& x, const RowOptions& options,
                  const Calibration& calibration, int64_t k, int threads, int32_t* ids, float* scores) {
  k = std::min(k, layout.labels);
  if (k <= 0 || x.rows == 0) return;
  const int64_t limit = rows_at_once(layout.block, threads);
  // Batches of equal size, a multiple of the threads of them.
  const int64_t batches = chunk_count(x.rows, limit * threads) * threads;
  const int64_t batch = std::max<int64_t>(1, chunk_count(x.rows, batches));
  std::vector<Scratch> scratch(static_cast<size_t>(threads));
  parallel_for(chunk_count(x.rows, batch), threads, [&](int64_t c, int thread) {
    predict_batch(layout, x, options, calibration, k, c * batch, std::min(x.rows, (c + 1) * batch),
                  scratch[static_cast<size_t>(thread)], ids, scores);
  });
}

}  // namespace xmc::predict
