#include "predict/predict.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/parallel.h"
#include "core/recycle.h"
#include "predict/rows.h"
#include "predict/topk_rows.h"

namespace xmc {
namespace {

constexpr int64_t kLeastScores = int64_t{32} << 20;  // bytes of a chunk's scores for one block
constexpr int64_t kMostScores = int64_t{96} << 20;
constexpr int64_t kAllScores = int64_t{192} << 20;  // of all threads, if that leaves each the least
constexpr int64_t kMaxChunk = 8192;
constexpr int64_t kFewBytes = int64_t{4} << 20;  // of a block's dense weights, which then stay in a cache:
constexpr int64_t kFewRows = 32;                 // so many rows at a time are enough

// A label that may be among a row's k best.
struct Candidate {
  int32_t row, place;
  float partial;  // its score without the dense columns
  float upper;
};

struct Scratch {
  ChunkRows rows;
  std::unique_ptr<Recycled> partial;  // floats, rows at a time x block
  int64_t partial_rows = 0;
  TopKRows lower{0, 0};        // bounds of the k best
  std::vector<Candidate> may;  // of the block
  TopKRows top{0, 0};
};

inline void fetch([[maybe_unused]] const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p);
#endif
}

// Adds the postings of row i in a block to its scores. Lists are short and lie far apart: their first entries
// are asked for kAheadLists ahead, those of the next rows as well.
void add_postings(const Posting* postings, const Features& lists, int64_t i, int64_t last, float* scores) {
  constexpr int64_t kAheadLists = 8;
  const int32_t* id = lists.id.data();
  for (int64_t f = lists.start[static_cast<size_t>(i)]; f < lists.start[static_cast<size_t>(i) + 1]; ++f) {
    if (f + kAheadLists < last) {
      const Posting* next = postings + (-2 - id[f + kAheadLists]);
      fetch(next);
      fetch(next + 11);  // on the next lines
      fetch(next + 22);
      fetch(next + 33);
    }
    const float x = lists.value[static_cast<size_t>(f)];
    const Posting* p = postings + (-2 - id[f]);
    for (const Posting* end = p + p->count(); p < end;) {
      ++p;
      scores[p->place] += x * p->weight();
    }
  }
}

// Most lists have one entry or none, in no order a processor could guess: the first is added as a zero if
// there is none, to the label of the entry after the list's end.
void add_outliers(const int32_t* ptr, const Posting* outlier, const Features& dense, int64_t i,
                  float* scores) {
  for (int64_t f = dense.start[static_cast<size_t>(i)]; f < dense.start[static_cast<size_t>(i) + 1]; ++f) {
    const int32_t* list = ptr + dense.id[static_cast<size_t>(f)];
    const float x = dense.value[static_cast<size_t>(f)];
    const Posting* p = outlier + list[0];
    const Posting* end = outlier + list[1];
    const auto first = std::bit_cast<uint32_t>(x * p->weight()) & -static_cast<uint32_t>(p < end);
    scores[p->place] += std::bit_cast<float>(first);
    for (++p; p < end; ++p) scores[p->place] += x * p->weight();
  }
}

// The tile-by-tile pass over one chunk of rows in one block (predict.h).
class Pass {
 public:
  Pass(const LayoutView& layout, int64_t b, const Calibration& calibration, int64_t first_row, int64_t n,
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
    for (int64_t from = 0; from < n_; from += kGroup) {
      const int64_t to = std::min(n_, from + kGroup);
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
      if (s_.may.size() > most_) drop_candidates();
    }
  }

  // Keeps the list of candidates short: without those that are out by now, or scored early.
  void drop_candidates() {
    std::erase_if(s_.may, [&](const Candidate& c) { return c.upper < lower(c.row); });
    if (s_.may.size() > most_ / 2) score_candidates();
  }

  void score_candidates() {
    std::erase_if(s_.may, [&](const Candidate& c) { return c.upper < lower(c.row); });
    // The best first: most of a row's others are then out.
    std::sort(s_.may.begin(), s_.may.end(), [](const Candidate& a, const Candidate& b) {
      return a.row != b.row ? a.row < b.row : a.upper > b.upper;
    });
    const auto score = predict_kernels().score;
    for (size_t c = 0; c < s_.may.size(); ++c) {
      if (c + 1 < s_.may.size() && !out(s_.may[c + 1])) fetch_cells(s_.may[c + 1]);
      if (out(s_.may[c])) continue;
      const auto [row, place, partial, _] = s_.may[c];
      const float exact = score(tile_at(place / kTile), rows_, row, place % kTile, partial);
      s_.top.push(first_row_ + row, {exact, layout_.label[place]});
    }
    s_.may.clear();
  }

 private:
  static constexpr int64_t kGroup = 16;
  static constexpr int64_t kNearBytes = 400 << 10;  // of a tile: two of them stay in a near cache
  static constexpr int kMostTiles = 2;              // of any kernel
  static constexpr int64_t kExactShare = 16;        // of the labels, from which on k is large
  static constexpr size_t kMaxCandidates = 512;     // on average per row

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
    for (int64_t p = rows_.start[c.row]; p < rows_.start[c.row + 1]; ++p) fetch(cell + rows_.dense[p]);
  }

  void take(int64_t i, int64_t t, const PredictTile& tile, uint64_t hits, const float* scores,
            const float* partial) {
    const PredictRow& row = rows_.row[i];
    for (; hits; hits &= hits - 1) {
      const int j = std::countr_zero(hits);
      const auto place = static_cast<int32_t>(t * kTile + j);
      float score = scores[j];
      if (exact_) {
        s_.top.push(first_row_ + i, {score, layout_.label[place]});
        continue;
      }
      float margin = (row.length * tile.norm[j] + std::abs(score)) * row.rounding + row.sum * tile.error[j] +
                     row.off * tile.spread[j];
      if (tile.scale) {
        score = tile.scale[j] * score + tile.shift[j];
        margin = std::abs(tile.scale[j]) * margin + row.rounding * std::abs(score);
      }
      if (!(score + margin < lower(i))) {
        const float upper = score + margin;
        s_.may.push_back({static_cast<int32_t>(i), place, partial[j],
                          upper == upper ? upper : std::numeric_limits<float>::infinity()});
        s_.lower.push(first_row_ + i, {score - margin, place});
      }
    }
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
  uint64_t hits_[kGroup * kMostTiles];
  float scores_[kGroup * kMostTiles * kTile];
};

// Rows [from, to) of the chunk in block b.
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
  Pass pass(layout, b, calibration, from, n, k, s);
  for (int64_t t = 0; t < tiles;) {
    const int at_once = t + pass.at_once() <= tiles ? pass.at_once() : 1;
    pass.run(b * layout.block / kTile + t, at_once, partial + t * kTile);
    t += at_once;
  }
  pass.score_candidates();
}

void predict_chunk(const LayoutView& layout, const CsrView<>& x, const RowOptions& options,
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

// A chunk reads all dense weights once: the more rows, the less often they come from memory.
int64_t rows_at_once(int64_t block, int threads) {
  const int64_t bytes = std::clamp(kAllScores / threads, kLeastScores, kMostScores);
  return std::clamp<int64_t>(bytes / (block * static_cast<int64_t>(sizeof(float))), 16, kMaxChunk);
}

}  // namespace

void predict_topk(const LayoutView& layout, const CsrView<>& x, const RowOptions& options,
                  const Calibration& calibration, int64_t k, int threads, int32_t* ids, float* scores) {
  k = std::min(k, layout.labels);
  if (k <= 0 || x.rows == 0) return;
  const int64_t limit = rows_at_once(layout.block, threads);
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
