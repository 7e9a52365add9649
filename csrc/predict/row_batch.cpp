#include "predict/row_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace xmc::predict {

void RowBatch::take(const CsrView<>& x, const RowOptions& options, int64_t columns, int64_t from,
                    int64_t to) {
  const int64_t bias = options.has_bias ? 1 : 0, n = to - from;
  const auto size = static_cast<size_t>(x.begin(to) - x.begin(from) + n * bias);
  for (Features* of : {&all_, &dense, &sparse}) {
    of->start.assign(1, 0);
    of->start.resize(static_cast<size_t>(n) + 1);
    of->id.resize(size + kPast);
    of->value.resize(size + kPast);
  }
  // A row has as many fours as whole ones of its features, two for the rest of either sign, and some are read
  // ahead.
  four_.resize(size / 4 + static_cast<size_t>(2 * n + kAhead));
  row_.assign(static_cast<size_t>(n), {});
  int32_t* id = all_.id.data();
  float* value = all_.value.data();
  for (int64_t i = from; i < to; ++i) {
    const double squares = squared_length(x.data + x.begin(i), x.size(i));
    const float scale = row_scale(options, squares);
    for (int64_t p = x.begin(i); p < x.end(i); ++p) {
      *id++ = x.indices[p];
      *value++ = x.data[p] * scale;
    }
    if (options.has_bias) {
      *id++ = static_cast<int32_t>(columns - 1);
      *value++ = options.bias;
    }
    all_.start[static_cast<size_t>(i - from) + 1] = id - all_.id.data();
    // The constants here, below and in layout.cpp's error: products below the smallest normal number.
    const double length = squares * scale * scale + static_cast<double>(options.bias) * options.bias;
    PredictRow& row = row_[static_cast<size_t>(i - from)];
    row.length = static_cast<float>(std::sqrt(length) * (1 + 1e-6) + 1e-10);
    row.rounding = 5 * 0x1p-24f * static_cast<float>(x.size(i) + 9);
  }
}

void RowBatch::split(const LayoutView& layout, int64_t b, int64_t from, int64_t to) {
  const int32_t* entry = layout.entry + b * layout.columns;
  const int64_t n = to - from;
  from_ = from;
  n_heavy_ = layout.parts[b].n_heavy;
  heavy_.assign(static_cast<size_t>(n * n_heavy_), 0.f);
  Four* four = four_.data();
  FeatureList to_dense{dense.id.data(), dense.value.data()}, to_sparse{sparse.id.data(), sparse.value.data()};
  const auto kernel = predict_kernels().split;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t* start = all_.start.data() + from + i;
    kernel(entry, all_.id.data() + start[0], all_.value.data() + start[0], start[1] - start[0], to_dense,
           to_sparse);
    dense.start[static_cast<size_t>(i) + 1] = to_dense.id - dense.id.data();
    sparse.start[static_cast<size_t>(i) + 1] = to_sparse.id - sparse.id.data();
    four = add_fours(i, four);
  }
  std::fill(four, four + kAhead, Four{});
}

// The row's dense features for the first pass (predict.h), written from `four` on.
Four* RowBatch::add_fours(int64_t i, Four* four) {
  const int64_t first = dense.start[static_cast<size_t>(i)], last = dense.start[static_cast<size_t>(i) + 1];
  const int32_t* slot = dense.id.data();
  const float* value = dense.value.data();
  float most = 0;
  double total = 0;
  for (int64_t p = first; p < last; ++p) {
    if (slot[p] < n_heavy_) {
      heavy_[static_cast<size_t>(i * n_heavy_ + slot[p])] = value[p];
      continue;
    }
    most = std::max(most, std::abs(value[p]));
    total += std::abs(value[p]);
  }
  PredictRow& out = row_[static_cast<size_t>(from_ + i)];
  const auto levels = static_cast<float>(predict_kernels().levels());
  out.unit = std::max(most / levels, 1e-30f);
  out.sum = static_cast<float>(total * (1 + 1e-6) + 1e-10);
  const Four* begin = four_.data();
  out.from = out.negative = out.to = static_cast<int32_t>(four - begin);
  out.off = 0;
  if (!(total < std::numeric_limits<float>::max())) {
    out.length = std::numeric_limits<float>::infinity();  // no bound
    return four;
  }
  double squares = 0;
  for (const bool negative : {false, true}) {
    if (negative) out.negative = static_cast<int32_t>(four - begin);
    int filled = 4;
    for (int64_t p = first; p < last; ++p) {
      const float x = value[p];
      if ((x < 0) != negative || slot[p] < n_heavy_) continue;
      const float a = std::nearbyint(std::min(std::abs(x) / out.unit, levels));
      const double rest = std::abs(static_cast<double>(x)) - static_cast<double>(out.unit) * a;
      squares += rest * rest;
      if (a == 0) continue;
      if (filled == 4) {
        *four++ = {};
        filled = 0;
      }
      four[-1].slot[filled] = static_cast<uint16_t>(slot[p]);
      four[-1].a[filled++] = static_cast<uint8_t>(a);
    }
  }
  out.to = static_cast<int32_t>(four - begin);
  out.off = static_cast<float>(std::sqrt(squares) * (1 + 1e-6));
  return four;
}

}  // namespace xmc::predict
