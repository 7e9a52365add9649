#include "predict/layout.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/parallel.h"

namespace xmc {
namespace {

constexpr int64_t kMinBlock = 512;
constexpr int64_t kMaxBlock = 65536;  // positions are 16 bit

// The smallest block whose table of list starts is not larger than half the postings.
int64_t choose_block(int64_t labels, int64_t n_sparse, int64_t postings) {
  const int64_t padded = (labels + kTile - 1) / kTile * kTile;
  int64_t block = kMinBlock;
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
  sort_by([](const ColumnStats& c) { return c.nnz; });
  const int64_t bytes = (labels + kTile - 1) / kTile * kTile * static_cast<int64_t>(sizeof(float));
  const auto room = static_cast<size_t>(bytes ? budget / bytes : 0);
  const double enough = std::max(1.0, min_density * static_cast<double>(labels));
  size_t dense = 0;
  while (dense < std::min(room, order.size()) &&
         static_cast<double>(stats[static_cast<size_t>(order[dense])].nnz) >= enough) {
    ++dense;
  }
  order.resize(dense);
  std::sort(order.begin(), order.end());
  // NaN sorts as the largest, so that the order stays a strict one.
  sort_by([](const ColumnStats& c) {
    return c.squares == c.squares ? c.squares : std::numeric_limits<double>::infinity();
  });

  LayoutPlan plan;
  plan.slot.assign(stats.size(), kEmpty);
  for (int32_t c : order) plan.slot[static_cast<size_t>(c)] = static_cast<int32_t>(plan.n_dense++);
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
      high(chunk_count(labels_, kTile) * plan.n_dense * kTile),
      low(high.size()),
      error(chunk_count(labels_, kTile) * kTile),
      norm(error.size()),
      ptr(static_cast<size_t>(chunk_count(labels_, plan.block) * (plan.n_sparse + 1) + 1), 0) {}

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
  for (int64_t& entry : ptr) {
    const int64_t count = entry;
    entry = total;  // a list's start; fill() moves it to its end
    total += count;
  }
  label.resize(static_cast<size_t>(total));
  weight.resize(static_cast<size_t>(total));
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
    for (int64_t r = from; r < to; ++r) {
      const int64_t l = first_label + r;
      const int64_t tile = l / kTile * plan.n_dense * kTile + tile_place(l % kTile);
      double squares = 0, error_squares = 0;
      for (int64_t p = rows.begin(r); p < rows.end(r); ++p) {
        const int32_t slot = plan.slot[static_cast<size_t>(rows.indices[p])];
        if (slot >= 0) {
          const float w = rows.data[p];
          const auto bits = std::bit_cast<uint32_t>(w);
          const uint32_t upper = (bits + 0x8000u) >> 16;  // to the nearest
          const double off = static_cast<double>(w) - std::bit_cast<float>(upper << 16);
          high[tile + slot * kTile] = static_cast<uint16_t>(upper);
          low[tile + slot * kTile] = static_cast<uint16_t>(bits - (upper << 16));
          squares += static_cast<double>(w) * w;
          error_squares += off * off;
        } else {
          const int64_t at = next[-2 - slot]++;
          label[static_cast<size_t>(at)] = static_cast<uint16_t>(l - b * plan.block);
          weight[static_cast<size_t>(at)] = rows.data[p];
        }
      }
      constexpr double kUp = 1 + 1e-6;  // more than the sums and the conversion can lose
      error[l] = static_cast<float>(std::sqrt(error_squares) * kUp + 1e-25);
      norm[l] = static_cast<float>(std::sqrt(squares) * kUp);
    }
  });
}

void LayoutBuilder::finish() {
  // Each list's entry holds its end, which is the next one's start.
  for (size_t i = ptr.size() - 1; i > 0; --i) ptr[i] = ptr[i - 1];
  ptr[0] = 0;
}

template void count_columns(const int32_t*, const float*, int64_t, std::vector<ColumnStats>&);
template void count_columns(const uint16_t*, const float*, int64_t, std::vector<ColumnStats>&);
template void LayoutBuilder::count(int64_t, const CsrView<int32_t>&);
template void LayoutBuilder::count(int64_t, const CsrView<uint16_t>&);
template void LayoutBuilder::fill(int64_t, const CsrView<int32_t>&, int);
template void LayoutBuilder::fill(int64_t, const CsrView<uint16_t>&, int);

}  // namespace xmc
