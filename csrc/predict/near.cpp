#include "predict/near.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/parallel.h"
#include "core/prefetch.h"
#include "predict/predict.h"
#include "predict/topk_rows.h"

namespace xmc::predict {
namespace {

constexpr int64_t kMostRows = 8192;              // of a batch: a block's bytes and lists are read once for it
constexpr int64_t kMostKept = int64_t{1} << 20;  // candidates of a batch
constexpr double kMostSum = 32767, kMostBias = 8192;  // in units
constexpr int kMostShift = 15, kMostFiner = 7;

int64_t rounded(double value, double most) {
  return std::isnan(value) ? 0 : static_cast<int64_t>(std::nearbyint(std::clamp(value, -most, most)));
}

// A frequent feature of a row.
struct ByteTerm {
  int32_t slot;
  int16_t m;
};
// Another one, on its way through its list.
struct ListTerm {
  const uint32_t* at;
  uint32_t posting;  // *at
  int32_t m;
};

// Rows of a batch: all their values, and their integers by the kind of feature.
class NearRows {
 public:
  void take(const NearView& near, const CsrView<>& x, const RowOptions& options, int64_t from, int64_t to) {
    start_.assign(1, 0), byte_start_.assign(1, 0), list_start_.assign(1, 0);
    column_.clear(), value_.clear(), bytes_.clear(), lists_.clear(), shift_.clear(), finer_.clear();
    for (int64_t i = from; i < to; ++i) {
      const float scale = row_scale(options, squared_length(x.data + x.begin(i), x.size(i)));
      for (int64_t p = x.begin(i); p < x.end(i); ++p) {
        column_.push_back(x.indices[p]);
        value_.push_back(x.data[p] * scale);
      }
      round(near, static_cast<size_t>(start_.back()), value_.size());
      if (options.has_bias) {
        column_.push_back(static_cast<int32_t>(near.features));
        value_.push_back(options.bias);
      }
      start_.push_back(static_cast<int64_t>(value_.size()));
    }
  }

  int shift(int64_t i) const { return shift_[static_cast<size_t>(i)]; }
  int finer(int64_t i) const { return finer_[static_cast<size_t>(i)]; }
  Span<const ByteTerm> bytes(int64_t i) const { return part(bytes_, byte_start_, i); }
  Span<ListTerm> lists(int64_t i) { return part(lists_, list_start_, i); }
  Span<const int32_t> columns(int64_t i) const { return part(column_, start_, i); }
  Span<const float> values(int64_t i) const { return part(value_, start_, i); }

 private:
  std::vector<int64_t> start_, byte_start_, list_start_;
  std::vector<int32_t> column_;
  std::vector<float> value_;
  std::vector<ByteTerm> bytes_;
  std::vector<ListTerm> lists_;
  std::vector<int> shift_, finer_;
  std::vector<int32_t> slot_;  // of the row's features, -1: none

  template <class T, class All>
  static Span<T> part_of(All& all, const std::vector<int64_t>& start, int64_t i) {
    const int64_t* s = start.data() + i;
    return {all.data() + s[0], s[1] - s[0]};
  }
  template <class T>
  static Span<const T> part(const std::vector<T>& all, const std::vector<int64_t>& start, int64_t i) {
    return part_of<const T>(all, start, i);
  }
  template <class T>
  static Span<T> part(std::vector<T>& all, const std::vector<int64_t>& start, int64_t i) {
    return part_of<T>(all, start, i);
  }

  // The terms of a row's features [from, to) of column_ and value_.
  void round(const NearView& near, size_t from, size_t to) {
    const int32_t *slots = near.dense, *end = slots + near.dense.size;
    double all = kMostBias * static_cast<double>(near.unit[0]), largest = 0;
    slot_.clear();
    for (size_t p = from; p < to; ++p) {
      const int32_t* slot = std::lower_bound(slots, end, column_[p]);
      const bool dense = slot < end && *slot == column_[p];
      slot_.push_back(dense ? static_cast<int32_t>(slot - slots) : -1);
      const double one =
          std::abs(static_cast<double>(value_[p])) * static_cast<double>(near.step[column_[p]]);
      all += one * (dense ? 127 : 255);
      if (dense) largest = std::max(largest, one);
    }
    // Rounding m can add half of 127 to a sum.
    const double rounding = 64 * static_cast<double>(to - from);
    double unit = near.unit[0];
    int shift = 0;
    const auto fits = [&] { return all / unit + rounding <= kMostSum && largest / unit <= 127; };
    for (; shift < kMostShift && !fits(); ++shift) unit *= 2;
    shift_.push_back(shift);
    int finer = 0;
    while (finer < kMostFiner && largest / unit * (2 << finer) <= 127) ++finer;
    finer_.push_back(finer);
    for (size_t p = from; p < to; ++p) {
      const int32_t slot = slot_[p - from];
      const double m = static_cast<double>(value_[p]) * static_cast<double>(near.step[column_[p]]) / unit;
      if (slot >= 0) {
        bytes_.push_back({slot, static_cast<int16_t>(rounded(std::ldexp(m, finer), 127))});
        if (bytes_.back().m == 0) bytes_.pop_back();
      } else {
        const uint32_t* list = near.posting + near.ptr[column_[p]];
        lists_.push_back({list, *list, static_cast<int32_t>(rounded(256 * m, 1 << 23))});
      }
    }
    byte_start_.push_back(static_cast<int64_t>(bytes_.size()));
    list_start_.push_back(static_cast<int64_t>(lists_.size()));
  }
};

// Memory of one thread.
struct Scratch {
  NearRows rows;
  TopKRows kept{0, 1}, top{0, 1};
  std::vector<int16_t> list_sum = std::vector<int16_t>(kNearPlaces);
  std::vector<NearPair> pairs;
  std::vector<int32_t> slots;
  std::vector<float> values;
};

constexpr int64_t kRowsAhead = 4;  // whose postings are prefetched

void add_lists(int64_t b, int64_t i, int64_t rows, NearRows& of, int16_t* list_sum) {
  if (i + kRowsAhead < rows) {
    for (const ListTerm& term : of.lists(i + kRowsAhead)) prefetch(term.at);
  }
  const uint32_t base = static_cast<uint32_t>(b * kNearPlaces);
  const int64_t behind = (b + 1) * kNearPlaces * 256;
  const uint32_t end = behind < int64_t{kNearEnd} ? static_cast<uint32_t>(behind) : kNearEnd;
  for (ListTerm& term : of.lists(i)) {
    if (term.posting >= end) continue;
    const uint32_t* at = term.at;
    uint32_t posting = term.posting;
    do {
      int16_t& sum = list_sum[(posting >> 8) - base];
      sum = static_cast<int16_t>(sum + ((static_cast<int32_t>(posting & 255) * term.m + 128) >> 8));
      posting = *++at;
    } while (posting < end);
    term.at = at;
    term.posting = posting;
  }
}

// The frequent features of a row in a block, those of positive values first.
void pair_bytes(const Span<const ByteTerm>& terms, const int8_t* bytes, NearBlock& block,
                std::vector<NearPair>& pairs) {
  pairs.clear();
  size_t positive = 0;
  for (const bool negative : {false, true}) {
    bool open = false;
    for (const ByteTerm& term : terms) {
      if ((term.m < 0) != negative) continue;
      const int8_t* byte = bytes + term.slot * kNearPlaces;
      const auto m = static_cast<uint16_t>(std::abs(term.m));
      if (open) {
        pairs.back().byte[1] = byte;
        pairs.back().m = static_cast<uint16_t>(pairs.back().m | m << 8);
      } else {
        pairs.push_back({{byte, byte}, m});
      }
      open = !open;
    }
    if (!negative) positive = pairs.size();
  }
  block.pairs = pairs.data();
  block.negative = pairs.data() + positive;
  block.end = pairs.data() + pairs.size();
}

// The candidates of row i in block b.
void search_block(const NearView& near, int64_t b, int64_t i, int64_t rows, Scratch& s) {
  add_lists(b, i, rows, s.rows, s.list_sum.data());
  NearBlock block{near.bias + b * kNearPlaces, s.rows.shift(i), s.rows.finer(i), nullptr, nullptr, nullptr};
  pair_bytes(s.rows.bytes(i), near.byte + b * near.dense.size * kNearPlaces, block, s.pairs);
  const auto next = near_kernels().next;
  const int64_t places = near.places(b), n = chunk_count(places, kTile) * kTile;
  const float& threshold = s.kept.thresholds()[i];
  uint64_t hits;
  int16_t sums[kTile];
  for (int64_t t = 0;; t += kTile) {
    // A sum equal to the worst one that is kept cannot enter: places ascend.
    const auto least =
        static_cast<int16_t>(std::isnan(threshold) ? -32768 : std::min(threshold + 1, 32767.f));
    t = next(block, t, n, least, s.list_sum.data(), &hits, sums);
    if (t >= n) return;
    if (places - t < kTile) hits &= (uint64_t{1} << (places - t)) - 1;
    for (; hits; hits &= hits - 1) {
      const int lane = std::countr_zero(hits);
      s.kept.push(i, {static_cast<float>(sums[lane]), static_cast<int32_t>(b * kNearPlaces + t + lane)});
    }
  }
}

// The score of a place for row i, summed as layout.h says.
float exact_score(const LayoutView& layout, int64_t place, int64_t i, Scratch& s) {
  const int64_t b = place / layout.block, in_block = place % layout.block, tile = in_block / kTile;
  const LayoutBlock& part = layout.parts[b];
  const int32_t* entry = layout.entry + b * layout.columns;
  const Span<const int32_t> columns = s.rows.columns(i);
  const Span<const float> values = s.rows.values(i);
  float partial = 0;
  const auto add = [&](const Posting* p, const Posting* end, float x) {
    while (p < end && p->place != in_block) ++p;
    if (p < end) partial += x * p->weight();
  };
  s.slots.clear(), s.values.clear();
  for (int64_t f = 0; f < columns.size(); ++f) {
    const int32_t e = entry[columns[f]];
    if (e >= 0) {
      s.slots.push_back(e);
      s.values.push_back(values[f]);
    } else if (e != kEmpty) {
      const Posting* list = layout.posting + part.first_posting + (-2 - e);
      add(list + 1, list + 1 + list->count(), values[f]);
    }
  }
  for (size_t f = 0; f < s.slots.size(); ++f) {
    const int32_t* list = layout.out_ptr + part.first_slot + s.slots[f];
    add(layout.outlier + list[0], layout.outlier + list[1], s.values[f]);
  }
  PredictTile cells{};
  cells.cell = layout.cell + part.first_cell + tile * part.n_dense;
  cells.weight = layout.weight;
  PredictRows row{};
  const int64_t start[] = {0, static_cast<int64_t>(s.slots.size())};
  row.start = start, row.dense = s.slots.data(), row.value = s.values.data();
  return predict_kernels().score(cells, row, 0, in_block % kTile, partial);
}

void fetch_entries(const LayoutView& layout, int64_t place, int64_t i, const Scratch& s) {
  const int32_t* entry = layout.entry + place / layout.block * layout.columns;
  for (const int32_t c : s.rows.columns(i)) prefetch(entry + c);
}
void fetch_cells(const LayoutView& layout, int64_t place, int64_t i, const Scratch& s) {
  const int64_t b = place / layout.block, tile = place % layout.block / kTile;
  const int32_t* entry = layout.entry + b * layout.columns;
  const Cell* cell = layout.cell + layout.parts[b].first_cell + tile * layout.parts[b].n_dense;
  for (const int32_t c : s.rows.columns(i)) {
    if (entry[c] >= 0) prefetch(cell + entry[c]);
    if (entry[c] < kEmpty) prefetch(layout.posting + layout.parts[b].first_posting + (-2 - entry[c]));
  }
}

class NearBatch {
 public:
  NearBatch(const NearView& near, const LayoutView& layout, int64_t k, int64_t candidates, float margin,
            Scratch& s)
      : near_(near), layout_(layout), k_(k), candidates_(candidates), margin_(margin), s_(s) {}

  void run(const CsrView<>& x, const RowOptions& options, int64_t from, int64_t to, int32_t* ids,
           float* scores, float* rough) {
    const int64_t n = to - from;
    s_.rows.take(near_, x, options, from, to);
    s_.kept = TopKRows(n, candidates_);
    s_.top = TopKRows(n, k_);
    for (int64_t b = 0; b < near_.blocks(); ++b) {
      for (int64_t i = 0; i < n; ++i) search_block(near_, b, i, n, s_);
    }
    for (int64_t i = 0; i < n; ++i) {
      if (i + 1 < n) {
        const Scored* kept = s_.kept.sorted(i + 1);
        for (int64_t j = 0; j < k_; ++j) fetch_entries(layout_, place(kept[j]), i + 1, s_);
      }
      rank(i, ids + (from + i) * k_, scores + (from + i) * k_, rough + (from + i) * k_);
    }
  }

 private:
  const NearView& near_;
  const LayoutView& layout_;
  const int64_t k_, candidates_;
  const float margin_;
  Scratch& s_;

  // Of the layout.
  int64_t place(const Scored& candidate) const { return near_.labels - 1 - candidate.id; }

  // Exact scores of row i's candidates, and its best.
  void rank(int64_t i, int32_t* ids, float* scores, float* rough) {
    const Scored* kept = s_.kept.sorted(i);
    const float unit = std::ldexp(near_.unit[0], s_.rows.shift(i));
    const auto fetch = [&](int64_t j) {
      if (j < candidates_) fetch_cells(layout_, place(kept[j]), i, s_);
    };
    for (int64_t j = 0; j < k_; ++j) fetch(j);
    for (int64_t j = 0; j < candidates_; ++j) {
      if (unit * kept[j].score + margin_ < s_.top.thresholds()[i]) break;
      if (j + 2 >= k_) fetch(j + 2);
      s_.top.push(i, {exact_score(layout_, place(kept[j]), i, s_), layout_.label[place(kept[j])]});
    }
    const Scored* best = s_.top.sorted(i);
    for (int64_t j = 0; j < k_; ++j) {
      ids[j] = best[j].id;
      scores[j] = best[j].score;
      const Scored* own = kept;
      while (layout_.label[place(*own)] != best[j].id) ++own;
      rough[j] = unit * own->score;
    }
  }
};

}  // namespace

void predict_near(const NearView& near, const LayoutView& layout, const CsrView<>& x,
                  const RowOptions& options, int64_t k, int64_t candidates, float margin, int threads,
                  int32_t* ids, float* scores, float* rough) {
  k = std::min(k, near.labels);
  if (k <= 0 || x.rows == 0) return;
  candidates = std::clamp(candidates, k, near.labels);
  const int64_t limit = std::clamp<int64_t>(kMostKept / candidates, 16, kMostRows);
  const int64_t batches = chunk_count(x.rows, limit * threads) * threads;
  const int64_t batch = std::max<int64_t>(1, chunk_count(x.rows, batches));
  std::vector<Scratch> scratch(static_cast<size_t>(threads));
  parallel_for(chunk_count(x.rows, batch), threads, [&](int64_t c, int thread) {
    NearBatch of(near, layout, k, candidates, margin, scratch[static_cast<size_t>(thread)]);
    of.run(x, options, c * batch, std::min(x.rows, (c + 1) * batch), ids, scores, rough);
  });
}

}  // namespace xmc::predict
