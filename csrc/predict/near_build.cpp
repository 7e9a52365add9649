// Indexes for nearly exact prediction: made from a layout, and those of files checked.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "core/parallel.h"
#include "predict/layout_weights.h"
#include "predict/near.h"

namespace xmc::predict {
namespace {

constexpr int64_t kColumns = 256;  // of a task
constexpr float kLargest =
    8191;  // multiples of unit that a bias, or a weight of a row of length 1, has at most
constexpr float kSmallestStep = 1e-30f;  // no division by zero

void expect(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

class NearBuilder : public NearArrays<Buffer> {
 public:
  NearBuilder(const LayoutView& layout, const RowOptions& options, int threads)
      : layout_(layout), options_(options), threads_(threads) {
    labels = layout.labels;
    features = layout.columns - options.has_bias;
    positive_.resize(static_cast<size_t>(features));
    largest_.resize(static_cast<size_t>(features));
    slot_.assign(static_cast<size_t>(features), -1);
  }

  // The number and the size of each feature's weights.
  void measure() {
    parallel_items(features, kColumns, threads_, [&](int64_t c, int) {
      int64_t positive = 0;
      float most = 0;
      for (int64_t b = 0; b < layout_.blocks(); ++b) {
        for_weights(layout_, b, c, [&](int64_t, float w) {
          expect(std::isfinite(w), "weights must be finite");
          positive += w > 0;
          most = std::max(most, std::abs(w));
        });
      }
      positive_[static_cast<size_t>(c)] = positive;
      largest_[static_cast<size_t>(c)] = most;
    });
  }

  void choose_dense(double density, int64_t budget) {
    std::vector<int32_t> order(static_cast<size_t>(features));
    std::iota(order.begin(), order.end(), 0);
    const auto count = [&](int32_t c) { return positive_[static_cast<size_t>(c)]; };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return count(a) > count(b); });
    const double least = std::max(1.0, density * static_cast<double>(labels));
    size_t n = 0;
    const int64_t most = blocks() ? budget / (blocks() * kNearPlaces) : 0;
    while (n < order.size() && static_cast<int64_t>(n) < most &&
           static_cast<double>(count(order[n])) >= least)
      ++n;
    std::sort(order.begin(), order.begin() + static_cast<int64_t>(n));
    dense = Buffer<int32_t>(static_cast<int64_t>(n));
    for (size_t j = 0; j < n; ++j) {
      dense[static_cast<int64_t>(j)] = order[j];
      slot_[static_cast<size_t>(order[j])] = static_cast<int32_t>(j);
    }
    step = Buffer<float>(features);
    for (int64_t c = 0; c < features; ++c) {
      const float levels = slot_[static_cast<size_t>(c)] < 0 ? 255.f : 127.f;
      step[c] = std::max(largest_[static_cast<size_t>(c)] / levels, kSmallestStep);
    }
  }

  void fill_bias() {
    const auto added = static_cast<double>(options_.bias);
    double most = 0;
    for (const float w : largest_) most = std::max(most, static_cast<double>(w));
    std::vector<double> own(static_cast<size_t>(labels));
    for (int64_t b = 0; options_.has_bias && b < layout_.blocks(); ++b) {
      for_weights(layout_, b, features, [&](int64_t place, float w) {
        const double value = added * static_cast<double>(w);
        expect(std::isfinite(value), "weights must be finite");
        own[static_cast<size_t>(labels - 1 - (b * layout_.block + place))] = value;
        most = std::max(most, std::abs(value));
      });
    }
    unit = Buffer<float>(1);
    unit[0] = std::max(static_cast<float>(most) / kLargest, kSmallestStep);
    expect(std::isfinite(unit[0]), "weights must be finite");
    bias = Buffer<int16_t>(tiles() * kTile);
    for (int64_t p = 0; p < labels; ++p) {
      bias[p] =
          static_cast<int16_t>(std::nearbyint(own[static_cast<size_t>(p)] / static_cast<double>(unit[0])));
    }
  }

  void fill_lists() {
    ptr = Buffer<int64_t>(features + 1);
    for (int64_t c = 0; c < features; ++c) {
      const auto at = static_cast<size_t>(c);
      ptr[c + 1] = ptr[c] + (slot_[at] < 0 ? positive_[at] + 1 : 0);
    }
    posting = Buffer<uint32_t>(ptr[features]);
    parallel_items(features, kColumns, threads_, [&](int64_t c, int) {
      if (slot_[static_cast<size_t>(c)] >= 0) return;
      uint32_t* to = posting.data() + ptr[c];
      for (int64_t b = layout_.blocks() - 1; b >= 0; --b) {
        uint32_t* begin = to;
        for_weights(layout_, b, c, [&](int64_t place, float w) {
          if (!(w > 0)) return;
          const auto q = static_cast<uint32_t>(std::min(255.f, std::nearbyint(w / step[c])));
          *to++ = static_cast<uint32_t>(labels - 1 - (b * layout_.block + place)) << 8 | q;
        });
        std::sort(begin, to);
      }
      *to = kNearEnd;
    });
  }

  void fill_bytes() {
    byte = Buffer<int8_t>(blocks() * dense.size() * kNearPlaces);
    parallel_for(layout_.blocks(), threads_, [&](int64_t layout_block, int) {
      for (int64_t r = 0; r < dense.size(); ++r) {
        for_weights(layout_, layout_block, dense[r], [&](int64_t in_block, float w) {
          const int64_t p = labels - 1 - (layout_block * layout_.block + in_block), lane = p % kTile;
          int8_t* tile =
              byte.data() + (p / kNearPlaces * dense.size() + r) * kNearPlaces + p % kNearPlaces - lane;
          tile[near_byte(lane)] =
              static_cast<int8_t>(std::clamp(std::nearbyint(w / step[dense[r]]), -127.f, 127.f));
        });
      }
    });
  }

 private:
  const LayoutView& layout_;
  const RowOptions& options_;
  const int threads_;
  std::vector<int64_t> positive_;  // weights of each feature
  std::vector<float> largest_;
  std::vector<int32_t> slot_;
};

}  // namespace

NearArrays<Buffer> build_near(const LayoutView& layout, const RowOptions& options, double density,
                              int64_t budget, int threads) {
  expect(layout.labels <= kMostNear, "more labels than an index can have");
  expect(layout.columns > 0 || !options.has_bias, "the layout has no column for the constant");
  // A block of the index is in one of the layout: threads never share one.
  expect(layout.blocks() <= 1 || layout.block % kNearPlaces == 0,
         "blocks of the layout must hold whole ones of the index");
  NearBuilder near(layout, options, threads);
  near.measure();
  near.choose_dense(density, budget);
  near.fill_bias();
  near.fill_lists();
  near.fill_bytes();
  return std::move(static_cast<NearArrays<Buffer>&>(near));
}

void check_near(const NearView& near, bool known, int threads) {
  expect(near.labels >= 0 && near.labels <= kMostNear && near.features >= 0,
         "labels or features are out of range");
  expect(near.unit.size == 1 && near.unit[0] > 0 && std::isfinite(near.unit[0]),
         "unit is no positive number");
  expect(near.bias.size == near.tiles() * kTile, "bias has a wrong length");
  expect(near.step.size == near.features, "step has a wrong length");
  expect(std::all_of(near.step.data, near.step.data + near.features,
                     [](float v) { return v > 0 && std::isfinite(v); }),
         "step is no positive number");
  for (int64_t j = 0; j < near.dense.size; ++j) {
    expect(near.dense[j] > (j ? near.dense[j - 1] : -1) && near.dense[j] < near.features,
           "dense is not ascending");
  }
  expect(near.byte.size == near.blocks() * near.dense.size * kNearPlaces, "byte has a wrong length");
  expect(near.ptr.size == near.features + 1 && near.ptr[0] == 0, "ptr has a wrong length");
  for (int64_t c = 0; c < near.features; ++c) expect(near.ptr[c] <= near.ptr[c + 1], "ptr is not ascending");
  expect(near.ptr[near.features] == near.posting.size, "ptr does not cover posting");
  if (known) return;
  std::vector<bool> is_dense(static_cast<size_t>(near.features));
  for (int64_t j = 0; j < near.dense.size; ++j) is_dense[static_cast<size_t>(near.dense[j])] = true;
  parallel_items(near.features, kColumns, threads, [&](int64_t c, int) {
    if (is_dense[static_cast<size_t>(c)]) return;
    const uint32_t *begin = near.posting + near.ptr[c], *end = near.posting + near.ptr[c + 1];
    expect(begin < end && end[-1] == kNearEnd, "a list has no end");
    int64_t before = -1;
    bool fit = true;
    for (const uint32_t* p = begin; p + 1 < end; before = *p++ >> 8) fit &= before < (*p >> 8);
    expect(fit && before < near.labels, "places of a list are not ascending or past the last");
  });
}

}  // namespace xmc::predict
