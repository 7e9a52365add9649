#include "predict/layout.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "core/parallel.h"

namespace xmc::predict {
namespace {

// Tuned on EURLex-4K, EURLEX57K and tibkat-gnd models: change one, then
//   python -m bench.speed.bench_predict --sets eurlex-4k eurlex57k tibkat-gnd
constexpr int64_t kFewLabels = 8192;       // up to so many labels are one block
constexpr int64_t kMinBlock = 4096;        // places of a block
constexpr double kDenseBudget = 2;         // the dense part takes at most so many times the bytes of the CSR
constexpr int64_t kFewDense = 8192;        // so many dense columns of a tile stay in the L2 cache as bytes:
constexpr double kLessDense = 0.5;         //   for them this share of the minimal density is enough
constexpr double kHeavyShare = 1.0 / 128;  // of all squared weights, from which on a column is heavy
constexpr double kOutliers = 0.003;        // share of a label's dense weights
// Limits of the format.
constexpr int64_t kMaxBlock = 65536;     // places are 16 bit
constexpr int64_t kMostDense = 65536;    // slots are 16 bit, sums of products 32
constexpr float kSmallestStep = 1e-30f;  // no division by zero

constexpr int32_t kDense = 0;     // of an entry that is not numbered yet
constexpr double kUp = 1 + 1e-6;  // rounds a bound up: more than sums and conversions can lose
constexpr float kInfinite = std::numeric_limits<float>::infinity();

// Large blocks have few entries to look up, small ones have labels that are alike, and leave room for many
// rows that share a tile's weights from the cache. The entries should not take more than half of the weights.
int64_t choose_block(int64_t labels, int64_t columns, int64_t weights) {
  if (labels <= kFewLabels) return std::max<int64_t>(1, chunk_count(labels, kTile)) * kTile;
  int64_t block = kMinBlock;
  while (block < kMaxBlock && chunk_count(labels, block) * columns * 4 > weights * 3 + (1 << 20)) block *= 2;
  return block;
}

// Makes the arrays in three passes over the label blocks: count() the weights of each column and plan() how
// it is stored; fill() postings, bytes and masks and plan_cells() where the weights of a cell start;
// fill_cells().
class LayoutBuilder : public LayoutArrays<Buffer> {
 public:
  // weights: their number in all; sizes: that of each label.
  LayoutBuilder(int64_t columns, int64_t weights, const std::vector<int64_t>& sizes);

  template <class Index>
  void count(int64_t first_label, const CsrView<Index>& rows);
  // Columns are dense from `min_density` on while the dense part stays within `budget` bytes, the fullest
  // first, and at most kMostDense of a block; from somewhat less on while they are few there.
  void plan(double min_density, int64_t budget);
  template <class Index>
  void fill(int64_t first_label, const CsrView<Index>& rows, int threads);
  void plan_cells();
  template <class Index>
  void fill_cells(int64_t first_label, const CsrView<Index>& rows, int threads);

 private:
  struct Outlier {
    int32_t slot;
    Posting posting;
  };
  std::vector<int32_t> place_;                  // of each label
  std::vector<uint32_t> counts_;                // of each entry; from plan() on where its next posting goes
  std::vector<float> squares_;                  // of each entry
  std::vector<std::vector<Outlier>> outliers_;  // by block

  void choose_dense(double min_density, int64_t budget);
  void number_columns(int64_t b);
  void sort_outliers();

  // Calls fn(place, columns, weights, n) for each label of the rows, in threads by block.
  template <class Index, class Fn>
  void for_labels(int64_t first_label, const CsrView<Index>& rows, int threads, const Fn& fn);
  // Dense weights, outliers and bounds of the label at place p, from its n weights; `sizes` is scratch.
  template <class Index>
  void fill_dense(int64_t p, const Index* columns, const float* weights, int64_t n,
                  std::vector<float>& sizes);
  // The integer for a weight of the label at place p; an outlier's is larger than a byte.
  double rounded(int64_t p, bool is_heavy, float w) const {
    return is_heavy || norm[p] > std::numeric_limits<float>::max() ? 0 : std::nearbyint(w / double{step[p]});
  }
};

LayoutBuilder::LayoutBuilder(int64_t columns, int64_t weights, const std::vector<int64_t>& sizes)
    : LayoutArrays(std::ssize(sizes), columns, choose_block(std::ssize(sizes), columns, weights)),
      place_(sizes.size()) {
  label = Buffer<int32_t>(labels);
  parts = Buffer<LayoutBlock>(blocks());
  entry = Buffer<int32_t>(blocks() * columns);
  for (auto* of_place : {&step, &error, &spread, &norm}) *of_place = Buffer<float>(tiles() * kTile);
  counts_.resize(static_cast<size_t>(entry.size()));
  squares_.resize(static_cast<size_t>(entry.size()));
  outliers_.resize(static_cast<size_t>(blocks()));
  int32_t* order = label.data();
  std::iota(order, order + labels, 0);
  std::stable_sort(order, order + labels, [&](int32_t a, int32_t b) {
    return sizes[static_cast<size_t>(a)] > sizes[static_cast<size_t>(b)];
  });
  for (int64_t p = 0; p < labels; ++p) place_[static_cast<size_t>(order[p])] = static_cast<int32_t>(p);
}

template <class Index>
void LayoutBuilder::count(int64_t first_label, const CsrView<Index>& rows) {
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t b = place_[static_cast<size_t>(first_label + r)] / block;
    uint32_t* counts = counts_.data() + b * columns;
    float* squares = squares_.data() + b * columns;
    for (int64_t p = rows.begin(r); p < rows.end(r); ++p) {
      ++counts[rows.indices[p]];
      squares[rows.indices[p]] += rows.data[p] * rows.data[p];
    }
  }
}

void LayoutBuilder::choose_dense(double min_density, int64_t budget) {
  struct Choice {
    double density;
    int64_t at;
  };
  std::vector<Choice> all, of_block;
  for (int64_t b = 0; b < parts.size(); ++b) {
    of_block.clear();
    const auto in_block = static_cast<double>(std::min(block, labels - b * block));
    for (int64_t at = b * columns; at < (b + 1) * columns; ++at) {
      const double density = counts_[static_cast<size_t>(at)] / in_block;
      entry[at] = kEmpty;
      if (counts_[static_cast<size_t>(at)] && density >= min_density * kLessDense) {
        of_block.push_back({density, at});
      }
    }
    std::stable_sort(of_block.begin(), of_block.end(),
                     [](const Choice& a, const Choice& b) { return a.density > b.density; });
    int64_t n = 0;
    while (n < std::min(static_cast<int64_t>(of_block.size()), kMostDense) &&
           (n < kFewDense || of_block[static_cast<size_t>(n)].density >= min_density)) {
      ++n;
    }
    all.insert(all.end(), of_block.begin(), of_block.begin() + n);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Choice& a, const Choice& b) { return a.density > b.density; });
  for (const Choice& choice : all) {
    const int64_t b = choice.at / columns;
    budget -= chunk_count(std::min(block, labels - b * block), kTile) * (kTile + int64_t{sizeof(Cell)});
    if (budget < 0) break;
    entry[choice.at] = kDense;
    ++parts[b].n_dense;
  }
}

// Heavy columns first, then the fullest; lists of the sparse ones behind each other.
void LayoutBuilder::number_columns(int64_t b) {
  LayoutBlock& part = parts[b];
  int32_t* entries = entry.data() + b * columns;
  uint32_t* counts = counts_.data() + b * columns;
  const float* squares = squares_.data() + b * columns;
  double total = 0;
  for (int64_t c = 0; c < columns; ++c) total += squares[c];
  const bool any = total > 0 && total < std::numeric_limits<double>::infinity();
  const auto is_heavy = [&](int64_t c) { return any && double{squares[c]} >= kHeavyShare * total; };
  std::vector<int32_t> dense;
  for (int64_t c = 0; c < columns; ++c) {
    if (entries[c] != kDense) continue;
    dense.push_back(static_cast<int32_t>(c));
    part.n_heavy += is_heavy(c);
  }
  std::stable_sort(dense.begin(), dense.end(), [&](int32_t a, int32_t b) {
    return is_heavy(a) != is_heavy(b) ? is_heavy(a) : counts[a] > counts[b];
  });
  for (size_t r = 0; r < dense.size(); ++r) entries[dense[r]] = static_cast<int32_t>(r);
  int64_t postings = 0;
  for (int64_t c = 0; c < columns; ++c) {
    if (entries[c] == kEmpty && counts[c]) {
      if (postings > std::numeric_limits<int32_t>::max() - 4) {
        throw std::length_error("the model has too many weights for one prediction layout");
      }
      entries[c] = static_cast<int32_t>(-2 - postings);
      postings += counts[c] + 1;
    }
  }
  if (b + 1 < parts.size()) {
    const int64_t tiles = block / kTile;
    parts[b + 1].first_cell = part.first_cell + tiles * part.n_dense;
    parts[b + 1].first_heavy = part.first_heavy + tiles * part.n_heavy * kTile;
    parts[b + 1].first_slot = part.first_slot + part.n_dense;
    parts[b + 1].first_posting = part.first_posting + postings;
  } else {
    const int64_t tiles = chunk_count(labels - b * block, kTile);
    cell = Buffer<Cell>(part.first_cell + tiles * part.n_dense);
    byte = Buffer<int8_t>(cell.size() * kTile);
    heavy = Buffer<float>(part.first_heavy + tiles * part.n_heavy * kTile);
    out_ptr = Buffer<int32_t>(part.first_slot + part.n_dense + 1);
    posting = Buffer<Posting>(part.first_posting + postings);
  }
}

void LayoutBuilder::plan(double min_density, int64_t budget) {
  choose_dense(min_density, budget);
  if (!parts.size()) out_ptr = Buffer<int32_t>(1);
  for (int64_t b = 0; b < parts.size(); ++b) number_columns(b);
  squares_ = {};
  for (int64_t b = 0; b < parts.size(); ++b) {
    for (int64_t at = b * columns; at < (b + 1) * columns; ++at) {
      if (entry[at] >= kEmpty) continue;
      const int64_t offset = -2 - int64_t{entry[at]};
      posting[parts[b].first_posting + offset] = Posting::head(counts_[static_cast<size_t>(at)]);
      counts_[static_cast<size_t>(at)] = static_cast<uint32_t>(offset + 1);
    }
  }
}

template <class Index, class Fn>
void LayoutBuilder::for_labels(int64_t first_label, const CsrView<Index>& rows, int threads, const Fn& fn) {
  parallel_for(parts.size(), threads, [&](int64_t b, int) {
    for (int64_t r = 0; r < rows.rows; ++r) {
      const int64_t place = place_[static_cast<size_t>(first_label + r)], p = rows.begin(r);
      if (place / block == b) fn(place, rows.indices + p, rows.data + p, rows.size(r));
    }
  });
}

template <class Index>
void LayoutBuilder::fill(int64_t first_label, const CsrView<Index>& rows, int threads) {
  for_labels(first_label, rows, threads,
             [&](int64_t place, const Index* of, const float* weights, int64_t n) {
               const int64_t b = place / block;
               uint32_t* next = counts_.data() + b * columns;
               const int32_t* entries = entry.data() + b * columns;
               Posting* postings = posting.data() + parts[b].first_posting;
               std::vector<float> sizes;
               for (int64_t p = 0; p < n; ++p) {
                 if (entries[of[p]] >= kEmpty) continue;
                 postings[next[of[p]]++] = {static_cast<uint16_t>(place - b * block), weights[p]};
               }
               fill_dense(place, of, weights, n, sizes);
             });
}

template <class Index>
void LayoutBuilder::fill_dense(int64_t place, const Index* of, const float* weights, int64_t n,
                               std::vector<float>& sizes) {
  const int64_t b = place / block, lane = place % kTile;
  const LayoutBlock& part = parts[b];
  const int32_t* entries = entry.data() + b * columns;
  double squares = 0;
  sizes.clear();
  for (int64_t p = 0; p < n; ++p) {
    squares += static_cast<double>(weights[p]) * weights[p];
    if (entries[of[p]] >= part.n_heavy) sizes.push_back(std::abs(weights[p]));
  }
  const bool finite = squares < kInfinite;
  norm[place] = finite ? static_cast<float>(std::sqrt(squares) * kUp) : kInfinite;
  step[place] = kSmallestStep;
  if (finite && !sizes.empty()) {
    const auto out = static_cast<std::ptrdiff_t>(kOutliers * static_cast<double>(sizes.size()));
    std::nth_element(sizes.begin(), sizes.begin() + out, sizes.end(), std::greater<>());
    step[place] = std::max(sizes[static_cast<size_t>(out)] / 127, kSmallestStep);
  }
  const int64_t tile = (place - b * block) / kTile, first = part.first_cell + tile * part.n_dense;
  double most = 0, spread_squares = 0;
  for (int64_t p = 0; p < n; ++p) {
    const int32_t slot = entries[of[p]];
    if (slot < 0) continue;
    const double q = rounded(place, slot < part.n_heavy, weights[p]);
    if (std::abs(q) > 127) {
      outliers_[static_cast<size_t>(b)].push_back(
          {slot, {static_cast<uint16_t>(place - b * block), weights[p]}});
      continue;
    }
    cell[first + slot].mask |= uint64_t{1} << lane;
    if (slot < part.n_heavy) {
      heavy[part.first_heavy + (tile * part.n_heavy + slot) * kTile + lane] = weights[p];
      continue;
    }
    byte[(first + slot) * kTile + byte_place(lane)] = static_cast<int8_t>(q);
    const double whole = q * step[place];
    most = std::max(most, std::abs(weights[p] - whole));
    spread_squares += whole * whole;
  }
  error[place] = finite ? static_cast<float>(most * kUp + 1e-25) : kInfinite;
  spread[place] = finite ? static_cast<float>(std::sqrt(spread_squares) * kUp) : kInfinite;
}

void LayoutBuilder::plan_cells() {
  uint64_t total = 0;
  for (int64_t c = 0; c < cell.size(); ++c) {
    cell[c].first = total;
    total += static_cast<uint64_t>(std::popcount(cell[c].mask));
  }
  weight = Buffer<float>(static_cast<int64_t>(total));
  sort_outliers();
}

template <class Index>
void LayoutBuilder::fill_cells(int64_t first_label, const CsrView<Index>& rows, int threads) {
  for_labels(first_label, rows, threads,
             [&](int64_t place, const Index* of, const float* weights, int64_t n) {
               const int64_t b = place / block;
               const LayoutBlock& part = parts[b];
               const int32_t* entries = entry.data() + b * columns;
               const Cell* cells = cell.data() + part.first_cell + (place - b * block) / kTile * part.n_dense;
               for (int64_t p = 0; p < n; ++p) {
                 const int32_t slot = entries[of[p]];
                 if (slot < 0 || std::abs(rounded(place, slot < part.n_heavy, weights[p])) > 127) continue;
                 const auto [mask, first] = cells[slot];
                 const int before = std::popcount(mask & ((uint64_t{1} << place % kTile) - 1));
                 weight[static_cast<int64_t>(first) + before] = weights[p];
               }
             });
}

// Outliers by slot within their block, in the order they came in.
void LayoutBuilder::sort_outliers() {
  size_t total = 0;
  for (const auto& of_block : outliers_) total += of_block.size();
  if (total > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw std::length_error("the model has too many weights for one prediction layout");
  }
  outlier = Buffer<Posting>(static_cast<int64_t>(total) + 1);
  int32_t end = 0;
  for (int64_t b = 0; b < parts.size(); ++b) {
    const auto& of_block = outliers_[static_cast<size_t>(b)];
    int32_t* next = out_ptr.data() + parts[b].first_slot;
    for (const Outlier& o : of_block) ++next[o.slot];
    for (int64_t s = 0; s < parts[b].n_dense; ++s) end = (next[s] += end);  // a list's end; filled backwards
    for (auto o = of_block.rbegin(); o != of_block.rend(); ++o) outlier[--next[o->slot]] = o->posting;
  }
  out_ptr[out_ptr.size() - 1] = end;
  outliers_.clear();
}

}  // namespace

Layout::Layout(const LayoutArrays<ArrayView>& arrays)
    : most_(static_cast<size_t>(arrays.tiles())), view_{arrays} {
  const auto largest = [](const float* of_tile) { return *std::max_element(of_tile, of_tile + kTile); };
  for (int64_t t = 0; t < arrays.tiles(); ++t) {
    most_[static_cast<size_t>(t)] = {largest(arrays.error + t * kTile), largest(arrays.spread + t * kTile),
                                     largest(arrays.norm + t * kTile)};
  }
  view_.most = most_.data();
}

Layout Layout::build(int64_t labels, int64_t columns, const std::vector<LabelBlock>& blocks,
                     double min_density, int threads) {
  std::vector<int64_t> sizes(static_cast<size_t>(labels));
  const auto for_blocks = [&](auto&& call) {
    for (const auto& [first, rows] : blocks) {
      std::visit([&, first = first](const auto& of_block) { call(first, of_block); }, rows);
    }
  };
  int64_t weights = 0;
  for_blocks([&](int64_t first, const auto& rows) {
    for (int64_t r = 0; r < rows.rows; ++r) sizes[static_cast<size_t>(first + r)] = rows.size(r);
    weights += rows.nnz();
  });
  LayoutBuilder builder(columns, weights, sizes);
  for_blocks([&](int64_t first, const auto& rows) { builder.count(first, rows); });
  builder.plan(min_density, static_cast<int64_t>(kDenseBudget * static_cast<double>(weights) * 8));
  for_blocks([&](int64_t first, const auto& rows) { builder.fill(first, rows, threads); });
  builder.plan_cells();
  for_blocks([&](int64_t first, const auto& rows) { builder.fill_cells(first, rows, threads); });

  LayoutArrays<ArrayView> view(labels, columns, builder.block);
  std::vector<std::pair<const void*, int64_t>> memory;
  builder.for_each([&](const char*, auto& array) { memory.emplace_back(array.data(), array.size()); });
  view.for_each([&, next = memory.begin()](const char*, auto& array) mutable {
    array.data = static_cast<decltype(array.data)>(next->first);
    array.size = next++->second;
  });
  Layout layout(view);
  layout.own_ = std::move(builder);
  return layout;
}

}  // namespace xmc::predict
