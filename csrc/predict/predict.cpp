#include "predict/predict.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/buffer.h"
#include "core/parallel.h"
#include "predict/topk_rows.h"

namespace xmc {
namespace {

constexpr int64_t kScoreBytes = int64_t{16} << 20;  // of a chunk's scores for one block
constexpr int64_t kMaxChunk = 4096;

// Features of one kind, by row.
struct Features {
  std::vector<int64_t> start;  // rows + 1
  std::vector<int32_t> id;
  std::vector<float> value;

  void clear() {
    start.assign(1, 0);
    id.clear();
    value.clear();
  }
  void add(int32_t i, float x) {
    id.push_back(i);
    value.push_back(x);
  }
  void end_row() { start.push_back(static_cast<int64_t>(id.size())); }
};

// A chunk's rows as the layout wants them: normalised, with the bias, split by kind of column, the dense ones
// in the order of their slots.
class SplitRows {
 public:
  Features dense;   // slots
  Features sparse;  // lists

  PredictRows view() const {
    return {dense.start.data(), dense.id.data(), dense.value.data(), row.data(),
            four.data(),        n_heavy,         heavy.data()};
  }

  void split(const LayoutView& layout, const CsrView<>& x, const RowOptions& options, int64_t from,
             int64_t to) {
    dense.clear();
    sparse.clear();
    row.clear();
    four.clear();
    n_heavy = layout.n_heavy;
    heavy.assign(static_cast<size_t>((to - from) * n_heavy), 0.f);
    present.resize(static_cast<size_t>(layout.n_dense + 63) / 64);
    by_slot.resize(static_cast<size_t>(layout.n_dense));
    for (int64_t i = from; i < to; ++i) {
      double squares = 0;
      for (int64_t p = x.begin(i); p < x.end(i); ++p) squares += static_cast<double>(x.data[p]) * x.data[p];
      const bool scaled = options.normalize && squares > 0;
      const float scale = scaled ? static_cast<float>(1 / std::sqrt(squares)) : 1.f;
      for (int64_t p = x.begin(i); p < x.end(i); ++p) add(layout, x.indices[p], x.data[p] * scale);
      if (options.has_bias) add(layout, layout.columns - 1, options.bias);
      take_dense();
      // The constants here and in layout.cpp's error: products below the smallest normal number.
      const double all = squares * scale * scale + static_cast<double>(options.bias) * options.bias;
      add_fours(i - from, std::sqrt(all) * (1 + 1e-6) + 1e-10,
                5 * 0x1p-24f * static_cast<float>(x.end(i) - x.begin(i) + 9));
      dense.end_row();
      sparse.end_row();
    }
    four.resize(four.size() + kAhead);
  }

 private:
  std::vector<PredictRow> row;
  std::vector<Four> four;
  int64_t n_heavy = 0;
  std::vector<float> heavy;
  std::vector<uint64_t> present;  // a bit per slot: cheaper than sorting a few hundred of them
  std::vector<float> by_slot;

  void add(const LayoutView& layout, int64_t column, float value) {
    const int32_t slot = layout.slot[column];
    if (slot >= 0) {
      present[static_cast<size_t>(slot) / 64] |= uint64_t{1} << (slot % 64);
      by_slot[static_cast<size_t>(slot)] = value;
    } else if (slot != kEmpty) {
      sparse.add(-2 - slot, value);
    }
  }

  void take_dense() {
    for (size_t word = 0; word < present.size(); ++word) {
      for (uint64_t bits = present[word]; bits; bits &= bits - 1) {
        const auto slot = static_cast<int32_t>(word * 64) + std::countr_zero(bits);
        dense.add(slot, by_slot[static_cast<size_t>(slot)]);
      }
      present[word] = 0;
    }
  }

  // The row's dense features for the first pass (predict.h).
  void add_fours(int64_t i, double length, float rounding) {
    auto first = static_cast<size_t>(dense.start.back());
    const size_t last = dense.id.size();
    for (; first < last && dense.id[first] < n_heavy; ++first) {
      heavy[static_cast<size_t>(i * n_heavy + dense.id[first])] = dense.value[first];
    }
    float most = 0;
    double total = 0;
    for (size_t p = first; p < last; ++p) {
      most = std::max(most, std::abs(dense.value[p]));
      total += std::abs(dense.value[p]);
    }
    PredictRow out{};
    const auto levels = static_cast<float>(predict_kernels().levels());
    out.unit = std::max(most / levels, 1e-30f);
    out.sum = static_cast<float>(total * (1 + 1e-6) + 1e-10);
    out.length = static_cast<float>(length);
    out.rounding = rounding;
    out.from = out.negative = static_cast<int32_t>(four.size());
    if (!(total < std::numeric_limits<float>::max())) {
      out.length = std::numeric_limits<float>::infinity();  // no bound
    } else {
      double squares = 0;
      for (const bool negative : {false, true}) {
        if (negative) out.negative = static_cast<int32_t>(four.size());
        int filled = 4;
        for (size_t p = first; p < last; ++p) {
          const float x = dense.value[p];
          if ((x < 0) != negative) continue;
          const float a = std::nearbyint(std::min(std::abs(x) / out.unit, levels));
          const double rest = std::abs(static_cast<double>(x)) - static_cast<double>(out.unit) * a;
          squares += rest * rest;
          if (a == 0) continue;
          if (filled == 4) {
            four.emplace_back();
            filled = 0;
          }
          four.back().slot[filled] = static_cast<uint16_t>(dense.id[p]);
          four.back().a[filled++] = static_cast<uint8_t>(a);
        }
      }
      out.off = static_cast<float>(std::sqrt(squares) * (1 + 1e-6));
    }
    out.to = static_cast<int32_t>(four.size());
    row.push_back(out);
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

inline void fetch_later([[maybe_unused]] const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 2);
#endif
}

// Adds the postings of row i in block b to its scores. Lists are short and lie far apart: their starts are
// asked for kStarts lists ahead, then their first entries, those of the next rows as well.
void add_postings(const LayoutView& layout, const Features& lists, int64_t i, int64_t b, float* scores) {
  constexpr int64_t kStarts = 16, kEntries = 8;
  const int64_t* ptr = layout.ptr + b * (layout.n_sparse + 1);
  const auto last = static_cast<int64_t>(lists.id.size());
  const int32_t* id = lists.id.data();
  for (int64_t f = lists.start[static_cast<size_t>(i)]; f < lists.start[static_cast<size_t>(i) + 1]; ++f) {
    if (f + kStarts < last) fetch(ptr + id[f + kStarts]);
    if (f + kEntries < last) {
      const Posting* next = layout.posting + ptr[id[f + kEntries]];
      fetch(next);
      fetch(next + 11);  // on the next line
    }
    const float x = lists.value[static_cast<size_t>(f)];
    const Posting* last_of_list = layout.posting + ptr[id[f] + 1];
    for (const Posting* p = layout.posting + ptr[id[f]]; p < last_of_list; ++p) {
      scores[p->label] += x * p->weight();
    }
  }
}

// Most lists have one entry or none, in no order a processor could guess: the first is added as a zero if
// there is none, to the label of the entry after the list's end.
void add_outliers(const LayoutView& layout, const Features& dense, int64_t i, int64_t b, float* scores) {
  const int32_t* ptr = layout.out_ptr + b * layout.n_dense;
  for (int64_t f = dense.start[static_cast<size_t>(i)]; f < dense.start[static_cast<size_t>(i) + 1]; ++f) {
    const int32_t* list = ptr + dense.id[static_cast<size_t>(f)];
    const float x = dense.value[static_cast<size_t>(f)];
    const Posting* p = layout.outlier + list[0];
    const Posting* end = layout.outlier + list[1];
    const auto first = std::bit_cast<uint32_t>(x * p->weight()) & -static_cast<uint32_t>(p < end);
    scores[p->label] += std::bit_cast<float>(first);
    for (++p; p < end; ++p) scores[p->label] += x * p->weight();
  }
}

// The tile-by-tile pass over one chunk of rows (predict.h).
class Pass {
 public:
  Pass(const LayoutView& layout, const Calibration& calibration, int64_t n, int64_t k, Scratch& s)
      : layout_(layout),
        calibration_(calibration),
        n_(n),
        most_(static_cast<size_t>(n) * kMaxCandidates),
        exact_(k * kExactShare > layout.labels),
        rows_(s.rows.view()),
        s_(s) {}

  // Tiles that are taken at once: the row's features are read once for all of them.
  int at_once() const { return exact_ ? 1 : predict_kernels().most_tiles; }

  // Tiles [t, t + n_tiles), one or at_once(); partial is that of the first label, rows `block` apart.
  void run(int64_t t, int n_tiles, const float* partial) {
    PredictTile tiles[kMostTiles];
    for (int j = 0; j < n_tiles; ++j) tiles[j] = tile_with_bounds(t + j);
    const float* thresholds = (exact_ ? s_.top : s_.lower).thresholds();
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
      fetch_ahead(t + n_tiles, n_tiles, from, to);
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

  // A tile's bytes are read in no order: those of the next n tiles are asked for, a part with each group of
  // rows.
  void fetch_ahead(int64_t t, int64_t n, int64_t from, int64_t to) const {
    if (exact_ || n_ < kManyRows) return;
    const int8_t* next = layout_.byte + t * layout_.n_dense * kTile;
    const int64_t lines = layout_.n_dense * std::min(n, layout_.tiles() - t);
    for (int64_t s = lines * from / n_; s < lines * to / n_; ++s) fetch_later(next + s * kTile);
  }

  // Keeps the list of candidates short: without those that are out by now, or scored early.
  void drop_candidates() {
    std::erase_if(s_.may, [&](const Candidate& c) { return c.upper < s_.lower.thresholds()[c.row]; });
    if (s_.may.size() > most_ / 2) score_candidates();
  }

  void score_candidates() {
    std::erase_if(s_.may, [&](const Candidate& c) { return c.upper < s_.lower.thresholds()[c.row]; });
    const auto score = predict_kernels().score;
    for (size_t c = 0; c < s_.may.size(); ++c) {
      if (c + 1 < s_.may.size()) fetch_weights(s_.may[c + 1]);
      const auto [row, label, partial, upper] = s_.may[c];
      if (upper < s_.top.thresholds()[row]) continue;
      s_.top.push(row, {score(tile_at(label / kTile), rows_, row, label % kTile, partial), label});
    }
    s_.may.clear();
  }

 private:
  static constexpr int64_t kGroup = 16;
  static constexpr int kMostTiles = 2;           // of any kernel
  static constexpr int64_t kManyRows = 256;      // read nearly all of a tile
  static constexpr int64_t kExactShare = 16;     // of the labels, from which on k is large
  static constexpr size_t kMaxCandidates = 512;  // on average per row

  PredictTile tile_at(int64_t t) const {
    const int64_t first = t * kTile;
    return {layout_.value + first * layout_.n_dense,
            layout_.byte + first * layout_.n_dense,
            layout_.step + first,
            layout_.error + first,
            layout_.spread + first,
            layout_.norm + first,
            calibration_.scale ? calibration_.scale + first : nullptr,
            calibration_.scale ? calibration_.shift + first : nullptr,
            0,
            0,
            0};
  }
  PredictTile tile_with_bounds(int64_t t) const {
    PredictTile tile = tile_at(t);
    tile.most_error = largest(tile.error);
    tile.most_spread = largest(tile.spread);
    tile.most_norm = largest(tile.norm);
    return tile;
  }
  static float largest(const float* of_tile) { return *std::max_element(of_tile, of_tile + kTile); }

  void fetch_weights(const Candidate& c) const {
    const float* value = tile_at(c.label / kTile).value + c.label % kTile;
    for (int64_t p = rows_.start[c.row]; p < rows_.start[c.row + 1]; ++p) {
      fetch(value + static_cast<int64_t>(rows_.dense[p]) * kTile);
    }
  }

  void take(int64_t i, int64_t t, const PredictTile& tile, uint64_t hits, const float* scores,
            const float* partial) {
    const PredictRow& row = rows_.row[i];
    for (; hits; hits &= hits - 1) {
      const int j = std::countr_zero(hits);
      const auto label = static_cast<int32_t>(t * kTile + j);
      float score = scores[j];
      if (exact_) {
        s_.top.push(i, {score, label});
        continue;
      }
      float margin = (row.length * tile.norm[j] + std::abs(score)) * row.rounding + row.sum * tile.error[j] +
                     row.off * tile.spread[j];
      if (tile.scale) {
        score = tile.scale[j] * score + tile.shift[j];
        margin = std::abs(tile.scale[j]) * margin + row.rounding * std::abs(score);
      }
      if (!(score + margin <= s_.lower.thresholds()[i])) {
        s_.may.push_back({static_cast<int32_t>(i), label, partial[j], score + margin});
        s_.lower.push(i, {score - margin, label});
      }
    }
  }

  const LayoutView& layout_;
  const Calibration& calibration_;
  const int64_t n_;
  const size_t most_;
  const bool exact_;
  const PredictRows rows_;
  Scratch& s_;
  uint64_t hits_[kGroup * kMostTiles];
  float scores_[kGroup * kMostTiles * kTile];
};

void predict_chunk(const LayoutView& layout, const CsrView<>& x, const RowOptions& options,
                   const Calibration& calibration, int64_t k, int64_t from, int64_t to, Scratch& s,
                   int32_t* ids, float* scores) {
  const int64_t n = to - from;
  s.rows.split(layout, x, options, from, to);
  if (s.partial.size() < n * layout.block) s.partial = Buffer<float>(n * layout.block);
  float* partial = s.partial.data();
  s.lower = TopKRows(n, k);
  s.top = TopKRows(n, k);
  Pass pass(layout, calibration, n, k, s);
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    const int64_t first = b * layout.block / kTile;
    const int64_t tiles = std::min(layout.block / kTile, layout.tiles() - first);
    for (int64_t i = 0; i < n; ++i) {
      float* scores_of_row = partial + i * layout.block;
      std::memset(scores_of_row, 0, static_cast<size_t>(tiles * kTile) * sizeof(float));
      add_postings(layout, s.rows.sparse, i, b, scores_of_row);
      add_outliers(layout, s.rows.dense, i, b, scores_of_row);
    }
    for (int64_t t = 0; t < tiles;) {
      const int at_once = t + pass.at_once() <= tiles ? pass.at_once() : 1;
      pass.run(first + t, at_once, partial + t * kTile);
      t += at_once;
    }
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
