#include "predict/layout.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "core/parallel.h"

namespace xmc {
namespace {

constexpr int64_t kMinBlock = 1024;
constexpr int64_t kFewLabels = 4096;
constexpr int64_t kMaxBlock = 65536;  // positions are 16 bit
constexpr int64_t kMostHeavy = 128;   // a heavy column has at least this fraction of all squares
constexpr float kSmallestStep = 1e-30f;
constexpr size_t kFewDense = 1536;      // columns: their bytes of a tile stay in a near cache,
constexpr double kLessDense = 2. / 3.;  // so that this share of the least density is enough

// Large blocks have few lists to look up, small ones leave room for many rows that share a tile's weights
// from the cache, which counts with many labels. The table of list starts should not be larger than half the
// postings.
int64_t choose_block(int64_t labels, int64_t n_sparse, int64_t postings) {
  const int64_t padded = (labels + kTile - 1) / kTile * kTile;
  int64_t block = kMinBlock;
  while (block < kFewLabels && block * labels < kFewLabels * kFewLabels) block *= 2;
  while (block < kMaxBlock && chunk_count(labels, block) * n_sparse * 8 > postings * 3 + (1 << 20)) {
    block *= 2;
  }
  return std::max<int64_t>(kTile, std::min(block, padded));
}

}  // namespace

template <class Index>
void count_columns(const Index* indices, const float* data, int64_t n, std::vector<ColumnStats>& stats) {
  for (int64_t i = 0; i < n; ++i) {
    ColumnStats& column = stats[static_cast<size_t>(indices[i])];
    ++column.nnz;
    column.squares += static_cast<double>(data[i]) * data[i];
  }
}

LayoutPlan plan_layout(int64_t labels, const std::vector<ColumnStats>& stats, double min_density,
                       int64_t budget) {
  std::vector<int32_t> order(stats.size());
  std::iota(order.begin(), order.end(), 0);
  const auto sort_by = [&](auto key) {
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return key(stats[static_cast<size_t>(a)]) > key(stats[static_cast<size_t>(b)]);
    });
  };
  // NaN counts as the largest, so that the order stays a strict one.
  const auto squares = [](const ColumnStats& c) {
    return c.squares == c.squares ? c.squares : std::numeric_limits<double>::infinity();
  };
  sort_by([](const ColumnStats& c) { return c.nnz; });
  const int64_t bytes = chunk_count(labels, kTile) * kTile * static_cast<int64_t>(sizeof(float) + 1);
  const auto room = static_cast<size_t>(std::min(bytes ? budget / bytes : 0, kMostDense));
  const double enough = std::max(1.0, min_density * static_cast<double>(labels));
  size_t dense = 0;
  while (dense < std::min(room, order.size()) &&
         static_cast<double>(stats[static_cast<size_t>(order[dense])].nnz) >=
             (dense < kFewDense ? enough * kLessDense : enough)) {
    ++dense;
  }
  order.resize(dense);
  std::sort(order.begin(), order.end());
  sort_by(squares);

  LayoutPlan plan;
  plan.slot.assign(stats.size(), kEmpty);
  double total = 0;
  for (const auto& c : stats) total += c.squares;
  for (int32_t c : order) {
    plan.slot[static_cast<size_t>(c)] = static_cast<int32_t>(plan.n_dense++);
    plan.n_heavy +=
        plan.n_heavy < kMostHeavy && squares(stats[static_cast<size_t>(c)]) * double{kMostHeavy} >= total;
  }
  int64_t postings = 0;
  for (size_t c = 0; c < stats.size(); ++c) {
    if (plan.slot[c] != kEmpty || stats[c].nnz == 0) continue;
    plan.slot[c] = -2 - static_cast<int32_t>(plan.n_sparse++);
    postings += stats[c].nnz;
  }
  plan.block = choose_block(labels, plan.n_sparse, postings);
  return plan;
}

LayoutBuilder::LayoutBuilder(int64_t labels_, LayoutPlan plan_)
    : plan(std::move(plan_)),
      labels(labels_),
      value(chunk_count(labels_, kTile) * plan.n_dense * kTile),
      byte(value.size()),
      step(chunk_count(labels_, kTile) * kTile),
      error(step.size()),
      spread(step.size()),
      norm(step.size()),
      ptr(chunk_count(labels_, plan.block) * (plan.n_sparse + 1) + 1),
      outliers_(static_cast<size_t>(chunk_count(labels_, plan.block))) {}

template <class Index>
void LayoutBuilder::count(int64_t first_label, const CsrView<Index>& rows) {
  for (int64_t r = 0; r < rows.rows; ++r) {
    int64_t* counts = ptr.data() + (first_label + r) / plan.block * (plan.n_sparse + 1);
    for (int64_t p = rows.begin(r); p < rows.end(r); ++p) {
      const int32_t slot = plan.slot[static_cast<size_t>(rows.indices[p])];
      if (slot < kEmpty) ++counts[-2 - slot];
    }
  }
}

void LayoutBuilder::start_fill() {
  int64_t total = 0;
  for (int64_t i = 0; i < ptr.size(); ++i) {
    const int64_t count = ptr[i];
    ptr[i] = total;  // a list's start; fill() moves it to its end
    total += count;
  }
  posting = Buffer<Posting>(total);
}

template <class Index>
void LayoutBuilder::fill(int64_t first_label, const CsrView<Index>& rows, int threads) {
  const int64_t first_block = first_label / plan.block;
  const int64_t last_block = rows.rows ? (first_label + rows.rows - 1) / plan.block + 1 : first_block;
  parallel_for(last_block - first_block, threads, [&](int64_t unit, int) {
    const int64_t b = first_block + unit;
    const int64_t from = std::max<int64_t>(b * plan.block - first_label, 0);
    const int64_t to = std::min<int64_t>((b + 1) * plan.block - first_label, rows.rows);
    int64_t* next = ptr.data() + b * (plan.n_sparse + 1);
    std::vector<float> sizes;
    for (int64_t r = from; r < to; ++r) {
      const int64_t l = first_label + r;
      for (int64_t p = rows.begin(r); p < rows.end(r); ++p) {
        const int32_t slot = plan.slot[static_cast<size_t>(rows.indices[p])];
        if (slot >= 0) continue;
        posting[next[-2 - slot]++] = {static_cast<uint16_t>(l - b * plan.block), rows.data[p]};
      }
      const int64_t begin = rows.begin(r);
      fill_dense(l, rows.indices + begin, rows.data + begin, rows.end(r) - begin, sizes);
    }
  });
}

template <class Index>
void LayoutBuilder::fill_dense(int64_t l, const Index* columns, const float* weights, int64_t n,
                               std::vector<float>& sizes) {
  const auto slot_of = [&](int64_t p) { return plan.slot[static_cast<size_t>(columns[p])]; };
  double squares = 0;
  sizes.clear();
  for (int64_t p = 0; p < n; ++p) {
    squares += static_cast<double>(weights[p]) * weights[p];
    if (slot_of(p) >= plan.n_heavy) sizes.push_back(std::abs(weights[p]));
  }
  const bool finite = squares < std::numeric_limits<double>::infinity();
  step[l] = kSmallestStep;
  if (finite && !sizes.empty()) {
    const auto out = static_cast<std::ptrdiff_t>(kOutliers * static_cast<double>(sizes.size()));
    std::nth_element(sizes.begin(), sizes.begin() + out, sizes.end(), std::greater<>());
    step[l] = std::max(sizes[static_cast<size_t>(out)] / 127, kSmallestStep);
  }
  const int64_t tile = l / kTile * plan.n_dense, block = l / plan.block;
  const double unit = step[l];
  double most = 0, spread_squares = 0;
  for (int64_t p = 0; p < n; ++p) {
    const int32_t slot = slot_of(p);
    if (slot < 0) continue;
    const double q = slot < plan.n_heavy || !finite ? 0 : std::nearbyint(weights[p] / unit);
    if (std::abs(q) > 127) {
      outliers_[static_cast<size_t>(block)].push_back(
          {slot, {static_cast<uint16_t>(l - block * plan.block), weights[p]}});
      continue;
    }
    value[(tile + slot) * kTile + l % kTile] = weights[p];
    if (slot < plan.n_heavy) continue;
    byte[(tile + slot) * kTile + byte_place(l % kTile)] = static_cast<int8_t>(q);
    most = std::max(most, std::abs(weights[p] - q * unit));
    spread_squares += q * unit * q * unit;
  }
  constexpr double kUp = 1 + 1e-6;  // more than the sums and the conversion can lose
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  norm[l] = finite ? static_cast<float>(std::sqrt(squares) * kUp) : kInfinite;
  error[l] = finite ? static_cast<float>(most * kUp + 1e-25) : kInfinite;
  spread[l] = finite ? static_cast<float>(std::sqrt(spread_squares) * kUp) : kInfinite;
}

void LayoutBuilder::finish() {
  // Each list's entry holds its end, which is the next one's start.
  for (int64_t i = ptr.size() - 1; i > 0; --i) ptr[i] = ptr[i - 1];
  ptr[0] = 0;
  // Outliers by slot within their block; labels stay ascending.
  size_t total = 0;
  for (const auto& part : outliers_) total += part.size();
  if (total > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw std::length_error("the model has too many weights for one prediction layout");
  }
  out_ptr = Buffer<int32_t>(static_cast<int64_t>(outliers_.size()) * plan.n_dense + 1);
  outlier = Buffer<Posting>(static_cast<int64_t>(total) + 1);
  int32_t end = 0;
  for (size_t b = 0; b < outliers_.size(); ++b) {
    int32_t* next = out_ptr.data() + static_cast<int64_t>(b) * plan.n_dense;
    for (const Outlier& o : outliers_[b]) ++next[o.slot];
    for (int64_t s = 0; s < plan.n_dense; ++s) end = (next[s] += end);  // a list's end; filled backwards
    for (auto o = outliers_[b].rbegin(); o != outliers_[b].rend(); ++o) {
      outlier[--next[o->slot]] = o->posting;
    }
  }
  out_ptr[out_ptr.size() - 1] = end;
  outliers_.clear();
}

template void count_columns(const int32_t*, const float*, int64_t, std::vector<ColumnStats>&);
template void count_columns(const uint16_t*, const float*, int64_t, std::vector<ColumnStats>&);
template void LayoutBuilder::count(int64_t, const CsrView<int32_t>&);
template void LayoutBuilder::count(int64_t, const CsrView<uint16_t>&);
template void LayoutBuilder::fill(int64_t, const CsrView<int32_t>&, int);
template void LayoutBuilder::fill(int64_t, const CsrView<uint16_t>&, int);

}  // namespace xmc
