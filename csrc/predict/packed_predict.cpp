#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "core/buffer_pool.h"
#include "core/parallel.h"
#include "core/prefetch.h"
#include "predict/long_lists.h"
#include "predict/packed.h"
#include "predict/topk_rows.h"

namespace xmc::predict {
namespace {

constexpr int64_t kListsAhead = 8;       // lists of which the first bytes are prefetched
constexpr int64_t kFewRows = 16;         // of a task, at least; for fewer nothing is decoded
constexpr int64_t kRowGroup = 16;        // rows per call of the strip kernel
constexpr int64_t kMostCells = 6144;     // places that may have cells
constexpr int64_t kBytes[] = {3, 4, 6};  // of a record, by width

// A list that a row needs.
struct List {
  const uint8_t *from, *to;
  uint32_t width;
  float x;
};

// Memory of one thread.
struct Scratch {
  Buffer<float> score;  // of a block's places, then padding, the last of which takes what leaves it
  std::unique_ptr<Recycled> partial;  // floats, rows x places with cells
  int64_t partial_size = 0;
  std::vector<float> value;  // of the batch's features
  LongLists numbered;
  std::vector<int64_t> start;  // the rows' long lists, by number
  std::vector<int32_t> list, own_list;
  std::vector<float> list_value, own_value;
  std::vector<List> short_lists, long_lists;  // of a row
  TopKRows top{0, 0};
};

int64_t padded(int64_t places) {
  return chunk_count(places, kStrip) * kStrip;
}

// A batch of rows on its way through the blocks of a model.
class Batch {
 public:
  Batch(const PackedView& m, const CsrView<>& x, const RowOptions& options, const Calibration& calibration,
        int64_t from, int64_t to, int64_t k, Scratch& s)
      : m_(m), x_(x), options_(options), calibration_(calibration), from_(from), n_(to - from), s_(s) {
    s.top = TopKRows(n_, k);
    if (!s.score.size()) s.score = Buffer<float>(padded(m.places(0)) + kStrip);
    const int64_t first = x.begin(from);
    s.value.resize(static_cast<size_t>(x.begin(to) - first));
    for (int64_t i = from; i < to; ++i) {
      const float scale = row_scale(options, squared_length(x.data + x.begin(i), x.size(i)));
      for (int64_t f = x.begin(i); f < x.end(i); ++f)
        s.value[static_cast<size_t>(f - first)] = x.data[f] * scale;
    }
    for (int code = 0; code < kLevels; ++code) {
      const auto bits = std::bit_cast<uint32_t>(m.level[code]);
      level16_[code] = static_cast<uint16_t>(bits >> 16);
      cells_ = cells_ && (bits & 0xffff) == 0;
    }
  }

  void run(int64_t b) {
    places_ = m_.places(b);
    padded_ = padded(places_);
    first_ = b * kPlaces;
    ptr_ = m_.ptr.data() + b * (m_.columns + 1);
    lists_ = m_.list.data() + m_.first[b];
    with_cells_ = cells_ && n_ >= kFewRows ? number_lists() : 0;
    stride_ = with_cells_ + 16;  // not a power of two
    if (s_.partial_size < n_ * stride_) {
      s_.partial_size = n_ * stride_;
      s_.partial = std::make_unique<Recycled>(s_.partial_size * static_cast<int64_t>(sizeof(float)));
    }
    for (int64_t i = 0; i < n_; ++i) {
      float* score = s_.score.data();
      add_postings(i, score);
      if (with_cells_) std::copy(score, score + with_cells_, partial() + i * stride_);
      if (with_cells_ >= padded_) continue;
      if (calibration_.scale) {
        packed_kernels().calibrate(calibration_.scale + first_ + with_cells_,
                                   calibration_.shift + first_ + with_cells_, padded_ - with_cells_,
                                   score + with_cells_);
      }
      keep_best(i, score, with_cells_, padded_);
    }
    if (with_cells_) add_cells();
  }

 private:
  const PackedView& m_;
  const CsrView<>& x_;
  const RowOptions& options_;
  const Calibration& calibration_;
  const int64_t from_, n_;
  Scratch& s_;
  uint16_t level16_[kLevels];
  bool cells_ = true;
  // Of the block.
  int64_t places_ = 0, padded_ = 0, first_ = 0, with_cells_ = 0, stride_ = 0;
  const uint32_t* ptr_ = nullptr;
  const uint8_t* lists_ = nullptr;

  float* partial() const { return static_cast<float*>(s_.partial->data()); }
  float value(int64_t f) const { return s_.value[static_cast<size_t>(f - x_.begin(from_))]; }

  // Numbers the long lists of all rows; gives the places that have cells.
  int64_t number_lists() {
    s_.numbered.begin(m_.columns);
    s_.start.assign(1, 0);
    s_.list.clear();
    s_.list_value.clear();
    int64_t most = 0;
    for (int64_t i = from_; i < from_ + n_; ++i) {
      for (int64_t f = x_.begin(i); f < x_.end(i); ++f) {
        const int32_t c = x_.indices[f];
        const uint32_t from = ptr_[c] >> 2, to = ptr_[c + 1] >> 2;
        if (to - from < kLongList) continue;
        s_.list.push_back(s_.numbered.number(c, lists_ + from, lists_ + to, ptr_[c] & 3));
        s_.list_value.push_back(value(f));
      }
      most = std::max(most, std::ssize(s_.list) - s_.start.back());
      s_.start.push_back(std::ssize(s_.list));
    }
    s_.own_list.resize(static_cast<size_t>(most + kPast));
    s_.own_value.resize(static_cast<size_t>(most + kPast));
    return s_.numbered.plan(std::ssize(s_.list), padded_, kMostCells);
  }

  void add(const List& list, uint32_t place, float* score) const {
    packed_kernels().add(list.from, list.to, list.width, place, list.x, m_.level.data(), score,
                         static_cast<uint32_t>(padded_));
  }

  void add_all(const std::vector<List>& lists, float* score) const {
    for (size_t f = 0; f < lists.size(); ++f) {
      if (f + kListsAhead < lists.size()) prefetch(lists[f + kListsAhead].from);
      add(lists[f], kBefore, score);
    }
  }

  // The scores of row i but for the cells.
  void add_postings(int64_t i, float* score) {
    s_.short_lists.clear();
    s_.long_lists.clear();
    for (int64_t f = x_.begin(from_ + i); f < x_.end(from_ + i); ++f) {
      const uint32_t* of = ptr_ + x_.indices[f];
      const uint32_t from = of[0] >> 2, to = of[1] >> 2;
      if (from == to) continue;
      const bool is_short = to - from < kLongList;
      if (!is_short && with_cells_) continue;
      (is_short ? s_.short_lists : s_.long_lists)
          .push_back({lists_ + from, lists_ + to, of[0] & 3, value(f)});
    }
    packed_kernels().start(m_.bias.size() ? m_.bias.data() + first_ : nullptr, options_.bias, places_, score);
    std::fill(score + places_, score + padded_, 0.f);
    add_all(s_.short_lists, score);
    if (!with_cells_) {
      add_all(s_.long_lists, score);
    } else if (with_cells_ < padded_) {
      add_rest(i, score);
    }
  }

  // The long lists of row i behind the places with cells.
  void add_rest(int64_t i, float* score) const {
    const int64_t last = s_.start[static_cast<size_t>(i) + 1];
    const auto rest = [&](int64_t f) -> const Cursor& {
      return s_.numbered.rest(s_.list[static_cast<size_t>(f)]);
    };
    for (int64_t f = s_.start[static_cast<size_t>(i)]; f < last; ++f) {
      if (f + kListsAhead < last) prefetch(rest(f + kListsAhead).at);
      const Cursor& c = rest(f);
      if (c.at == c.end) continue;
      List list{c.at, c.end, c.width, s_.list_value[static_cast<size_t>(f)]};
      uint32_t place = c.place;
      if (c.second) {  // alone, then whole records
        const uint8_t alone[] = {0, 0, 0, 0, c.at[kBytes[c.width] - 1], 0};
        add({alone, alone + 6, 2, list.x}, place = c.next, score);
        list.from += kBytes[c.width];
      }
      add(list, place, score);
    }
  }

  // Finishes the places with cells, strip by strip.
  void add_cells() {
    const PackedRows rows{s_.start.data(), s_.list.data(), s_.list_value.data(), s_.own_list.data(),
                          s_.own_value.data()};
    bool hits[kRowGroup];
    float scores[kRowGroup * kStrip];
    for (int64_t place = 0; place < with_cells_; place += kStrip) {
      const bool full = s_.numbered.decode(static_cast<uint32_t>(place + kStrip), level16_);
      const PackedStrip strip{s_.numbered.cells(), full ? nullptr : s_.numbered.some(),
                              calibration_.scale ? calibration_.scale + first_ + place : nullptr,
                              calibration_.scale ? calibration_.shift + first_ + place : nullptr};
      for (int64_t from = 0; from < n_; from += kRowGroup) {
        const int64_t to = std::min(n_, from + kRowGroup);
        packed_kernels().strip(strip, rows, from, to, partial() + place, stride_, s_.top.thresholds(), hits,
                               scores);
        for (int64_t i = from; i < to; ++i) {
          if (hits[i - from]) keep_best(i, scores + (i - from) * kStrip - place, place, place + kStrip);
        }
      }
    }
  }

  // Moves the scores of row i for the places [from, to) to its best.
  void keep_best(int64_t i, const float* score, int64_t from, int64_t to) {
    const float& threshold = s_.top.thresholds()[i];
    for (int64_t t = from; (t = packed_kernels().next(score, t, to, threshold)) < to; t += kTile) {
      for (int64_t p = t; p < std::min(places_, t + kTile); ++p) {
        if (!(score[p] < threshold)) s_.top.push(i, {score[p], m_.label[first_ + p]});
      }
    }
  }
};

}  // namespace

void predict_packed(const PackedView& m, const CsrView<>& x, const RowOptions& options,
                    const Calibration& calibration, int64_t k, int threads, int32_t* ids, float* scores) {
  k = std::min(k, m.labels);
  if (k <= 0 || x.rows == 0) return;
  const int64_t limit = rows_at_once(std::min(padded(m.places(0)), kMostCells) + 16, threads);
  const int64_t batches = chunk_count(x.rows, limit * threads) * threads;
  const int64_t batch = std::max(kFewRows, chunk_count(x.rows, batches));
  std::vector<Scratch> scratch(static_cast<size_t>(threads));
  parallel_for(chunk_count(x.rows, batch), threads, [&](int64_t c, int thread) {
    Scratch& s = scratch[static_cast<size_t>(thread)];
    const int64_t from = c * batch, to = std::min(x.rows, from + batch);
    Batch rows(m, x, options, calibration, from, to, k, s);
    for (int64_t b = 0; b < m.blocks(); ++b) rows.run(b);
    for (int64_t i = from; i < to; ++i) {
      const Scored* best = s.top.sorted(i - from);
      for (int64_t j = 0; j < k; ++j) {
        ids[i * k + j] = best[j].id;
        scores[i * k + j] = best[j].score;
      }
    }
  });
}

}  // namespace xmc::predict
