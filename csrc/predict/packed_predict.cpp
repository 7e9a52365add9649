#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "core/buffer_pool.h"
#include "core/parallel.h"
#include "core/prefetch.h"
#include "predict/packed.h"
#include "predict/topk_rows.h"

namespace xmc::predict {
namespace {

constexpr int64_t kListsAhead = 8;   // lists of which the first bytes are prefetched,
constexpr int64_t kFarAhead = 16;    //   and where these are
constexpr int64_t kFront = 16;       // integers before the sums, the last of which takes what leaves them
constexpr int64_t kRowsOfTask = 16;  // at least
constexpr float kSmallestUnit = 1e-30f;

int64_t whole_tiles(int64_t places) {
  return chunk_count(places, kTile) * kTile;
}

// Memory of one thread.
struct Scratch {
  std::unique_ptr<Recycled>
      sums;  // kFront, those of a block's places, kMostLead; the places' are zeros between two rows
  std::vector<int32_t> a;  // of the row's features
  std::vector<PackedList> found, lists;
  std::vector<int32_t> start;  // by number of tiles
  TopKRows top{1, 0};
};

// One row on its way through the blocks of a model.
class RowPass {
 public:
  RowPass(const PackedView& m, const CsrView<>& x, const RowOptions& options, const Calibration& calibration,
          int64_t row, Scratch& s)
      : m_(m), x_(x), calibration_(calibration), row_(row), s_(s), x_bias_(options.bias) {
    round_values(row_scale(options, squared_length(x.data + x.begin(row), x.size(row))));
  }

  void run(int64_t b) {
    const int64_t places = m_.places(b), padded = whole_tiles(places);
    int32_t* sum = static_cast<int32_t*>(s_.sums->data()) + kFront;
    find_lists(b, padded / kTile);
    add_tiles(sum);
    const auto add = packed_kernels().postings;
    for (const PackedList& list : s_.lists) {
      if (list.empty()) continue;
      add(list, static_cast<uint32_t>(list.tiles * kTile), sum, static_cast<uint32_t>(padded));
    }
    rank(b, places, sum);
  }

 private:
  const PackedView& m_;
  const CsrView<>& x_;
  const Calibration& calibration_;
  const int64_t row_;
  Scratch& s_;
  const float x_bias_;
  float unit_ = 0;

  // The integers of the values, times `scale`.
  void round_values(float scale) {
    const float* x = x_.data + x_.begin(row_);
    const int64_t n = x_.size(row_);
    double most = 0, total = 0;
    for (int64_t f = 0; f < n; ++f) {
      const double size = std::abs(static_cast<double>(x[f]) * scale);
      most = std::max(most, size);
      total += size;
    }
    const double levels = std::floor(static_cast<double>(kMostSum - n) * most / std::max(total, 1e-300));
    unit_ = static_cast<float>(most / std::clamp(levels, 1.0, double{kMostValue}));
    unit_ = std::max(unit_, kSmallestUnit);
    s_.a.resize(static_cast<size_t>(n));
    for (int64_t f = 0; f < n; ++f) {
      const double size = double{x[f]} * scale / unit_;
      s_.a[static_cast<size_t>(f)] = static_cast<int32_t>(size < 0 ? size - 0.5 : size + 0.5);
    }
  }

  // The row's lists in block b: those with tiles first, positive values before negative ones, each kind by
  // falling number of tiles.
  void find_lists(int64_t b, int64_t tiles) {
    const int64_t from = x_.begin(row_), to = x_.end(row_);
    const uint32_t* ptr = m_.ptr.data() + b * (m_.columns + 1);
    const uint8_t* lists = m_.list.data() + m_.first[b];
    s_.found.resize(static_cast<size_t>(to - from));
    s_.start.assign(2 * static_cast<size_t>(tiles) + 2, 0);
    const auto key = [tiles](const PackedList& list) {
      const int64_t of_sign = list.a < 0 ? tiles : 0;
      return static_cast<size_t>(list.tiles ? of_sign + tiles - list.tiles : 2 * tiles);
    };
    size_t n = 0;
    for (int64_t f = from; f < to; ++f) {
      if (f + kFarAhead < to) prefetch(ptr + x_.indices[f + kFarAhead]);
      if (f + kListsAhead < to) prefetch(lists + (ptr[x_.indices[f + kListsAhead]] >> 3));
      PackedList& list = s_.found[n];
      list.open(m_, b, x_.indices[f], tiles);
      list.a = s_.a[static_cast<size_t>(f - from)];
      if (list.empty() || list.a == 0) continue;
      ++s_.start[key(list) + 1];
      ++n;
    }
    std::partial_sum(s_.start.begin(), s_.start.end(), s_.start.begin());
    s_.lists.resize(n);
    for (size_t l = 0; l < n; ++l) {
      s_.lists[static_cast<size_t>(s_.start[key(s_.found[l])]++)] = s_.found[l];
    }
  }

  // Adds the tiles of the lists, which then have postings only.
  void add_tiles(int32_t* sum) {
    auto& lists = s_.lists;
    for (size_t first = 0, last; first < lists.size() && lists[first].tiles; first = last) {
      const bool negative = lists[first].a < 0;
      last = first;
      while (last < lists.size() && last < first + kListsAtOnce && lists[last].tiles &&
             (lists[last].a < 0) == negative) {
        ++last;
      }
      for (size_t l = last; l < std::min(lists.size(), last + kListsAtOnce); ++l) {
        for (int line = 0; line < 4; ++line) prefetch(lists[l].at + 64 * line);
      }
      auto n = static_cast<int>(last - first);
      for (int64_t from = 0; n > 0; --n) {
        const int64_t to = lists[first + static_cast<size_t>(n) - 1].tiles;
        if (from < to) packed_kernels().tiles(lists.data() + first, n, from, to, sum);
        from = to;
      }
    }
  }

  // Moves the scores of a block's places to the row's best.
  void rank(int64_t b, int64_t places, int32_t* sum) {
    const int64_t first = b * kPlaces, whole = places / kTile * kTile;
    PackedTile tile{m_.step.data() + first,
                    m_.bias.size() ? m_.bias.data() + first : nullptr,
                    calibration_.scale ? calibration_.scale + first : nullptr,
                    calibration_.scale ? calibration_.shift + first : nullptr,
                    unit_,
                    x_bias_};
    rank_tiles(tile, first, whole, kTile, sum);
    if (whole == places) return;
    float step[kTile] = {}, bias[kTile] = {};  // of the last tile, in full
    std::copy(tile.step + whole, tile.step + places, step);
    if (tile.bias) std::copy(tile.bias + whole, tile.bias + places, bias);
    tile = {
        step,  bias,   tile.scale ? tile.scale + whole : nullptr, tile.scale ? tile.shift + whole : nullptr,
        unit_, x_bias_};
    rank_tiles(tile, first + whole, kTile, places - whole, sum + whole);
  }

  void rank_tiles(const PackedTile& tile, int64_t first, int64_t n, int64_t of_tile, int32_t* sum) {
    float scores[kTile];
    const float& threshold = s_.top.thresholds()[0];
    for (int64_t p = 0; (p = packed_kernels().next(tile, p, n, threshold, sum, scores)) < n; p += kTile) {
      for (int64_t j = 0; j < of_tile; ++j) {
        if (!(scores[j] < threshold)) s_.top.push(0, {scores[j], m_.label[first + p + j]});
      }
    }
  }
};

}  // namespace

void predict_packed(const PackedView& m, const CsrView<>& x, const RowOptions& options,
                    const Calibration& calibration, int64_t k, int threads, int32_t* ids, float* scores) {
  k = std::min(k, m.labels);
  if (k <= 0 || x.rows == 0) return;
  std::vector<Scratch> scratch(static_cast<size_t>(threads));
  parallel_for(chunk_count(x.rows, kRowsOfTask), threads, [&](int64_t c, int thread) {
    Scratch& s = scratch[static_cast<size_t>(thread)];
    if (!s.sums) {
      const int64_t bytes = (kFront + whole_tiles(m.places(0)) + kMostLead) * int64_t{sizeof(int32_t)};
      s.sums = std::make_unique<Recycled>(bytes);
      std::memset(s.sums->data(), 0, static_cast<size_t>(bytes));
      s.top = TopKRows(1, k);
    }
    for (int64_t i = c * kRowsOfTask; i < std::min(x.rows, (c + 1) * kRowsOfTask); ++i) {
      s.top.reset(1);
      RowPass row(m, x, options, calibration, i, s);
      for (int64_t b = 0; b < m.blocks(); ++b) row.run(b);
      const Scored* best = s.top.sorted(0);
      for (int64_t j = 0; j < k; ++j) {
        ids[i * k + j] = best[j].id;
        scores[i * k + j] = best[j].score;
      }
    }
  });
}

}  // namespace xmc::predict
